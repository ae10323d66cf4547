//! A server whose CPU has more JPEGs than threads: a GPU takes some, and answers are the same.

use crate::{
    fakes::{cuda::FakeCuda, nvjpeg::FakeNvjpeg},
    http::{DIGITS, Server, config, digits_with, root},
    machine::PATIENCE,
};
use futures_util::future::join_all;
use ocelli::{
    config::{Backend, Config},
    engine::cuda::jpeg::HUNG,
};
use std::time::Instant;
use turbojpeg::{Compressor, Image, PixelFormat};

/// The digits classifier on the CPU, and a fitter, for which the GPU is held.
fn models() -> tempfile::TempDir {
    let folder = digits_with(&[("digits", &format!("{DIGITS}[placement]\ndevices = \"cpu\"\n"))]);
    let spots = folder.path().join("spots");
    std::fs::create_dir(&spots).unwrap();
    let manifest = std::fs::read_to_string(root().join("examples/models/spots/model.toml")).unwrap();
    std::fs::write(spots.join("model.toml"), format!("{manifest}\n[placement]\ndevices = \"gpu\"\n"))
        .unwrap();
    folder
}

/// One thread decodes, so that three files are too many.
fn one_thread() -> Config {
    Config { backend: Backend::Auto, gpu_jpeg: true, decode_threads: 1, ..config() }
}

/// A picture of a digit, as a JPEG, larger than the model's input.
pub(crate) fn digit(number: usize) -> Vec<u8> {
    let png = std::fs::read(root().join(format!("examples/images/digits/{number}-0.png"))).unwrap();
    let limits = ocelli::image::Limits { side_max: 4096, pixels_max: 1 << 20, frames_max: 1 };
    let frame = ocelli::image::decode(&png, &limits, &|_, _| None).unwrap().remove(0);
    let ocelli::image::Samples::U8(samples) = &frame.samples else { panic!("8 bits") };
    let (from_side, side) = (frame.width as usize, 4 * frame.width as usize);
    let channels = usize::from(frame.channels);
    let at = |i: usize| samples[((i / side / 4) * from_side + i % side / 4) * channels];
    let pixels: Vec<u8> = (0..side * side).flat_map(|i| [at(i); 3]).collect();
    let image =
        Image { pixels: &pixels[..], width: side, pitch: 3 * side, height: side, format: PixelFormat::RGB };
    Compressor::new().unwrap().compress_to_vec(image).unwrap()
}

async fn label(server: &Server, body: Vec<u8>) -> Result<String, u16> {
    let reply = server.send("POST", "/predictions/digits", &[], body).await;
    match reply.status {
        200 => Ok(reply.json()["classes"][0]["label"].as_str().unwrap().to_owned()),
        status => Err(status),
    }
}

async fn gpu_jpegs(server: &Server) -> f64 {
    let text = String::from_utf8_lossy(&server.get("/metrics").await.body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("ocelli_gpu_jpegs_total "));
    line.unwrap().parse().unwrap()
}

async fn until_gpu_serves(server: &Server) {
    let serving = |server: &Server| {
        server.devices().iter().any(|device| {
            device.id.starts_with("GPU-") && device.state == ocelli::status::DeviceState::Serving
        })
    };
    server.wait_until(serving).await;
}

/// One of many requests.
async fn ask(server: &Server, i: usize) {
    let number = i % 10;
    match i {
        7 => {
            let png = std::fs::read(root().join("examples/images/digits/5-0.png")).unwrap();
            assert_eq!(label(server, png).await, Ok("5".to_owned()));
        }
        18 | 28 => {
            let mut cut = digit(number);
            cut.truncate(cut.len() - 40);
            assert_eq!(label(server, cut).await, Err(400), "cut off");
        }
        _ => assert_eq!(label(server, digit(number)).await, Ok(number.to_string())),
    }
}

#[tokio::test]
async fn a_gpu_decodes_what_the_cpu_has_no_threads_for_and_answers_are_the_same() {
    let cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let server = Server::start_with(models(), one_thread()).await;
    until_gpu_serves(&server).await;
    // One at a time is the CPU's.
    assert_eq!(label(&server, digit(3)).await, Ok("3".to_owned()));
    assert_eq!((gpu_jpegs(&server).await, fake.books().files), (0.0, 0));

    // Many at once, among them some that only the CPU takes, and some that nobody does.
    let patience = Instant::now() + PATIENCE;
    // And several of them in one call, which is a matter of what comes while the GPU is busy.
    while gpu_jpegs(&server).await < 40.0 || fake.books().batches == fake.books().files {
        assert!(Instant::now() < patience, "not several at once within {PATIENCE:?}");
        join_all((0..40).map(|i| ask(&server, i))).await;
    }
    assert_eq!(gpu_jpegs(&server).await, fake.books().files as f64);

    // A decoder that fails is done with, and nobody notices but the metric.
    fake.tell("fault on=nvjpegDecodeBatched times=always code=6");
    let before = gpu_jpegs(&server).await;
    for _ in 0..3 {
        let asked = (0..30).map(|i| label(&server, digit(i % 10)));
        for (i, label) in join_all(asked).await.into_iter().enumerate() {
            assert_eq!(label, Ok((i % 10).to_string()));
        }
    }
    assert!(gpu_jpegs(&server).await <= before);
    assert_eq!(server.end().await.jobs, 0);
    cuda.books().assert_empty();
}

#[tokio::test]
async fn files_that_hang_in_the_decoder_are_decoded_by_the_cpu() {
    let cuda = FakeCuda::start("");
    let _fake = FakeNvjpeg::start();
    let server = Server::start_with(models(), one_thread()).await;
    until_gpu_serves(&server).await;
    cuda.tell("fault on=kernel:preprocess hang");
    let (patience, mut began) = (Instant::now() + PATIENCE, Instant::now());
    // It is a matter of what comes while the CPU is busy.
    while began.elapsed() < HUNG {
        assert!(Instant::now() < patience, "no file came to the GPU within {PATIENCE:?}");
        began = Instant::now();
        let asked = (0..40).map(|i| label(&server, digit(i % 10)));
        for (i, label) in join_all(asked).await.into_iter().enumerate() {
            assert_eq!(label, Ok((i % 10).to_string()));
        }
    }
    assert_eq!(gpu_jpegs(&server).await, 0.0);
    cuda.tell("release");
    assert_eq!(server.end().await.jobs, 0);
    cuda.books().assert_empty();
}

#[tokio::test]
async fn without_the_option_no_file_goes_to_a_gpu() {
    let cuda = FakeCuda::start("");
    let fake = FakeNvjpeg::start();
    let server = Server::start_with(models(), Config { gpu_jpeg: false, ..one_thread() }).await;
    until_gpu_serves(&server).await;
    for label in join_all((0..30).map(|i| label(&server, digit(i % 10)))).await {
        assert!(label.is_ok());
    }
    assert_eq!((gpu_jpegs(&server).await, fake.books().handles), (0.0, 0));
    server.end().await;
    cuda.books().assert_empty();
}

#[test]
fn with_a_process_for_each_gpu_the_option_is_refused() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ocelli"))
        .args(["config", "--gpu-jpeg", "on", "--isolation", "process"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("gpu_jpeg needs isolation = \"thread\""), "{said}");
}
