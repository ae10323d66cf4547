//! Tiles that extend beyond their pages: how many pixels may be decoded for a page.

use super::*;
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;

const SMALL: Limits = Limits { side_max: 1000, pixels_max: 16 * 16 * 20, frames_max: 100 };

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A page in tiles of this size, all grey, packed in each of the supported ways.
fn packed(size: [u32; 2], [across, down]: [u32; 2]) -> [Page; 5] {
    let tile = vec![99; (across * down) as usize];
    let stream = jpeg(&tile, across, PixelFormat::GRAY, false);
    let [lzw] = &packed_by_lzw(vec![tile.clone()])[..] else { panic!("one tile") };
    let [zstd] = &zstd::packed(vec![tile.clone()])[..] else { panic!("one tile") };
    let kinds =
        [(1, tile.clone()), (5, lzw.clone()), (7, stream), (8, deflated(&tile)), (50000, zstd.clone())];
    kinds.map(|(compression, chunk)| {
        let tiles = size[0].div_ceil(across) * size[1].div_ceil(down);
        let page = Page::new(size, 8, 1, vec![chunk; tiles as usize]).with(PHOTOMETRIC, &[1]);
        page.with(COMPRESSION, &[compression]).with(TILE[0], &[across]).with(TILE[1], &[down])
    })
}

fn refused(bytes: &[u8], got: u64) {
    let error = header(bytes, &SMALL).unwrap_err();
    assert_eq!(decode(bytes, &SMALL, &whole).unwrap_err(), error);
    let words = "number of pixels in the image's tiles, all frames together and with their padding \
                 (which may be 4 times image_pixels_max),";
    let limit = 4 * SMALL.pixels_max;
    let expected = DecodeError::TooLarge { what: words, got, limit, option: "image_pixels_max" };
    assert_eq!(error, expected);
}

#[test]
fn small_pages_in_large_tiles_are_refused_where_all_tiles_together_are_too_large() {
    // No tile is larger than a picture may be.
    for page in packed([1, 1], [80, 64]) {
        assert_eq!(decode(&file(&vec![page.clone(); 4]), &SMALL, &whole).unwrap().len(), 4);
        refused(&file(&vec![page; 5]), 5 * 80 * 64);
    }
}

#[test]
fn pages_as_large_as_their_tiles_are_read_whatever_stands_over() {
    // At most 5120 pixels: along both sides, the last tile holds one row or column.
    for size in [[65, 65], [128, 33], [80, 64], [65, 78]] {
        for page in packed(size, [64, 64]).into_iter().chain(packed(size, [32, 32])) {
            let frame = decode(&file(&[page]), &SMALL, &whole).unwrap().remove(0);
            assert_eq!([frame.width, frame.height], size);
            let Samples::U8(samples) = frame.samples else { panic!("16 bits") };
            assert!(samples.iter().all(|sample| sample.abs_diff(99) < 2));
        }
    }
    // Many small pages, each in a tile of its own.
    for page in packed([9, 7], [16, 16]) {
        assert_eq!(decode(&file(&vec![page; 80]), &SMALL, &whole).unwrap().len(), 80);
    }
}

#[test]
fn thousands_of_pages_in_one_tile_of_usual_size_are_read_by_default() {
    let default = Limits { side_max: 32768, pixels_max: 67_108_864, frames_max: 4096 };
    let tile = deflated(&vec![0; 256 * 256]);
    let page = Page::new([64, 64], 8, 1, vec![tile]).with(PHOTOMETRIC, &[1]).with(COMPRESSION, &[8]);
    let page = page.with(TILE[0], &[256]).with(TILE[1], &[256]);
    assert_eq!(header(&file(&vec![page; 4096]), &default).unwrap().frames().len(), 4096);
}

#[test]
fn what_a_stream_has_below_the_last_row_counts() {
    let stream = jpeg(&vec![99; 8 * 632], 8, PixelFormat::GRAY, false);
    let page = Page::new([8, 1], 8, 1, vec![stream]).with(COMPRESSION, &[7]).with(PHOTOMETRIC, &[1]);
    let page = page.with(ROWS, &[1000]);
    assert_eq!(decode(&file(&vec![page.clone(); 4]), &SMALL, &whole).unwrap().len(), 4);
    refused(&file(&vec![page; 5]), 5 * 8 * 632);
}

#[test]
fn planes_of_a_picture_count_once() {
    let size = [64, 80];
    let tiles = planes_in_tiles(size, 4, [32, 32]);
    let page = Page::new(size, 8, 4, tiles).with(PHOTOMETRIC, &[2]).with(PLANAR, &[2]);
    let page = page.with(TILE[0], &[32]).with(TILE[1], &[32]);
    assert_eq!(decode(&file(&[page]), &SMALL, &whole).unwrap().len(), 1);
}
