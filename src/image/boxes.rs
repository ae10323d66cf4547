//! The boxes of which files of JPEG XL and JPEG 2000 are made: a length, a kind of four letters, and content.

/// The boxes of `rest`: kind and content; an error if one goes beyond the end. A length of zero is for the last one, up to the end.
pub(super) fn boxes(mut rest: &[u8]) -> impl Iterator<Item = Result<([u8; 4], &[u8]), &'static str>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((kind, content, after)) = first(rest) else {
            rest = &[];
            return Some(Err("it ends inside a box"));
        };
        rest = after;
        Some(Ok((kind, content)))
    })
}

/// The first box, and what follows it.
fn first(bytes: &[u8]) -> Option<([u8; 4], &[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (kind, content) = rest.split_first_chunk()?;
    let (length, head, content) = match u32::from_be_bytes(*length) {
        0 => return Some((*kind, content, &[])),
        1 => {
            let (length, content) = content.split_first_chunk()?;
            (u64::from_be_bytes(*length), 16, content)
        }
        length => (u64::from(length), 8, content),
    };
    let (content, after) = content.split_at_checked(usize::try_from(length.checked_sub(head)?).ok()?)?;
    Some((*kind, content, after))
}

#[cfg(test)]
mod tests {
    use super::boxes;

    #[test]
    fn boxes_of_every_length_are_told_apart() {
        let file = b"\0\0\0\x09abcd1\0\0\0\x01efgh\0\0\0\0\0\0\0\x1223\0\0\0\0ijkl456";
        let all: Vec<_> = boxes(file).collect();
        assert_eq!(all, [Ok((*b"abcd", &b"1"[..])), Ok((*b"efgh", b"23")), Ok((*b"ijkl", b"456"))]);
        for broken in [&b"\0\0\0\x07abcd"[..], b"\0\0\0\x09abcd", b"\0\0\0\x01abcd\0\0\0", b"\0\0"] {
            assert!(boxes(broken).next().is_some_and(|first| first.is_err()), "{broken:?}");
        }
    }
}
