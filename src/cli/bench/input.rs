//! The requests to send: from files, or with generated pictures and tensors that fit the model's inputs.

use super::super::{
    client::InputSpec,
    message::{Ask, Kind, Message},
};
use crate::random::Random;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Number of different generated pictures, so that a cache does not answer all requests with the first.
const PICTURES: u64 = 8;
/// Side of a generated picture in pixels, if the model does not determine it.
const SIDE: u32 = 224;
/// Size of all messages together, at most.
const BYTES_MAX: u64 = 1 << 30;

/// The files of a path: itself, or those in a folder, in the order of their names.
///
/// # Errors
/// A message, if there is none.
pub(in crate::cli) fn paths(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.exists() {
        return Err(format!("there is no file {}", path.display()));
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<PathBuf>, _>>()
    });
    let entries = entries.map_err(|error| format!("cannot read the folder {}: {error}", path.display()))?;
    let mut paths: Vec<PathBuf> = entries.into_iter().filter(|path| path.is_file()).collect();
    paths.sort();
    if paths.is_empty() { Err(format!("the folder {} holds no file", path.display())) } else { Ok(paths) }
}

/// The source of the messages.
pub(in crate::cli) struct Source<'a> {
    pub(in crate::cli) ask: Ask<'a>,
    /// Shapes of inputs, by name, for those that the model leaves open.
    pub(in crate::cli) shapes: BTreeMap<String, Vec<usize>>,
    /// Items along an open first axis; `None` means one.
    pub(in crate::cli) items: Option<usize>,
    pub(in crate::cli) seed: u64,
    /// How a user chooses tensors, for messages; `None` if the command has no such option.
    pub(in crate::cli) by_tensors: Option<&'static str>,
}

impl Source<'_> {
    /// A message for each file: pictures or stacks unchanged, `.npy` and `.json` for a model of tensors.
    ///
    /// # Errors
    /// A message, if a file cannot be read.
    pub(in crate::cli) fn files(&self, paths: &[PathBuf]) -> Result<Vec<Message>, String> {
        let mut left = BYTES_MAX;
        let mut messages = Vec::new();
        for path in paths {
            let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                format!("the files take more than the {BYTES_MAX} bytes that are held at once: give fewer")
            })?;
            let message = self.ask.file(path, bytes);
            messages.push(message.map_err(|why| format!("{}: {why}", path.display()))?);
        }
        Ok(messages)
    }

    /// Generated messages.
    ///
    /// # Errors
    /// A message, if the model leaves too much of its inputs open.
    pub(in crate::cli) fn made_up(&self) -> Result<Vec<Message>, String> {
        let mut random = Random::new(self.seed);
        match self.ask.kind {
            Kind::Images if self.items.is_some() || !self.shapes.is_empty() => {
                let or = self.by_tensors.map(|option| format!(", or have bench send tensors ({option})"));
                Err(format!(
                    "--items and --shape are of tensors, and model {:?} is asked with files: leave them out{}",
                    self.ask.model.name,
                    or.unwrap_or_default()
                ))
            }
            Kind::Images if self.ask.described.task == "localize" => {
                let or =
                    self.by_tensors.map(|option| format!(", or ROIs with {option} --shape rois=100,7,7"));
                Err(format!("stacks are not made up: give one with --input{}", or.unwrap_or_default()))
            }
            Kind::Images => {
                let (width, height) = self.ask.described.inputs.first().map_or((SIDE, SIDE), sides);
                (0..PICTURES).map(|_| Ok(self.ask.picture(picture(&mut random, width, height)?))).collect()
            }
            Kind::Tensors => {
                let inputs = &self.ask.described.inputs;
                let wanted = inputs
                    .iter()
                    .filter(|input| self.shapes.is_empty() || self.shapes.contains_key(&input.name));
                let wanted: Vec<_> = wanted.collect();
                if let Some(name) =
                    self.shapes.keys().find(|name| wanted.iter().all(|input| input.name != **name))
                {
                    let names: Vec<&str> = inputs.iter().map(|input| &*input.name).collect();
                    return Err(format!(
                        "--shape names {name:?}; the model has the inputs {}",
                        names.join(", ")
                    ));
                }
                let open = |input: &&InputSpec| {
                    !self.shapes.contains_key(&input.name)
                        && input.shape.first().is_some_and(|side| *side < 0)
                };
                if self.items.is_some() && !wanted.iter().any(open) {
                    return Err("--items is of an open first axis, and no input that is sent has one without a --shape".into());
                }
                let (mut heads, mut data) = (Vec::new(), Vec::new());
                for input in wanted {
                    let shape = self.shape(input)?;
                    let made = match (&*self.ask.described.task, &shape[..]) {
                        ("localize", &[count, height, width]) => rois(&mut random, count, height, width),
                        _ => tensor(&mut random, &input.datatype, &shape),
                    };
                    let bytes = made.map_err(|why| format!("input {:?}: {why}", input.name))?;
                    heads.push(json!({
                        "name": input.name, "shape": shape, "datatype": input.datatype,
                        "parameters": { "binary_data_size": bytes.len() },
                    }));
                    data.extend(bytes);
                }
                let head = json!({ "inputs": heads, "parameters": { "binary_data_output": true } });
                Ok(vec![self.ask.binary(&head.to_string(), &data)])
            }
        }
    }

    fn shape(&self, input: &InputSpec) -> Result<Vec<usize>, String> {
        if let Some(shape) = self.shapes.get(&input.name) {
            return Ok(shape.clone());
        }
        let side = |(axis, side): (usize, &i64)| match (axis, usize::try_from(*side)) {
            (_, Ok(side)) => Ok(side),
            (0, Err(_)) => Ok(self.items.unwrap_or(1)),
            _ => {
                let side = |(axis, side): (usize, &i64)| match (axis, *side) {
                    (_, 1..) => side.to_string(),
                    (0, _) => "1".to_owned(),
                    _ => "7".to_owned(),
                };
                let such: Vec<String> = input.shape.iter().enumerate().map(side).collect();
                Err(format!(
                    "input {0:?} has the open shape {1:?}: give it one, such as --shape {0}={2}",
                    input.name,
                    input.shape,
                    such.join(",")
                ))
            }
        };
        input.shape.iter().enumerate().map(side).collect()
    }
}

/// Width and height of an image input, whichever axis has the channels.
fn sides(input: &InputSpec) -> (u32, u32) {
    let (height, width) = match input.shape[..] {
        [_, 1 | 3, height, width] => (height, width),
        [_, height, width, _] => (height, width),
        _ => (-1, -1),
    };
    let side = |side: i64| u32::try_from(side).ok().filter(|side| *side > 0).unwrap_or(SIDE);
    (side(width), side(height))
}

/// A PNG with a smooth background and some noise, like a photograph.
fn picture(random: &mut Random, width: u32, height: u32) -> Result<Vec<u8>, String> {
    let phases = [random.unit(), random.unit(), random.unit()];
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
    for y in 0..height {
        for x in 0..width {
            let (x, y) = (f64::from(x) / f64::from(width), f64::from(y) / f64::from(height));
            for phase in phases {
                let wave = ((x + 2.0 * y + phase) * std::f64::consts::TAU).sin() * 96.0;
                pixels.push((128.0 + wave + random.unit() * 16.0) as u8);
            }
        }
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().map_err(|error| error.to_string())?;
    writer.write_image_data(&pixels).map_err(|error| error.to_string())?;
    writer.finish().map_err(|error| error.to_string())?;
    Ok(file)
}

/// Number of elements of a shape.
fn numbers(shape: &[usize]) -> Result<usize, String> {
    let numbers = shape.iter().try_fold(1_usize, |product, side| product.checked_mul(*side));
    let bounded = numbers.filter(|numbers| *numbers as u64 <= BYTES_MAX / 8);
    bounded.ok_or_else(|| format!("the shape {shape:?} is too large"))
}

/// ROIs with a spot near the centre, as a camera with offset 100 and gain 2 would record it. This is a fitter's usual input; fits
/// of anything else take longer.
fn rois(random: &mut Random, count: usize, height: usize, width: usize) -> Result<Vec<u8>, String> {
    const SIGMA_PX: f64 = 1.3;
    const BACKGROUND: f64 = 10.0;
    let mut bytes = Vec::with_capacity(4 * numbers(&[count, height, width])?);
    for _ in 0..count {
        let photons = 500.0 + 1500.0 * random.unit();
        let [y0, x0] = [height, width].map(|side| (side as f64 - 1.0) / 2.0 + random.unit() - 0.5);
        for y in 0..height {
            for x in 0..width {
                let square = (x as f64 - x0).powi(2) + (y as f64 - y0).powi(2);
                let spot = (-square / (2.0 * SIGMA_PX * SIGMA_PX)).exp()
                    / (std::f64::consts::TAU * SIGMA_PX * SIGMA_PX);
                let expected = BACKGROUND + photons * spot;
                // With this many photons, a normal distribution approximates Poisson's.
                let noise = random.normal();
                let counted = (expected + expected.sqrt() * noise).max(0.0);
                bytes.extend(((100.0 + 2.0 * counted) as f32).to_le_bytes());
            }
        }
    }
    Ok(bytes)
}

/// Numbers from 0 to 1; integers are 0 or 1.
fn tensor(random: &mut Random, datatype: &str, shape: &[usize]) -> Result<Vec<u8>, String> {
    let items = numbers(shape)?;
    let mut bytes = Vec::new();
    for _ in 0..items {
        let value = random.unit();
        match datatype {
            "FP32" => bytes.extend((value as f32).to_le_bytes()),
            "FP64" => bytes.extend(value.to_le_bytes()),
            "FP16" => bytes.extend(half::f16::from_f64(value).to_le_bytes()),
            "BF16" => bytes.extend(half::bf16::from_f64(value).to_le_bytes()),
            "BOOL" | "UINT8" | "INT8" => bytes.push(u8::from(value >= 0.5)),
            "UINT16" | "INT16" => bytes.extend(u16::from(value >= 0.5).to_le_bytes()),
            "UINT32" | "INT32" => bytes.extend(u32::from(value >= 0.5).to_le_bytes()),
            "UINT64" | "INT64" => bytes.extend(u64::from(value >= 0.5).to_le_bytes()),
            other => return Err(format!("tensors of {other} are not made up: give a file with --input")),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::client::{Described, Name},
        *,
    };

    fn described(datatype: &str, shape: &[i64]) -> Described {
        let input = InputSpec { name: "x".into(), datatype: datatype.into(), shape: shape.to_vec() };
        Described { task: "tensors".into(), images: false, inputs: vec![input] }
    }

    fn made_up(
        described: &Described,
        kind: Kind,
        shapes: &[(&str, &[usize])],
        items: Option<usize>,
    ) -> Result<Vec<Message>, String> {
        let shapes = shapes.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect();
        let ask = Ask { model: &Name::parse("m"), described, kind, query: "" };
        Source { ask, shapes, items, seed: 1, by_tensors: Some("--as tensors") }.made_up()
    }

    #[test]
    fn a_path_stands_for_itself_or_for_the_files_of_a_folder_if_there_are_some() {
        let folder = tempfile::tempdir().expect("a folder");
        let within = |name: &str| folder.path().join(name);
        let told = paths(folder.path()).expect_err("empty");
        assert_eq!(told, format!("the folder {} holds no file", folder.path().display()));
        assert!(paths(&within("none")).expect_err("missing").starts_with("there is no file "));
        fs::create_dir(within("below")).expect("a folder");
        for name in ["b.png", "a.npy"] {
            fs::write(within(name), "").expect("a file");
        }
        assert_eq!(paths(folder.path()), Ok(vec![within("a.npy"), within("b.png")]));
        assert_eq!(paths(&within("b.png")), Ok(vec![within("b.png")]));
    }

    #[test]
    fn items_are_of_tensors_whose_first_axis_is_open() {
        let asked = |shape: &[i64], kind, shapes: &[(&str, &[usize])]| {
            made_up(&described("FP32", shape), kind, shapes, Some(2))
        };
        assert!(asked(&[-1, 3], Kind::Tensors, &[]).is_ok());
        // As for `ocelli tune`, which has no such option.
        let images = Described { images: true, ..described("FP32", &[-1, 3, 8, 8]) };
        let ask = Ask { model: &Name::parse("m"), described: &images, kind: Kind::Images, query: "" };
        let tune = Source { ask, shapes: BTreeMap::new(), items: Some(2), seed: 1, by_tensors: None };
        let told =
            [tune.made_up(), asked(&[-1, 3, 8, 8], Kind::Images, &[])].map(|made| made.expect_err("images"));
        assert_eq!(told.map(|told| told.contains("--as")), [false, true]);
        for refused in [
            asked(&[1, 3], Kind::Tensors, &[]),
            asked(&[-1, 3], Kind::Tensors, &[("x", &[4, 3])]),
            asked(&[-1, 3, 8, 8], Kind::Images, &[]),
        ] {
            let why = refused.expect_err("no effect");
            assert!(why.starts_with("--items"), "{why}");
        }
    }

    #[test]
    fn tensors_have_the_declared_shape_with_an_open_first_axis() {
        let messages = made_up(&described("FP32", &[-1, 3]), Kind::Tensors, &[], Some(2)).expect("messages");
        let [message] = &messages[..] else { panic!("{messages:?}") };
        let length: usize = message.headers[0].1.parse().expect("a length");
        let head: serde_json::Value = serde_json::from_slice(&message.body[..length]).expect("JSON");
        assert_eq!(head["inputs"][0]["shape"], json!([2, 3]));
        assert_eq!(message.body.len() - length, 2 * 3 * 4);
        assert_eq!(message.path, "/v2/models/m/infer");
    }

    #[test]
    fn what_is_open_has_to_be_given() {
        let open = described("FP32", &[-1, -1]);
        let refused = made_up(&open, Kind::Tensors, &[], None).expect_err("open");
        assert!(refused.contains("--shape x=1,7"), "{refused}");
        assert!(made_up(&open, Kind::Tensors, &[("x", &[4, 5])], None).is_ok());
        assert!(
            made_up(&open, Kind::Tensors, &[("y", &[4, 5])], None)
                .expect_err("no such input")
                .contains("\"y\"")
        );
        assert!(
            made_up(&described("BYTES", &[1]), Kind::Tensors, &[], None)
                .expect_err("bytes")
                .contains("--input")
        );
    }

    #[test]
    fn a_fitter_is_asked_with_spots_on_ground() {
        let task = "localize".to_owned();
        let fitter = Described { task, images: true, ..described("FP32", &[-1, -1, -1]) };
        let messages = made_up(&fitter, Kind::Tensors, &[("x", &[3, 7, 9])], None).expect("messages");
        let data = &messages[0].body[messages[0].body.len() - 4 * 3 * 7 * 9..];
        let values: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        for roi in values.chunks(7 * 9) {
            let corner = roi[0].max(roi[8]).max(roi[6 * 9]).max(roi[6 * 9 + 8]);
            assert!(roi[3 * 9 + 4] > corner && roi.iter().all(|value| *value >= 100.0), "{roi:?}");
        }
        let many =
            made_up(&fitter, Kind::Tensors, &[("x", &[usize::MAX, 7, 7])], None).expect_err("too many");
        assert!(many.contains("too large"), "{many}");
    }

    #[test]
    fn pictures_have_the_size_of_the_input_wherever_its_channels_are() {
        for (shape, size) in
            [(&[-1, 3, 20, 30][..], (30, 20)), (&[1, 20, 30, 3], (30, 20)), (&[-1, 3, -1, -1], (SIDE, SIDE))]
        {
            let messages = made_up(&described("FP32", shape), Kind::Images, &[], None).expect("messages");
            assert_eq!(messages.len() as u64, PICTURES);
            let reader = png::Decoder::new(std::io::Cursor::new(messages[0].body.to_vec()))
                .read_info()
                .expect("a PNG");
            assert_eq!((reader.info().width, reader.info().height), size);
            assert_ne!(messages[0].body, messages[1].body);
        }
    }
}
