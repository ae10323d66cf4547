//! JPEGs on a GPU: nvJPEG's fake on the driver's, and what the CPU makes of the same files.

use crate::fakes::{cuda::FakeCuda, nvjpeg::FakeNvjpeg};
use bytes::Bytes;
use ocelli::{
    engine::cuda::{
        self, Context,
        jpeg::{Job, JpegOnGpu},
    },
    image::{self, DataType, Layout, Limits, Preprocess, Resize, Scratch, plain_jpeg},
};
use std::sync::{Arc, mpsc};
use turbojpeg::{Compressor, Image, PixelFormat, Subsamp};

const LIMITS: Limits = Limits { side_max: 4096, pixels_max: 1 << 24, frames_max: 1 };

fn context() -> Arc<Context> {
    Context::open(&cuda::probe().unwrap().gpus[0]).unwrap()
}

fn decoder() -> JpegOnGpu {
    JpegOnGpu::start(cuda::probe().unwrap().version).unwrap()
}

/// A picture with slopes and an edge.
fn jpeg(width: usize, height: usize, sampling: Subsamp) -> Vec<u8> {
    let pixel = |i: usize| {
        let (x, y) = (i % width, i / width);
        [(x * 255 / width) as u8, (y * 255 / height) as u8, if x + y > 60 { 200 } else { 40 }]
    };
    let pixels: Vec<u8> = (0..width * height).flat_map(pixel).collect();
    let mut compressor = Compressor::new().unwrap();
    compressor.set_subsamp(sampling).unwrap();
    compressor.set_quality(92).unwrap();
    let image = Image { pixels: &pixels[..], width, pitch: 3 * width, height, format: PixelFormat::RGB };
    compressor.compress_to_vec(image).unwrap()
}

/// The same file with EXIF that says how it is turned.
fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat()
}

/// An item of bytes.
fn to(width: u32, height: u32, resize: Resize) -> Preprocess {
    Preprocess { datatype: DataType::Uint8, layout: Layout::Nhwc, resize, ..Preprocess::new(width, height) }
}

fn job(bytes: &[u8], to: &Preprocess, answer: impl FnOnce(Option<Vec<u8>>) + Send + 'static) -> Job {
    let jpeg = plain_jpeg(bytes).unwrap();
    Job { bytes: Bytes::copy_from_slice(bytes), jpeg, to: to.clone(), answer: Box::new(answer) }
}

/// Has files decoded, all at once: the item of each.
fn decode(decoder: &JpegOnGpu, files: &[(&[u8], &Preprocess)]) -> Vec<Option<Vec<u8>>> {
    let answers: Vec<_> = files
        .iter()
        .map(|(bytes, to)| {
            let (send, answer) = mpsc::channel();
            decoder.decode(job(bytes, to, move |item| send.send(item).unwrap()));
            answer
        })
        .collect();
    answers.into_iter().map(|answer| answer.recv().unwrap()).collect()
}

/// The same in one batch: they come while the decoder is kept from going on after a file.
fn decode_together(decoder: &JpegOnGpu, files: &[(&[u8], &Preprocess)]) -> Vec<Option<Vec<u8>>> {
    let ((go, told), (bytes, to)) = (mpsc::channel::<()>(), files[0]);
    let (begun, begins) = mpsc::channel();
    decoder.decode(job(bytes, to, move |_| {
        begun.send(()).unwrap();
        // An error: all have come.
        let _ = told.recv();
    }));
    begins.recv().unwrap();
    let waiting = decoder.waiting().unwrap() + files.len();
    std::thread::scope(|scope| {
        let decoding = scope.spawn(|| decode(decoder, files));
        while decoder.waiting().unwrap() < waiting && !decoding.is_finished() {
            std::thread::yield_now();
        }
        drop(go);
        decoding.join().unwrap()
    })
}

/// What the CPU makes of a file, at its full size.
fn on_cpu(bytes: &[u8], to: &Preprocess) -> Vec<u8> {
    let frames = image::decode(bytes, &LIMITS, &|_, _| None).unwrap();
    let mut item = vec![0; to.out_bytes()];
    to.apply(&frames[0], &mut Scratch::default(), &mut item).unwrap();
    item
}

fn near(what: &str, got: Option<&Vec<u8>>, expected: &[u8]) {
    let got = got.unwrap_or_else(|| panic!("{what}: left to the CPU"));
    let worst = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(got.len() == expected.len() && worst <= 1, "{what}: {worst} steps apart");
}

#[test]
fn files_of_all_kinds_and_turns_become_what_the_cpu_makes_of_them() {
    let _cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let (decoder, context) = (decoder(), context());
    let offer = decoder.offer(&context);
    let (square, wide) = (to(24, 24, Resize::Shorter(24)), to(40, 16, Resize::Letterbox));
    let mut files = Vec::new();
    for (number, sampling) in
        [Subsamp::Sub2x2, Subsamp::None, Subsamp::Sub2x1, Subsamp::Sub1x2].into_iter().enumerate()
    {
        files.push((jpeg(100 + 7 * number, 75, sampling), if number % 2 == 0 { &square } else { &wide }));
    }
    for orientation in 1..=8 {
        files.push((turned(&jpeg(61, 90, Subsamp::Sub2x2), orientation), &square));
    }
    let given: Vec<(&[u8], &Preprocess)> = files.iter().map(|(bytes, to)| (&bytes[..], *to)).collect();
    let items = decode(&decoder, &given);
    for (number, ((bytes, to), item)) in files.iter().zip(&items).enumerate() {
        near(&format!("file {number}"), item.as_ref(), &on_cpu(bytes, to));
    }
    assert_eq!(fake.books().files, 12);
    drop(offer);
}

/// The same file with tables of codes that are none; whole by its markers.
fn bad(good: &[u8]) -> Vec<u8> {
    let mut bad = good.to_vec();
    let tables = bad.windows(2).position(|pair| pair == [0xff, 0xc4]).unwrap();
    bad[tables + 5..tables + 21].fill(0xfe);
    bad
}

#[test]
fn one_bad_file_of_many_is_left_to_the_cpu_and_the_others_are_decoded() {
    let _cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let (decoder, context) = (decoder(), context());
    let offer = decoder.offer(&context);
    let to = to(16, 16, Resize::Stretch);
    let good = jpeg(64, 48, Subsamp::Sub2x2);
    let bad = bad(&good);
    let items = decode(&decoder, &[(&good, &to), (&bad, &to), (&good, &to)]);
    assert!(items[1].is_none());
    for item in [&items[0], &items[2]] {
        near("beside a bad one", item.as_ref(), &on_cpu(&good, &to));
    }
    // What the library may still write of one that it refused is waited for.
    assert!(decode(&decoder, &[(&bad, &to)])[0].is_none());
    assert_eq!((fake.books().handles, fake.books().states), (0, 0), "until the next file comes");
    // And one that is cut off does not even come so far.
    let cut = &good[..good.len() - 10];
    assert!(decode(&decoder, &[(cut, &to)])[0].is_none());
    let files = fake.books().files;
    assert!(decode(&decoder, &[(&good, &to)])[0].is_some() && fake.books().files == files + 1);
    drop(offer);
}

#[test]
fn a_status_that_is_no_files_fault_ends_the_decoder_until_the_gpu_is_offered_anew() {
    let _cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let (decoder, context) = (decoder(), context());
    let to = to(16, 16, Resize::Stretch);
    let file = jpeg(64, 48, Subsamp::Sub2x2);
    for fault in [
        "nvjpegDecodeBatched code=6",
        "nvjpegDecodeBatchedInitialize code=8",
        "nvjpegCreateEx times=2 code=7",
    ] {
        let offer = decoder.offer(&context);
        fake.tell(&format!("fault on={fault}"));
        assert!(decode(&decoder, &[(&file, &to)])[0].is_none(), "{fault}");
        assert_eq!(decoder.waiting(), None, "{fault}: nobody is sent there any more");
        assert!(decode(&decoder, &[(&file, &to)])[0].is_none(), "{fault}");
        assert_eq!((fake.books().handles, fake.books().states), (0, 0), "{fault}: it is given back");
        drop(offer);
        let offer = decoder.offer(&context);
        assert_eq!(decoder.waiting(), Some(0));
        assert!(decode(&decoder, &[(&file, &to)])[0].is_some(), "{fault}: offered anew");
        drop(offer);
    }
}

#[test]
fn a_gpu_without_engines_for_jpegs_decodes_as_well() {
    let _cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    fake.tell("engines 0");
    let (decoder, context) = (decoder(), context());
    let offer = decoder.offer(&context);
    let to = to(16, 16, Resize::Stretch);
    let file = jpeg(64, 48, Subsamp::Sub2x2);
    near("without engines", decode(&decoder, &[(&file, &to)])[0].as_ref(), &on_cpu(&file, &to));
    drop(offer);
}

#[test]
fn memory_that_runs_out_leaves_a_batch_to_the_cpu_and_no_more() {
    let cuda = FakeCuda::start("");
    let _fake = FakeNvjpeg::start();
    let (decoder, context) = (decoder(), context());
    let offer = decoder.offer(&context);
    let to = to(16, 16, Resize::Stretch);
    let file = jpeg(64, 48, Subsamp::Sub2x2);
    cuda.tell("fault on=cuMemAllocAsync code=2 times=2");
    assert!(decode(&decoder, &[(&file, &to)])[0].is_none());
    assert!(decode(&decoder, &[(&file, &to)])[0].is_some());
    drop(offer);
}

#[test]
fn what_is_written_late_of_a_batch_that_failed_goes_where_nobody_else_is() {
    let cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let (decoder, context) = (decoder(), context());
    let offer = decoder.offer(&context);
    let to = to(16, 16, Resize::Stretch);
    let file = jpeg(64, 48, Subsamp::Sub2x2);
    // After the one before them: what was begun of the first is written when memory was lacking for the second, and was given back.
    fake.tell("fault on=file after=2 code=5");
    assert_eq!(decode_together(&decoder, &[(&file, &to), (&file, &to)]), [None, None]);
    assert_eq!(cuda.books().devices[0].pool_used, 0, "it was given back");
    assert!(decode(&decoder, &[(&file, &to)])[0].is_some());
    drop(offer);
}

#[test]
fn a_file_that_is_refused_has_only_the_librarys_decoder_made_anew_and_many_have_none_for_a_while() {
    let cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let (decoder, context) = (decoder(), context());
    let offer = decoder.offer(&context);
    let to = to(16, 16, Resize::Stretch);
    let good = jpeg(64, 48, Subsamp::Sub2x2);
    let bad = bad(&good);
    assert!(decode(&decoder, &[(&good, &to)])[0].is_some());
    let made = || {
        let (calls, books) = (cuda.books(), fake.books());
        let kept = ["cuModuleLoadData", "cuStreamCreate", "cuMemAllocAsync"].map(|call| calls.calls(call));
        (books.made, kept)
    };
    let (before, kept) = made();
    for refused in 1..=8 {
        assert!(decode(&decoder, &[(&bad, &to)])[0].is_none());
        if refused < 8 {
            assert!(decode(&decoder, &[(&good, &to)])[0].is_some());
            assert_eq!(made(), (before + refused, kept), "after {refused}");
        }
    }
    assert_eq!(decoder.waiting(), None, "too many");
    assert!(decode(&decoder, &[(&good, &to)])[0].is_none());
    assert_eq!((fake.books().made, fake.books().handles), (before + 7, 0));
    drop(offer);
}

#[test]
fn a_context_that_breaks_takes_the_decoder_with_it() {
    let cuda = FakeCuda::start("");
    let to = to(16, 16, Resize::Stretch);
    let file = jpeg(64, 48, Subsamp::Sub2x2);
    let decoder = {
        let _fake = FakeNvjpeg::start();
        decoder()
    };
    let broken = context();
    let offer = decoder.offer(&broken);
    cuda.tell("fault on=kernel:preprocess_narrow code=700");
    assert!(decode(&decoder, &[(&file, &to)])[0].is_none());
    assert_eq!(decoder.waiting(), None);
    drop((offer, broken));
    assert_eq!(cuda.books().devices[0].contexts, 0, "nothing of it is left in the context");
    let context = context();
    let offer = decoder.offer(&context);
    assert!(decode(&decoder, &[(&file, &to)])[0].is_some());
    drop(offer);
}

#[test]
fn a_gpu_that_is_taken_back_has_nothing_left_and_files_that_wait_go_to_the_cpu() {
    let cuda = FakeCuda::start("count=2");
    let fake = FakeNvjpeg::start();
    let decoder = decoder();
    let to = to(16, 16, Resize::Stretch);
    let file = jpeg(64, 48, Subsamp::Sub2x2);
    assert!(decode(&decoder, &[(&file, &to)])[0].is_none(), "nobody has offered any");
    let gpus = cuda::probe().unwrap().gpus;
    let (first, second) = (Context::open(&gpus[0]).unwrap(), Context::open(&gpus[1]).unwrap());
    let (offer, other) = (decoder.offer(&first), decoder.offer(&second));
    assert!(decode(&decoder, &[(&file, &to)])[0].is_some());
    let launches = |gpu: usize| cuda.books().devices[gpu].launches;
    assert_eq!((launches(0), launches(1)), (1, 0), "the first that was offered");
    drop((offer, first));
    assert_eq!((cuda.books().devices[0].contexts, fake.books().handles), (0, 0));
    assert!(decode(&decoder, &[(&file, &to)])[0].is_some());
    assert_eq!((launches(0), launches(1)), (1, 1), "then the other");
    drop((other, second));
    assert_eq!(decoder.waiting(), None);
}
