//! What there is, and why there is nothing, in one line.

use crate::{
    fakes::cuda::{FakeCuda, library},
    http::config,
};
use ocelli::engine::cuda::{self, NoGpu};
use std::process::{Command, Output};

#[test]
fn gpus_are_told_apart_by_their_uuid() {
    let _fake = FakeCuda::start("name=One memory=8GiB pci=1 capability=8.6 | name=Two memory=16GiB pci=65");
    let driver = cuda::probe().unwrap();
    assert_eq!(driver.version.to_string(), "12.9");
    let [one, two] = &driver.gpus[..] else { panic!("{driver:?}") };
    assert_eq!((one.ordinal, one.name.as_str(), one.memory_bytes), (0, "One", 8 << 30));
    assert_eq!((one.capability, one.pci.as_str()), ((8, 6), "0000:01:00.0"));
    assert_eq!(one.id, "GPU-fa000000-0000-0000-0000-000000000001");
    assert_eq!(two.id, "GPU-fa000000-0000-0000-0000-000000000041");
    assert!(one.check().is_ok());
}

#[test]
fn a_driver_without_gpus_and_one_too_old_are_told_apart() {
    let fake = FakeCuda::start("count=0");
    assert!(matches!(cuda::probe(), Err(NoGpu::NoneVisible(_))));
    fake.tell("driver version=11040");
    assert_eq!(
        cuda::probe().unwrap_err().to_string(),
        "the driver knows CUDA 11.4 only; 12.0 is needed, which comes with NVIDIA's driver 525"
    );
}

#[test]
fn a_stub_library_and_a_driver_that_does_not_start_are_errors() {
    let fake = FakeCuda::start("");
    fake.tell("fault on=cuInit code=34");
    assert_eq!(cuda::probe().unwrap_err(), NoGpu::Stub);
    fake.tell("fault on=cuInit code=999");
    let error = cuda::probe().unwrap_err().to_string();
    assert!(error.starts_with("the driver does not start: "), "{error}");
}

#[test]
fn a_gpu_that_the_driver_tells_nothing_of_is_left_out_and_the_others_are_there() {
    let fake = FakeCuda::start("count=3");
    fake.tell("fault on=cuDeviceTotalMem* device=1 code=999");
    let driver = cuda::probe().unwrap();
    assert_eq!(driver.gpus.iter().map(|gpu| gpu.ordinal).collect::<Vec<_>>(), [0, 2]);
    let left_out: Vec<String> = driver.left_out.iter().map(ToString::to_string).collect();
    assert!(
        matches!(&left_out[..], [why] if why.starts_with("cannot read the memory of GPU 1")),
        "{left_out:?}"
    );
    fake.tell("fault on=cuDeviceTotalMem* times=3 code=999");
    let error = cuda::probe().unwrap_err().to_string();
    assert!(error.contains("cannot read the memory of GPU"), "{error}");
}

#[test]
fn a_gpu_that_is_too_old_says_what_is_needed() {
    let _fake = FakeCuda::start("name=Old capability=7.0");
    let why = cuda::probe().unwrap().gpus[0].check().unwrap_err();
    assert_eq!(why, "Old has compute capability 7.0; 7.5 or more is needed");
}

#[test]
fn a_gpu_that_nobody_may_use_says_what_to_do() {
    let fake = FakeCuda::start("name=Shut mode=2");
    let gpu = &cuda::probe().unwrap().gpus[0];
    let why = gpu.check().unwrap_err();
    assert!(why.starts_with("Shut is in compute mode PROHIBITED") && why.contains("-c DEFAULT"), "{why}");
    assert!(why.contains(&gpu.id) && cuda::Context::open(gpu).is_err_and(|error| error.code == 46), "{why}");
    fake.tell("devices mode=3");
    assert_eq!(cuda::probe().unwrap().gpus[0].check(), Ok(()), "it may be one's alone");
}

/// Runs the program with the fake as its driver.
fn run(script: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ocelli"))
        .args(arguments)
        .env("LD_LIBRARY_PATH", library().parent().unwrap())
        .env("FAKE_CUDA", script)
        // Each has a machine of its own: no turns are taken with those that run beside it.
        .env("OCELLI_GPU_QUEUE_FOLDER", "")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()
        .unwrap()
}

#[test]
fn ocelli_devices_lists_gpus_with_what_is_free_and_what_is_wrong() {
    let script = "devices name=Good memory=8GiB pci=1 | name=Full memory=8GiB pci=2 | name=Old capability=6.1 pci=3;\
                  foreign device=0 bytes=3GiB;fault on=cuDevicePrimaryCtxRetain device=1 times=always code=2";
    let output = run(script, &["devices"]);
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    assert!(output.status.success());
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}"));
    for part in ["8192.0 MiB", "5120.0 MiB", "0000:01:00.0"] {
        assert!(row("Good").contains(part) && row("Good").ends_with("ok"), "{part}");
    }
    assert!(row("Full").contains("cannot be used: cannot take GPU-"));
    assert!(row("Old").contains("compute capability 6.1; 7.5 or more is needed"));
    let (_, below) = text.split_once("CUDA driver: knows CUDA 12.9\n").expect("what the driver knows");
    // The tests' ONNX Runtime is the CPU's. Of GPUs that cannot be used at all nothing more is said.
    let reasons: Vec<_> = below.lines().collect();
    assert!(matches!(reasons[..], [only] if only.starts_with("gpu:0 takes no networks: ")), "{below}");
}

#[test]
fn ocelli_devices_says_why_there_is_no_gpu() {
    let output = run("devices count=0", &["devices"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("no GPU: the driver shows no GPU: "), "{text}");
}

#[test]
fn a_server_that_must_have_a_gpu_ends_with_69_where_there_is_none() {
    let output = run(
        "devices count=0",
        // Another server of this machine may have the port that health is on.
        &[
            "serve",
            "--backend",
            "gpu",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "",
            "--models",
            "examples/models",
        ],
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{text}");
    assert!(text.contains("backend is gpu, but the driver shows no GPU: "), "{text}");
}

#[test]
fn networks_that_must_run_on_a_gpu_end_a_server_whose_onnx_runtime_is_for_the_cpu_and_auto_says_why() {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models");
    let library = onnx_runtime();
    let options = ["check", "--models", models, "--onnx-runtime", &library, "--backend"];
    let run = |backend| run("devices count=1", &[&options[..], &[backend]].concat());
    for (backend, code) in [("gpu", 69), ("auto", 0)] {
        let output = run(backend);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains("is a build of ONNX Runtime for the CPU: `make gpu` fetches"), "{text}");
    }
}

/// The library that networks run in.
fn onnx_runtime() -> String {
    config().onnx_runtime.to_str().unwrap().to_owned()
}

/// Checks a folder with one fitter, with these lines below its manifest: what is printed, and the exit code.
fn check(script: &str, manifest: &str) -> (String, Option<i32>) {
    with_fitter(&["check"], script, manifest)
}

/// Runs a command on such a folder.
fn with_fitter(command: &[&str], script: &str, manifest: &str) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("spots")).unwrap();
    let text = format!("engine = \"gauss-mle\"\n{manifest}");
    std::fs::write(folder.path().join("spots/model.toml"), text).unwrap();
    let library = onnx_runtime();
    let models = folder.path().to_str().unwrap();
    let output = run(script, &[command, &["--models", models, "--onnx-runtime", &library]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    (text, output.status.code())
}

#[test]
fn ocelli_check_says_where_each_model_is_loaded_what_it_holds_and_how_many_fit() {
    let (text, code) = check("devices memory=8GiB", "[batch]\nitems_max = 1000\n");
    assert_eq!(code, Some(0));
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(rows.len(), 2, "the CPU and the GPU");
    assert!(rows[0].contains("  cpu  ") && rows[1].contains("  GPU-fa000000-"));
    // Three batches of 1000 ROIs of 49 FP32 pixels, and results of 46 bytes. In the same places, of whole frames: FP32 pixels,
    // a number, and places for a spot of 24 bytes per 128 pixels, with its ROI and results. Five planes to work in, with a
    // third for margins. An eighth of the memory is left alone.
    let (roi, result, pixels): (u64, u64, u64) = (49 * 4, 46, 1 << 22);
    let planes = 5 * (pixels / 3 * 4) * 4;
    let held = 3 * (4 * pixels + 8 + pixels / 128 * (24 + roi + result)) + planes;
    let memory = "  0.0 MiB + 0.0 MiB at 1, 0.7 MiB at 1000 + 178.9 MiB for frames  ";
    assert!(rows[1].contains(memory), "{}", rows[1]);
    let fit = 1 + ((8 << 30) - held - (8 << 30) / 8) / held;
    assert!(rows[1].contains(&format!("  1 of {fit}  ")), "{} instead of {fit}", rows[1]);
}

#[test]
fn ocelli_devices_says_how_many_instances_of_each_model_fit_when_it_may_measure() {
    let measured =
        with_fitter(&["devices", "--measure"], "devices memory=8GiB", "[batch]\nitems_max = 1000\n");
    let (checked, _) = check("devices memory=8GiB", "[batch]\nitems_max = 1000\n");
    let (text, code) = measured;
    assert_eq!(code, Some(0));
    let row = |text: &str, begins: &str| -> Vec<String> {
        let found = text.lines().find(|line| line.starts_with(begins) && line.contains("GPU-fa000000-"));
        let cells = found.unwrap_or_default().split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    assert!(row(&text, "gpu:0").contains(&"8192.0 MiB".to_owned()), "{text}");
    let [held, checked] = [&text, &checked].map(|text| row(text, "spots"));
    assert_eq!(held[..2], ["spots", "1"], "{text}");
    let fits = &checked[checked.len() - 2];
    assert!(held.contains(fits) && fits.starts_with("1 of "), "as a check says: {fits}; {text}");
    let last = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(last, ["1000", "0.7", "MiB", "-"], "its largest batches");
    // Without GPUs nothing is measured, and that is said.
    let (text, code) = with_fitter(&["devices", "--measure"], "devices count=0", "");
    assert_eq!((code, text.contains("no model holds anything on a GPU")), (Some(0), true), "{text}");
}

#[test]
fn a_model_over_its_memory_is_refused_with_the_arithmetic() {
    let (text, code) = check(
        "devices",
        "[batch]\nitems_max = 1000\n[placement]\ndevices = \"gpu\"\nfallback = \"never\"\nmemory_bytes_max = 720000\n",
    );
    assert_eq!(code, Some(1));
    assert!(
        text.contains(
            "unavailable: one instance takes 188360104 bytes (0 for the model, 726000 for batches of 1000 and 187634104 for \
             frames), more than placement.memory_bytes_max = 720000: lower batch.items_max, or raise the limit"
        ),
        "{text}"
    );
}
