//! Other files in the place of stacks, and in that of raw samples.

use super::*;

/// Files of other kinds with how they begin, what they are called, and what to do.
fn others() -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let lif = [&b"\x70\0\0\0\x22\x01\0\0\x2a\x8e\0\0\0"[..], b"<\0L\0M\0S\0D\0a\0t\0a\0"].concat();
    let export = "export it as OME-TIFF, such as with Fiji or Bio-Formats";
    [
        (b"DCIMG\0\0\0\0\0\0\x01".to_vec(), "a DCIMG file (Hamamatsu)", export),
        (
            b"\xda\xce\xbe\x0a\x20\0\0\0\x40\0\0\0\0\0\0\0ND2 FILE SIGNATURE".to_vec(),
            "an ND2 file (Nikon)",
            export,
        ),
        (b"ZISRAWFILE\0\0\0\0\0\0".to_vec(), "a CZI file (Zeiss)", export),
        (b"Andor Technology Multi-Channel File\n65538 1\n".to_vec(), "a SIF file (Andor)", export),
        (lif, "a LIF file (Leica)", export),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0".to_vec(), "an OIB or ZVI file (Olympus, Zeiss)", export),
        (b"\x89HDF\r\n\x1a\n\0\0".to_vec(), "an HDF5 file", export),
        (b"SIMPLE  =                    T".to_vec(), "a FITS file", export),
        (
            b"PK\x03\x04\x14\0\0\0\x08\0".to_vec(),
            "a ZIP archive",
            "unpack it, and send the stack that is in it",
        ),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec(), "packed by gzip", "Content-Encoding: gzip"),
        (
            b"\x1f\x8b\x08\x08\x5e\x12\x6a\x66\0\x03m.tif\0".to_vec(),
            "packed by gzip",
            "Content-Encoding: gzip",
        ),
    ]
    .map(|(begins, what, instead)| ([begins, vec![9; 400]].concat(), what, instead))
    .into()
}

/// The frames of 9 x 5 px at the beginning of `bytes`, or why they are none.
fn as_samples(bytes: &[u8], suspects: bool, cut: usize) -> Result<u64, String> {
    let raw = Raw { width: 9, height: 5, sample: SampleType::U16, frames: None };
    let mut reader = StackReader::new(Some(Format::Raw(raw)), options());
    if suspects {
        reader = reader.suspecting_files();
    }
    let whole = bytes.len() / 90 * 90;
    let told = |error: StackError| error.to_string();
    for piece in bytes[..whole].chunks(cut) {
        reader.push(piece.to_vec().into()).map_err(told)?;
        while reader.next_frame().map_err(told)?.is_some() {}
    }
    reader.finish();
    while reader.next_frame().map_err(told)?.is_some() {}
    Ok(reader.frames())
}

#[test]
fn other_files_are_named_with_what_to_do() {
    for (bytes, what, instead) in others() {
        for cut in [1, 7, usize::MAX] {
            let outcome = read_with(None, options(), &bytes.clone().into(), 1, || cut);
            let told = outcome.end.unwrap_err().to_string();
            assert!(told.starts_with(&format!("not a stack: the body is {what}; ")), "{told}");
            assert_says(&told, &[instead]);
        }
    }
    for (bytes, what) in
        [(&b"%PDF-1.7"[..], "a PDF document"), (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 image")]
    {
        assert_says(&refusal(bytes), &[&format!("not a stack: the body is {what}; ")]);
    }
}

#[test]
fn a_file_is_not_taken_for_the_samples_that_its_request_states() {
    let ours =
        ["shaped.tif", "shaped_big_endian.tif", "shaped_bigtiff.tif", "little_u2.npy", "version_3.npy"];
    let ours = ours.map(|name| {
        let what = if name.ends_with(".npy") { "a .npy file" } else { "a TIFF file" };
        (fixture(name).to_vec(), what, "leave shape and dtype out")
    });
    for (bytes, what, instead) in others().into_iter().chain(ours) {
        for cut in [1, 7, usize::MAX] {
            let told = as_samples(&bytes, true, cut).unwrap_err();
            let begins = format!("the body is {what}, but by its shape it would be raw samples; ");
            assert!(told.starts_with(&begins), "{told}");
            assert_says(&told, &[instead]);
        }
        // What comes as a tensor is samples for sure.
        assert_eq!(as_samples(&bytes, false, 50), Ok(bytes.len() as u64 / 90), "{what}");
    }
}

#[test]
fn samples_that_only_resemble_a_file_are_read() {
    for begins in [
        &b"\x1f\x8b\x1f\x8b"[..], // 35615 beside 35615
        b"II\x2b\x49",            // 18761 beside 18731
        b"MM\x4e\x4d",
        b"PK\x4f\x4b",
        b"\xda\xce\xdb\xce",
        b"\x70\0\x71\0\x6f\0\x70\0\x2a\0\x70\0\x3c\0",
        b"%PDF",
        b"8BPS",
        b"\0\0\0\0",
    ] {
        let bytes = [begins, &[7; 300]].concat();
        assert_eq!(as_samples(&bytes, true, 1), Ok(bytes.len() as u64 / 90), "{begins:?}");
    }
    // A frame of fewer bytes than the longest signature is not waited for beyond its end.
    let raw = Raw { width: 3, height: 2, sample: SampleType::U8, frames: None };
    let mut reader = StackReader::new(Some(Format::Raw(raw)), options()).suspecting_files();
    reader.push(b"Andor ".to_vec().into()).unwrap();
    assert!(reader.next_frame().unwrap().is_some());
}

/// A TIFF of as many frames of 4 x 3 px as its images have together, by the OME-XML of its first directory.
fn with_ome(images: &[(u64, &str)]) -> Bytes {
    let image = |(frames, size): &(u64, &str)| {
        format!("<Image><Pixels SizeT='{frames}' PhysicalSizeX='{size}' PhysicalSizeXUnit='nm'/></Image>")
    };
    let ome = format!("<?xml version='1.0'?><OME>{}</OME>", images.iter().map(image).collect::<String>());
    let mut file = Builder::new(LITTLE);
    for frame in 0..images.iter().map(|(frames, _)| frames).sum() {
        let samples = file.samples(&[frame as u16; 12]);
        let at = file.put(&samples);
        let mut fields = file.page(4, 3, at, samples.len() as u64);
        if frame == 0 {
            fields.push(Builder::text(tags::DESCRIPTION, &ome));
        }
        file.directory(&fields);
    }
    file.bytes.into()
}

#[test]
fn positions_in_one_file_are_merged_only_where_that_is_asked_for() {
    let alone = Options { file_alone: true, ..options() };
    let read_alone = |bytes: &Bytes| read_with(None, alone.clone(), bytes, 1, || 100);
    for images in [&[(2, "108"), (3, "108")][..], &[(1, "108"), (2, "108")], &[(1, "108"), (1, "118")]] {
        let bytes = with_ome(images);
        assert_says(
            &refusal(bytes.clone()),
            &["several images, such as positions (its OME-XML has 2)", "a file of its own", "planes=here"],
        );
        let merged = read_alone(&bytes);
        let frames: u64 = images.iter().map(|(frames, _)| frames).sum();
        assert!(merged.end.is_ok() && merged.planes.len() as u64 == frames, "{:?}", merged.end);
        assert_eq!(merged.info.map(|info| (info.images, info.pixel_nm)), Some((2, Some([108.0; 2]))));
    }
    // A movie that was written frame by frame, each as an image, as tifffile does; and an image alone.
    for (images, count) in
        [(&[(1, "108"); 3][..], 3), (&[(1, "108"), (1, ""), (1, "")], 3), (&[(3, "108")], 1)]
    {
        let outcome = read(&with_ome(images));
        assert!(outcome.end.is_ok() && outcome.planes.len() == 3, "{images:?}: {:?}", outcome.end);
        assert_eq!(outcome.info.map(|info| info.images), Some(count));
    }
}
