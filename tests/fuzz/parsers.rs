//! The parsers of what callers and authors send, each with what must hold of whatever it reads.

use bytes::Bytes;
use ocelli::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    http::{
        body::multipart,
        wire::{binary, predict, raw, repository, request, v1},
    },
    image::{
        self, Preprocess, Scratch,
        stack::{self, StackReader},
    },
    models::{Change, Manifest, triton},
};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Something that reads bytes.
pub(crate) struct Parser {
    /// What it is called.
    pub(crate) name: &'static str,
    /// The folder of what it is to read, in the repository.
    pub(crate) files: &'static str,
    /// Takes a body, and panics where what it is read as does not hold together.
    pub(crate) parse: fn(&[u8]),
}

/// How large an image may be here.
const IMAGES: image::Limits = image::Limits { side_max: 4096, pixels_max: 1 << 20, frames_max: 16 };

/// All of them.
pub(crate) const PARSERS: [Parser; 11] = [
    Parser { name: "base64", files: "tests/fixtures/fuzz/base64", parse: base64 },
    Parser { name: "config-pbtxt", files: "tests/fixtures/fuzz/config-pbtxt", parse: config_pbtxt },
    Parser { name: "image", files: "tests/fixtures/images", parse: image },
    Parser { name: "load", files: "tests/fixtures/fuzz/load", parse: load },
    Parser { name: "manifest", files: "tests/fixtures/fuzz/manifest", parse: manifest },
    Parser { name: "multipart", files: "tests/fixtures/fuzz/multipart", parse: forms },
    Parser { name: "npy", files: "tests/fixtures/stacks", parse: npy },
    Parser { name: "oip-binary", files: "tests/fixtures/fuzz/oip-binary", parse: oip_binary },
    Parser { name: "oip-json", files: "tests/fixtures/fuzz/oip-json", parse: oip_json },
    Parser { name: "stack", files: "tests/fixtures/stacks", parse: stack },
    Parser { name: "v1", files: "tests/fixtures/fuzz/v1", parse: rows_and_columns },
];

fn specs() -> Vec<TensorSpec> {
    let spec = |name: &str, datatype, shape: &[Dim]| TensorSpec {
        name: name.into(),
        datatype,
        shape: shape.to_vec(),
    };
    vec![spec("x", DataType::Fp32, &[Dim::Free, Dim::Fixed(4)]), spec("c", DataType::Bytes, &[Dim::Free])]
}

/// The forms in which an input may be pixels.
fn pixels() -> Vec<TensorSpec> {
    let shape = [Dim::Free, Dim::Fixed(2), Dim::Fixed(2), Dim::Fixed(1)];
    let form = |datatype| TensorSpec { name: "x".into(), datatype, shape: shape.to_vec() };
    vec![form(DataType::Uint8), form(DataType::Uint16)]
}

/// The bytes of a tensor are those of its shape and type.
fn holds_together(tensor: &Tensor) {
    let checked = binary::checked("it", tensor.clone()).expect("what was read is what it says");
    assert_eq!(checked.data, tensor.data);
}

/// An inference request in JSON.
fn oip_json(body: &[u8]) {
    if let Ok(request) = request::read(&Bytes::copy_from_slice(body), None, &specs()) {
        request.inputs.iter().for_each(|input| holds_together(&input.tensor));
        let _ = (request.timeout(), request.priority());
    }
}

/// An inference request with binary tensors; the first line is what the header says.
fn oip_binary(file: &[u8]) {
    let line = file.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let length = std::str::from_utf8(&file[..line]).ok().and_then(|text| text.parse().ok());
    let body = Bytes::copy_from_slice(&file[line..]);
    let body = body.slice(body.len().min(1)..);
    let read = match length {
        Some(0) => raw::read(body, &specs()[..1], &pixels(), Some(&IMAGES)),
        length => request::read(&body, length, &specs()),
    };
    if let Ok(request) = read {
        request.inputs.iter().for_each(|input| holds_together(&input.tensor));
    }
}

/// A form of several parts.
fn forms(body: &[u8]) {
    if let Ok(parts) = multipart::parts(&Bytes::copy_from_slice(body), "B", 8) {
        assert!(parts.len() <= 8 && parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= body.len());
    }
}

/// Images in base64.
fn base64(body: &[u8]) {
    if let Ok(read) = predict::instances(body, 8, &mut |_| Ok(())) {
        assert!((1..=8).contains(&read.images.len()));
    }
}

/// A prediction by KServe's first protocol.
fn rows_and_columns(body: &[u8]) {
    let (inputs, pixels) = (specs(), pixels());
    for (inputs, images) in [(&inputs[..], false), (&inputs[..1], true)] {
        let taken = v1::Taken { inputs, pixels: &pixels, images };
        if let Ok((_, v1::Asked::Tensors(inputs))) = v1::read(body, taken, 8, &mut |_| Ok(())) {
            inputs.iter().for_each(|input| holds_together(&input.tensor));
        }
    }
}

/// The configuration of a model made for Triton.
fn config_pbtxt(text: &[u8]) {
    if let Ok(read) = triton::read(&String::from_utf8_lossy(text), "m") {
        let (manifest, queue) = (&read.manifest, &read.manifest.queue);
        assert!(manifest.priority < queue.priorities, "priority {} of {queue:?}", manifest.priority);
        assert!(queue.policies.of_priority.keys().all(|priority| *priority < queue.priorities), "{queue:?}");
        assert!(manifest.batch.items_max.is_none_or(|items| (1..=1024).contains(&items)));
    }
}

/// A load, which may bring a model's files.
fn load(body: &[u8]) {
    let change = repository::Load::of_body(body).and_then(|load| load.change("m", None));
    if let Ok(Change::Given(given)) = change {
        assert!(given.bytes() <= body.len());
    }
}

/// A model's own manifest.
fn manifest(text: &[u8]) {
    if let Ok(read) = Manifest::parse(&String::from_utf8_lossy(text)) {
        assert!(
            read.batch.items_max.is_none_or(|items| items > 0) && read.batch.largest() > 0,
            "{:?}",
            read.batch
        );
        assert!(read.priority < read.queue.priorities, "priority {} of {:?}", read.priority, read.queue);
    }
}

/// An image of any format, and what a model is given of it.
fn image(file: &[u8]) {
    let plain = image::plain_jpeg(file);
    let Ok(image) = image::open(file, &IMAGES) else { return };
    let frames = (0..image.frame_count()).filter_map(|index| image.frame(index, &|_, _| None).ok());
    let (header, frames) = (image.header(), frames.collect::<Vec<_>>());
    let Some(first) = frames.first() else { return };
    // Of pages there may be some whose pixels are damaged.
    if frames.len() == header.frames().len() {
        let (bits, of) = (8 * first.samples.bytes_each(), (first.width, first.height, first.channels));
        let seen =
            frames.iter().map(|frame| (frame.width, frame.height, 8 * frame.samples.bytes_each() as u8));
        assert!(header.frames().eq(seen), "{header:?}");
        assert_eq!((of, bits), ((header.width, header.height, header.channels), usize::from(header.bits)));
    }
    // For each of them this much memory was taken out of the budget.
    let bytes = frames.iter().map(|frame| frame.samples.len() * frame.samples.bytes_each()).max();
    let (bytes, announced) = (bytes.unwrap_or(0) as u64, header.decoded_bytes());
    assert!(bytes <= announced, "{bytes} bytes, announced were {announced}");
    if let Some(plain) = plain.filter(|plain| plain.is_whole(file)) {
        assert_eq!(plain.seen(), (first.width, first.height));
    }
    let preprocess = Preprocess::new(8, 8);
    let (mut scratch, mut out) = (Scratch::default(), vec![0; preprocess.out_bytes()]);
    for frame in &frames {
        let (width, height, channels) =
            (frame.width as usize, frame.height as usize, usize::from(frame.channels));
        assert_eq!(frame.samples.len(), width * height * channels);
        let _ = preprocess.apply(frame, &mut scratch, &mut out);
    }
}

/// What comes of a stack that is sent in pieces of so many bytes: its frames as one number, and how it ends.
fn frames(file: &[u8], piece: usize) -> (u64, u64, String) {
    let limits = stack::Limits {
        side_max: 4096,
        frame_pixels_max: 1 << 20,
        frames_max: 1000,
        memory_bytes_max: 16 << 20,
        spill_bytes_max: 0,
    };
    let mut reader = StackReader::new(None, stack::Options { limits, spill_folder: None, file_alone: false });
    let mut hash = DefaultHasher::new();
    let mut take = |reader: &mut StackReader| {
        while let Some(frames) = reader.next_frame()? {
            (frames.first, frames.count, frames.width, frames.height).hash(&mut hash);
            format!("{:?}", frames.samples).hash(&mut hash);
        }
        Ok::<_, stack::StackError>(())
    };
    let mut read = || {
        for bytes in file.chunks(piece) {
            reader.push(Bytes::copy_from_slice(bytes))?;
            take(&mut reader)?;
        }
        reader.finish();
        take(&mut reader)
    };
    let end = match read() {
        Ok(()) => format!("whole: {:?}", reader.info()),
        Err(error) => error.to_string(),
    };
    (hash.finish(), reader.frames(), end)
}

/// A stack of frames: the same, however it is cut on its way.
fn stack(file: &[u8]) {
    let piece = 1 + file.len() % 257;
    assert_eq!(frames(file, file.len().max(1)), frames(file, piece), "in pieces of {piece}");
}

/// A map of a camera.
fn npy(file: &[u8]) {
    let _ = stack::Array::of(file);
}
