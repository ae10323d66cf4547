//! What pages state beside their size: that they are copies of others, and how they should be turned.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    super::tags::{OLD_SUBFILE_TYPE, SUBFILE_TYPE},
    BIG_BIG, Builder, Encoding, LITTLE, Outcome, Plane, assert_says, options, read, read_with, refusal,
};
use bytes::Bytes;

/// Width and height of frames. In a classic file, a frame has as many bytes as a directory here, so that frames seem to follow one another
/// where something else lies between.
const SIZE: [u64; 2] = [13, 3];

/// A page: its kind (a tag and its value), its size, and the value of all its pixels.
type Page = ((u16, u64), [u64; 2], u16);

const FRAME: (u16, u64) = (SUBFILE_TYPE, 0);
const COPY: (u16, u64) = (SUBFILE_TYPE, 1);
const MASK: (u16, u64) = (SUBFILE_TYPE, 4);

const ORIENTATION: u16 = 274;

/// A stack in which each page's pixels come before its directory, or after it.
fn stack(encoding: Encoding, pages: &[Page], pixels_first: bool) -> Builder {
    let mut builder = Builder::new(encoding);
    for ((tag, number), [width, height], value) in pages {
        let samples = builder.samples(&vec![*value; (width * height) as usize]);
        let len = samples.len() as u64;
        let table = encoding.count_bytes() + 6 * encoding.entry_bytes() + encoding.offset_bytes() as u64;
        let start = if pixels_first { builder.put(&samples) } else { builder.bytes.len() as u64 + table };
        let mut fields = builder.page(*width, *height, start, len);
        fields.insert(0, builder.short(*tag, *number));
        builder.directory(&fields);
        if !pixels_first {
            assert_eq!(builder.put(&samples), start);
        }
    }
    builder
}

/// The results in every byte order and layout, however the file is cut.
fn outcomes(pages: &[Page]) -> Vec<(usize, Outcome)> {
    let mut outcomes = Vec::new();
    for encoding in [LITTLE, BIG_BIG] {
        for pixels_first in [true, false] {
            let bytes = Bytes::from(stack(encoding, pages, pixels_first).bytes);
            for piece in [1, 50, usize::MAX] {
                outcomes.push((bytes.len(), read_with(None, options(), &bytes, 1, || piece)));
            }
        }
    }
    outcomes
}

fn plane(value: u16) -> Plane {
    vec![f64::from(value); (SIZE[0] * SIZE[1]) as usize]
}

#[test]
fn reduced_copies_and_masks_are_no_frames_wherever_they_stand() {
    let pages = [
        (COPY, [4, 1], 90),
        (MASK, SIZE, 91),
        (FRAME, SIZE, 1),
        (COPY, SIZE, 92),
        ((SUBFILE_TYPE, 2), SIZE, 2),
        ((OLD_SUBFILE_TYPE, 2), SIZE, 93),
        ((SUBFILE_TYPE, 5), [1, 1], 94),
        ((OLD_SUBFILE_TYPE, 3), SIZE, 3),
        (COPY, [4, 1], 95),
    ];
    for (len, outcome) in outcomes(&pages) {
        assert!(outcome.end.is_ok(), "{:?}", outcome.end);
        assert_eq!(outcome.planes, [1, 2, 3].map(plane));
        // The first frame comes out before the others have arrived.
        assert!(outcome.at[0] < len / 2 || outcome.at[0] == len, "{:?} of {len}", outcome.at);
    }
}

#[test]
fn a_copy_before_frames_that_lie_together_moves_none_of_them() {
    // One directory, all pixels, then the other directories.
    let mut builder = stack(LITTLE, &[(COPY, [4, 1], 90)], false);
    let start = builder.bytes.len() as u64 + 2 + 5 * 12 + 4;
    let page = |builder: &Builder, index: u64| builder.page(SIZE[0], SIZE[1], start + index * 78, 78);
    let first = page(&builder, 0);
    builder.directory(&first);
    for value in 1..=4 {
        let samples = builder.samples(&[value; 39]);
        builder.put(&samples);
    }
    for index in 1..4 {
        let later = page(&builder, index);
        builder.directory(&later);
    }
    let outcome = read_with(None, options(), &builder.bytes.into(), 1, || 1);
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes, [1, 2, 3, 4].map(plane));
    assert!(outcome.at.windows(2).all(|pair| pair[1] - pair[0] == 78), "{:?}", outcome.at);
}

#[test]
fn copies_of_nothing_are_frames() {
    for count in [1, 2, 7, 8, 20] {
        let pages: Vec<_> = (1..=count).map(|value| (COPY, SIZE, value)).collect();
        for (len, outcome) in outcomes(&pages) {
            assert!(outcome.end.is_ok(), "{count}: {:?}", outcome.end);
            assert_eq!(outcome.planes, (1..=count).map(plane).collect::<Vec<_>>());
            // It is known long before the end of a long stack.
            assert!(
                count < 20 || outcome.at[0] <= len / 2 || outcome.at[0] == len,
                "{:?} of {len}",
                outcome.at
            );
        }
    }
    let mut circle = stack(LITTLE, &[(COPY, SIZE, 1), (COPY, SIZE, 2)], false);
    circle.point(8);
    assert_says(&refusal(circle.bytes), &["frame 2", "directories run in a circle"]);
}

#[test]
fn frames_are_read_as_they_are_stored_however_they_want_to_be_turned() {
    for turned in 1..=8 {
        let mut builder = Builder::new(LITTLE);
        for first in [1, 11] {
            let samples = builder.samples(&[first, first + 1, first + 2, first + 3, first + 4, first + 5]);
            let start = builder.put(&samples);
            let mut fields = builder.page(3, 2, start, 12);
            fields.insert(4, builder.short(ORIENTATION, turned));
            builder.directory(&fields);
        }
        let outcome = read(&builder.bytes.into());
        assert!(outcome.end.is_ok(), "{:?}", outcome.end);
        let info = outcome.info.unwrap();
        assert_eq!((info.width, info.height), (3, 2), "{turned}");
        assert_eq!(outcome.planes, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [11.0, 12.0, 13.0, 14.0, 15.0, 16.0]]);
    }
}
