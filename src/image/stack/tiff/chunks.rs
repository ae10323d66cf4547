//! Where the pixels of a page lie: the lists of its strips or tiles, read as they arrive.

use super::{
    super::{StackError, Step, directory::Directory, packing::Compression, page::Page, store::Store, tags},
    Chain,
};

/// How many strips or tiles one page may have.
const CHUNKS_MAX: u64 = 1 << 18;

impl Chain {
    /// The page of a directory, once its lists have arrived.
    pub(super) fn page(
        &mut self,
        store: &mut Store,
        directory: &Directory,
    ) -> Result<Step<Page>, StackError> {
        let mut page = tags::page(directory, self.encoding, self.frame, &self.limits)?;
        let (offsets, bytes) = if page.tiled {
            (tags::TILE_OFFSETS, tags::TILE_BYTES)
        } else {
            (tags::STRIP_OFFSETS, tags::STRIP_BYTES)
        };
        let (width, height) = page.chunk;
        let across = u64::from(page.layout.width.div_ceil(width));
        let needed = across * u64::from(page.layout.height.div_ceil(height));
        if needed > CHUNKS_MAX {
            return Err(self.corrupt(format!("it has {needed} strips or tiles, more than {CHUNKS_MAX}")));
        }
        let offsets = match self.list(store, directory, offsets, needed, "list of offsets")? {
            Step::Ready(Some(offsets)) => offsets,
            Step::Ready(None) => return Err(self.corrupt("its directory does not say where its pixels are")),
            step => return Ok(step.nothing()),
        };
        let bytes = match self.byte_counts(store, directory, bytes, needed)? {
            Step::Ready(Some(bytes)) => bytes,
            // Sizes are known only without compression.
            Step::Ready(None) if page.compression == Compression::None => vec![u64::MAX; offsets.len()],
            Step::Ready(None) => {
                return Err(self.corrupt("its directory does not say how long its strips are"));
            }
            step => return Ok(step.nothing()),
        };
        page.chunks = offsets.into_iter().zip(bytes).collect();
        page.join_strips();
        store.hold_beside(size_of_val(&*page.chunks) + size_of_val(&*self.counts.1));
        Ok(Step::Ready(page))
    }

    /// The byte counts of a page's strips or tiles; a list that is the same as the last one is not read again.
    fn byte_counts(
        &mut self,
        store: &Store,
        directory: &Directory,
        tag: u16,
        needed: u64,
    ) -> Result<Step<Option<Vec<u64>>>, StackError> {
        let offset = directory.find(tag).and_then(|entry| entry.offset(self.encoding));
        if offset == Some(self.counts.0) && self.counts.1.len() as u64 == needed {
            return Ok(Step::Ready(Some(self.counts.1.clone())));
        }
        let step = self.list(store, directory, tag, needed, "list of byte counts")?;
        if let (Some(offset), Step::Ready(Some(counts))) = (offset, &step) {
            self.counts = (offset, counts.clone());
        }
        Ok(step)
    }

    /// The first `needed` values of a list of numbers.
    fn list(
        &mut self,
        store: &Store,
        directory: &Directory,
        tag: u16,
        needed: u64,
        what: &str,
    ) -> Result<Step<Option<Vec<u64>>>, StackError> {
        let Some(entry) = directory.find(tag) else { return Ok(Step::Ready(None)) };
        if !entry.is_unsigned() || entry.count < needed {
            let count = entry.count;
            return Err(self.corrupt(format!(
                "its {what} has {count} numbers, fewer than its {needed} strips or tiles"
            )));
        }
        let len = needed * entry.value_bytes();
        let bytes = match entry.offset(self.encoding) {
            None => entry.inline().to_owned(),
            Some(offset) => match self.fetch(store, offset, len, what)? {
                Step::Ready(bytes) => bytes,
                step => return Ok(step.nothing()),
            },
        };
        let values = bytes.chunks_exact(entry.value_bytes() as usize).take(needed as usize);
        Ok(Step::Ready(Some(values.map(|value| self.encoding.number(value)).collect())))
    }
}
