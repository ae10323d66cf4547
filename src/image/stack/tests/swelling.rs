//! That no more comes out of packed strips than what has come may become.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::{Came, packing::Compression},
    Builder, InferError, LITTLE, StackError, StackReader, options, tags,
};
use flate2::{Compress, FlushCompress};

const SIDE: u64 = 1024;
/// Of a frame.
const BYTES: u64 = 2 * SIDE * SIDE;
/// More than what is free.
const PAGES: u64 = 40;

/// A TIFF of frames of zeros.
fn zeros(compression: Compression) -> Vec<u8> {
    let plain = vec![0; BYTES as usize];
    let (number, packed) = match compression {
        Compression::Zstd => (50_000, zstd::bulk::compress(&plain, 1).unwrap()),
        _ => {
            let mut packed = Vec::with_capacity(BYTES as usize);
            let mut deflate = Compress::new(flate2::Compression::best(), true);
            deflate.compress_vec(&plain, &mut packed, FlushCompress::Finish).unwrap();
            (8, packed)
        }
    };
    let mut builder = Builder::new(LITTLE);
    for _ in 0..PAGES {
        let start = builder.put(&packed);
        let mut fields = builder.page(SIDE, SIDE, start, packed.len() as u64);
        fields.insert(3, builder.short(tags::COMPRESSION, number));
        builder.directory(&fields);
    }
    builder.bytes
}

/// Frames that come out, and why no more do.
fn frames(mut reader: StackReader, stack: Vec<u8>) -> (u64, Option<StackError>) {
    reader.push(stack.into()).unwrap();
    reader.finish();
    loop {
        match reader.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => return (reader.frames(), None),
            Err(error) => return (reader.frames(), Some(error)),
        }
    }
}

#[test]
fn pages_that_deflate_packs_come_out_and_those_of_which_nothing_has_come_do_not() {
    let deflated = zeros(Compression::Deflate);
    let (count, error) = frames(StackReader::new(None, options()), deflated);
    assert!(count == PAGES && error.is_none(), "{count}: {error:?}");

    let packed = zeros(Compression::Zstd);
    let limit = (64 << 20) + 1032 * packed.len() as u64;
    let (count, error) = frames(StackReader::new(None, options()), packed);
    assert_eq!(count, limit / BYTES, "frames before it are good");
    let told = InferError::from(error.unwrap()).to_string();
    let (got, most) = ((count + 1) * BYTES, format!("more than the limit of {limit}"));
    assert!(told.contains(&format!("is {got}, {most}")) && told.contains("send it unpacked"), "{told}");
    assert!(told.ends_with(&most), "no option raises it: {told}");
}

#[test]
fn pages_of_a_packed_body_may_become_what_the_packed_bytes_may() {
    let came = Came::default();
    came.more(1000);
    let (count, error) = frames(StackReader::new(None, options()).packed(came), zeros(Compression::Deflate));
    assert_eq!(count, ((64 << 20) + 1_032_000) / BYTES);
    assert!(matches!(error, Some(StackError::TooLarge { .. })), "{error:?}");
}
