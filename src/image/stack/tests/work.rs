//! No call works for long if a few megabytes hold very many directories.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::{Tried, tags::SUBFILE_TYPE},
    BIG_LITTLE, Builder, LITTLE, StackReader, assert_says, long_stacks, options, read, refusal, with_room,
};

/// More directories than one call reads.
const DIRECTORIES_MAX: u64 = 8192;

/// How many frames come out, how often other stacks had their turn between them, and how often after the last one.
fn turns(bytes: Vec<u8>) -> (u64, u64, u64) {
    let mut reader = StackReader::new(None, options());
    reader.push(bytes.into()).unwrap();
    reader.finish();
    let (mut frames, mut between, mut behind) = (0, 0, 0);
    loop {
        match reader.try_frames(1).unwrap() {
            Tried::Frames(more) => {
                frames += more.count as u64;
                between += std::mem::take(&mut behind);
            }
            Tried::Busy => behind += 1,
            Tried::Nothing => return (frames, between, behind),
        }
    }
}

#[test]
fn a_call_ends_after_some_thousand_directories_whether_a_frame_comes_of_each_or_none() {
    const PAGES: u64 = 40_000;
    for (name, format, bytes) in long_stacks(PAGES, 2) {
        if matches!(name, "forward" | "behind") {
            assert!(format.is_none());
            let (frames, between, _) = turns(bytes);
            assert!(frames == PAGES && between >= PAGES / DIRECTORIES_MAX, "{name}: {frames}, {between}");
        }
    }
    // All frames, and then the directories that check them.
    let (frames, _, behind) = turns(with_room(BIG_LITTLE, PAGES, 2, |index| index).bytes);
    assert!(frames == PAGES && behind >= PAGES / DIRECTORIES_MAX, "{frames}, {behind}");
}

#[test]
fn more_copies_than_any_writer_makes_of_its_frames_are_refused() {
    let stack = |frames: u64, copies: u64| {
        let mut builder = Builder::new(LITTLE);
        for frame in 0..frames {
            let start = builder.put(&[1; 8]);
            let fields = builder.page(2, 2, start, 8);
            builder.directory(&fields);
            for _ in 0..(copies / frames) + u64::from(frame == 0) * (copies % frames) {
                let field = builder.short(SUBFILE_TYPE, 1);
                builder.directory(&[field]);
            }
        }
        builder.bytes
    };
    for (frames, copies) in [(1, 1032), (50, 2600)] {
        let outcome = read(&stack(frames, copies).into());
        assert!(outcome.end.is_ok(), "{frames}: {:?}", outcome.end);
        assert_eq!(outcome.planes.len() as u64, frames);
    }
    assert_says(
        &refusal(stack(1, 100_000)),
        &[
            "1033 reduced copies and masks beside 1 of its frames (at most 1000 and 32 for each frame)",
            "alone",
        ],
    );
}
