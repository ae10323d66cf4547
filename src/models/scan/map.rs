//! A property of a camera for each pixel of its sensor, from a `.npy` file: `[height, width]` numbers.

use super::disk::read_bytes;
use crate::{
    engine::kernels::SensorMap,
    image::stack::{Format, Limits, Options, Samples, StackError, StackReader},
};
use std::fs::File;

/// Pixels of the largest sensor.
const PIXELS_MAX: u64 = 1 << 26;
/// Bytes of the largest file: eight for each pixel, and a header.
const BYTES_MAX: u64 = 8 * PIXELS_MAX + 65_536;

/// Reads a map.
///
/// # Errors
/// A file that cannot be read, is too large, is not `.npy`, or does not hold exactly one plane.
pub(super) fn read(file: File) -> Result<SensorMap, String> {
    let bytes = read_bytes(file, BYTES_MAX)?;
    let limits = Limits {
        side_max: 65_536,
        frame_pixels_max: PIXELS_MAX,
        frames_max: 1,
        memory_bytes_max: usize::MAX,
        spill_bytes_max: 0,
    };
    let options = Options { limits, spill_folder: None, file_alone: false };
    let mut reader = StackReader::new(Some(Format::Npy), options);
    let said = |error| match error {
        // The error's own advice is about frames.
        StackError::Unsupported { format, what, .. } => format!(
            "{format} with {what} is not supported; save it as numpy.ascontiguousarray(map, 'float32') of shape [height, width]"
        ),
        other => other.to_string(),
    };
    reader.push(bytes.into()).map_err(said)?;
    reader.finish();
    let Some(frame) = reader.next_frame().map_err(said)? else {
        return Err("it holds no numbers".to_owned());
    };
    let values = match frame.samples {
        Samples::U16(values) => values.iter().map(|value| f32::from(*value)).collect(),
        Samples::F32(values) => values.to_vec(),
    };
    Ok(SensorMap { height: frame.height as usize, width: frame.width as usize, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
        npy_in("False", shape, values)
    }

    fn npy_in(fortran_order: &str, shape: &str, values: &[f32]) -> Vec<u8> {
        let mut header = format!("{{'descr': '<f4', 'fortran_order': {fortran_order}, 'shape': {shape}, }}");
        header.extend(std::iter::repeat_n(' ', 117 - header.len()));
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    fn check(bytes: &[u8]) -> Result<SensorMap, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.npy");
        std::fs::write(&path, bytes).unwrap();
        read(File::open(&path).unwrap())
    }

    #[test]
    fn a_plane_of_numbers_is_a_map() {
        let map = check(&npy("(2, 3)", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
        assert_eq!((map.height, map.width), (2, 3));
        assert_eq!(map.values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn anything_else_says_what_it_is() {
        for (bytes, expected) in [
            (npy("(2, 1, 1)", &[0.0, 1.0]), "number of frames"),
            (npy("(2, 3)", &[0.0]), "truncated"),
            (npy_in("True", "(2, 3)", &[0.0; 6]), "of shape [height, width]"),
            (npy("(2, 1, 1, 1)", &[0.0, 1.0]), "of shape [height, width]"),
            (b"GIF89a..".to_vec(), ".npy"),
        ] {
            let error = check(&bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
