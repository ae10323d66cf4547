//! Finds an input's channel axis by its name, for model files that leave its extent free, without loading the file.

use super::{
    fields::Fields,
    skeleton::{self, Message},
};
use std::{
    io::{Read, Seek},
    path::Path,
};

/// Names that exporters give the axis; the first is that of Hugging Face's.
const CHANNELS: [&str; 3] = ["num_channels", "channels", "channel"];
/// The path from an input's type to its axes: the field numbers of two nested messages, the tensor and its shape.
const TO_AXES: [u64; 2] = [1, 2];

/// The index of the axis that is named for its channels. `None` for a file that cannot be read: loading it reports why.
pub(crate) fn channel_axis(path: &Path, input: &str) -> Option<usize> {
    let (file, bytes) = skeleton::open(path).ok()?;
    let names = names(file, bytes, input).ok()??;
    names.iter().position(|name| CHANNELS.contains(&name.to_lowercase().as_str()))
}

/// The names of an input's axes, empty for an axis without one; `None` if there is no such input.
fn names(file: impl Read + Seek, bytes: u64, input: &str) -> Result<Option<Vec<String>>, String> {
    let mut found = None;
    skeleton::walk(file, bytes, |fields, field, bytes| {
        match field {
            (Message::Graph, 11) => {
                let (name, axes) = value(fields, bytes)?;
                if name == input {
                    found = Some(axes);
                }
            }
            (Message::Model, 7) => return Ok(false),
            _ => fields.skip(bytes)?,
        }
        Ok(true)
    })?;
    Ok(found)
}

/// The name of an input, and those of its axes.
fn value(fields: &mut Fields<impl Read + Seek>, bytes: u64) -> Result<(String, Vec<String>), String> {
    let end = fields.at() + bytes;
    let (mut name, mut axes) = (String::new(), Vec::new());
    while let Some((number, bytes)) = fields.next_until(end)? {
        match number {
            1 => name = fields.name(bytes)?,
            2 => collect(fields, bytes, &TO_AXES, &mut axes)?,
            _ => fields.skip(bytes)?,
        }
    }
    Ok((name, axes))
}

/// Adds the names of the axes to `axes`; `to` is the path of field numbers that leads to them.
fn collect(
    fields: &mut Fields<impl Read + Seek>,
    bytes: u64,
    to: &[u64],
    axes: &mut Vec<String>,
) -> Result<(), String> {
    let end = fields.at() + bytes;
    while let Some((number, bytes)) = fields.next_until(end)? {
        match to {
            [next, then @ ..] if number == *next => collect(fields, bytes, then, axes)?,
            [] if number == 1 => axes.push(axis(fields, bytes)?),
            _ => fields.skip(bytes)?,
        }
    }
    Ok(())
}

fn axis(fields: &mut Fields<impl Read + Seek>, bytes: u64) -> Result<String, String> {
    let end = fields.at() + bytes;
    let mut name = String::new();
    while let Some((number, bytes)) = fields.next_until(end)? {
        match number {
            2 => name = fields.name(bytes)?,
            _ => fields.skip(bytes)?,
        }
    }
    Ok(name)
}

#[cfg(test)]
pub(crate) mod testing {
    //! ONNX files for tests, reduced to the axes of their inputs.

    use crate::engine::onnx::external::testing::field;

    /// A model of one input with axes of these names; an axis without a name has a fixed extent.
    pub(crate) fn model(input: &str, axes: &[&str]) -> Vec<u8> {
        let axis = |name: &&str| match *name {
            "" => field(1, &[0x08, 3]),
            name => field(1, &field(2, name.as_bytes())),
        };
        let shape = axes.iter().map(axis).collect::<Vec<_>>().concat();
        let tensor = [vec![0x08, 1], field(2, &shape)].concat();
        let input = [field(1, input.as_bytes()), field(2, &field(1, &tensor))].concat();
        // The input is preceded by weights, and by a value that is no input.
        let graph = [field(5, &[0xff; 300]), field(13, &input), field(11, &input)].concat();
        [vec![0x08, 8], field(7, &graph)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::model, *};
    use proptest::prelude::*;
    use std::io::Cursor;

    fn check(model: &[u8], expected: Option<usize>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, model).unwrap();
        assert_eq!(channel_axis(&path, "x"), expected);
    }

    #[test]
    fn the_axis_of_the_channels_is_found_by_its_name() {
        check(&model("x", &["batch_size", "num_channels", "height", "width"]), Some(1));
        check(&model("x", &["batch", "", "", "Channels"]), Some(3));
        check(&model("x", &["batch", "", "height", "width"]), None);
        check(&model("y", &["batch", "channels", "height", "width"]), None);
        check(b"<html>", None);
        assert_eq!(channel_axis(Path::new("/nowhere/model.onnx"), "x"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = names(Cursor::new(&bytes), bytes.len() as u64, "x");
        }
    }
}
