//! Tiles that are read one by one, each whole: the tiles of planar pages, and those compressed with LZW.
//!
//! The decoder takes the tiles of the second and later planes for tiles further down in the first. So it does not cut off the part that
//! extends beyond the picture's lower edge, and gives up. It reads LZW row by row if a tile is not as wide as the picture or extends beyond
//! it, and misses the last codes if a row ends shortly before them. So the decoder is told that the picture ends where its last tiles do,
//! and the excess is cut off here.

use super::{
    Page, Source,
    words::{corrupt, from_tiff, unsupported},
};
use crate::image::{DecodeError, Limits};
use tiff::decoder::Decoder;

/// Width and height of the tiles of the current directory. They may be larger than this picture, but not larger than the limits for
/// pictures.
pub(super) fn sides(decoder: &Decoder<Source<'_>>, limits: &Limits) -> Result<[u32; 2], DecodeError> {
    let (width, height) = decoder.chunk_dimensions();
    let fits = limits.check_side(width, height).is_ok()
        && limits.check_pixels(u64::from(width) * u64::from(height)).is_ok();
    if width == 0 || height == 0 || !fits {
        return Err(unsupported(format!("tiles of {width} x {height} px")));
    }
    Ok([width, height])
}

/// Reads the current page, plane by plane, into memory for all planes.
pub(super) fn read(
    decoder: &mut Decoder<Source<'_>>,
    page: &Page,
    [tile_width, tile_height]: [u32; 2],
    into: &mut [u8],
) -> Result<(), DecodeError> {
    let (row_bytes, stride) = (page.row_bytes(page.width) as usize, page.row_bytes(tile_width) as usize);
    let (across, down) = (page.width.div_ceil(tile_width), page.height.div_ceil(tile_height));
    let mut tile = vec![0; page.tile_bytes() as usize];
    let mut index = 0;
    for plane in into.chunks_exact_mut(row_bytes * page.height as usize) {
        for (top, left) in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
            let layout = decoder.image_chunk_buffer_layout(index).map_err(from_tiff)?;
            if layout.len != tile.len() {
                return Err(corrupt("its headers disagree about its tiles"));
            }
            decoder.read_chunk_bytes(index, &mut tile).map_err(from_tiff)?;
            let start = left as usize * stride;
            let rows = plane.chunks_exact_mut(row_bytes).skip(top as usize * tile_height as usize);
            for (row, from) in rows.zip(tile.chunks_exact(stride)) {
                // The last tile may extend beyond the right edge.
                row[start..].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            index += 1;
        }
    }
    Ok(())
}
