//! Numbers from files, as the examples of this folder read them.

use std::fs;

use anyhow::Context;
use ocelli::engine::kernels::{CameraValue, SensorMap};
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

/// All numbers in a file.
pub(crate) fn read<T, const SIZE: usize>(path: &str, number: fn([u8; SIZE]) -> T) -> anyhow::Result<Vec<T>> {
    let bytes = fs::read(path).with_context(|| path.to_owned())?;
    let (numbers, rest) = bytes.as_chunks();
    anyhow::ensure!(rest.is_empty(), "{path} ends within a number");
    Ok(numbers.iter().map(|&bytes| number(bytes)).collect())
}
