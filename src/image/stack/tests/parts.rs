//! Parts of the reader that can be wrong on their own.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::super::{
    describe::Description,
    ome::{self, nanometres},
    spill::Spill,
    store::{Presence, Store},
};
use super::{Dimensions, Random, spilled_to};
use bytes::Bytes;

/// Compares the store with a plain list of bytes, each of which is present, released, or was released before it arrived.
#[test]
fn the_store_keeps_what_was_not_released_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut spilled = 0;
    for seed in 0..100 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let folder = if seed % 2 == 1 { spilled_to(folder.path()) } else { None };
        // With a folder, there is so little memory that much is spilled.
        let memory = if folder.is_some() { 40_000 } else { 1 << 30 };
        let mut store = Store::new(memory, Spill::new(folder, 1 << 30));
        const LEN: usize = 200_000;
        let truth: Vec<u8> = (0..LEN).map(|_| random.below(256) as u8).collect();
        let mut gone = vec![false; LEN + 100_000];
        let mut end = 0;
        for step in 0..300 {
            match random.below(4) {
                0 => {
                    let most = [50, 3000, 40_000][random.below(3)];
                    let to = (end + random.below(most)).min(LEN);
                    store.push(&Bytes::copy_from_slice(&truth[end..to])).unwrap();
                    end = to;
                }
                1 | 2 => {
                    let start = random.below(end + 2000);
                    let most = [20, 1000, 30_000][random.below(3)];
                    let len = random.below(most);
                    store.release(start as u64, len as u64);
                    gone[start..start + len].fill(true);
                }
                _ => {
                    let start = random.below(end + 10);
                    let len = random.below(2000);
                    let expected = if start + len > end {
                        Presence::NotYet
                    } else if gone[start..start + len].contains(&true) {
                        Presence::Gone
                    } else {
                        Presence::Here
                    };
                    assert_eq!(store.presence(start as u64, len as u64), expected, "{start} {len} of {end}");
                    if expected == Presence::Here {
                        let mut copy = vec![0; len];
                        store.copy(start as u64, &mut copy).unwrap();
                        assert!(copy == truth[start..start + len], "{start} {len}");
                        let mut scratch = Vec::new();
                        let view = store.view(start as u64, len, &mut scratch).unwrap();
                        assert!(view == &truth[start..start + len], "{start} {len}");
                        let (numbers, _) = truth[start..start + len].as_chunks();
                        let mut appended = vec![7];
                        store
                            .append(start as u64, 2 * numbers.len() as u64, u16::from_be_bytes, &mut appended)
                            .unwrap();
                        let numbers = numbers.iter().map(|number| u16::from_be_bytes(*number));
                        assert!(appended.into_iter().eq([7].into_iter().chain(numbers)), "{start} {len}");
                    }
                }
            }
            if step % 10 > 0 {
                continue;
            }
            let kept = gone[..end].iter().filter(|gone| !**gone).count();
            if store.spilled() == 0 {
                assert!(store.held() >= kept);
                assert!(store.held() <= 2 * kept + 64 * 1024 + 300 * 2 * 200, "{} for {kept}", store.held());
            } else {
                assert!(store.held() <= memory + 40_000 + 300 * 200);
            }
        }
        spilled += store.spilled();
    }
    assert!(spilled > 1 << 20, "{spilled}");
}

#[test]
fn units_of_length_are_known_by_their_many_names() {
    for (name, expected) in [
        ("nm", Some(1.0)),
        ("um", Some(1e3)),
        (" micron ", Some(1e3)),
        ("\u{b5}m", Some(1e3)),
        ("\u{3bc}m", Some(1e3)),
        ("\\u00B5m", Some(1e3)),
        ("mm", Some(1e6)),
        ("inch", Some(25.4e6)),
        ("pixel", None),
        ("", None),
    ] {
        assert_eq!(nanometres(name), expected, "{name}");
    }
}

#[test]
fn ome_xml_is_read_as_far_as_it_goes() {
    let pixels = |attributes: &str| {
        format!("<?xml version=\"1.0\"?><OME:OME xmlns:OME=\"x\"><OME:Image><OME:Pixels {attributes}>")
    };
    let text = pixels("SizeT='7' SizeZ='2' SizeC='1' PhysicalSizeX='0.1' PhysicalSizeXUnit='&#181;m'");
    assert!(ome::is_ome(&text));
    let ome = ome::read(&text);
    assert_eq!(ome.dimensions, Some(Dimensions { frames: 7, slices: 2, channels: 1 }));
    // One side stands for both.
    assert_eq!(ome.pixel_nm, Some((100.0, 100.0)));
    for bad in [
        "PhysicalSizeX='0'",
        "PhysicalSizeX='NaN'",
        "PhysicalSizeX='-1'",
        "PhysicalSizeX='1' PhysicalSizeXUnit='pixel'",
    ] {
        assert_eq!(ome::read(&pixels(bad)).pixel_nm, None, "{bad}");
    }
    assert_eq!(ome::read("<OME><<<&").other_file, None);
    assert_eq!(
        ome::read("<OME><BinaryOnly MetadataFile='a.companion.ome'/>").other_file.unwrap(),
        "a.companion.ome"
    );
    let one = "<OME><TiffData><UUID FileName='a.tif'>u</UUID></TiffData><TiffData><UUID FileName='a.tif'>u</UUID></TiffData></OME>";
    assert_eq!(ome::read(one).other_file, None);
}

#[test]
fn descriptions_of_single_frames_do_not_announce_a_number() {
    for text in
        ["{\"shape\": [4, 6]}", "ImageJ=1.54f\n", "ImageJ=1.54f\nimages=NaN\n", "{\"shape\": \"x\"}", "{"]
    {
        let mut description = Description::default();
        description.take_text(text.as_bytes());
        assert_eq!(description.frames(6, 4).0, None, "{text}");
    }
    let mut description = Description::default();
    description.take_text(b"{\"shape\": [3, 5, 4, 6]}");
    assert_eq!(description.frames(6, 4).0, Some(15));
    assert_eq!(description.frames(4, 6).0, None);
    let mut description = Description::default();
    description.take_text(b"{\"shape\": [4294967296, 4294967296, 4, 6]}");
    assert_eq!(description.frames(6, 4).0, None);
    // Latin-1, as old versions of ImageJ write it.
    let mut description = Description::default();
    description.take_text(b"ImageJ=1.40g\nimages=12\nchannels=2\nslices=3\nunit=\xb5m\n");
    description.x_resolution = Some(10.0);
    let (frames, dimensions) = description.frames(6, 4);
    assert_eq!(frames, Some(12));
    assert_eq!(dimensions, Some(Dimensions { frames: 2, slices: 3, channels: 2 }));
    assert_eq!(description.pixel_nm().unwrap()[0], 100.0);
}

#[test]
fn resolutions_of_printers_are_no_pixel_sizes() {
    let mut description = Description::default();
    description.x_resolution = Some(300.0);
    description.resolution_unit = Some(2);
    assert_eq!(description.pixel_nm(), None);
    for nothing in [0.0, f64::NAN, f64::INFINITY] {
        description.x_resolution = Some(nothing);
        assert_eq!(description.pixel_nm(), None);
    }
    description.x_resolution = Some(254_000.0);
    assert!((description.pixel_nm().unwrap()[1] - 100.0).abs() < 1e-9);
    // A printer's resolution is not a pixel size either if ImageJ's description has its unit.
    let mut description = Description::default();
    description.take_text(b"ImageJ=1.54f\nunit=inch\n");
    description.x_resolution = Some(300.0);
    assert_eq!(description.pixel_nm(), None);
    description.x_resolution = Some(254_000.0);
    assert!((description.pixel_nm().unwrap()[1] - 100.0).abs() < 1e-9);
}
