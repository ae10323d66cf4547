//! Bob Jenkins' hash `lookup3`, the checksum of HDF5's metadata (specification, VIII: appendix).

/// The hash of some bytes, started from 0.
pub(super) fn lookup3(bytes: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32);
    let [mut a, mut b, mut c] = [start; 3];
    let mut rest = bytes;
    // The last block of up to twelve bytes is mixed differently.
    while rest.len() > 12 {
        let (block, after) = rest.split_at(12);
        add(block, [&mut a, &mut b, &mut c]);
        rest = after;
        for (turn_a, turn_b, turn_c) in [(4, 6, 8), (16, 19, 4)] {
            a = a.wrapping_sub(c) ^ c.rotate_left(turn_a);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(turn_b);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(turn_c);
            b = b.wrapping_add(a);
        }
    }
    if rest.is_empty() {
        return c;
    }
    add(rest, [&mut a, &mut b, &mut c]);
    let stir = |word: &mut u32, by: u32, turn| *word = (*word ^ by).wrapping_sub(by.rotate_left(turn));
    stir(&mut c, b, 14);
    stir(&mut a, c, 11);
    stir(&mut b, a, 25);
    stir(&mut c, b, 16);
    stir(&mut a, c, 4);
    stir(&mut b, a, 14);
    stir(&mut c, b, 24);
    c
}

/// Adds up to twelve bytes to three words; missing bytes count as zeros.
fn add(block: &[u8], words: [&mut u32; 3]) {
    for (word, bytes) in words.into_iter().zip(block.chunks(4)) {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        *word = word.wrapping_add(u32::from_le_bytes(four));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_that_were_published() {
        assert_eq!(lookup3(b""), 0xdead_beef);
        assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }
}
