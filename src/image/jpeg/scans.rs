//! What the scans of a JPEG of several cost, before any is decoded. A scan may be a few bytes that say "nothing here", and yet costs a
//! pass over all blocks of its components. The library checks the order of scans only while it decodes, and goes on to the end.

use crate::image::{DecodeError, Format};

/// Passes over the blocks of an image, on average over its components. A file of libjpeg's own script has 6 over luma and 4 over chroma
/// (10 scans in all), one of grey or of inks 6. mozjpeg's search ends at two bands and up to 3 refinements: 6 over luma, some 15 scans in
/// all.
const PASSES_MAX: u64 = 16;

/// How often a coefficient is read, on average: once, and again for each bit by which it is refined. libjpeg's script refines by 2 bits,
/// mozjpeg's by at most 3: 4 readings.
const READINGS_MAX: u64 = 6;

/// Blocks that may be passed over whatever the size, so that small images may have scans as they please: a hundred of 800 × 800 pixels.
/// They take at most about 0.1 s.
const BLOCKS_MIN: u64 = 1 << 20;

/// Coefficients of a block.
const COEFFICIENTS: u64 = 64;

/// A component: its name in scans, and how far its coefficients have come.
struct Component {
    id: u8,
    blocks: u64,
    /// For each coefficient, the lowest bit that has been read; `None` before its first scan.
    bits: [Option<u8>; COEFFICIENTS as usize],
}

struct Frame {
    progressive: bool,
    components: Vec<Component>,
    passed: u64,
    read: u64,
}

/// Checks the order of scans (each coefficient is begun once, then refined bit by bit) and what they cost. Damage that ends the file
/// early is left to the library.
///
/// # Errors
/// If the order is not the standard's, or the scans cost more than any encoder's do.
pub(in crate::image) fn check(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut frame: Option<Frame> = None;
    let mut rest = bytes.get(2..).unwrap_or_default();
    while let Some((marker, segment)) = next(&mut rest) {
        match (marker, &mut frame) {
            (0xc0..=0xcf, frame @ None) if ![0xc4, 0xc8, 0xcc].contains(&marker) => {
                *frame = Frame::of(marker, segment);
            }
            (0xda, Some(frame)) => frame.scan(segment)?,
            _ => {}
        }
    }
    Ok(())
}

/// The next marker that has a segment, wherever it comes: the library skips whatever lies between. `None` at the end.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    loop {
        let at = rest.iter().position(|byte| *byte == 0xff)?;
        let filled = rest[at..].iter().take_while(|byte| **byte == 0xff).count();
        let (&marker, after) = rest[at + filled..].split_first()?;
        *rest = after;
        match marker {
            // An 0xff among codes, a marker without meaning, restarts, and a start.
            0x00 | 0x01 | 0xd0..=0xd8 => {}
            0xd9 => return None,
            _ => {
                let (length, _) = after.split_first_chunk()?;
                let length = usize::from(u16::from_be_bytes(*length));
                let segment = after.get(2..length)?;
                *rest = &after[length..];
                return Some((marker, segment));
            }
        }
    }
}

impl Frame {
    fn of(marker: u8, segment: &[u8]) -> Option<Frame> {
        let &[_, h1, h0, w1, w0, _, ref each @ ..] = segment else { return None };
        let [width, height] = [[w1, w0], [h1, h0]].map(|side| u64::from(u16::from_be_bytes(side)));
        let (each, _) = each.as_chunks::<3>();
        let factors = |both: u8| (u64::from(both >> 4).max(1), u64::from(both & 15).max(1));
        let most = each.iter().map(|&[_, both, _]| factors(both));
        let most = most.fold((1, 1), |most, of| (most.0.max(of.0), most.1.max(of.1)));
        let blocks = |side: u64, of: u64, most: u64| (side * of).div_ceil(8 * most);
        let component = |&[id, both, _]: &[u8; 3]| {
            let of = factors(both);
            Component {
                id,
                blocks: blocks(width, of.0, most.0) * blocks(height, of.1, most.1),
                bits: [None; COEFFICIENTS as usize],
            }
        };
        Some(Frame {
            progressive: matches!(marker, 0xc2 | 0xca),
            components: each.iter().map(component).collect(),
            passed: 0,
            read: 0,
        })
    }

    fn scan(&mut self, segment: &[u8]) -> Result<(), DecodeError> {
        let Some((ids, [first, last, approximation])) = header(segment) else { return Ok(()) };
        // Only in a progressive file do a scan's last bytes say what it holds of each block; otherwise it holds all.
        let (first, last, before, now) = match self.progressive {
            true => (first, last, approximation >> 4, approximation & 15),
            false => (0, 63, 0, 0),
        };
        if first > last || u64::from(last) >= COEFFICIENTS {
            return Err(corrupt(format!("a scan of it has the coefficients {first} to {last}")));
        }
        let mut taken = Vec::new();
        for id in ids {
            let of_this =
                |(index, component): &(usize, &mut Component)| component.id == id && !taken.contains(index);
            // A name that no component has: the library refuses it.
            let Some((index, component)) = self.components.iter_mut().enumerate().find(of_this) else {
                return Ok(());
            };
            taken.push(index);
            if first > 0 && component.bits[0].is_none() {
                return Err(corrupt("a scan of details comes before the one of averages"));
            }
            for bits in &mut component.bits[usize::from(first)..=usize::from(last)] {
                match *bits {
                    None if before != 0 => {
                        return Err(corrupt("a scan of it refines what no scan has begun"));
                    }
                    Some(bit) if bit == 0 || before != bit || now + 1 != bit => {
                        return Err(corrupt("a scan of it repeats another, or refines it out of order"));
                    }
                    _ => *bits = Some(now),
                }
            }
            self.passed += component.blocks;
            self.read += component.blocks * u64::from(last - first + 1);
        }
        let blocks: u64 = self.components.iter().map(|component| component.blocks).sum();
        if self.passed > (PASSES_MAX * blocks).max(BLOCKS_MIN) {
            return Err(corrupt(format!(
                "its scans pass over the image more than {PASSES_MAX} times: write it with fewer scans"
            )));
        }
        if self.read > READINGS_MAX * COEFFICIENTS * blocks.max(BLOCKS_MIN / PASSES_MAX) {
            return Err(corrupt(format!(
                "its scans read the image more than {READINGS_MAX} times: write it with fewer refinements"
            )));
        }
        Ok(())
    }
}

/// The names of a scan's components, and its last three bytes: the band of coefficients, and the bits before and after.
fn header(segment: &[u8]) -> Option<(impl Iterator<Item = u8>, [u8; 3])> {
    let (&count, rest) = segment.split_first()?;
    let (components, last) = rest.split_at_checked(2 * usize::from(count))?;
    Some((components.as_chunks::<2>().0.iter().map(|[id, _]| *id), last.try_into().ok()?))
}

fn corrupt(reason: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Jpeg, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scan: its components, the band of coefficients, and the bits before and after.
    type Scan<'a> = (&'a [u8], u8, u8, u8, u8);

    /// A file of `side` × `side` pixels with a frame header of this marker and of components sampled so, whose scans hold no codes.
    fn file(marker: u8, side: u16, sampled: &[u8], scans: &[Scan<'_>]) -> Vec<u8> {
        let segment = |marker: u8, content: &[u8]| {
            [&[0xff, marker], &(content.len() as u16 + 2).to_be_bytes()[..], content].concat()
        };
        let sides = side.to_be_bytes();
        let mut frame = [&[8], &sides[..], &sides, &[sampled.len() as u8]].concat();
        for (id, both) in (1..).zip(sampled) {
            frame.extend([id, *both, 0]);
        }
        let mut file = [vec![0xff, 0xd8], segment(marker, &frame)].concat();
        for &(components, first, last, before, now) in scans {
            let mut scan = vec![components.len() as u8];
            scan.extend(components.iter().flat_map(|id| [*id, 0]));
            scan.extend([first, last, before << 4 | now]);
            // Codes, among them what could be taken for a marker, and a restart.
            file.extend([segment(0xda, &scan), vec![0x12, 0xff, 0x00, 0xda, 0xff, 0xd3, 0x77]].concat());
        }
        [file, vec![0xff, 0xd9]].concat()
    }

    fn told(file: &[u8]) -> Option<String> {
        check(file).err().map(|error| error.to_string())
    }

    #[test]
    fn the_scans_of_encoders_are_read_at_any_size() {
        let all: &[u8] = &[1, 2, 3];
        let colour: &[Scan<'_>] = &[
            (all, 0, 0, 0, 1),
            (&[1], 1, 5, 0, 2),
            (&[3], 1, 63, 0, 1),
            (&[2], 1, 63, 0, 1),
            (&[1], 6, 63, 0, 2),
            (&[1], 1, 63, 2, 1),
            (all, 0, 0, 1, 0),
            (&[3], 1, 63, 1, 0),
            (&[2], 1, 63, 1, 0),
            (&[1], 1, 63, 1, 0),
        ];
        // Three bands, each refined by three bits.
        let of = |id: &'static [u8]| {
            let mut scans: Vec<Scan<'_>> = vec![(id, 0, 0, 0, 0)];
            for (first, last) in [(1, 2), (3, 8), (9, 63)] {
                scans.push((id, first, last, 0, 3));
                scans.extend([3, 2, 1].map(|bit| (id, first, last, bit, bit - 1)));
            }
            scans
        };
        let inks = [of(&[1]), of(&[2]), of(&[3]), of(&[4])].concat();
        for marker in [0xc2, 0xca] {
            for side in [8, 800, 8192, 65535] {
                assert_eq!(told(&file(marker, side, &[0x22, 0x11, 0x11], colour)), None);
                assert_eq!(told(&file(marker, side, &[0x11; 4], &inks)), None);
                assert_eq!(told(&file(marker, side, &[0x11], &of(&[1]))), None);
            }
        }
        // Sequential: a scan for each component.
        let each: &[Scan<'_>] = &[(&[1], 0, 63, 0, 0), (&[2], 0, 63, 0, 0), (&[3], 0, 63, 0, 0)];
        assert_eq!(told(&file(0xc0, 8192, &[0x22, 0x11, 0x11], each)), None);
    }

    #[test]
    fn scans_that_repeat_or_refine_what_is_not_there_are_refused() {
        let check = |marker: u8, scans: &[Scan<'_>], expected: &str| {
            let told = told(&file(marker, 64, &[0x11], scans)).unwrap();
            assert!(told.contains(expected), "{told}");
        };
        let (dc, ac): (Scan<'_>, Scan<'_>) = ((&[1], 0, 0, 0, 0), (&[1], 1, 63, 0, 1));
        let refined: Scan<'_> = (&[1], 1, 63, 1, 0);
        check(0xc2, &[ac], "before the one of averages");
        check(0xc2, &[dc, refined], "refines what no scan has begun");
        check(0xc2, &[dc, dc], "repeats another");
        check(0xca, &[dc, ac, ac], "repeats another");
        check(0xca, &[dc, ac, refined, refined], "repeats another");
        check(0xc2, &[dc, (&[1], 1, 63, 0, 3), (&[1], 1, 63, 3, 1)], "out of order");
        check(0xc2, &[dc, (&[1], 9, 8, 0, 0)], "coefficients 9 to 8");
        check(0xc2, &[dc, (&[1], 1, 64, 0, 0)], "coefficients 1 to 64");
        check(0xc0, &[dc, dc], "repeats another");
        check(0xc9, &[dc, dc], "repeats another");
    }

    #[test]
    fn scans_in_order_are_refused_where_they_cost_more_than_those_of_encoders() {
        let mut each: Vec<Scan<'_>> = vec![(&[1], 0, 0, 0, 0)];
        each.extend((1..64).map(|at| -> Scan<'_> { (&[1], at, at, 0, 0) }));
        assert_eq!(told(&file(0xc2, 800, &[0x11], &each)), None);
        let told_of = |scans: &[Scan<'_>]| told(&file(0xca, 8192, &[0x11], scans)).unwrap();
        assert!(told_of(&each).contains("more than 16 times"), "{}", told_of(&each));
        let mut bits: Vec<Scan<'_>> = vec![(&[1], 0, 0, 0, 0), (&[1], 1, 63, 0, 13)];
        bits.extend((1..=13).rev().map(|bit| -> Scan<'_> { (&[1], 1, 63, bit, bit - 1) }));
        assert_eq!(told(&file(0xc2, 800, &[0x11], &bits)), None);
        assert!(told_of(&bits).contains("more than 6 times"), "{}", told_of(&bits));
    }
}
