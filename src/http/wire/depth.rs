//! How deep lists and objects of JSON are within each other. What reads JSON skips what nobody asked for at any depth, and keeps a
//! note of each bracket that is open meanwhile: so this is looked at first, and of the whole text.

/// The most that is read. Where values are read into each other, serde has a bound of its own, just above.
pub(super) const DEPTH_MAX: usize = 120;

/// Bytes that are looked at together.
const BLOCK: usize = 64;

/// Of a text of at most so many bytes, what opens is counted first.
const SHORT_BYTES_MAX: usize = 4096;

/// Whether a byte opens a list or an object, outside of strings: brackets and braces differ by one bit.
fn opens(byte: u8) -> bool {
    byte | 0x20 == b'{'
}

/// Whether no list or object of a text is deeper than [`DEPTH_MAX`]. Of a text that is no JSON this holds up to where it is none.
pub(super) fn is_bounded(json: &[u8]) -> bool {
    // What stands before binary tensors is short, and mostly said by this.
    if json.len() <= SHORT_BYTES_MAX && json.iter().filter(|byte| opens(**byte)).count() <= DEPTH_MAX {
        return true;
    }
    let mut place = Place { depth: 0, string: false, escaped: false };
    let (blocks, rest) = json.as_chunks::<BLOCK>();
    blocks.iter().all(|block| place.passes(block) || place.walks(block)) && place.walks(rest)
}

/// Where in a text we are.
struct Place {
    depth: usize,
    string: bool,
    escaped: bool,
}

impl Place {
    /// Goes over a block that cannot lead too deep, as nearly all do: numbers, or what is within a string. It is counted and not read,
    /// many bytes at a time. `false` has gone nowhere.
    fn passes(&mut self, block: &[u8; BLOCK]) -> bool {
        let count = |is: fn(u8) -> bool| block.iter().map(|byte| u8::from(is(*byte))).sum::<u8>();
        let quotes = count(|byte| byte == b'"');
        if self.string {
            return !self.escaped && quotes == 0 && count(|byte| byte == b'\\') == 0;
        }
        let opened = usize::from(count(opens));
        if quotes > 0 || self.depth + opened > DEPTH_MAX {
            return false;
        }
        let closed = usize::from(count(|byte| byte | 0x20 == b'}'));
        self.depth = (self.depth + opened).saturating_sub(closed);
        true
    }

    /// Goes over bytes one by one, as far as they are not too deep.
    fn walks(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|byte| {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.string => self.escaped = true,
                b'"' => self.string = !self.string,
                b'[' | b'{' if !self.string => self.depth += 1,
                b']' | b'}' if !self.string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.depth <= DEPTH_MAX
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nested(open: &str, close: &str, depth: usize) -> String {
        format!("{}{}", open.repeat(depth), close.repeat(depth))
    }

    #[test]
    fn lists_and_objects_have_a_depth_up_to_which_they_are_taken() {
        for (open, close) in
            [("[", "]"), ("{\"a\":[1, ", "]}"), ("[{\"\\\"]\\\\\":", "}]"), ("[0.25,\n  ", ",1]")]
        {
            let each = open.matches(['[', '{']).count();
            let most = DEPTH_MAX / each;
            assert!(is_bounded(nested(open, close, most).as_bytes()), "{open}");
            assert!(!is_bounded(nested(open, close, most + 1).as_bytes()), "{open}");
            // However many there are beside each other.
            let beside = vec![nested(open, close, most - 1); 1000].join(",");
            assert!(is_bounded(format!("[{beside}]").as_bytes()), "{open}");
        }
        let text = format!("[\"{}\", \"{}\"]", "[".repeat(1000), "\\\"{".repeat(1000));
        assert!(is_bounded(text.as_bytes()), "a text is none");
        // What is escaped may begin the next block.
        let text = format!("[\"{}\\{}\",{}", "a".repeat(BLOCK - 3), "n".repeat(BLOCK), "[".repeat(DEPTH_MAX));
        assert!(!is_bounded(text.as_bytes()));
    }

    proptest! {
        #[test]
        fn blocks_are_counted_as_they_are_read(
            // Mostly what blocks without a quote are made of, and more that opens than that closes.
            picks in prop::collection::vec(prop_oneof![
                3 => prop::sample::select(vec!["[", "{"]),
                2 => prop::sample::select(vec!["]", "}"]),
                12 => prop::sample::select(vec!["0.5,", "abcdefgh"]),
                1 => prop::sample::select(vec!["\"", "\\\"", "\\\\"]),
            ], 0..400),
            times in 1..40_usize,
        ) {
            let text = picks.concat().repeat(times);
            // Without brackets that close nothing: whoever reads such a text stops there.
            let start = || Place { depth: 0, string: false, escaped: false };
            let mut place = start();
            let json: Vec<u8> = text.bytes().filter(|byte| {
                let closes_nothing = place.depth == 0 && !place.string && matches!(byte, b']' | b'}');
                place.walks(&[*byte]);
                !closes_nothing
            }).collect();
            prop_assert_eq!(is_bounded(&json), start().walks(&json));
        }
    }
}
