//! JPEG streams and their tables: that checks read a stream as the decoder does, and how much memory decoding takes.

use super::*;

fn gray(size: [u32; 2]) -> Vec<u8> {
    jpeg(&picture(size, &[0]), size[0], PixelFormat::GRAY, false)
}

fn page(size: [u32; 2], stream: &[u8]) -> Page {
    Page::new(size, 8, 1, vec![stream.to_vec()]).with(COMPRESSION, &[7]).with(PHOTOMETRIC, &[1])
}

fn with_tables(stream: &[u8], tables: &[u8]) -> Vec<u8> {
    let tables: Vec<u32> = tables.iter().map(|byte| u32::from(*byte)).collect();
    file(&[page([16, 8], stream).with(TABLES, &tables)])
}

/// The segments before the scan, tables apart from the others, and everything from the scan on.
fn apart(stream: &[u8]) -> [Vec<u8>; 3] {
    let (mut tables, mut others, mut rest) = (Vec::new(), Vec::new(), &stream[2..]);
    while rest[1] != 0xda {
        let (segment, after) = rest.split_at(2 + usize::from(u16::from_be_bytes([rest[2], rest[3]])));
        if matches!(segment[1], 0xc4 | 0xdb) { &mut tables } else { &mut others }.extend(segment);
        rest = after;
    }
    [tables, others, rest.to_vec()]
}

fn refused(bytes: &[u8], words: &str) {
    let error = header(bytes, &LIMITS).unwrap_err().to_string();
    assert_eq!(decode(bytes, &LIMITS, &whole).unwrap_err().to_string(), error);
    assert!(error.contains(words), "{error}");
}

const START: &[u8] = &[0xff, 0xd8];
const END: &[u8] = &[0xff, 0xd9];

#[test]
fn tables_in_front_of_a_stream_are_read_with_it() {
    let stream = gray([16, 8]);
    let alone = frames(&[page([16, 8], &stream)]);
    let [tables, others, scan] = apart(&stream);
    let short = [START, &others, &scan].concat();
    let comment = [0xff, 0xff, 0xfe, 0, 4, b'o', b'k'];
    let unused = [0xff, 0xed, 0, 4, 1, 2];
    for tables in [
        [START, &tables, END].concat(),
        [START, &comment, &tables, &unused, END].concat(),
        [START, &[0xff, 0xdd, 0, 4, 0, 0], &tables, END].concat(),
    ] {
        assert_eq!(decode(&with_tables(&short, &tables), &LIMITS, &whole).unwrap(), alone);
        // A stream's own tables count.
        assert_eq!(decode(&with_tables(&stream, &tables), &LIMITS, &whole).unwrap(), alone);
    }
    assert_eq!(decode(&with_tables(&stream, &[START, END].concat()), &LIMITS, &whole).unwrap(), alone);
}

#[test]
fn tables_that_hold_an_image_are_refused() {
    let stream = gray([16, 8]);
    let large = jpeg(&[99; 1000 * 900], 1000, PixelFormat::GRAY, true);
    let [tables, others, scan] = apart(&large);
    assert!(large.len() < 8192 && header(&large, &LIMITS).is_ok());
    let words = "its JPEG tables hold more than tables (marker 0xc2)";
    refused(&with_tables(&stream, &large), words);
    refused(&with_tables(&stream, &[START, &tables, &others, END].concat()), words);
    let words = "its JPEG tables hold more than tables (marker 0xda)";
    refused(&with_tables(&stream, &[START, &tables, &scan, END].concat()), words);
    let words = "its JPEG tables are cut off or damaged";
    // Without an end, with something behind it, and with lengths after markers that have none.
    for tables in [
        [START, &tables].concat(),
        [START, &tables, END, &others, END].concat(),
        [START, &[0xff, 0xd0], &tables, END].concat(),
        [START, &[0xff, 0, 0, 4, 0, 0], &tables, END].concat(),
        tables.clone(),
    ] {
        refused(&with_tables(&stream, &tables), words);
    }
    let many = [START, &[0xff, 0xfe, 0x20, 0], &[0; 0x1ffe], END].concat();
    refused(&with_tables(&stream, &many), "its JPEG tables have 8198 bytes, more than 8192");
}

#[test]
fn a_stream_that_can_be_read_in_two_ways_is_refused() {
    let stream = gray([16, 8]);
    let starting = |with: &[u8]| file(&[page([16, 8], &[START, with, &stream[2..]].concat())]);
    decode(&starting(&[0xff, 0xff]), &LIMITS, &whole).unwrap();
    // After these, the decoder looks for a length or for the next marker in the wrong place.
    for with in [&[0xff, 0xd0][..], &[0xff, 0x01], &[0xff, 0, 0, 4, 7, 7], &[0xff, 0xe0, 0, 6, 1, 2, 3, 4]] {
        refused(&starting(with), "the first scan of a JPEG stream in it can be read in two ways");
    }
}

#[test]
fn a_stream_that_another_page_has_read_otherwise_is_refused() {
    let size = [16, 8];
    let stream = gray(size);
    let first = page(size, &stream);
    // Beside it, a strip with the lowest bit first; and one over the same bytes, which are the first that are written, at offset 8.
    let bits = Page::new([8, 8], 1, 1, vec![vec![7; 8]]).with(PHOTOMETRIC, &[1]).with(FILL_ORDER, &[2]);
    let mut bytes = file(&[first, bits]);
    assert_eq!(decode(&bytes, &LIMITS, &whole).unwrap().len(), 2);
    let strips = bytes.windows(4).rposition(|entry| entry == [0x11, 1, 3, 0]).unwrap();
    bytes[strips + 8..strips + 10].copy_from_slice(&[100, 0]);
    assert!(stream.len() > 108);
    refused(&bytes, "a JPEG stream in it overlaps what is no JPEG stream");
}

#[test]
fn decoding_a_stream_takes_memory_beside_its_page() {
    let size = [40, 24];
    let pixels = u64::from(size[0] * size[1]);
    let bytes = |page: Page| header(&file(&[page]), &LIMITS).unwrap().decoded_bytes();
    let stream = gray(size);
    let gathered = |stream: &[u8]| 2 * stream.len() as u64;
    assert_eq!(bytes(page(size, &stream)), 3 * pixels + gathered(&stream));
    // A tile is decoded whole.
    let tile = page([1, 1], &stream).with(TILE[0], &[size[0]]).with(TILE[1], &[size[1]]);
    assert_eq!(bytes(tile), 2 + pixels + gathered(&stream));
    let colors = |progressive| {
        let stream = jpeg(&picture(size, &[0, 1, 2]), size[0], PixelFormat::RGB, progressive);
        let page =
            Page::new(size, 8, 3, vec![stream.clone()]).with(COMPRESSION, &[7]).with(PHOTOMETRIC, &[6]);
        bytes(page) - gathered(&stream)
    };
    assert_eq!(colors(false), 9 * pixels);
    assert_eq!(colors(true), 9 * pixels + 64 * 32 * 3 * 2);
}
