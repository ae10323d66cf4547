//! Packed strips unpack to no more than the bytes that have arrived may become.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::{Received, packing::Compression},
    Builder, InferError, LITTLE, StackError, StackReader, options, tags,
};
use bytes::Bytes;
use flate2::{Compress, FlushCompress};

const SIDE: u64 = 1024;
/// Bytes of a frame.
const BYTES: u64 = 2 * SIDE * SIDE;
/// More frames than the free bytes hold.
const PAGES: u64 = 40;
/// The compression number of zstd.
const ZSTD: u64 = 50_000;

/// A TIFF of frames of zeros.
fn zeros(compression: Compression) -> Vec<u8> {
    let plain = vec![0; BYTES as usize];
    let (number, packed) = match compression {
        Compression::Zstd => (ZSTD, zstd::bulk::compress(&plain, 1).unwrap()),
        _ => {
            let mut packed = Vec::with_capacity(BYTES as usize);
            let mut deflate = Compress::new(flate2::Compression::best(), true);
            deflate.compress_vec(&plain, &mut packed, FlushCompress::Finish).unwrap();
            (8, packed)
        }
    };
    stack(&vec![&packed[..]; PAGES as usize], number)
}

/// A TIFF of packed frames, one written after the other.
fn stack(pages: &[&[u8]], compression: u64) -> Vec<u8> {
    let mut builder = Builder::new(LITTLE);
    for packed in pages {
        let start = builder.put(packed);
        let mut fields = builder.page(SIDE, SIDE, start, packed.len() as u64);
        fields.insert(3, builder.short(tags::COMPRESSION, compression));
        builder.directory(&fields);
    }
    builder.bytes
}

/// How many frames come out, and why no more do.
fn frames(reader: StackReader, stack: &[u8]) -> (u64, Option<StackError>) {
    let all = stack.len();
    frames_of_pieces(reader, stack, all)
}

/// The same, reading after each piece.
fn frames_of_pieces(mut reader: StackReader, stack: &[u8], bytes: usize) -> (u64, Option<StackError>) {
    for piece in stack.chunks(bytes).map(Some).chain([None]) {
        match piece {
            Some(piece) => reader.push(Bytes::copy_from_slice(piece)).unwrap(),
            None => reader.finish(),
        }
        loop {
            match reader.next_frame() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return (reader.frames(), Some(error)),
            }
        }
    }
    (reader.frames(), None)
}

#[test]
fn pages_that_deflate_packs_come_out_and_those_of_which_nothing_has_come_do_not() {
    let deflated = zeros(Compression::Deflate);
    let (count, error) = frames(StackReader::new(None, options()), &deflated);
    assert!(count == PAGES && error.is_none(), "{count}: {error:?}");

    let packed = zeros(Compression::Zstd);
    let limit = (64 << 20) + 1032 * packed.len() as u64;
    let (count, error) = frames(StackReader::new(None, options()), &packed);
    assert_eq!(count, limit / BYTES, "frames before it are good");
    let told = InferError::from(error.unwrap()).to_string();
    let (got, most) = ((count + 1) * BYTES, format!("more than the limit of {limit}"));
    assert!(told.contains(&format!("is {got}, {most}")) && told.contains("send it unpacked"), "{told}");
    assert!(told.ends_with(&most), "no option raises it: {told}");
}

#[test]
fn pages_of_a_packed_body_may_become_what_the_packed_bytes_may() {
    let came = Received::default();
    came.more(1000);
    let (count, error) = frames(StackReader::new(None, options()).packed(came), &zeros(Compression::Deflate));
    assert_eq!(count, ((64 << 20) + 1_032_000) / BYTES);
    assert!(matches!(error, Some(StackError::TooLarge { .. })), "{error:?}");
}

#[test]
fn how_a_stack_is_cut_says_nothing_about_what_comes_of_it() {
    let zeros = zstd::bulk::compress(&vec![0; BYTES as usize], 1).unwrap();
    let mut seed = 1_u32;
    let noise = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    });
    let noise = zstd::bulk::compress(&noise.take(BYTES as usize).collect::<Vec<u8>>(), 1).unwrap();
    // The whole unpacks to some 10 times its size, its beginning to 10,000 times.
    let mut pages = vec![&zeros[..]; PAGES as usize];
    pages.extend([&noise[..]; 4]);
    let good = stack(&pages, ZSTD);
    for bytes in [1000, 10_000, good.len()] {
        let (count, error) = frames_of_pieces(StackReader::new(None, options()), &good, bytes);
        assert!(count == PAGES + 4 && error.is_none(), "pieces of {bytes}: {count}, {error:?}");
    }
    let swelling = stack(&pages[..PAGES as usize], ZSTD);
    let whole = frames(StackReader::new(None, options()), &swelling);
    assert!(matches!(whole.1, Some(StackError::TooLarge { .. })), "{whole:?}");
    for bytes in [100, 1000] {
        let cut = frames_of_pieces(StackReader::new(None, options()), &swelling, bytes);
        assert_eq!(format!("{cut:?}"), format!("{whole:?}"), "pieces of {bytes}");
    }
}
