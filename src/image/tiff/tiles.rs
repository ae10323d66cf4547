//! Tiles that are read one by one, each whole: those of planes, and those packed by LZW.
//!
//! The decoder takes tiles of the second plane and of later ones for tiles further down in the first, so that it does not cut off
//! what stands over the picture at its lower edge, and gives up. LZW it reads row by row where a tile is not as wide as the
//! picture or stands over it, and misses the last codes when a row ends shortly before them. So it is told that the picture
//! ends where its last tiles do, and what stands over is cut off here.

use super::{
    Page, Source,
    words::{corrupt, from_tiff, unsupported},
};
use crate::image::{DecodeError, Limits};
use tiff::decoder::Decoder;

/// Width and height of the tiles of the current directory. They are not larger than pictures may be, although they may be larger
/// than this one.
pub(super) fn sides(decoder: &Decoder<Source<'_>>, limits: &Limits) -> Result<[u32; 2], DecodeError> {
    let (width, height) = decoder.chunk_dimensions();
    let fits = limits.check_side(width, height).is_ok()
        && limits.check_pixels(u64::from(width) * u64::from(height)).is_ok();
    if width == 0 || height == 0 || !fits {
        return Err(unsupported(format!("tiles of {width} x {height} px")));
    }
    Ok([width, height])
}

/// Reads the current page, plane by plane, into memory for all of them.
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
                // The last tile may stand over the right edge.
                row[start..].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            index += 1;
        }
    }
    Ok(())
}
