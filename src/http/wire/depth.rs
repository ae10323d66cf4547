//! Limits how deep lists and objects of JSON may be nested. A JSON parser skips ignored values at any depth, and meanwhile keeps a note of
//! each open bracket. So the depth is checked first, for the whole text.

/// The greatest depth that is read. For values that are parsed recursively, serde has a limit of its own, just above this.
pub(super) const DEPTH_MAX: usize = 120;

/// How many bytes are examined together.
const BLOCK: usize = 64;

/// In a text of at most this many bytes, the opening brackets are counted first.
const SHORT_BYTES_MAX: usize = 4096;

/// Whether a byte outside of strings opens a list or an object: brackets and braces differ in one bit.
fn opens(byte: u8) -> bool {
    byte | 0x20 == b'{'
}

/// Whether no list or object of a text is deeper than [`DEPTH_MAX`]. Text that is not JSON is checked only up to where it stops being JSON.
pub(super) fn is_bounded(json: &[u8]) -> bool {
    // The JSON in front of binary tensors is short, and this mostly decides.
    if json.len() <= SHORT_BYTES_MAX && json.iter().filter(|byte| opens(**byte)).count() <= DEPTH_MAX {
        return true;
    }
    let mut place = Place { depth: 0, string: false, escaped: false };
    let (blocks, rest) = json.as_chunks::<BLOCK>();
    blocks.iter().all(|block| place.passes(block) || place.walks(block)) && place.walks(rest)
}

/// The position in a text.
struct Place {
    depth: usize,
    string: bool,
    escaped: bool,
}

impl Place {
    /// Skips a block that cannot lead too deep, as almost all do: numbers, or the inside of a string. Bytes are only counted, many at a
    /// time. Returns `false`, and skips nothing, if that is not certain.
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

    /// Walks over bytes one by one. Returns `false` where they are too deep.
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
            // However many lists are beside each other.
            let beside = vec![nested(open, close, most - 1); 1000].join(",");
            assert!(is_bounded(format!("[{beside}]").as_bytes()), "{open}");
        }
        let text = format!("[\"{}\", \"{}\"]", "[".repeat(1000), "\\\"{".repeat(1000));
        assert!(is_bounded(text.as_bytes()), "a text is none");
        // An escaped character may begin the next block.
        let text = format!("[\"{}\\{}\",{}", "a".repeat(BLOCK - 3), "n".repeat(BLOCK), "[".repeat(DEPTH_MAX));
        assert!(!is_bounded(text.as_bytes()));
    }

    proptest! {
        #[test]
        fn blocks_are_counted_as_they_are_read(
            // Mostly pieces of blocks without a quote, with more opening than closing brackets.
            picks in prop::collection::vec(prop_oneof![
                3 => prop::sample::select(vec!["[", "{"]),
                2 => prop::sample::select(vec!["]", "}"]),
                12 => prop::sample::select(vec!["0.5,", "abcdefgh"]),
                1 => prop::sample::select(vec!["\"", "\\\"", "\\\\"]),
            ], 0..400),
            times in 1..40_usize,
        ) {
            let text = picks.concat().repeat(times);
            // Without brackets that close nothing: a parser stops at those.
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
