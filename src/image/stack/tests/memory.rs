//! Memory for frames is charged before it is allocated, however few bytes the frames arrive in.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::describe::Description, Builder, Format, InferError, LITTLE, Options, Raw, SampleType, StackError,
    StackReader, all_fixtures, options, spilled_to, tags,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;

/// The most bytes that a reader charged, and the most that it reported as held.
#[derive(Default)]
struct Asked {
    charged: usize,
    held: usize,
}

/// A reader that may take `room` bytes for frames.
fn reader(format: Option<Format>, options: Options, room: usize) -> (StackReader, Arc<Mutex<Asked>>) {
    let asked = Arc::new(Mutex::new(Asked::default()));
    let (charging, holding) = (Arc::clone(&asked), Arc::clone(&asked));
    let reader = StackReader::new(format, options).charging(Box::new(move |bytes| {
        assert!(bytes > charging.lock().charged, "asked for {bytes} again");
        if bytes > room {
            return Err(InferError::BadRequest(format!("no room for {bytes}")));
        }
        charging.lock().charged = bytes;
        Ok(())
    }));
    let reader = reader.within(Box::new(move |bytes| {
        let mut asked = holding.lock();
        asked.held = asked.held.max(bytes);
        true
    }));
    (reader, asked)
}

/// 64-bit zeros in strips that zstd compresses to a thousandth, without the data of the last strip.
fn zeros(side: u64) -> Bytes {
    let strip = zstd::bulk::compress(&vec![0; (8 * side * (side - 1)) as usize], 1).unwrap();
    let mut builder = Builder::new(LITTLE);
    let fields = |builder: &Builder, start: u64| {
        let len = strip.len() as u64;
        let mut fields = builder.page(side, side, 0, 0);
        fields[2] = builder.short(tags::BITS, 64);
        fields[3] = builder.longs(tags::STRIP_OFFSETS, &[start, start + len]);
        fields[4] = builder.longs(tags::STRIP_BYTES, &[len, 60_000]);
        fields.insert(3, builder.short(tags::COMPRESSION, 50_000));
        fields.insert(5, builder.short(tags::STRIP_ROWS, side - 1));
        fields.push(builder.short(tags::SAMPLE_FORMAT, 3));
        fields
    };
    let table = fields(&builder, 0).len() * 12 + 6;
    // Two lists of two numbers are beside the table.
    let start = (builder.bytes.len() + table + 16) as u64;
    let fields = fields(&builder, start);
    builder.directory(&fields);
    assert_eq!(builder.put(&strip), start);
    builder.bytes.into()
}

#[test]
fn a_strip_that_grows_a_thousandfold_is_asked_for_before_it_is_unpacked() {
    const SIDE: usize = 1024;
    let bytes = zeros(SIDE as u64);
    let frame = 4 * SIDE * SIDE;
    let unpacked = 8 * SIDE * (SIDE - 1);
    assert!(bytes.len() < 20_000, "{}", bytes.len());
    for piece in [1000, usize::MAX] {
        let feed = |room: usize| {
            let options = Options { spill_folder: spilled_to(std::env::temp_dir()), ..options() };
            let (mut reader, asked) = reader(None, options, room);
            for piece in bytes.chunks(piece.min(bytes.len())) {
                reader.push(Bytes::copy_from_slice(piece)).unwrap();
                match reader.next_frame() {
                    Ok(frame) => assert!(frame.is_none(), "a strip of it is missing"),
                    // The same error again, and nothing was allocated.
                    Err(error) => {
                        assert!(reader.memory_bytes_peak() < 100_000, "{}", reader.memory_bytes_peak());
                        assert_eq!(error.to_string(), reader.next_frame().unwrap_err().to_string());
                        return Err(error);
                    }
                }
            }
            let asked = asked.lock();
            let (charged, peak) = (asked.charged, reader.memory_bytes_peak());
            assert!(peak <= charged + asked.held, "{peak} of {charged} and {}", asked.held);
            Ok(charged)
        };
        let charged = feed(usize::MAX).unwrap();
        assert!((frame + unpacked..frame + unpacked + bytes.len()).contains(&charged), "{charged}");
        assert_eq!(feed(charged).unwrap(), charged);
        let refused = feed(charged - 1).unwrap_err();
        assert!(matches!(refused, StackError::NoRoom(_)), "{refused:?}");
        assert_eq!(InferError::from(refused), InferError::BadRequest(format!("no room for {charged}")));
    }
}

#[test]
fn no_stack_takes_more_than_it_asked_for() {
    for (name, bytes) in all_fixtures() {
        for piece in [1, 97, usize::MAX] {
            let options = Options { spill_folder: spilled_to(std::env::temp_dir()), ..options() };
            let (mut reader, asked) = reader(None, options, usize::MAX);
            let (mut frames, mut good) = (0, true);
            for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
                good = good && reader.push(Bytes::copy_from_slice(piece)).is_ok();
                while good && let Ok(Some(more)) = reader.next_frames(3) {
                    frames += more.count;
                }
            }
            let asked = asked.lock();
            let (charged, peak) = (asked.charged, reader.memory_bytes_peak());
            // What a push holds is reported only once its frames are out.
            let held = asked.held.max(bytes.len() + 4096);
            assert!(peak <= charged + held, "{name}: {peak} of {charged} and {held}");
            assert!(charged > 0 || frames == 0, "{name}: {frames} frames");
        }
    }
}

#[test]
fn what_is_gathered_is_asked_for_once() {
    const ROOM: usize = 1000 * 49;
    let raw = Raw { width: 7, height: 7, sample: SampleType::U16, frames: None };
    let (mut reader, asked) = reader(Some(Format::Raw(raw)), options(), usize::MAX);
    reader.push(vec![3; 98 * 5000].into()).unwrap();
    assert_eq!(reader.next_frame().unwrap().unwrap().count, 1);
    assert_eq!(asked.lock().charged, 98);
    reader.gather(ROOM);
    assert_eq!(reader.last_frames().unwrap().count, 1, "it is still there");
    for left in [999, 1000, 1000] {
        assert_eq!(reader.next_frames(left).unwrap().unwrap().count, left);
        reader.take();
        assert!(reader.last_frames().is_none());
        assert_eq!(asked.lock().charged, 2 * ROOM);
    }
}

#[test]
fn the_lists_of_a_page_count_as_held_while_its_pixels_are_waited_for() {
    const SIDE: u64 = 64;
    const TILES: u64 = SIDE * SIDE;
    let mut builder = Builder::new(LITTLE);
    let mut fields = builder.page(SIDE, SIDE, 0, 0);
    fields.truncate(3);
    let start = (builder.bytes.len() + 2 + 12 * 7 + 4) as u64 + 2 * 4 * TILES;
    let places: Vec<u64> = (0..TILES).map(|tile| start + 2 * tile).collect();
    fields.push(builder.short(tags::TILE_WIDTH, 1));
    fields.push(builder.short(tags::TILE_HEIGHT, 1));
    fields.push(builder.longs(tags::TILE_OFFSETS, &places));
    fields.push(builder.longs(tags::TILE_BYTES, &vec![2; TILES as usize]));
    builder.directory(&fields);
    assert_eq!(builder.bytes.len() as u64, start);
    let (mut reader, asked) = reader(None, options(), usize::MAX);
    reader.push(builder.bytes.into()).unwrap();
    assert_eq!(reader.next_frame().unwrap(), None, "its pixels are missing");
    // The offset and length of each tile, and a second copy of the lengths.
    let held = asked.lock().held as u64;
    assert!(held >= TILES * (16 + 8), "{held}");
    reader.push(vec![7; 2 * TILES as usize].into()).unwrap();
    assert_eq!(reader.next_frame().unwrap().unwrap().count, 1);
}

#[test]
fn nothing_is_kept_of_what_a_description_says_at_length() {
    let long = "\u{b5}".repeat(1 << 20);
    for text in [
        format!("ImageJ=1.53\nimages=2\nunit={long}\n"),
        format!("<OME><UUID FileName=\"a.tif\"/><UUID FileName=\"{long}\"/></OME>"),
        format!("<OME><BinaryOnly MetadataFile=\"{long}\"/></OME>"),
    ] {
        let mut description = Description::default();
        description.take_text(text.as_bytes());
        let kept = format!("{description:?}");
        assert!(kept.len() < 2000, "{} of {}...", kept.len(), &kept[..200]);
    }
}
