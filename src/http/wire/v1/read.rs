//! Reads a request: from rows or columns to tensors or images.

use super::{
    super::{
        Parameters, bad_json, clipped, data, list,
        members::{FEW_MAX, member, members, members_or_absent},
        not_finite,
        predict::{Instance, Room, Text, decode_base64, decoded},
        request::{Input, fits},
    },
    Form,
};
use crate::{
    engine::{DataType, Dim, Tensor, TensorSpec, tensor::push_element},
    error::{InferError, bad},
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, iter};

/// The content of a request.
#[derive(Debug)]
pub enum Asked {
    /// Images to answer.
    Images {
        /// The images, in order; one that is not base64 has an error of its own.
        files: Vec<Result<Bytes, InferError>>,
        /// `parameters` of the request.
        parameters: Parameters,
    },
    /// Tensors to run through the model.
    Tensors(Vec<Input>),
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Wire<'a> {
    #[serde(borrow, default)]
    instances: Option<&'a RawValue>,
    #[serde(borrow, default)]
    inputs: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "members_or_absent::<FEW_MAX, _, _>")]
    parameters: Parameters,
}

/// The inputs that a model takes.
#[derive(Debug, Clone, Copy)]
pub struct Taken<'a> {
    /// Its inputs.
    pub inputs: &'a [TensorSpec],
    /// The forms in which its only input may be pixels; empty if it may not be.
    pub pixels: &'a [TensorSpec],
    /// Whether it takes encoded images.
    pub images: bool,
}

/// Reads a request for a model that takes such inputs. Unknown members, such as `signature_name`, are ignored.
///
/// # Errors
/// 400 saying what was expected, and for an option for images beside numbers; 413 for more than `images_max` images; the error of `room`,
/// which is called for the memory of images.
pub fn read(
    body: &[u8],
    taken: Taken<'_>,
    images_max: usize,
    room: Room<'_>,
) -> Result<(Form, Asked), InferError> {
    let mut room_for_words = Vec::new();
    let wire: Wire<'_> =
        not_finite::read(body, &mut room_for_words).map_err(|error| bad_json("the body", &error))?;
    let (form, given) = match (wire.instances, wire.inputs) {
        (Some(rows), None) => (Form::Rows, rows),
        (None, Some(columns)) => (Form::Columns, columns),
        _ => return Err(bad("the body must have either instances (rows) or inputs (columns)")),
    };
    let parameters = wire.parameters;
    if taken.images && !holds_numbers(given, taken.inputs.first()) {
        let files = images(form, given, taken.inputs, images_max, room)?;
        return Ok((form, Asked::Images { files, parameters }));
    }
    if parameters.contains_key("top_k") {
        return Err(bad(
            "top_k is for images, which are answered by their classes; numbers are answered by all that the model gives",
        ));
    }
    let inputs = match form {
        Form::Rows => row_tensors(given, taken)?,
        Form::Columns => column_tensors(given, taken)?,
    };
    Ok((form, Asked::Tensors(inputs)))
}

/// TorchServe's clients use these names for a tensor whose model gives it no other; the first that is present counts.
const DATA: [&str; 2] = ["data", "body"];

/// Whether the innermost first element is a number, or a word that stands for one, or a `null` within a list of its own. It may also be
/// within an object, as the value for the input.
fn holds_numbers(given: &RawValue, input: Option<&TensorSpec>) -> bool {
    let first = given.get().trim_start_matches(|c: char| c == '[' || c.is_ascii_whitespace());
    if first.starts_with(not_finite::NULL) {
        // An instance that is `null` is no image.
        return within_lists(given.get()) > usize::from(input.is_some());
    }
    match (first.as_bytes().first(), input) {
        (Some(b'{'), Some(input)) => {
            let within = member(first, &input.name).or_else(|| listed_data(first));
            within.is_some_and(|value| holds_numbers(value, None))
        }
        (Some(b'"'), _) => not_finite::begins(&first[1..]),
        (first, _) => first.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-'),
    }
}

/// In how many lists the innermost first element is.
fn within_lists(json: &str) -> usize {
    json.bytes().filter(|byte| !byte.is_ascii_whitespace()).take_while(|byte| *byte == b'[').count()
}

/// The list under one of [`DATA`], if there is one.
fn listed_data(object: &str) -> Option<&RawValue> {
    DATA.into_iter().find_map(|name| member(object, name)).filter(|data| data.get().starts_with('['))
}

/// Reads images where they stand: only their text is read, and only their bytes are stored.
fn images(
    form: Form,
    given: &RawValue,
    specs: &[TensorSpec],
    images_max: usize,
    room: Room<'_>,
) -> Result<Vec<Result<Bytes, InferError>>, InferError> {
    let name = specs.first().map_or("", |spec| &spec.name);
    // With one input, its name may be omitted; with one image, its list.
    let (list, one) = match form {
        Form::Rows => (given, false),
        Form::Columns => {
            let list = member(given.get(), name).unwrap_or(given);
            (list, !list.get().starts_with('['))
        }
    };
    let mut kept = Vec::new();
    let count = if one {
        kept.push(image(0, list, name)?);
        1
    } else {
        list::each(list.get(), "the list of images", |index, row| {
            if index < images_max {
                kept.push(image(index, row, name)?);
            }
            Ok(())
        })?
    };
    let images = decoded(kept, count, images_max, room)?;
    Ok(images.into_iter().map(|image| image.map(Bytes::from)).collect())
}

/// An image, which may be held under the input's name.
fn image<'a>(index: usize, row: &'a RawValue, name: &str) -> Result<Instance<'a>, InferError> {
    Instance::named(row.get(), name).map_err(|error| bad_json(&format!("instance {index}"), &error))
}

fn row_tensors(given: &RawValue, taken: Taken<'_>) -> Result<Vec<Input>, InferError> {
    let first = list::first(given.get(), "instances")?;
    let first = first.ok_or_else(|| bad("instances is empty, expected 1 or more"))?;
    if let [only] = taken.inputs
        && !names(first, only)
    {
        return Ok(vec![input(only, taken.pixels, given)?]);
    }
    let mut columns: BTreeMap<String, String> = BTreeMap::new();
    list::each(given.get(), "instances", |index, row| {
        let members = columns_of(row, taken.inputs)
            .map_err(|_| bad(format!("instance {index} must be an object with a member for each input")))?;
        // Otherwise rows of one input would be combined with other rows of another input.
        if index > 0 && !members.keys().eq(columns.keys()) {
            return Err(bad(format!("instance {index} has other members than instance 0")));
        }
        for (name, value) in members {
            let column = columns.entry(name.into_owned()).or_default();
            column.push(if column.is_empty() { '[' } else { ',' });
            column.push_str(value.get());
        }
        Ok(())
    })?;
    columns
        .into_iter()
        .map(|(name, text)| {
            let text = RawValue::from_string(text + "]").map_err(|error| bad_json("instances", &error))?;
            input(spec(taken.inputs, &name)?, taken.pixels, &text)
        })
        .collect()
}

fn column_tensors(given: &RawValue, taken: Taken<'_>) -> Result<Vec<Input>, InferError> {
    if let [only] = taken.inputs
        && !names(given.get(), only)
    {
        return Ok(vec![input(only, taken.pixels, given)?]);
    }
    let columns = columns_of(given, taken.inputs).map_err(|error| bad_json("inputs", &error))?;
    let column =
        |(name, value): (Cow<'_, str>, &RawValue)| input(spec(taken.inputs, &name)?, taken.pixels, value);
    columns.into_iter().map(column).collect()
}

/// The members of an object by the inputs that they are for. Where the only input is there, others are passed over, such as the `target` of
/// TorchServe's clients.
fn columns_of<'a>(
    value: &'a RawValue,
    inputs: &'a [TensorSpec],
) -> serde_json::Result<BTreeMap<Cow<'a, str>, &'a RawValue>> {
    let all: BTreeMap<Cow<'_, str>, &RawValue> =
        members::<FEW_MAX, _, _>(&mut serde_json::Deserializer::from_str(value.get()))?;
    let of_only = match inputs {
        [only] => iter::once(only.name.as_str())
            .chain(DATA)
            .find_map(|name| all.get(name))
            .map(|value| (only, *value)),
        _ => None,
    };
    Ok(match of_only {
        Some((only, value)) => BTreeMap::from([(only.name.as_str().into(), value)]),
        None => all,
    })
}

/// Whether a value names its inputs. An object does, unless it is an element of a text input.
fn names(value: &str, only: &TensorSpec) -> bool {
    member(value, &only.name).is_some()
        || listed_data(value).is_some()
        || (only.datatype != DataType::Bytes && value.starts_with('{'))
}

fn spec<'a>(specs: &'a [TensorSpec], name: &str) -> Result<&'a TensorSpec, InferError> {
    specs.iter().find(|spec| spec.name == name).ok_or_else(|| {
        let there = specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        bad(format!("the model has no input {:?}; it has {there}", clipped(name)))
    })
}

fn input(spec: &TensorSpec, pixels: &[TensorSpec], value: &RawValue) -> Result<Input, InferError> {
    let tensor = match spec.datatype {
        DataType::Bytes => text(spec, value)?,
        own => {
            let shape = shape(spec, value)?;
            let datatype = if are_pixels(spec, pixels, &shape) { DataType::Uint8 } else { own };
            // Before its elements are read, as many as they may be.
            let forms: Vec<TensorSpec> = iter::once(spec).chain(pixels).cloned().collect();
            fits(&forms, &spec.name, datatype, &shape)?;
            data::nested(&spec.name, datatype, shape, value)?
        }
    };
    Ok(Input::whole(spec.name.clone(), tensor))
}

/// Whether numbers of this shape, which is not the input's own, are pixels of 8 bits: numbers alone do not show more bits.
fn are_pixels(own: &TensorSpec, pixels: &[TensorSpec], shape: &[usize]) -> bool {
    !own.takes(shape) && pixels.iter().any(|form| form.datatype == DataType::Uint8 && form.takes(shape))
}

/// How deep lists may be nested: as deep as a shape may have extents.
const DEPTH_MAX: usize = 16;

/// The shape of nested lists by their first elements; whether the others agree is checked when they are read. An empty list does not show
/// the extents behind it: those are the input's.
fn shape(spec: &TensorSpec, value: &RawValue) -> Result<Vec<usize>, InferError> {
    let name = &spec.name;
    let mut shape = list::lengths(value.get());
    if shape.is_empty() {
        return Err(bad(format!("input {name:?}: expected a list")));
    }
    if shape.len() > DEPTH_MAX {
        return Err(bad(format!("input {name:?}: lists are within each other more than {DEPTH_MAX} deep")));
    }
    if shape.ends_with(&[0]) {
        let behind = spec.shape.iter().skip(shape.len());
        shape.extend(behind.map(|dim| if let Dim::Fixed(extent) = dim { *extent } else { 0 }));
    }
    Ok(shape)
}

/// Texts, or bytes in base64, in lists whose nesting states their shape.
fn text(spec: &TensorSpec, value: &RawValue) -> Result<Tensor, InferError> {
    let what = format!("input {:?}", spec.name);
    let shape = shape(spec, value)?;
    let (mut bytes, mut index) = (Vec::new(), 0);
    each_of(&shape, value, &what, &mut |element| {
        let text = element.get();
        // serde would accept a list of one text for the object.
        let read = if text.starts_with('[') { "null" } else { text };
        let Text { text, wrapped } = serde_json::from_str(read).map_err(|error| bad_json(&what, &error))?;
        let element = match wrapped {
            false => Cow::Borrowed(text.as_bytes()),
            true => Cow::Owned(decode_base64(index, &text)?),
        };
        index += 1;
        push_element(&mut bytes, &element).ok_or_else(|| bad("an element is longer than 4 GiB"))
    })?;
    Ok(Tensor { datatype: DataType::Bytes, shape, data: bytes.into() })
}

/// Calls a function for each element of nested lists, which must have this shape.
fn each_of(
    shape: &[usize],
    value: &RawValue,
    what: &str,
    take: &mut dyn FnMut(&RawValue) -> Result<(), InferError>,
) -> Result<(), InferError> {
    let Some((expected, inner)) = shape.split_first() else { return take(value) };
    match list::each(value.get(), what, |_, element| each_of(inner, element, what, take))? {
        count if count == *expected => Ok(()),
        count => Err(bad(format!("{what}: a list has {count} where the first of its kind has {expected}"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::engine::Dim::{Fixed, Free};
    use std::slice;

    /// The same with unlimited room.
    fn read(body: &[u8], taken: Taken<'_>, images_max: usize) -> Result<(Form, Asked), InferError> {
        super::read(body, taken, images_max, &mut |_| Ok(()))
    }

    fn spec_of(name: &str, datatype: DataType) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: vec![Free, Fixed(2)] }
    }

    fn taken(inputs: &[TensorSpec], images: bool) -> Taken<'_> {
        Taken { inputs, pixels: &[], images }
    }

    type Numbers = (String, Vec<usize>, Vec<f32>);

    fn tensors(body: &str, specs: &[TensorSpec]) -> Result<Vec<Numbers>, InferError> {
        match read(body.as_bytes(), taken(specs, false), 4)? {
            (_, Asked::Tensors(inputs)) => Ok(inputs
                .into_iter()
                .map(|input| {
                    let numbers = input.tensor.to_f32().unwrap_or_default();
                    (input.name, input.tensor.shape, numbers)
                })
                .collect()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rows_and_columns_are_the_same_tensors() {
        let specs = [spec_of("a", DataType::Fp32), spec_of("b", DataType::Int32)];
        let (a, b) = (vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]);
        let expected = vec![("a".to_owned(), vec![2, 2], a.clone()), ("b".to_owned(), vec![2, 2], b)];
        let rows = r#"{"instances":[{"b":[5,6],"a":[1,2]},{"a":[3,4],"b":[7,8]}]}"#;
        assert_eq!(tensors(rows, &specs), Ok(expected.clone()));
        let columns = r#"{"signature_name":"x","inputs":{"a":[[1,2],[3,4]],"b":[[5,6],[7,8]]}}"#;
        assert_eq!(tensors(columns, &specs), Ok(expected));
        let one = vec![("a".to_owned(), vec![2, 2], a)];
        for body in [
            r#"{"instances":[[1,2],[3,4]]}"#,
            r#"{"inputs":[[1,2],[3,4]]}"#,
            r#"{"instances":[{"a":[1,2]},{"a":[3,4]}]}"#,
            r#"{"instances":[{"data":[1,2]},{"data":[3,4]}]}"#,
            r#"{"instances":[{"data":[1,2],"target":0},{"a":[3,4],"data":7,"z":[9]}]}"#,
            r#"{"inputs":{"a":[[1,2],[3,4]],"target":0}}"#,
            r#"{"instances":[{"body":[1,2]},{"data":[3,4],"body":[7,8]}]}"#,
        ] {
            assert_eq!(tensors(body, &specs[..1]), Ok(one.clone()), "{body}");
        }
    }

    #[test]
    fn numbers_of_a_shape_that_the_model_does_not_take_are_not_read() {
        let specs = [spec_of("a", DataType::Fp32)];
        for body in [r#"{"instances":[[1,2,"x"]]}"#, r#"{"inputs":{"a":[[1,2,"x"]]}}"#] {
            let error = tensors(body, &specs).unwrap_err().to_string();
            assert_eq!(error, "input \"a\" has shape [1, 3], expected [-1, 2] (-1 is any)", "{body}");
        }
    }

    #[test]
    fn an_empty_list_has_the_extents_of_the_input_behind_it() {
        let of = |dims: &[Dim], body: &str| {
            let spec = TensorSpec { name: "a".to_owned(), datatype: DataType::Fp32, shape: dims.to_vec() };
            tensors(body, slice::from_ref(&spec)).map(|read| (read[0].1.clone(), read[0].2.len()))
        };
        let past = [Free, Fixed(2), Free, Fixed(4)];
        assert_eq!(of(&past, r#"{"instances":[[[],[]]]}"#), Ok((vec![1, 2, 0, 4], 0)));
        assert_eq!(of(&past, r#"{"inputs":{"a":[[[],[]],[[],[]]]}}"#), Ok((vec![2, 2, 0, 4], 0)));
        assert_eq!(of(&[Free, Fixed(2)], r#"{"inputs":{"a":[]}}"#), Ok((vec![0, 2], 0)));
        assert_eq!(of(&[Free, Free, Free], r#"{"instances":[[],[]]}"#), Ok((vec![2, 0, 0], 0)));
        assert!(of(&past, r#"{"instances":[[[],[1]]]}"#).is_err());
    }

    #[test]
    fn data_is_a_tensor_where_it_is_a_list_and_the_model_has_one_input() {
        let of = |body: &str, specs: &[TensorSpec], images| {
            let (_, asked) = read(body.as_bytes(), taken(specs, images), 4)?;
            Ok::<_, InferError>(match asked {
                Asked::Tensors(inputs) => inputs.into_iter().map(|input| input.tensor.data).collect(),
                Asked::Images { files, .. } => files.into_iter().collect::<Result<Vec<_>, _>>()?,
            })
        };
        let (numbers, texts) = (spec_of("x", DataType::Fp32), spec_of("t", DataType::Bytes));
        let two = Bytes::from([1_f32, 2.0].map(f32::to_le_bytes).concat());
        for (images, name) in [(false, "data"), (true, "data"), (true, "body")] {
            let body = format!(r#"{{"instances":[{{"{name}":[1,2]}}]}}"#);
            assert_eq!(of(&body, slice::from_ref(&numbers), images), Ok(vec![two.clone()]), "{body}");
        }
        let got = of(r#"{"instances":[{"data":["a","b"]}]}"#, slice::from_ref(&texts), false);
        assert_eq!(got, Ok(vec![Bytes::from("\u{1}\0\0\0a\u{1}\0\0\0b")]));
        // A base64 text stays one.
        for name in ["data", "body"] {
            let body = format!(r#"{{"instances":[{{"{name}":"YWI="}}]}}"#);
            assert_eq!(of(&body, slice::from_ref(&numbers), true), Ok(vec![Bytes::from("ab")]), "{body}");
        }
        let error =
            of(r#"{"instances":[{"data":[1,2]}]}"#, &[numbers, texts], false).unwrap_err().to_string();
        assert!(error.contains("no input \"data\""), "{error}");
    }

    #[test]
    fn words_that_are_no_json_are_numbers_outside_of_strings() {
        let specs = [spec_of("x", DataType::Fp32)];
        let read =
            tensors(r#"{"instances": [[NaN, 1], [-Infinity, Infinity]], "key": "a \"NaN"}"#, &specs).unwrap();
        let [(_, shape, numbers)] = &read[..] else { panic!("{read:?}") };
        assert_eq!((&shape[..], numbers[0].is_nan()), (&[2, 2][..], true));
        assert_eq!(numbers[1..], [1.0, f32::NEG_INFINITY, f32::INFINITY]);
        assert!(tensors(r#"{"instances": [[NaN, 1]"#, &specs).is_err());
    }

    #[test]
    fn text_may_be_base64() {
        let spec = [TensorSpec { name: "t".into(), datatype: DataType::Bytes, shape: vec![Free] }];
        for body in [
            r#"{"instances":["ab",{"b64":"Yw=="}]}"#,
            r#"{"instances":["ab",{"b64":"Y\nw==\n"}]}"#,
            r#"{"inputs":{"t":["ab","c"]}}"#,
            r#"{"instances":[{"t":"ab"},{"t":{"b64":"Yw"}}]}"#,
        ] {
            let (_, Asked::Tensors(inputs)) = read(body.as_bytes(), taken(&spec, false), 4).unwrap() else {
                panic!()
            };
            assert_eq!(inputs[0].tensor.data[..], *b"\x02\0\0\0ab\x01\0\0\0c", "{body}");
        }
    }

    #[test]
    fn text_has_the_shape_that_its_lists_say() {
        let spec = [TensorSpec { name: "t".into(), datatype: DataType::Bytes, shape: vec![Free, Free] }];
        let text = |body: &str| match read(body.as_bytes(), taken(&spec, false), 4)? {
            (_, Asked::Tensors(mut inputs)) => {
                let Tensor { shape, data, .. } = inputs.remove(0).tensor;
                Ok::<_, InferError>((shape, data.to_vec()))
            }
            other => panic!("{other:?}"),
        };
        let four = b"\x01\0\0\0a\x01\0\0\0b\x01\0\0\0c\x01\0\0\0d".to_vec();
        for body in [
            r#"{"instances":[["a","b"],[{"b64":"Yw"},"d"]]}"#,
            r#"{"instances":[{"t":["a","b"]},{"t":["c","d"]}]}"#,
            r#"{"inputs":{"t":[["a",{"b64":"Yg=="}],["c","d"]]}}"#,
        ] {
            assert_eq!(text(body), Ok((vec![2, 2], four.clone())), "{body}");
        }
        assert_eq!(text(r#"{"inputs":[["a"],["b"],["c"],["d"]]}"#), Ok((vec![4, 1], four)));
        for (body, told) in [
            (r#"{"inputs":[["a","b"],["c"]]}"#, "1 where the first of its kind has 2"),
            (r#"{"inputs":["a",["b"]]}"#, "a string or an object with b64"),
            (r#"{"inputs":[["a"],"b"]}"#, "expected a list"),
            (r#"{"inputs":"a"}"#, "expected a list"),
            (r#"{"inputs":[[1]]}"#, "a string or an object with b64"),
        ] {
            let error = text(body).unwrap_err().to_string();
            assert!(error.contains(told), "{body}: {error}");
        }
    }

    #[test]
    fn numbers_may_begin_with_a_word_also_where_images_are_taken() {
        let specs = [spec_of("image", DataType::Fp32)];
        for (body, numbers) in [
            (r#"{"instances":[[NaN,1]]}"#, true),
            (r#"{"instances":[{"image":[-Infinity,1]}]}"#, true),
            (r#"{"inputs":{"image":[["Infinity",1]]}}"#, true),
            (r#"{"instances":[ [null,1] ]}"#, true),
            (r#"{"instances":[{"image":[null,1]}]}"#, true),
            (r#"{"instances":["NaNN"]}"#, false),
        ] {
            let (_, asked) = read(body.as_bytes(), taken(&specs, true), 4).unwrap();
            assert_eq!(matches!(asked, Asked::Tensors(_)), numbers, "{body}");
        }
    }

    #[test]
    fn images_come_as_rows_or_columns() {
        let specs = [spec_of("image", DataType::Fp32)];
        for (body, form) in [
            (r#"{"instances":[{"b64":"YWI="},{"image_bytes":{"b64":"Yw"}}]}"#, Form::Rows),
            (r#"{"inputs":[{"b64":"YWI="},"Yw"]}"#, Form::Columns),
            (r#"{"inputs":{"image":[{"b64":"YWI="},{"b64":"Yw"}]}}"#, Form::Columns),
            (r#"{"instances":[{"image":{"b64":"YWI="}},{"image":"Yw","key":"1"}]}"#, Form::Rows),
        ] {
            let (got, Asked::Images { files, .. }) = read(body.as_bytes(), taken(&specs, true), 4).unwrap()
            else {
                panic!("{body}")
            };
            let files: Vec<_> = files.into_iter().map(Result::unwrap).collect();
            assert_eq!((got, &files[..]), (form, &[Bytes::from("ab"), Bytes::from("c")][..]), "{body}");
        }
        // The form in KServe's examples, whatever the input's name is.
        let body = br#"{"instances":[{"image":{"b64":"YWI="}},{"image":"Yw"},{"image":"a.png","x":"Yw"}]}"#;
        let x = [spec_of("x", DataType::Fp32)];
        let Ok((_, Asked::Images { files, .. })) = read(body, taken(&x, true), 4) else { panic!() };
        assert_eq!(files, ["ab", "c", "c"].map(|file| Ok(Bytes::from(file))));
        let one = br#"{"inputs":{"b64":"YWI="}}"#;
        assert!(
            matches!(read(one, taken(&specs, true), 4), Ok((_, Asked::Images { files, .. })) if files.len() == 1)
        );
        assert!(matches!(
            read(br#"{"instances":[[1,2]]}"#, taken(&specs, true), 4),
            Ok((_, Asked::Tensors(_)))
        ));
    }

    #[test]
    fn numbers_nested_as_only_pixels_are_have_8_bits() {
        let form = |datatype, shape: [i64; 4]| TensorSpec {
            shape: shape.map(|n| usize::try_from(n).map_or(Free, Fixed)).to_vec(),
            ..spec_of("x", datatype)
        };
        let own = [form(DataType::Fp32, [-1, 3, 2, 2])];
        let pixels = [form(DataType::Uint8, [-1, 2, 2, 3]), form(DataType::Uint16, [-1, 2, 2, 3])];
        let tensor = |body: &str, own: &[TensorSpec]| {
            let taken = Taken { inputs: own, pixels: &pixels, images: true };
            match read(body.as_bytes(), taken, 4)? {
                (_, Asked::Tensors(mut inputs)) => Ok::<_, InferError>(inputs.remove(0).tensor),
                other => panic!("{other:?}"),
            }
        };
        let (row, channel) = ("[[1,2,3],[4,5,255]]", "[[1,2],[3,4]]");
        for body in [
            format!(r#"{{"instances":[[{row},{row}]]}}"#),
            format!(r#"{{"inputs":{{"x":[[{row},{row}]]}}}}"#),
            format!(r#"{{"instances":[{{"x":[{row},{row}]}}]}}"#),
        ] {
            let of = tensor(&body, &own).unwrap();
            assert_eq!((of.datatype, &of.shape[..]), (DataType::Uint8, &[1, 2, 2, 3][..]), "{body}");
            assert_eq!(of.data[..], [1, 2, 3, 4, 5, 255, 1, 2, 3, 4, 5, 255]);
        }
        let planes = format!(r#"{{"instances":[[{channel},{channel},{channel}]]}}"#);
        assert_eq!(tensor(&planes, &own).unwrap().datatype, DataType::Fp32);
        // If the network itself has the channels last, nothing distinguishes the two.
        let last = [form(DataType::Fp32, [-1, 2, 2, 3])];
        assert_eq!(
            tensor(&format!(r#"{{"instances":[[{row},{row}]]}}"#), &last).unwrap().datatype,
            DataType::Fp32
        );
        let bright = row.replace("255", "256");
        let told = tensor(&format!(r#"{{"instances":[[{row},{bright}]]}}"#), &own).unwrap_err().to_string();
        assert!(told.contains("255"), "{told}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let specs = [spec_of("a", DataType::Fp32), spec_of("b", DataType::Fp32)];
        for (body, told) in [
            ("{}", "either instances"),
            (r#"{"instances":[],"inputs":[]}"#, "either instances"),
            (r#"{"instances":[]}"#, "is empty"),
            ("[[[1,2]],null,null]", "a list, expected an object"),
            (r#"{"instances":[[1,2]]}"#, "instance 0 must be an object"),
            (r#"{"instances":[{"c":[1,2]}]}"#, "no input \"c\""),
            (r#"{"instances":[{"a":[1,2],"b":[1,2]},{"a":[1,2]}]}"#, "instance 1 has other members"),
            (r#"{"instances":[{"a":[1,2]},{"b":[1,2]}]}"#, "instance 1 has other members"),
            (r#"{"instances":[{"a":[1,2],"b":[1,2]},{}]}"#, "instance 1 has other members"),
            (r#"{"inputs":{"a":1}}"#, "expected a list"),
            (r#"{"inputs":{"a":[[1,2],[3]]}}"#, "has 1 members where the first of its kind has 2"),
        ] {
            let error = tensors(body, &specs).unwrap_err().to_string();
            assert!(error.contains(told), "{body}: {error}");
        }
        // With one input, its name may be omitted, but must not be another name.
        for (body, told) in [
            (r#"{"instances":[{"z":[1,2]}]}"#, "the model has no input \"z\"; it has a"),
            (r#"{"inputs":{"z":[[1,2]]}}"#, "the model has no input \"z\"; it has a"),
            (r#"{"inputs":1}"#, "input \"a\": expected a list"),
        ] {
            let error = tensors(body, &specs[..1]).unwrap_err().to_string();
            assert!(error.contains(told), "{body}: {error}");
        }
        let deep = format!("{{\"inputs\":{{\"a\":{}1{}}}}}", "[".repeat(30), "]".repeat(30));
        assert!(tensors(&deep, &specs).unwrap_err().to_string().contains("deep"));
    }
}
