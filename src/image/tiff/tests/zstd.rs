//! Pages packed with Zstandard.

use super::*;
use crate::image::{Samples, corpus::fixture};

const ZSTD: u32 = 50_000;

pub(super) fn packed(chunks: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    chunks.into_iter().map(|chunk| ::zstd::bulk::compress(&chunk, 1).unwrap()).collect()
}

/// The same page, packed; what was unpacked must be the same.
fn check(page: Page) {
    let chunks = packed(page.chunks.clone());
    let packed = Page { chunks, ..page.clone() }.with(COMPRESSION, &[ZSTD]);
    assert_eq!(frames(&[packed]), frames(&[page]));
}

#[test]
fn pages_packed_by_zstd_are_those_that_are_not_packed() {
    for samples in [1, 3, 4] {
        let channels: Vec<u32> = (0..samples).collect();
        let page = |chunks, bits| {
            let kind = if samples == 1 { 1 } else { 2 };
            Page::new(SIZE, bits, samples, chunks).with(PHOTOMETRIC, &[kind])
        };
        let whole = vec![picture(SIZE, &channels)];
        check(page(whole.clone(), 8));
        check(page(whole.clone(), 8).with(PREDICTOR, &[2]));
        check(page(whole.clone(), 8).with(ORIENTATION, &[6]));
        // Twice the width in bytes.
        let wide = [whole[0].clone(), whole[0].iter().rev().copied().collect()].concat();
        check(page(vec![wide.clone()], 16));
        check(page(vec![wide], 16).with(PREDICTOR, &[2]));
        let rows: Vec<Vec<u8>> =
            whole[0].chunks((8 * SIZE[0] * samples) as usize).map(<[u8]>::to_vec).collect();
        check(page(rows, 8).with(ROWS, &[8]));
        let planes: Vec<Vec<u8>> = channels.iter().map(|channel| picture(SIZE, &[*channel])).collect();
        check(page(planes, 8).with(PLANAR, &[2]).with(PREDICTOR, &[2]));
        for tile in [[16, 16], [48, 32]] {
            let tiles =
                |chunks: Vec<Vec<u8>>| page(chunks, 8).with(TILE[0], &[tile[0]]).with(TILE[1], &[tile[1]]);
            check(tiles(in_tiles(SIZE, &channels, tile)));
            check(tiles(in_tiles(SIZE, &channels, tile)).with(PREDICTOR, &[2]));
            check(tiles(planes_in_tiles(SIZE, samples, tile)).with(PLANAR, &[2]));
        }
    }
    let bits = || Page::new(SIZE, 1, 1, vec![picture([5, SIZE[1]], &[0])]);
    check(bits().with(PHOTOMETRIC, &[1]));
    check(bits().with(PHOTOMETRIC, &[0]));
    check(bits().with(PHOTOMETRIC, &[3]).with(320, &[0, 0xffff, 0, 0xffff, 0, 0xffff]));
    check(Page::new(SIZE, 8, 1, vec![picture(SIZE, &[0])]).with(PHOTOMETRIC, &[0]).with(PREDICTOR, &[2]));
    check(Page::new(SIZE, 8, 4, vec![picture(SIZE, &[0, 1, 2, 3])]).with(PHOTOMETRIC, &[5]));
    check(
        Page::new(SIZE, 8, 5, vec![picture(SIZE, &[0, 1, 2, 3, 4])])
            .with(PHOTOMETRIC, &[2])
            .with(EXTRA, &[2, 0]),
    );
}

#[test]
fn bytes_in_the_other_order_of_bits_are_turned_before_they_are_unpacked() {
    let chunks = packed(vec![picture(SIZE, &[0])]);
    let turned = chunks.iter().map(|chunk| chunk.iter().map(|byte| byte.reverse_bits()).collect()).collect();
    let page = |chunks| Page::new(SIZE, 8, 1, chunks).with(PHOTOMETRIC, &[1]).with(COMPRESSION, &[ZSTD]);
    assert_eq!(frames(&[page(turned).with(FILL_ORDER, &[2])]), frames(&[page(chunks)]));
}

/// Written by tifffile, one of 16 bits with the high byte first.
#[test]
fn files_of_other_writers_are_read() {
    let colors = decode(&fixture("tiled.tif"), &LIMITS, &whole).unwrap();
    assert_eq!(decode(&fixture("zstd.tif"), &LIMITS, &whole).unwrap(), colors);
    let wide = decode(&fixture("big.tif"), &LIMITS, &whole).unwrap();
    assert_eq!(decode(&fixture("zstd_big_endian.tif"), &LIMITS, &whole).unwrap(), wide);
}

#[test]
fn strips_that_end_early_or_are_damaged_or_missing_are_refused() {
    let page = |chunks| Page::new(SIZE, 8, 1, chunks).with(PHOTOMETRIC, &[1]).with(COMPRESSION, &[ZSTD]);
    let refused = |page: Page, words: &str| {
        let error = decode(&file(&[page]), &LIMITS, &whole).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let whole_strip = packed(vec![picture(SIZE, &[0])]).remove(0);
    for length in 0..whole_strip.len() {
        assert!(decode(&file(&[page(vec![whole_strip[..length].to_vec()])]), &LIMITS, &whole).is_err());
    }
    refused(page(packed(vec![picture([37, 20], &[0])])), "its data end after 740 of 777 bytes");
    refused(page(vec![b"no such data".to_vec()]), "its zstd data are damaged");
    refused(page(vec![whole_strip.clone()]).with(ROWS, &[8]), "inconsistent sizes");
    refused(page(vec![whole_strip.clone()]).with(PREDICTOR, &[3]), "predictor 3 for 8 bits per sample");
    // Rows beyond the last one are passed over.
    assert_eq!(frames(&[page(packed(vec![picture([37, 24], &[0])]))]), frames(&[page(vec![whole_strip])]));
}

#[test]
fn memory_for_a_strip_as_stored_and_as_unpacked_counts() {
    let tall = [100, 200];
    let chunks = packed(vec![picture(tall, &[0])]);
    let stored = chunks[0].len() as u64;
    let page = Page::new(tall, 8, 1, chunks).with(PHOTOMETRIC, &[1]).with(COMPRESSION, &[ZSTD]);
    let header = header(&file(&[page]), &LIMITS).unwrap();
    // Those of the frame; of the samples before they are converted; and what the decompressor keeps.
    assert_eq!(header.decoded_bytes(), 3 * 20_000 + stored);
}

/// Each of many strips is unpacked by the same decompressor.
#[test]
fn strips_of_one_byte_are_read() {
    const ROWS_MAX: u32 = 8192;
    let limits = Limits { side_max: 8192, frames_max: 200, ..LIMITS };
    let chunks = packed(vec![vec![7]; ROWS_MAX as usize]);
    let page = Page::new([1, ROWS_MAX], 8, 1, chunks).with(PHOTOMETRIC, &[1]).with(ROWS, &[1]);
    let bytes = file(&[page.with(COMPRESSION, &[ZSTD])]);
    let started = std::time::Instant::now();
    let frames = decode(&bytes, &limits, &whole).unwrap();
    println!("{} us a strip", started.elapsed().as_micros() as f64 / f64::from(ROWS_MAX));
    assert_eq!(frames[0].samples, Samples::U8(vec![7; ROWS_MAX as usize]));
}
