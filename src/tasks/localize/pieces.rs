//! Bytes to be sent, in order: small pieces are joined, large ones are passed on as they are.

use bytes::Bytes;

/// Pieces smaller than this are copied together, because each separate piece is a chunk of the reply.
const SMALL_BYTES: usize = 4 << 10;

/// A sequence of bytes.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: Vec<Bytes>,
    /// Follows all of `whole`.
    text: Vec<u8>,
    copied: usize,
}

impl Pieces {
    /// Empty, with room for this many bytes of [appended](Pieces::text) text.
    pub fn with_room(bytes: usize) -> Pieces {
        Pieces { text: Vec::with_capacity(bytes), ..Pieces::default() }
    }

    /// The buffer to append bytes to.
    pub(super) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Adds bytes that lie elsewhere.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL_BYTES {
            self.text.extend_from_slice(&bytes);
        } else {
            self.close();
            self.whole.push(bytes);
        }
    }

    fn close(&mut self) {
        if !self.text.is_empty() {
            self.copied += self.text.len();
            self.whole.push(std::mem::take(&mut self.text).into());
        }
    }

    /// How many bytes were appended. Similar output needs room for as many.
    pub fn appended(&self) -> usize {
        self.copied + self.text.len()
    }

    /// All pieces; none is empty.
    pub fn into_vec(mut self) -> Vec<Bytes> {
        self.close();
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_in_their_order_and_large_ones_where_they_lay() {
        let large = Bytes::from(vec![1; SMALL_BYTES]);
        let mut pieces = Pieces::with_room(10);
        pieces.push(large.clone());
        pieces.text().extend(b"ab");
        pieces.push(Bytes::from_static(b"c"));
        pieces.push(Bytes::new());
        pieces.push(large.clone());
        pieces.text().push(b'd');
        assert_eq!(pieces.appended(), 4);
        let got = pieces.into_vec();
        assert_eq!(got, [large.clone(), Bytes::from_static(b"abc"), large.clone(), Bytes::from_static(b"d")]);
        assert_eq!([got[0].as_ptr(), got[2].as_ptr()], [large.as_ptr(); 2]);
        assert!(Pieces::default().into_vec().is_empty());
    }
}
