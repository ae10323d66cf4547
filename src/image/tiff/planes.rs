//! Planes in tiles, read tile by tile.
//!
//! The decoder takes those of the second plane and of later ones for tiles further down in the first, so that it does not cut off
//! what stands over the picture at its lower edge, and gives up. A tile by itself it reads whole.

use super::{Page, Source, corrupt, from_tiff, unsupported};
use crate::image::{DecodeError, Limits};
use tiff::{decoder::Decoder, tags::Tag};

/// Width and height of the tiles of the current directory, if it has tiles. They are not larger than pictures may be, although they
/// may be larger than this one.
pub(super) fn tiles(
    decoder: &mut Decoder<Source<'_>>,
    limits: &Limits,
) -> Result<Option<[u32; 2]>, DecodeError> {
    if decoder.find_tag(Tag::TileOffsets).map_err(from_tiff)?.is_none() {
        return Ok(None);
    }
    let (width, height) = decoder.chunk_dimensions();
    let fits = limits.check_side(width, height).is_ok()
        && limits.check_pixels(u64::from(width) * u64::from(height)).is_ok();
    if width == 0 || height == 0 || !fits {
        return Err(unsupported(format!("tiles of {width} x {height} px")));
    }
    Ok(Some([width, height]))
}

/// Reads the current page, plane by plane, into memory for all of them.
pub(super) fn read(
    decoder: &mut Decoder<Source<'_>>,
    page: &Page,
    [tile_width, tile_height]: [u32; 2],
    into: &mut [u8],
) -> Result<(), DecodeError> {
    let row_bytes = page.width as usize * usize::from(page.bits / 8);
    let (across, down) = (page.width.div_ceil(tile_width), page.height.div_ceil(tile_height));
    let mut tile = Vec::new();
    let mut index = 0;
    for plane in into.chunks_exact_mut(row_bytes * page.height as usize) {
        for (top, left) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
            let layout = decoder.image_chunk_buffer_layout(index).map_err(from_tiff)?;
            tile.resize(layout.len, 0);
            decoder.read_chunk_bytes(index, &mut tile).map_err(from_tiff)?;
            let stride = layout.row_stride.map_or(layout.len, usize::from);
            let start = left as usize * tile_width as usize * usize::from(page.bits / 8);
            let rows = plane.chunks_exact_mut(row_bytes).skip(top as usize * tile_height as usize);
            for (row, from) in rows.zip(tile.chunks_exact(stride)) {
                let row = row.get_mut(start..start + stride);
                row.ok_or_else(|| corrupt("a tile stands over its right edge"))?.copy_from_slice(from);
            }
            index += 1;
        }
    }
    Ok(())
}
