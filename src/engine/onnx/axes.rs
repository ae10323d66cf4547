//! Finds an input's channel axis by its name, for model files that leave its extent free.

use super::fields::Fields;
use std::io::{Read, Seek};

/// Names that exporters give the axis; the first is that of Hugging Face's.
const CHANNELS: [&str; 3] = ["num_channels", "channels", "channel"];
/// The path from an input's type to its axes: the field numbers of two nested messages, the tensor and its shape.
const TO_AXES: [u64; 2] = [1, 2];

/// The index of the axis that is named for its channels, of an input with axes of these names.
pub(super) fn of_channels(names: &[String]) -> Option<usize> {
    names.iter().position(|name| CHANNELS.contains(&name.to_lowercase().as_str()))
}

/// The name of an input, and those of its axes; empty for an axis without one.
pub(super) fn read(
    fields: &mut Fields<impl Read + Seek>,
    bytes: u64,
) -> Result<(String, Vec<String>), String> {
    let end = fields.at() + bytes;
    let (mut name, mut axes) = (String::new(), Vec::new());
    while let Some((number, bytes)) = fields.next_until(end)? {
        match number {
            1 => name = fields.name_or_none(bytes)?,
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
            2 => name = fields.name_or_none(bytes)?,
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
        named_inputs(&[(input, axes)])
    }

    /// A model of these inputs with axes of these names.
    pub(crate) fn named_inputs(inputs: &[(&str, &[&str])]) -> Vec<u8> {
        let axis = |name: &&str| match *name {
            "" => field(1, &[0x08, 3]),
            name => field(1, &field(2, name.as_bytes())),
        };
        let input = |(name, axes): &(&str, &[&str])| {
            let shape = axes.iter().map(axis).collect::<Vec<_>>().concat();
            let tensor = [vec![0x08, 1], field(2, &shape)].concat();
            [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
        };
        let inputs: Vec<_> = inputs.iter().map(input).collect();
        // The inputs are preceded by weights, and by a value that is no input.
        let graph: Vec<_> = [field(5, &field(9, &[0xff; 300])), field(13, &inputs[0])]
            .into_iter()
            .chain(inputs.iter().map(|input| field(11, input)))
            .collect();
        [vec![0x08, 8], field(7, &graph.concat())].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::model;
    use crate::engine::onnx::outline::Outline;

    fn check(model: &[u8], expected: Option<usize>) {
        assert_eq!(Outline::of_bytes(model).and_then(|outline| outline.channel_axis("x")), expected);
    }

    #[test]
    fn the_axis_of_the_channels_is_found_by_its_name() {
        check(&model("x", &["batch_size", "num_channels", "height", "width"]), Some(1));
        check(&model("x", &["batch", "", "", "Channels"]), Some(3));
        check(&model("x", &["batch", "", "height", "width"]), None);
        check(&model("y", &["batch", "channels", "height", "width"]), None);
        check(b"<html>", None);
    }
}
