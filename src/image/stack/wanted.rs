//! The values of a TIFF's first directory that describe the stack. They are read as soon as they have arrived, wherever they lie.

use super::{
    Format, StackError, Step,
    describe::Description,
    directory::{Directory, Encoding, Entry},
    ome::Ome,
    store::{Presence, Store},
    tags::{DESCRIPTION, META_MORPH_PLANES, MICRO_MANAGER, RESOLUTION_UNIT, X_RESOLUTION, Y_RESOLUTION},
};

/// How many bytes of a description are read; a longer one is cut.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// More values than any writer uses to describe a stack; further ones are not read.
const VALUES_MAX: usize = 16;

/// The values that are still to be read, and the description from those that were.
pub(super) struct Wanted {
    encoding: Encoding,
    /// Entries with the offset of their values; 0 for values that the entry itself holds.
    entries: Vec<(Entry, u64)>,
    pub(super) description: Description,
}

impl Wanted {
    pub(super) fn new(encoding: Encoding) -> Wanted {
        Wanted { encoding, entries: Vec::new(), description: Description::default() }
    }

    /// Whether values of this tag still have to be read.
    pub(super) fn holds(&self, tag: u16) -> bool {
        self.entries.iter().any(|(entry, _)| entry.tag == tag)
    }

    /// Notes the entries of the first directory that describe the stack.
    pub(super) fn note(&mut self, directory: &Directory) {
        // A count of one plane fits any TIFF. The values themselves are not needed.
        let planes = directory.find(META_MORPH_PLANES).map(|entry| entry.count);
        self.description.meta_morph = planes.filter(|planes| *planes > 1);
        let describes = |entry: &&Entry| {
            matches!(entry.tag, DESCRIPTION | X_RESOLUTION | Y_RESOLUTION | RESOLUTION_UNIT | MICRO_MANAGER)
        };
        for entry in directory.entries.iter().filter(describes).take(VALUES_MAX) {
            let offset = entry.offset(self.encoding).unwrap_or(0);
            self.entries.push((entry.clone(), offset));
        }
    }

    /// Reads the wanted values that lie before `before`. Values that are missing when the whole file has arrived are ignored.
    pub(super) fn read(
        &mut self,
        store: &mut Store,
        before: u64,
        finished: bool,
        file_alone: bool,
    ) -> Result<Step<()>, StackError> {
        while let Some(index) = self.entries.iter().position(|(_, offset)| *offset < before) {
            let (entry, offset) = &self.entries[index];
            let len = entry.bytes().min(DESCRIPTION_BYTES_MAX);
            let bytes = match entry.offset(self.encoding) {
                None => entry.inline().to_owned(),
                Some(_) => match store.presence(*offset, len) {
                    Presence::NotYet if !finished => {
                        return Ok(Step::Wait { until: offset.saturating_add(len) });
                    }
                    // The pixels are valid without it.
                    Presence::NotYet | Presence::Gone => Vec::new(),
                    Presence::Here => {
                        let mut bytes = vec![0; len as usize];
                        store.copy(*offset, &mut bytes)?;
                        store.release(*offset, entry.bytes());
                        bytes
                    }
                },
            };
            let (entry, _) = self.entries.swap_remove(index);
            self.take(&entry, &bytes);
        }
        match &self.description.ome {
            Some(ome) if !file_alone => refuse_parts(ome)?,
            _ => {}
        }
        Ok(Step::Ready(()))
    }

    fn take(&mut self, entry: &Entry, bytes: &[u8]) {
        let ratio = || {
            let (above, below) = bytes.split_at_checked(4)?;
            Some(self.encoding.number(above) as f64 / self.encoding.number(below.get(..4)?) as f64)
        };
        match entry.tag {
            DESCRIPTION => self.description.take_text(bytes),
            MICRO_MANAGER => self.description.take_micro_manager(bytes),
            X_RESOLUTION => self.description.x_resolution = ratio(),
            Y_RESOLUTION => self.description.y_resolution = ratio(),
            _ => self.description.resolution_unit = Some(self.encoding.number(bytes)),
        }
    }
}

/// Refuses files whose planes are not those of one movie.
fn refuse_parts(ome: &Ome) -> Result<(), StackError> {
    if let Some(file) = &ome.other_file {
        return Err(StackError::unsupported(
            Format::Tiff,
            format!("planes in other files (its OME-XML names {file:?})"),
            "save all planes to one file, or ask for those of this file alone (planes=here; ocelli predict: --set planes=here)",
        ));
    }
    if ome.apart {
        return Err(StackError::unsupported(
            Format::Tiff,
            format!("several images, such as positions (its OME-XML has {})", ome.images),
            "save each to a file of its own, or ask for the planes of all of them as the frames of one movie, in the file's order \
             (planes=here; ocelli predict: --set planes=here)",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_descriptions_the_first_are_read() {
        let encoding = Encoding::default();
        let (mut table, entry) =
            (Vec::new(), [&DESCRIPTION.to_le_bytes()[..], &[2, 0, 1, 0, 0, 0, 0, 0, 0, 0]]);
        (0..4096).for_each(|_| table.extend(entry.concat()));
        table.extend([0; 4]);
        let directory = Directory::read(encoding, &table);
        assert_eq!(directory.entries.len(), 4096);
        let mut wanted = Wanted::new(encoding);
        wanted.note(&directory);
        assert!(wanted.holds(DESCRIPTION));
        assert_eq!(wanted.entries.len(), VALUES_MAX);
    }
}
