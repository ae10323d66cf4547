//! Whether models have room on a GPU: what was measured decides, what has none is refused with the arithmetic, and the others
//! serve on, as they do where a model is refused for anything else; with GPUs on threads of the server and in processes of their own.

use crate::{
    machine::{BLIND, GPU, MODES, Machine, ON_GPU, PATIENCE, Running, id, until},
    process::on_cpu,
    scenarios::{end, on_gpu, on_the_cpu},
};
use serde_json::Value;
use std::time::{Duration, Instant};

/// What keeps models from the disk unless they are asked for.
const EXPLICIT: (&str, &str) = ("repository-mode", "explicit");

/// How often the first GPU has begun to serve.
async fn times_taken(server: &Running) -> String {
    let line =
        format!("ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"proved\",state=\"serving\"}} ");
    let (_, text) = server.get("/metrics").await;
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap().to_owned()
}

/// Why the first GPU does not have a model.
async fn refused(server: &Running, model: &str) -> Option<String> {
    let told = server.device(GPU).await["refused_models"].clone();
    let one = told.as_array().unwrap().iter().find(|one| one["model"] == model)?;
    Some(one["reason"].as_str().unwrap().to_owned())
}

/// Waits until it says so: what keeps the GPU tells it with its next turn.
async fn until_refused(server: &Running, model: &str, says: impl Fn(&str) -> bool) {
    let what = format!("{model} is refused");
    until(&what, async || refused(server, model).await.is_some_and(|why| says(&why))).await;
}

/// What was measured, as it is kept.
fn measured(state: &tempfile::TempDir) -> Value {
    let file = std::fs::read(state.path().join("gpu-memory.json"));
    serde_json::from_slice(&file.unwrap_or_default()).unwrap_or_default()
}

/// The name of a model in it, and its bytes.
fn entry(state: &tempfile::TempDir, model: &str) -> Option<(String, u64)> {
    let models = measured(state)["Fake-GPU"].as_object().cloned().unwrap_or_default();
    let mut found = models.into_iter().filter(|(name, _)| name.starts_with(&format!("{model}/")));
    found.next().map(|(name, bytes)| (name, bytes.as_u64().unwrap()))
}

/// Has a server find out what the context and the fitter take.
async fn measure(isolation: &str, state: &tempfile::TempDir, remembers: (&str, &str)) {
    let machine = Machine::new("memory=4GiB context=300MiB");
    let server = machine.serving(isolation, ON_GPU, &[remembers]).await;
    let context = || measured(state)["Fake-GPU"][""].as_u64();
    until("the context is measured", async || context() >= Some(300 << 20)).await;
    end(&machine, server);
}

/// As in a container: the driver lists us by another number, and another process comes while the GPU is taken.
#[tokio::test]
async fn what_others_took_while_a_gpu_was_taken_is_not_learned_as_ours() {
    for isolation in MODES {
        let state = tempfile::tempdir().unwrap();
        let machine = Machine::new("memory=16GiB context=300MiB");
        machine.tell("nvml", "own pid=70001").await;
        machine.tell("cuda", "still fault on=cuDevicePrimaryCtxRetain hang").await;
        let options = [("gpu-state-folder", state.path().to_str().unwrap()), ("gpu-stuck-ms", "0")];
        let server = machine.start(isolation, &[("spots", ON_GPU)], &options).await;
        server.until_state("warming", "taken").await;
        machine.occupy(0, "9GiB").await;
        machine.tell("cuda", "still clear").await;
        server.until_state("serving", "proved").await;
        let context = || measured(&state)["Fake-GPU"][""].as_u64();
        until("the context is measured", async || context().is_some()).await;
        assert!(context() <= Some(512 << 20), "{isolation}: {}", measured(&state));

        // It is taken again beside others who leave most of it.
        assert_eq!(server.send("POST", &format!("/v2/devices/{GPU}/drain"), &[], "").await.status, 200);
        server.until_state("fenced", "drain").await;
        machine.occupy(0, "3GiB").await;
        let seen = async || server.device(GPU).await["memory"]["free_bytes"].as_u64() > Some(12 << 30);
        until("they are seen", seen).await;
        assert_eq!(server.send("POST", &format!("/v2/devices/{GPU}/resume"), &[], "").await.status, 200);
        server.until_state("serving", "proved").await;
        end(&machine, server);
    }
}

/// As CUDA's runtime does once it was used; where the driver lists us by our own number, and as in a container.
#[tokio::test]
async fn a_context_that_stays_when_a_gpu_is_given_back_is_neither_others_nor_needed_once_more() {
    for own in [None, Some("own pid=70001")] {
        let state = tempfile::tempdir().unwrap();
        let machine = Machine::new("memory=850MiB context=300MiB");
        if let Some(own) = own {
            machine.tell("nvml", own).await;
        }
        let options = [("gpu-state-folder", state.path().to_str().unwrap())];
        let server = machine.serving("thread", ON_GPU, &options).await;
        let context = || measured(&state)["Fake-GPU"][""].as_u64();
        until("the context is measured", async || context() >= Some(300 << 20)).await;
        machine.tell("cuda", "retain device=0").await;
        for times in ["2", "3"] {
            server.drain_and_resume().await;
            assert_eq!(times_taken(&server).await, times);
            assert_eq!(server.device(GPU).await["other_processes"], serde_json::json!([]), "{own:?}");
        }
        until_answered_by_gpu(&server, "spots").await;
        assert!(context() >= Some(300 << 20), "{own:?}: {}", measured(&state));
        // The library keeps it until the process has ended.
        server.end();
    }
}

#[tokio::test]
async fn a_context_that_is_larger_than_most_is_learned_where_the_driver_tells_it() {
    for isolation in MODES {
        let state = tempfile::tempdir().unwrap();
        let machine = Machine::new("memory=8GiB context=1500MiB");
        let options = [("gpu-state-folder", state.path().to_str().unwrap())];
        let server = machine.serving(isolation, ON_GPU, &options).await;
        let context = || measured(&state)["Fake-GPU"][""].as_u64();
        until("the context is measured", async || context().is_some()).await;
        assert!((1500 << 20..1600 << 20).contains(&context().unwrap()), "{}", measured(&state));
        end(&machine, server);
    }
}

/// Models that are busy keep the pool that it was in.
#[tokio::test]
async fn memory_of_a_model_that_is_unloaded_is_given_back_while_others_serve_and_the_model_has_room_again() {
    for isolation in MODES {
        // Room for two, and not for three.
        let machine = Machine::new("memory=960MiB context=300MiB");
        let options = [EXPLICIT];
        let server = machine.start(isolation, &[("one", ON_GPU), ("two", ON_GPU)], &options).await;
        server.until_ready().await;
        server.until_state("serving", "proved").await;
        until_answered_by_gpu(&server, "one").await;
        until_answered_by_gpu(&server, "two").await;
        let own = async || server.device(GPU).await["memory"]["own_bytes"].as_u64().unwrap();
        let model = server.device(GPU).await["models"][0].clone();
        let bytes = model["weights_bytes"].as_u64().unwrap()
            + model["frames_bytes"].as_u64().unwrap()
            + model["batches"].as_array().unwrap().last().unwrap()["bytes"].as_u64().unwrap();
        let with_both = own().await;
        let repository = async |what: &str| {
            let path = format!("/v2/repository/models/two/{what}");
            assert_eq!(server.send("POST", &path, &[], "{}").await.status, 200);
        };
        repository("unload").await;
        until("its memory is given back", async || own().await + bytes / 2 < with_both).await;
        repository("load").await;
        until_answered_by_gpu(&server, "two").await;
        // At once: there is no turn of the GPU's keeper in between.
        for what in ["unload", "load"] {
            repository(what).await;
        }
        until_answered_by_gpu(&server, "two").await;
        assert_eq!(server.said("the model is not served here"), Vec::<String>::new());
        end(&machine, server);
    }
}

/// Has what was found out say that a fitter of this name takes so many bytes.
fn pretend(state: &tempfile::TempDir, model: &str, bytes: u64) {
    let mut grown = measured(state);
    let (known, _) = entry(state, "spots").unwrap();
    grown["Fake-GPU"][known.replacen("spots/", &format!("{model}/"), 1)] = bytes.into();
    std::fs::write(state.path().join("gpu-memory.json"), grown.to_string()).unwrap();
}

/// Waits until a GPU answers for a model.
async fn until_answered_by_gpu(server: &Running, model: &str) {
    let patience = Instant::now() + PATIENCE;
    loop {
        let (rows, reply) = server.localize_by(model, &[]).await;
        assert_eq!((reply.status, rows.len() > 100), (200, true));
        if reply.headers["ocelli-device"] == GPU {
            return;
        }
        assert!(Instant::now() < patience, "{model} is not answered by the GPU within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_model_that_finds_no_room_while_others_serve_is_refused_with_the_arithmetic_and_they_serve_on() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let state = tempfile::tempdir().unwrap();
        let machine = Machine::new("memory=8GiB context=300MiB");
        let options = [EXPLICIT, ("gpu-state-folder", state.path().to_str().unwrap())];
        let server = machine.serving(isolation, ON_GPU, &options).await;
        let load = async |model: &str| {
            let reply = server.send("POST", &format!("/v2/repository/models/{model}/load"), &[], "").await;
            (reply.status, String::from_utf8_lossy(&reply.body).into_owned())
        };
        // 800 MiB are left to models, of which 1024 are to be kept free: what a fitter takes can be had twice.
        machine.tell("cuda", "foreign device=0 bytes=7092MiB").await;
        server.add("alone", "[placement]\ndevices = \"gpu\"\nfallback = \"never\"\n");
        let (status, why) = load("alone").await;
        let kept = "less than the 1073741824 that are kept free";
        let arithmetic = |why: &str| why.contains("of 8589934592 bytes") && why.contains(" free");
        assert!(status >= 400 && arithmetic(&why) && why.contains(kept), "{status} {why}");

        // What it took is remembered all the same, and it is not loaded to find that out once more.
        assert!(entry(&state, "alone").is_some_and(|(_, bytes)| bytes > 0), "{}", measured(&state));
        let (status, why) = load("alone").await;
        let known = "bytes there, as measured before; ";
        assert!(status >= 400 && arithmetic(&why) && why.contains(known), "{status} {why}");

        // One that the CPU can have is there meanwhile.
        server.add("more", ON_GPU);
        assert_eq!(load("more").await.0, 200);
        until_refused(&server, "more", |why| why.contains(kept) || why.contains(known)).await;
        let (rows, reply) = server.localize_by("more", &[]).await;
        assert_eq!((rows.len(), &reply.headers["ocelli-device"]), (expected.len(), &"cpu".parse().unwrap()));
        // It is looked at again, by what it took.
        until_refused(&server, "more", |why| arithmetic(why) && why.contains(known)).await;

        // Another is faster while it is loaded.
        machine.tell("cuda", "fault on=cuMemAlloc* times=always code=2").await;
        server.add("most", ON_GPU);
        assert_eq!(load("most").await.0, 200);
        until_refused(&server, "most", |why| arithmetic(why) && why.contains("; without it, ")).await;
        machine.tell("cuda", "clear").await;

        // Whoever served before has not noticed.
        assert_eq!(server.device(GPU).await["state"], "serving");
        on_gpu(&server, &expected).await;
        machine.tell("cuda", "foreign device=0 bytes=0").await;
        for model in ["more", "most"] {
            until_answered_by_gpu(&server, model).await;
            until("it is refused no more", async || refused(&server, model).await.is_none()).await;
        }
        assert_eq!(load("alone").await.0, 200);
        until_answered_by_gpu(&server, "alone").await;
        assert_eq!(times_taken(&server).await, "1", "the GPU was never given back");
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_model_that_failed_on_a_gpu_for_once_comes_to_it_though_the_gpu_is_not_given_back() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ON_GPU, &[EXPLICIT]).await;
        // A launch that is refused says nothing of the GPU. The next one is of the model's first forward pass.
        machine.tell("cuda", "fault on=cuLaunchKernel code=1").await;
        server.add("other", ON_GPU);
        let reply = server.send("POST", "/v2/repository/models/other/load", &[], "").await;
        assert_eq!(reply.status, 200, "the CPU has it");
        until_refused(&server, "other", |why| why.contains("a forward pass with zeros")).await;
        on_gpu(&server, &expected).await;
        until_answered_by_gpu(&server, "other").await;
        until("it is refused no more", async || refused(&server, "other").await.is_none()).await;
        assert_eq!(times_taken(&server).await, "1");
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_is_taken_serves_the_models_that_have_room_and_the_others_when_they_have() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let state = tempfile::tempdir().unwrap();
        let remembers = [("gpu-state-folder", state.path().to_str().unwrap())];
        measure(isolation, &state, remembers[0]).await;

        // Another was measured to take most of the GPU, of which others have a part, whom nobody sees.
        pretend(&state, "large", 3000 << 20);
        let machine = Machine::new("memory=4GiB context=300MiB");
        machine.tell("cuda", "foreign device=0 bytes=2000MiB").await;
        let options = [BLIND, remembers[0]];
        let server = machine.start(isolation, &[("large", ON_GPU), ("spots", ON_GPU)], &options).await;
        server.until_ready().await;
        // When the models are loaded onto a GPU that is there, and when the GPU comes to models that are.
        for again in [false, true] {
            if again {
                server.drain_and_resume().await;
            }
            server.until_state("serving", "proved").await;
            let why = "a model takes 3145728000 bytes there, as measured before";
            until_refused(&server, "large", |said| said.starts_with(why)).await;
            on_gpu(&server, &expected).await;
        }
        machine.tell("cuda", "foreign device=0 bytes=0").await;
        until_answered_by_gpu(&server, "large").await;
        assert_eq!(times_taken(&server).await, "2", "it was given back when that was asked for");
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_model_that_may_not_be_so_large_is_not_on_the_gpu_and_the_arithmetic_is_shown() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let machine = Machine::new("");
        let small = "[placement]\ndevices = \"gpu\"\nmemory_bytes_max = 1000\n";
        let server = machine.start(isolation, &[("large", small), ("spots", ON_GPU)], &[]).await;
        server.until_ready().await;
        server.until_state("serving", "proved").await;
        let told = server.device(GPU).await["refused_models"].clone();
        let why = told[0]["reason"].as_str().unwrap_or_default().to_owned();
        assert_eq!((&told[0]["model"], told.as_array().unwrap().len()), (&"large".into(), 1), "{told}");
        assert!(why.contains("more than placement.memory_bytes_max = 1000"), "{why}");
        on_gpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn what_a_model_was_measured_to_take_is_not_tried_where_it_cannot_be_had() {
    let expected = on_cpu().await;
    for isolation in MODES {
        let state = tempfile::tempdir().unwrap();
        let remembers = [("gpu-state-folder", state.path().to_str().unwrap())];
        measure(isolation, &state, remembers[0]).await;

        // A smaller one of the same name has less than the context and the model took.
        let machine = Machine::new("memory=305MiB context=300MiB");
        let server = machine.start(isolation, &[("spots", ON_GPU)], &remembers).await;
        server.until_ready().await;
        server.until_state("waiting", "memory").await;
        let why = server.device(GPU).await["reason"].as_str().unwrap().to_owned();
        assert!(why.contains("as measured before, and 319815680 of 319815680 are free"), "{why}");
        on_the_cpu(&server, &expected).await;
        assert_eq!(machine.held(), [], "no context is made to find out");
        let id = server.id();
        end(&machine, server);
        assert_eq!(machine.books_of(id).devices[0].contexts_made, 0);

        // A larger one, of which others leave what the context and the model took, and half as much again, but not what is
        // kept free beside them.
        let machine = Machine::new("memory=2GiB context=300MiB");
        machine.occupy(0, "1320MiB").await;
        let server = machine.start(isolation, &[("spots", ON_GPU)], &remembers).await;
        server.until_ready().await;
        server.until_state("waiting", "contended").await;
        let told = server.device(GPU).await;
        let (why, needed) =
            (told["reason"].as_str().unwrap(), told["memory"]["needed_bytes"].as_u64().unwrap());
        let shown = format!("728 MiB are free of the {} MiB that must be", needed >> 20);
        assert!(why.ends_with(&shown), "{why}");
        assert!((729 << 20..772 << 20).contains(&needed), "context, model and headroom: {needed}");
        on_the_cpu(&server, &expected).await;
        assert_eq!(machine.held(), [], "no context is made to find out");
        // With a little more it is taken, and is not too full when it is.
        machine.occupy(0, "1252MiB").await;
        server.until_state("serving", "proved").await;
        on_gpu(&server, &expected).await;
        let id = server.id();
        let refused = format!(
            "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"memory\",state=\"waiting\"}}"
        );
        assert!(!server.get("/metrics").await.1.lines().any(|line| line.starts_with(&refused)));
        end(&machine, server);
        assert_eq!(machine.books_of(id).devices[0].contexts_made, u64::from(isolation == "thread"));

        // It was measured to be larger than this GPU has room for beside its context.
        pretend(&state, "large", 3700 << 20);
        let machine = Machine::new("memory=4GiB context=300MiB");
        let server = machine.start(isolation, &[("large", ON_GPU), ("spots", ON_GPU)], &remembers).await;
        server.until_ready().await;
        server.until_state("serving", "proved").await;
        let told = server.device(GPU).await["refused_models"].clone();
        let why = told[0]["reason"].as_str().unwrap_or_default().to_owned();
        assert_eq!(told[0]["model"], "large", "{told}");
        assert!(
            why.starts_with("it takes 3879731200 bytes there") && why.contains("more than the 4294967296"),
            "{why}"
        );
        on_gpu(&server, &expected).await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_a_model_has_for_itself_is_no_other_models() {
    for isolation in MODES {
        let machine = Machine::new("count=2");
        let only = |gpu: usize, more: &str| {
            format!("[placement]\ndevices = \"{gpu}\"\nfallback = \"never\"\n{more}")
        };
        let alone = only(0, "exclusive = true\n");
        let server = machine.start(isolation, &[("spots", ON_GPU), ("zero", &alone)], &[EXPLICIT]).await;
        server.until_ready().await;
        let load = async |model: &str, what: &str| {
            let reply = server.send("POST", &format!("/v2/repository/models/{model}/{what}"), &[], "").await;
            (reply.status, String::from_utf8_lossy(&reply.body).into_owned())
        };
        let answers = async |model: &str, gpu: usize| {
            // A GPU that had no model was given back, and is taken for this one.
            let by = async || {
                let (_, reply) = server.localize_by(model, &[]).await;
                (reply.status == 200).then(|| reply.headers["ocelli-device"].to_str().unwrap().to_owned())
            };
            until(&format!("GPU {gpu} answers for {model}"), async || by().await == Some(id(gpu))).await;
        };
        // Though the one that may be on both is loaded first.
        answers("spots", 1).await;
        answers("zero", 0).await;

        server.add("late", &only(0, ""));
        let (status, why) = load("late", "load").await;
        assert!(status >= 400 && why.contains("gpu:0 is for the model zero alone"), "{status} {why}");
        server.add("greedy", &only(1, "exclusive = true\n"));
        let (status, why) = load("greedy", "load").await;
        assert!(status >= 400 && why.contains("gpu:1 has other models (spots)"), "{status} {why}");

        // Whoever goes leaves it to others.
        assert_eq!(load("zero", "unload").await.0, 200);
        load("late", "load").await;
        answers("late", 0).await;
        assert_eq!(load("spots", "unload").await.0, 200);
        load("greedy", "load").await;
        answers("greedy", 1).await;
        end(&machine, server);
    }
}
