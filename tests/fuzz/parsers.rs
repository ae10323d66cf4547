//! The parsers of what callers and authors send, each with what must hold of whatever it reads: by name, as the folders of
//! `tests/fixtures/fuzz` are called.

use bytes::Bytes;
use ocelli::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    http::{
        multipart::{self, MultipartLimits},
        wire::{binary, predict, raw, repository, request, v1},
    },
    models::{Change, triton},
};

/// Takes a body, and panics where what it is read as does not hold together.
pub(crate) type Parse = fn(&[u8]);

/// All of them.
pub(crate) const PARSERS: [(&str, Parse); 7] = [
    ("base64", base64),
    ("config-pbtxt", config_pbtxt),
    ("load", load),
    ("multipart", forms),
    ("oip-binary", oip_binary),
    ("oip-json", oip_json),
    ("v1", rows_and_columns),
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

/// The bytes of a tensor are those of its shape.
fn holds_together(tensor: &Tensor) {
    binary::check("it", tensor).expect("what was read is what it says");
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
        Some(0) => raw::read(body, &specs()[..1], &pixels(), true),
        length => request::read(&body, length, &specs()),
    };
    if let Ok(request) = read {
        request.inputs.iter().for_each(|input| holds_together(&input.tensor));
    }
}

/// A form of several parts.
fn forms(body: &[u8]) {
    let limits = MultipartLimits { parts_max: 8, ..MultipartLimits::default() };
    if let Ok(parts) = multipart::parts(&Bytes::copy_from_slice(body), "B", &limits) {
        assert!(parts.len() <= 8 && parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= body.len());
    }
}

/// Images in base64.
fn base64(body: &[u8]) {
    if let Ok(read) = predict::instances(body, 8) {
        assert!((1..=8).contains(&read.images.len()));
    }
}

/// A prediction by KServe's first protocol.
fn rows_and_columns(body: &[u8]) {
    let (inputs, pixels) = (specs(), pixels());
    for (inputs, images) in [(&inputs[..], false), (&inputs[..1], true)] {
        let taken = v1::Taken { inputs, pixels: &pixels, images };
        if let Ok((_, v1::Asked::Tensors(inputs))) = v1::read(body, taken, 8) {
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
