//! The markers of a JPEG 2000 codestream, walked before the decoder sees it: it allocates by what they say of tiles, precincts and code
//! blocks, of which there may be one for each pixel, and by the lengths of lists that are copied for each tile.
//!
//! The decoder reads some segments by what is in them and not by their length, so a length that is not that of the content is refused.

const SOC: u8 = 0x4f;
const CAP: u8 = 0x50;
const SIZ: u8 = 0x51;
const COD: u8 = 0x52;
const COC: u8 = 0x53;
const QCD: u8 = 0x5c;
const QCC: u8 = 0x5d;
const RGN: u8 = 0x5e;
const POC: u8 = 0x5f;
const PPM: u8 = 0x60;
const PPT: u8 = 0x61;
const SOT: u8 = 0x90;
const SOD: u8 = 0x93;
const EOC: u8 = 0xd9;

/// The most decompositions that a component may have.
const LEVELS_MAX: u8 = 32;

/// Components, with alpha.
pub(super) const COMPONENTS_MAX: u16 = 4;

/// Bytes of a segment that begins a part of a tile, with its marker.
const SOT_BYTES: usize = 12;

/// A tile in the decoder, and each of its components, with the lists that these have.
const TILE_BYTES: u64 = 512;
const TILE_COMPONENT_BYTES: u64 = 1024;
const TILE_PART_BYTES: u64 = 128;
/// A code block, with its nodes in two trees; for each layer; and for each run of its codes. All of them in lists that grow by doubling.
const BLOCK_BYTES: u64 = 2 * 192;
const LAYER_BYTES: u64 = 2 * 24;
const RUN_BYTES: u64 = 2 * 32;
const PRECINCT_BYTES: u64 = 2 * 192;

/// The most runs of codes that a block may have where each pass over it may end one.
const RUNS_MAX: u64 = 94;

/// Why a codestream is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is damaged.
    Corrupt(&'static str),
    /// It has what is not supported.
    Unsupported(String),
}

use Refused::{Corrupt, Unsupported};

const ENDED: Refused = Corrupt("it ends inside its headers");
const LENGTH: Refused = Corrupt("a marker segment is not as long as what it holds");

/// What walking the markers found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Codestream {
    /// Bits of the samples of each component.
    pub(super) bits: Vec<u8>,
    /// How often the picture can be halved.
    pub(super) halvings: u8,
    /// Memory that the decoder takes to hold all tiles and the largest one's blocks, in bytes.
    pub(super) structure_bytes: u64,
    tile: (u64, u64),
    tiles: u64,
    /// Of one component, with the costliest of all styles of coding.
    blocks_bytes: u64,
}

/// Numbers of a segment, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn byte(&mut self) -> Result<u8, Refused> {
        let (&byte, rest) = self.0.split_first().ok_or(LENGTH)?;
        self.0 = rest;
        Ok(byte)
    }

    fn short(&mut self) -> Result<u16, Refused> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn long(&mut self) -> Result<u64, Refused> {
        Ok(u64::from(self.short()?) << 16 | u64::from(self.short()?))
    }

    fn end(&self) -> Result<(), Refused> {
        if self.0.is_empty() { Ok(()) } else { Err(LENGTH) }
    }
}

/// Walks all markers up to the last part of a tile.
pub(super) fn walk(bytes: &[u8]) -> Result<Codestream, Refused> {
    let mut found = Codestream { halvings: LEVELS_MAX, ..Codestream::default() };
    let mut rest = bytes.strip_prefix(&[0xff, SOC]).ok_or(Corrupt("it does not begin with its marker"))?;
    let mut parts = 0;
    loop {
        let (marker, segment, after) = segment(rest)?;
        match marker {
            SOT => {
                parts += 1;
                let Some(next) = found.part(rest, segment)? else { break };
                rest = next;
            }
            // The decoder is the one to miss its end.
            EOC if parts > 0 => break,
            _ => {
                if (marker == SIZ) != found.bits.is_empty() {
                    return Err(Corrupt("its size does not come first"));
                }
                found.note(marker, segment)?;
                rest = after;
            }
        }
    }
    if found.tiles > (bytes.len() / SOT_BYTES) as u64 {
        return Err(Corrupt("it has more tiles than there is room for"));
    }
    let components = found.bits.len() as u64;
    found.structure_bytes = found.tiles * (TILE_BYTES + components * TILE_COMPONENT_BYTES)
        + parts * TILE_PART_BYTES
        + components * found.blocks_bytes;
    Ok(found)
}

/// The first marker, the content of its segment, and what follows. The markers that begin or end something have none.
fn segment(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), Refused> {
    match bytes {
        [0xff, marker @ (SOD | EOC), rest @ ..] => Ok((*marker, &[], rest)),
        // Those without a segment are for other standards.
        [0xff, 0x30..=0x3f, ..] => Err(Unsupported("reserved markers".to_owned())),
        [0xff, marker, l1, l0, rest @ ..] => {
            let length = usize::from(u16::from_be_bytes([*l1, *l0]));
            let content = length.checked_sub(2).and_then(|length| rest.split_at_checked(length));
            let (content, rest) = content.ok_or(ENDED)?;
            Ok((*marker, content, rest))
        }
        [] | [_] | [0xff, ..] => Err(ENDED),
        _ => Err(Corrupt("there is no marker where one has to be")),
    }
}

impl Codestream {
    /// Walks the header of a part of a tile, which begins with this segment. Returns what follows the part, if the part says where it ends.
    fn part<'a>(&mut self, bytes: &'a [u8], segment: &[u8]) -> Result<Option<&'a [u8]>, Refused> {
        let mut fields = Fields(segment);
        let (_tile, length) = (fields.short()?, fields.long()? as usize);
        let _number_and_count = fields.short()?;
        fields.end()?;
        let part =
            if length == 0 { bytes } else { bytes.get(..length).ok_or(Corrupt("it ends inside a tile"))? };
        let mut rest = part.get(SOT_BYTES..).ok_or(LENGTH)?;
        loop {
            let (marker, segment, after) = self::segment(rest)?;
            match marker {
                SOD => break,
                SOT | SIZ | EOC => return Err(Corrupt("a tile ends before its data")),
                _ => self.note(marker, segment)?,
            }
            rest = after;
        }
        Ok((length > 0).then(|| &bytes[length..]))
    }

    fn note(&mut self, marker: u8, segment: &[u8]) -> Result<(), Refused> {
        let mut fields = Fields(segment);
        match marker {
            SIZ => self.size(&mut fields)?,
            COD => {
                let (style, _order, layers) = (fields.byte()?, fields.byte()?, fields.short()?);
                let _transform = fields.byte()?;
                self.coding(&mut fields, style, u64::from(layers))?;
            }
            COC => {
                let (_component, style) = (fields.byte()?, fields.byte()?);
                // The layers are those of the whole, of which the decoder takes 32.
                self.coding(&mut fields, style, 32)?;
            }
            QCD | QCC => {
                if marker == QCC {
                    fields.byte()?;
                }
                let derived = fields.byte()? & 0x1f == 1;
                let bands = 3 * usize::from(LEVELS_MAX) + 1;
                if fields.0.len() > 2 * bands || derived && fields.0.len() != 2 {
                    return Err(LENGTH);
                }
            }
            RGN => {
                let _component_style_shift = (fields.byte()?, fields.byte()?, fields.byte()?);
                fields.end()?;
            }
            CAP => return Err(Unsupported("high-throughput coding (HTJ2K)".to_owned())),
            POC => return Err(Unsupported("changes of its progression".to_owned())),
            PPM | PPT => return Err(Unsupported("packed packet headers".to_owned())),
            _ => {}
        }
        Ok(())
    }

    fn size(&mut self, fields: &mut Fields<'_>) -> Result<(), Refused> {
        let _capabilities = fields.short()?;
        let mut pair = || Ok((fields.long()?, fields.long()?));
        let (end, _start, tile, first) = (pair()?, pair()?, pair()?, pair()?);
        let components = fields.short()?;
        if components > COMPONENTS_MAX {
            return Err(Unsupported(format!("{components} components")));
        }
        for _ in 0..components {
            let (bits, _every) = (fields.byte()?, fields.short()?);
            if bits & 0x80 != 0 {
                return Err(Unsupported("signed samples".to_owned()));
            }
            self.bits.push(bits + 1);
        }
        fields.end()?;
        if self.bits.is_empty() || tile.0 == 0 || tile.1 == 0 || first.0 >= end.0 || first.1 >= end.1 {
            return Err(Corrupt("its size is not one"));
        }
        if let Some(bits) = self.bits.iter().find(|bits| **bits > 16) {
            return Err(Unsupported(format!("{bits} bits per sample")));
        }
        let extent = (end.0 - first.0, end.1 - first.1);
        self.tile = (tile.0.min(extent.0), tile.1.min(extent.1));
        self.tiles = extent.0.div_ceil(tile.0) * extent.1.div_ceil(tile.1);
        Ok(())
    }

    /// The part of a style of coding that all components or one may have of their own.
    fn coding(&mut self, fields: &mut Fields<'_>, style: u8, layers: u64) -> Result<(), Refused> {
        let (levels, width, height) = (fields.byte()?, fields.byte()?, fields.byte()?);
        let (block_style, _transform) = (fields.byte()?, fields.byte()?);
        if levels > LEVELS_MAX || width > 8 || height > 8 {
            return Err(Corrupt("its code blocks are not of a size that they may have"));
        }
        // A pass ends a run of codes if all do, or if some are not coded arithmetically.
        let runs = if block_style & 0b101 == 0 { layers } else { RUNS_MAX };
        let block_bytes = BLOCK_BYTES + layers * LAYER_BYTES + runs * RUN_BYTES;
        let mut bytes = 0;
        for resolution in 0..=levels {
            let precinct = if style & 1 == 0 { 0xff } else { fields.byte()? };
            // Precincts of all but the lowest resolution are shared by three bands of half their size.
            let (bands, halved) = if resolution == 0 { (1, 0) } else { (3, 1) };
            let level = levels + 1 - resolution.max(1);
            let (across, down) = (precinct & 0xf, precinct >> 4);
            if across < halved || down < halved {
                return Err(Corrupt("its precincts are not of a size that they may have"));
            }
            let count = |across: u8, down: u8| {
                let along = |side: u64, exponent: u8| (side >> level.min(63) >> exponent) + 3;
                along(self.tile.0, across) * along(self.tile.1, down)
            };
            let (across, down) = (across - halved, down - halved);
            let precincts = count(across, down);
            let blocks = count((width + 2).min(across), (height + 2).min(down));
            bytes += bands * (precincts * PRECINCT_BYTES + blocks * block_bytes);
        }
        fields.end()?;
        self.halvings = self.halvings.min(levels);
        self.blocks_bytes = self.blocks_bytes.max(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;
    use crate::image::corpus::fixture;

    /// The walk of a codestream of which the segment behind this marker is changed.
    fn changed(marker: u8, change: impl Fn(&mut [u8])) -> Result<Codestream, Refused> {
        let mut file = fixture("j2k_bare.j2k");
        let at = file.windows(2).position(|two| two == [0xff, marker]).unwrap();
        change(&mut file[at + 4..]);
        walk(&file)
    }

    #[test]
    fn tiles_precincts_and_blocks_are_counted_before_the_decoder_makes_them() {
        let plain = changed(SIZ, |_| {}).unwrap();
        assert_eq!((&plain.bits[..], plain.halvings, plain.tiles), (&[8, 8, 8][..], 2, 1));
        // As wide and high as 20,000: blocks of 64 x 64 take little.
        let large = |size: &mut [u8]| {
            for at in [2, 6, 18, 22] {
                size[at..at + 4].copy_from_slice(&20_000u32.to_be_bytes());
            }
        };
        let wide = changed(SIZ, large).unwrap().structure_bytes;
        assert!((100 << 20..1 << 30).contains(&wide), "{wide}");
        // Blocks of 4 x 4 take more than a hundred times as much.
        let mut file = fixture("j2k_bare.j2k");
        large(&mut file[6..]);
        let coding = file.windows(2).position(|two| two == [0xff, COD]).unwrap() + 4;
        file[coding + 6..coding + 8].fill(0);
        assert!(walk(&file).unwrap().structure_bytes > 100 * wide);
        // One tile for each pixel, of which there may be no more than have room.
        let tiny = changed(SIZ, |size| size[18..26].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]));
        assert_eq!(tiny, Err(Corrupt("it has more tiles than there is room for")));
    }

    #[test]
    fn segments_are_as_long_as_what_they_hold() {
        for (marker, length) in [(SIZ, 46), (COD, 11), (QCD, 300)] {
            let mut file = fixture("j2k_bare.j2k");
            let at = file.windows(2).position(|two| two == [0xff, marker]).unwrap() + 2;
            file[at..at + 2].copy_from_slice(&u16::to_be_bytes(length));
            file.resize(1000, 0);
            assert_eq!(walk(&file), Err(LENGTH), "{marker:#x}");
        }
    }

    #[test]
    fn kinds_that_are_not_read_are_named() {
        let unsupported = |what: &str| Err(Unsupported(what.to_owned()));
        assert_eq!(changed(SIZ, |size| size[36] = 0x87), unsupported("signed samples"));
        assert_eq!(changed(SIZ, |size| size[36] = 23), unsupported("24 bits per sample"));
        assert_eq!(changed(SIZ, |size| size[35] = 5), unsupported("5 components"));
        for (marker, what) in [
            (CAP, "high-throughput coding (HTJ2K)"),
            (POC, "changes of its progression"),
            (PPM, "packed packet headers"),
        ] {
            let mut file = fixture("j2k_bare.j2k");
            let at = file.windows(2).position(|two| two == [0xff, COD]).unwrap();
            file.splice(at..at, [0xff, marker, 0, 4, 0, 0]);
            assert_eq!(walk(&file), unsupported(what));
        }
    }
}
