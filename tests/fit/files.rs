//! Numbers from files, as the examples of this folder read them.

use std::fs;

use anyhow::{Context, bail};
use ocelli::engine::kernels::{CameraValue, InstructionSet, SensorMap};
use serde::Deserialize;

/// A property of a camera: one number, or a file with one for each pixel.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum NumberOrFile {
    Number(f32),
    File(String),
}

impl NumberOrFile {
    /// For a sensor of this height and width.
    pub(crate) fn read(&self, [height, width]: [usize; 2]) -> anyhow::Result<CameraValue> {
        Ok(match self {
            NumberOrFile::Number(number) => CameraValue::Scalar(*number),
            NumberOrFile::File(path) => {
                CameraValue::Map(SensorMap { height, width, values: read(path, f32::from_le_bytes)? })
            }
        })
    }
}

/// The instruction set of this name; the widest that this machine has where none is given.
pub(crate) fn instructions(name: Option<&str>) -> anyhow::Result<InstructionSet> {
    let Some(name) = name else { return Ok(InstructionSet::detect()) };
    let mut supported = InstructionSet::supported().into_iter();
    supported.find(|set| set.to_string() == name).with_context(|| format!("this machine has no {name}"))
}

/// The values in a file of this type: `u16`, or `f32`; those of the other are none.
pub(crate) fn adu(path: &str, data_type: &str) -> anyhow::Result<(Vec<u16>, Vec<f32>)> {
    Ok(match data_type {
        "u16" => (read(path, u16::from_le_bytes)?, Vec::new()),
        "f32" => (Vec::new(), read(path, f32::from_le_bytes)?),
        other => bail!("data_type {other} is neither u16 nor f32"),
    })
}

/// All numbers in a file.
pub(crate) fn read<T, const SIZE: usize>(path: &str, number: fn([u8; SIZE]) -> T) -> anyhow::Result<Vec<T>> {
    let bytes = fs::read(path).with_context(|| path.to_owned())?;
    let (numbers, rest) = bytes.as_chunks();
    anyhow::ensure!(rest.is_empty(), "{path} ends within a number");
    Ok(numbers.iter().map(|&bytes| number(bytes)).collect())
}
