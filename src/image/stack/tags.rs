//! The tags of a TIFF that say what a page is.

use super::{
    Format, Limits, StackError,
    directory::{Directory, Encoding},
    packing::{Compression, Predictor},
    page::{Layout, Page},
    samples::SampleType,
};

pub(super) const SUBFILE_TYPE: u16 = 254;
/// The older tag for the same.
pub(super) const OLD_SUBFILE_TYPE: u16 = 255;
pub(super) const WIDTH: u16 = 256;
pub(super) const HEIGHT: u16 = 257;
pub(super) const BITS: u16 = 258;
pub(super) const COMPRESSION: u16 = 259;
pub(super) const PHOTOMETRIC: u16 = 262;
pub(super) const FILL_ORDER: u16 = 266;
pub(super) const DESCRIPTION: u16 = 270;
pub(super) const STRIP_OFFSETS: u16 = 273;
pub(super) const SAMPLES: u16 = 277;
pub(super) const STRIP_ROWS: u16 = 278;
pub(super) const STRIP_BYTES: u16 = 279;
pub(super) const X_RESOLUTION: u16 = 282;
pub(super) const Y_RESOLUTION: u16 = 283;
pub(super) const RESOLUTION_UNIT: u16 = 296;
pub(super) const PREDICTOR: u16 = 317;
pub(super) const TILE_WIDTH: u16 = 322;
pub(super) const TILE_HEIGHT: u16 = 323;
pub(super) const TILE_OFFSETS: u16 = 324;
pub(super) const TILE_BYTES: u16 = 325;
pub(super) const SUB_DIRECTORIES: u16 = 330;
pub(super) const SAMPLE_FORMAT: u16 = 339;
/// The number of planes in a page (an SGI extension); tiles may span several of them, too.
pub(super) const IMAGE_DEPTH: u16 = 32997;
/// MetaMorph's tag for a stack that has only one directory: six numbers on each plane.
pub(super) const META_MORPH_PLANES: u16 = 33629;
pub(super) const MICRO_MANAGER: u16 = 51123;

/// Bits of the subfile type: a reduced copy, a transparency mask.
const NO_FRAME: u64 = 0b101;
/// The old subfile type of a reduced copy.
const OLD_REDUCED: u64 = 2;

/// Whether a directory says that it is a reduced copy of another page, or a mask for one; `Err` if the number is malformed.
pub(super) fn is_copy(directory: &Directory) -> Result<bool, String> {
    let kind = directory.number(SUBFILE_TYPE, "subfile type")?.unwrap_or(0);
    let old = directory.number(OLD_SUBFILE_TYPE, "old subfile type")?;
    Ok(kind & NO_FRAME != 0 || old == Some(OLD_REDUCED))
}

/// The page that a directory's numbers describe, without the positions of its strips or tiles.
pub(super) fn page(
    directory: &Directory,
    encoding: Encoding,
    frame: u64,
    limits: &Limits,
) -> Result<Page, StackError> {
    let corrupt = |why: String| StackError::corrupt(Format::Tiff, frame, why);
    let number = |tag, name| directory.number(tag, name).map_err(corrupt);
    let side = |tag, name| -> Result<u32, StackError> {
        let side = number(tag, name)?.ok_or_else(|| corrupt(format!("its directory has no {name}")))?;
        limits.check_side(name, side)
    };
    let (width, height) = (side(WIDTH, "width")?, side(HEIGHT, "height")?);
    limits.check_frame(Format::Tiff, width, height)?;

    let samples = number(SAMPLES, "number of samples per pixel")?.unwrap_or(1);
    let photometric = number(PHOTOMETRIC, "colour interpretation")?.unwrap_or(1);
    let unsupported = |what: String| {
        let instead =
            "save the stack as grey, one sample per pixel, uncompressed or with LZW, deflate or zstd";
        StackError::unsupported(Format::Tiff, format!("{what} in frame {}", frame), instead)
    };
    // White-is-zero and palettes only say how to show samples; the stored samples count.
    if samples != 1 || !matches!(photometric, 0 | 1 | 3) {
        return Err(unsupported(format!(
            "{samples} samples per pixel under colour interpretation {photometric}"
        )));
    }
    if number(FILL_ORDER, "fill order")?.unwrap_or(1) != 1 {
        return Err(unsupported("reversed bits".to_owned()));
    }
    let bits = number(BITS, "number of bits per sample")?.unwrap_or(1);
    let kind = number(SAMPLE_FORMAT, "sample format")?.unwrap_or(1);
    let sample = match (kind, bits) {
        (1 | 4, 8) => SampleType::U8,
        (1 | 4, 16) => SampleType::U16,
        (1 | 4, 32) => SampleType::U32,
        (1 | 4, 64) => SampleType::U64,
        (2, 8) => SampleType::I8,
        (2, 16) => SampleType::I16,
        (2, 32) => SampleType::I32,
        (2, 64) => SampleType::I64,
        (3, 16) => SampleType::F16,
        (3, 32) => SampleType::F32,
        (3, 64) => SampleType::F64,
        _ => {
            return Err(StackError::unsupported(
                Format::Tiff,
                format!("{bits} bits per sample of sample format {kind} in frame {frame}"),
                "save the stack with 8, 16 or 32 bits per sample, of integers or floats",
            ));
        }
    };
    let compression = Compression::from_tiff(number(COMPRESSION, "compression")?.unwrap_or(1));
    let predictor = match number(PREDICTOR, "predictor")?.unwrap_or(1) {
        // The predictor has no meaning without compression.
        _ if compression == Ok(Compression::None) => Predictor::None,
        1 => Predictor::None,
        2 => Predictor::Horizontal,
        3 if matches!(kind, 3) => Predictor::FloatingPoint,
        other => return Err(unsupported(format!("predictor {other}"))),
    };
    let tiled = directory.find(TILE_OFFSETS).is_some();
    let planes = number(IMAGE_DEPTH, "number of planes")?.unwrap_or(1);
    if tiled && planes > 1 {
        return Err(unsupported(format!("tiles of {planes} planes")));
    }
    let chunk = if tiled {
        let chunk = (side(TILE_WIDTH, "tile width")?, side(TILE_HEIGHT, "tile height")?);
        if chunk.0 == 0 || chunk.1 == 0 {
            return Err(corrupt(format!("its tiles are {} x {} px", chunk.0, chunk.1)));
        }
        limits.check_frame(Format::Tiff, chunk.0, chunk.1)?;
        chunk
    } else {
        let rows = number(STRIP_ROWS, "number of rows per strip")?.unwrap_or(u64::MAX);
        (width, rows.clamp(1, u64::from(height)) as u32)
    };
    Ok(Page {
        format: Format::Tiff,
        first: frame,
        frames: 1,
        layout: Layout { width, height, sample },
        order: encoding.order,
        compression: compression.map_err(unsupported)?,
        predictor,
        tiled,
        chunk,
        chunks: Vec::new(),
    })
}
