//! Models that nothing else may serve while their GPUs are away or too full: they wait, and are served when there is room, without
//! anybody asking for it; with GPUs on threads of the server and in processes of their own.

use crate::{
    machine::{BLIND, GPU, MODES, Machine, ON_GPU, Running, id, put, until},
    process::on_cpu,
    scenarios::{end, on_gpu},
};
use std::path::Path;

/// A fitter that only these GPUs may serve.
fn only(gpus: &str) -> String {
    format!("[placement]\ndevices = \"{gpus}\"\nfallback = \"never\"\n")
}

/// What is said of a model in the list: its state, and why.
async fn stands(server: &Running, model: &str) -> (String, String) {
    let list: serde_json::Value = serde_json::from_str(&server.get("/v2/models").await.1).unwrap();
    let models = list["models"].as_array().or(list.as_array()).unwrap();
    let one = models.iter().find(|one| one["name"] == model).unwrap();
    let word = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    (word("state"), word("reason"))
}

/// Waits until a GPU has come to a state for a cause so often.
async fn until_times(server: &Running, gpu: usize, state: &str, cause: &str, times: u64) {
    let of = format!(
        "ocelli_device_transitions_total{{device=\"{}\",reason=\"{cause}\",state=\"{state}\"}} ",
        id(gpu)
    );
    let count = |text: &str| text.lines().find_map(|line| line.strip_prefix(&of)?.parse::<u64>().ok());
    until(&of, async || count(&server.get("/metrics").await.1) >= Some(times)).await;
}

#[tokio::test]
async fn a_model_that_gets_no_memory_while_it_is_loaded_waits_and_is_served_when_there_is_some() {
    let expected = on_cpu().await;
    for isolation in MODES {
        // Enough for a context and a fit of one spot, and not for whole frames. Nobody is seen who has the rest.
        let machine = Machine::new("memory=2GiB");
        machine.tell("cuda", "foreign device=0 bytes=1950MiB").await;
        let options = [("backend", "gpu"), BLIND];
        let server = machine.start(isolation, &[("spots", &only("gpu"))], &options).await;
        // First when it is loaded at the start, and then each time that the GPU is taken for it.
        until_times(&server, 0, "waiting", "memory", 3).await;
        assert_eq!(stands(&server, "spots").await, ("LOADING".into(), String::new()));
        assert_eq!(server.localize_with(&[]).await.1.status, 503);
        machine.tell("cuda", "foreign device=0 bytes=0").await;
        server.until_ready().await;
        on_gpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_model_that_has_no_room_beside_others_says_so_and_is_served_when_it_has() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("memory=4GiB");
        let explicit = [("repository-mode", "explicit")];
        let server = machine.serving(isolation, ON_GPU, &explicit).await;
        machine.tell("cuda", "foreign device=0 bytes=3700MiB").await;
        server.add("alone", &only("gpu"));
        let reply = server.send("POST", "/v2/repository/models/alone/load", &[], "").await;
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(reply.status >= 400 && said.contains("; it is tried again"), "{}: {said}", reply.status);
        let (state, why) = stands(&server, "alone").await;
        assert_eq!(state, "UNAVAILABLE");
        assert!(why.contains("of 4294967296 bytes") && why.ends_with("; it is tried again"), "{why}");
        let listed = async || {
            let told = server.device(GPU).await["refused_models"].clone();
            told.as_array().unwrap().iter().any(|one| one["model"] == "alone")
        };
        until("it is listed with what has no room", listed).await;
        // The server is as ready as before, and serves on.
        server.until_ready().await;
        on_gpu(&server, &expected).await;
        machine.tell("cuda", "foreign device=0 bytes=0").await;
        until("it is served", async || stands(&server, "alone").await.0 == "READY").await;
        assert_eq!(server.localize_by("alone", &[]).await.0.len(), expected.len());
        until("it is listed no more", async || !listed().await).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_model_under_which_a_gpu_fails_is_loaded_when_the_gpu_is_back() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ON_GPU, &[("repository-mode", "explicit")]).await;
        // The next kernel is of its first forward pass.
        machine.tell("cuda", "fault on=kernel code=700").await;
        server.add("alone", &only("gpu"));
        let reply = server.send("POST", "/v2/repository/models/alone/load", &[], "").await;
        let said = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(reply.status >= 400 && said.contains("; it is tried again"), "{}: {said}", reply.status);
        until("it is served", async || stands(&server, "alone").await.0 == "READY").await;
        assert_eq!(server.localize_by("alone", &[]).await.0.len(), expected.len());
        end(&machine, server);
    }
}

/// It is answered by the CPU, and the GPU is the others' again after a few tries, whatever the hold.
#[tokio::test]
async fn a_model_under_which_a_gpu_fails_again_and_again_is_left_out_there_and_the_others_have_the_gpu() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        machine.tell("cuda", "still fault on=kernel:fit_xynbs_f32 code=700 times=always").await;
        let folder = tempfile::tempdir().unwrap();
        for name in ["bad", "spots"] {
            put(folder.path(), name, ON_GPU);
        }
        let manifest = folder.path().join("bad/model.toml");
        let width_fitted =
            std::fs::read_to_string(&manifest).unwrap().replace("psf = \"xynb\"", "psf = \"xynbs\"");
        std::fs::write(manifest, width_fitted).unwrap();
        let server = machine.run(Path::new(env!("CARGO_BIN_EXE_ocelli")), isolation, folder, &[]).await;
        server.until_ready().await;
        let refused = async || server.device(GPU).await["refused_models"].clone();
        let left_out = async || {
            let told = refused().await;
            let why = told[0]["reason"].as_str().unwrap_or_default();
            told[0]["model"] == "bad" && why.contains("the device failed while it was loaded: ")
        };
        until("it is left out", left_out).await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        assert_eq!(server.localize_by("bad", &[]).await.1.headers["ocelli-device"], "cpu");
        let said = server.said("while the model bad was loaded: ");
        assert!((1..=3).contains(&said.len()), "{said:?}");

        // Somebody sees to the GPU.
        machine.tell("cuda", "still clear").await;
        server.drain_and_resume().await;
        until("it is refused no more", async || refused().await == serde_json::json!([])).await;
        assert_eq!(server.localize_by("bad", &[]).await.1.headers["ocelli-device"], GPU);
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_no_model_may_use_is_left_alone_while_one_waits_for_another() {
    for isolation in MODES {
        let machine = Machine::new("count=2 memory=2GiB");
        machine.occupy(1, "1800MiB").await;
        let server = machine.start(isolation, &[("spots", &only("gpu:1"))], &[]).await;
        server.until_said("the model waits for a device").await;
        machine.vacate(1).await;
        server.until_ready().await;
        assert_eq!(server.localize_on().await.1, id(1));
        let other = server.device(&id(0)).await;
        assert_eq!((&other["state"], &other["cause"]), (&"waiting".into(), &"empty".into()));
        let serves = format!("ocelli_device_transitions_total{{device=\"{}\",reason=\"proved\"", id(0));
        assert!(!server.get("/metrics").await.1.contains(&serves), "it never was ours");
        end(&machine, server);
    }
}

/// As where the server starts with its machine.
#[tokio::test]
async fn a_driver_that_is_not_ready_at_the_start_is_waited_for() {
    let machine = Machine::new(";fault on=cuInit code=802");
    let server = machine.serving("thread", ON_GPU, &[("backend", "auto")]).await;
    let told = server.said("the GPU driver is not ready; it is waited for");
    assert!(told.len() == 1 && told[0].contains("\"WARN\"") && told[0].contains("code 802"), "{told:?}");
    server.end();
    machine.assert_empty();
}

#[tokio::test]
async fn a_driver_that_cannot_be_used_is_told_loudly() {
    let machine = Machine::new(";fault on=cuInit code=803 times=always");
    let server = machine.start("thread", &[("spots", "")], &[("backend", "auto")]).await;
    let told = server.until_said("models run on the CPU until the server is started again").await;
    assert!(told.contains("\"WARN\"") && told.contains("code 803"), "{told}");
    server.until_ready().await;
    let devices: serde_json::Value = server.get("/v2/devices").await.1.parse().expect("JSON");
    assert_eq!(devices["no_gpu"].as_array().map(Vec::len), Some(1), "{devices}");
    assert!(devices["no_gpu"][0].as_str().is_some_and(|why| why.contains("code 803")), "{devices}");
    assert!(server.get("/metrics").await.1.contains("\nocelli_gpus_failed 1\n"), "it is counted");
    server.end();
}
