//! How models and the CPU behave when callers, keepers and the loader interfere with each other.
#![allow(clippy::unwrap_used)] // a test may panic

use super::{
    super::{book::Away, health::Over, place::Placed, refusal::Refusal},
    *,
};
use crate::{
    batch::{Queue, QueueLimits},
    engine::{Engine, EngineError, Flight, Setting, Signature, Tensor, child::Isolation},
    models::{Catalog, Entry, Expected, Source, testing::source},
    status::Status,
    telemetry::{metrics::Metrics, testing::logged},
};
use std::{sync::mpsc, time::Instant};

/// The CPU alone, without ONNX Runtime.
fn devices() -> Arc<Devices> {
    let parts = Parts {
        runtime: Err("there is none here".into()),
        queue: Queue::new(QueueLimits { items_max: 100, bytes_max: 10_000 }),
        catalog: Arc::new(Catalog::new()),
        status: Arc::new(Status::new(Instant::now())),
        metrics: Arc::new(Metrics::new(&[], "0", "none")),
        compute_threads: 1,
        isolation: Isolation::Thread,
        timeout: Duration::from_secs(60),
        kernel_cache_folder: None,
        jpeg: None,
    };
    let wanted = Wanted { cpu: true, ..Wanted::default() };
    Devices::start(parts, &wanted).unwrap()
}

fn found(name: &str, source: Result<Source, String>) -> Found {
    Found { name: name.into(), version: "1".into(), source, only_named: false }
}

/// The same model, expected to look like this.
fn with_look(found: Found, look: impl Fn(&Model) -> Result<(), String> + Send + Sync + 'static) -> Found {
    let source = found.source.map(|source| Source { expected: Expected::by(look), ..source });
    Found { source, ..found }
}

fn failed(reason: &str) -> NotReloaded {
    NotReloaded { reason: reason.to_owned(), for_now: false }
}

fn end(devices: &Devices) {
    devices.parts.queue.close();
    devices.join();
}

/// Waits until something holds; the bound ends a test that would hang.
fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_model_that_was_unloaded_while_it_waited_for_a_device_is_not_loaded_after_all() {
    let devices = devices();
    // On no existing device: a device's keeper would load what waits for it.
    let away = || Placed { on: vec![7], stands_in: None, instead: false, notes: Vec::new() };
    let now = Instant::now();
    let who_waits = || devices.book.who_waits(7, 1, &devices.sharing, now);
    for name in ["stays", "goes"] {
        let away = Away { reason: String::new(), placed: away(), refused: Vec::new(), failed: false };
        devices.book.wait_for_device(&found(name, Err("it cannot be read".into())), away, now);
    }
    // Both have looked up what waits; then the other one has its turn.
    let waiting = who_waits();
    assert_eq!(waiting.len(), 2);
    devices.unload("goes");
    let other_loads = devices.turn.lock();
    devices.load_of(&waiting, 7, 1);
    assert_eq!(who_waits().len(), 1, "nobody waits for a load of others");
    drop(other_loads);
    devices.load_of(&waiting, 7, 1);
    assert_eq!([devices.parts.catalog.has("stays"), devices.parts.catalog.has("goes")], [true, false]);
    assert!(who_waits().is_empty());
    end(&devices);
}

#[test]
fn a_model_that_waited_for_a_device_is_held_against_what_its_load_said_of_it() {
    let devices = devices();
    let placed = || Placed { on: vec![7], stands_in: None, instead: false, notes: Vec::new() };
    for (name, why) in
        [("as-said", Ok(())), ("another", Err("\"input\" is not as the model has it".to_owned()))]
    {
        let found = found(name, Ok(source(name, "1", "engine = \"gauss-mle\"\n")));
        let found = with_look(found, move |_| why.clone());
        let away = Away { reason: String::new(), placed: placed(), refused: Vec::new(), failed: false };
        devices.book.wait_for_device(&found, away, Instant::now());
        devices.load_of(&[found], 7, 1);
    }
    let state = |name: &str| {
        let listed = devices.parts.catalog.list();
        listed.into_iter().find(|entry| &*entry.name == name).map(|entry| entry.state)
    };
    assert!(matches!(state("as-said"), Some(State::Ready(_))));
    let told = "\"input\" is not as the model has it";
    assert!(matches!(state("another"), Some(State::Unavailable(why)) if why == told));
    let waits = devices.book.who_waits(7, 1, &devices.sharing, Instant::now());
    assert!(waits.is_empty() && !devices.let_go(), "nothing of it is left");
    end(&devices);
}

#[test]
fn a_model_that_the_system_refused_threads_is_tried_again_and_says_so() {
    let devices = devices();
    let found = found("m", Ok(source("m", "1", "engine = \"gauss-mle\"\n")));
    let holds = [(0, devices.devices[0].hold().unwrap())];
    let placed = || Placed { on: vec![0], stands_in: None, instead: false, notes: Vec::new() };
    let now = Instant::now();
    let due = |after| {
        let waits = devices.book.who_waits(0, holds[0].1.number, &devices.sharing, now + after);
        waits.len()
    };
    for (refusal, told, again) in [
        (Refusal::from(EngineError::Passing("no threads".into())), "no threads; it is tried again", true),
        (Refusal::from(EngineError::Input("it is damaged".into())), "it is damaged", false),
    ] {
        let why = devices.nowhere(placed(), &holds, vec![refusal]);
        let not = devices.not_loaded(&found, why);
        assert_eq!(not, NotReloaded { reason: told.to_owned(), for_now: again });
        let state = devices.parts.catalog.list().remove(0).state;
        assert!(matches!(state, State::Unavailable(why) if why == told));
        assert_eq!([due(Duration::ZERO), due(Duration::from_secs(600))], [0, usize::from(again)]);
    }
    end(&devices);
}

#[test]
fn of_a_model_that_is_not_as_its_load_said_nothing_is_left() {
    let devices = devices();
    let load = |why: Result<(), String>| {
        let found = found("m", Ok(source("m", "1", "engine = \"gauss-mle\"\n")));
        let loaded = devices.try_load(&with_look(found, move |_| why.clone()));
        (matches!(loaded, Err(NotLoaded::Unexpected(_))), devices.book.needs(0))
    };
    assert_eq!(load(Err("it has another input".into())), (true, false));
    assert_eq!(load(Ok(())), (false, true));
    end(&devices);
}

/// An engine that reports its start, and hangs until the other end is dropped.
struct Hanging(Signature, mpsc::Sender<()>, mpsc::Receiver<()>);

impl Engine for Hanging {
    fn signature(&self) -> &Signature {
        &self.0
    }

    fn start(&mut self, _: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        Ok(Flight::Landed(Vec::new()))
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = self.1.send(());
        let _ = self.2.recv();
    }
}

#[test]
fn what_a_device_that_hangs_has_of_a_model_does_not_keep_it_from_being_retired() {
    let devices = devices();
    let models = [found("spots", Ok(source("spots", "1", "engine = \"gauss-mle\"\n")))];
    devices.announce(&models);
    devices.load_all(&models, &|| false);
    let request = devices.parts.catalog.ready().pop().unwrap();
    let hold = devices.devices[CPU_INDEX].hold().unwrap();
    // The worker, which has an engine of the model, does not return from its call; then that is noticed.
    let ((begin, begun), (release, hangs)) = (mpsc::channel(), mpsc::channel());
    let engine = Box::new(Hanging(request.signature.clone(), begin, hangs));
    let of_worker = Arc::clone(&hold);
    let hanging = std::thread::spawn(move || of_worker.drop_engines(vec![engine]));
    begun.recv().unwrap();
    hold.health.end(Over::Failed("a call has not come back".into()));
    drop(hold);

    assert!(devices.unload("spots"));
    assert!(devices.let_go(), "a request has it");
    drop(request);
    until("it is retired", || !devices.let_go());
    drop(release);
    hanging.join().unwrap();
    end(&devices);
}

#[test]
fn what_was_counted_for_a_model_goes_with_the_last_request_that_has_begun_with_it() {
    let devices = devices();
    let models = [
        found("spots", Ok(source("spots", "1", "engine = \"gauss-mle\"\n"))),
        found("broken", Err("it cannot be read".into())),
    ];
    devices.announce(&models);
    devices.load_all(&models, &|| false);
    let metrics = &devices.parts.metrics;
    let is_shown = |name: &str| metrics.render().contains(&format!("model=\"{name}\""));
    let request = devices.parts.catalog.ready().pop().unwrap();
    assert!(devices.unload("spots") && devices.let_go());
    metrics.model("spots").queue_items.set(1);
    assert!(metrics.render().contains("ocelli_queue_items{model=\"spots\"} 1"), "its caller waits");
    drop(request);
    until("it is retired", || !devices.let_go());
    assert!(!is_shown("spots"));
    // No request waits for a model that was never loaded.
    assert!(is_shown("broken") && devices.unload("broken"));
    assert!(!is_shown("broken"));
    assert!(metrics.models().is_empty());
    devices.reload("spots", &models[..1]).unwrap();
    assert!(metrics.render().contains("ocelli_queue_items{model=\"spots\"} 0"), "it begins anew");
    end(&devices);
}

#[test]
fn a_model_has_all_the_instances_that_it_asks_for_though_no_other_had_as_many_at_the_start() {
    let devices = devices();
    let of = |instances: usize| {
        let manifest = format!("engine = \"gauss-mle\"\n[placement]\ninstances = {instances}\n");
        [found("spots", Ok(source("spots", "1", &manifest)))]
    };
    devices.announce(&of(1));
    devices.load_all(&of(1), &|| false);
    let workers = || devices.devices[CPU_INDEX].hold().unwrap().workers().len();
    assert_eq!(workers(), 1);
    devices.reload("spots", &of(3)).unwrap();
    assert_eq!(workers(), 3);
    devices.reload("spots", &of(2)).unwrap();
    assert_eq!(workers(), 3, "those that are there stay");
    end(&devices);
}

#[test]
fn a_version_that_is_only_named_is_listed_and_fails_no_load_of_others() {
    let devices = devices();
    let of = |version: &str| Found {
        version: version.into(),
        ..found("spots", Ok(source("spots", version, "engine = \"gauss-mle\"\n")))
    };
    let only_named = || Found {
        version: "2".into(),
        only_named: true,
        ..found("spots", Err("there is no folder 2".into()))
    };
    let both = [of("1"), of("2")];
    devices.announce(&both);
    devices.load_all(&both, &|| false);
    let ready =
        || devices.parts.catalog.ready().iter().map(|model| model.version.to_string()).collect::<Vec<_>>();
    assert_eq!(ready(), ["1", "2"]);
    assert_eq!(devices.reload("spots", &[of("1"), only_named()]), Ok(()));
    assert_eq!(ready(), ["1"]);
    let listed = devices.parts.catalog.list().pop().unwrap();
    assert!(matches!(listed.state, State::Unavailable(reason) if reason == "there is no folder 2"));
    let nothing_else = || devices.reload("spots", &[only_named()]);
    assert_eq!((nothing_else(), ready()), (Err(failed("there is no folder 2")), vec!["1".to_owned()]));
    // Where only a named version is asked for, its failure leaves the serving one in place, as any failed load does.
    devices.reload("spots", &[of("2")]).unwrap();
    assert_eq!((nothing_else(), ready()), (Err(failed("there is no folder 2")), vec!["2".to_owned()]));
    end(&devices);
}

#[test]
fn after_a_failed_load_versions_are_listed_that_serve_or_are_still_there() {
    let devices = devices();
    let of = |version: &str, source| Found { version: version.into(), ..found("spots", source) };
    let good = |version: &str| of(version, Ok(source("spots", version, "engine = \"gauss-mle\"\n")));
    let bad = |version: &str| of(version, Err("it cannot be read".into()));
    devices.announce(&[good("1")]);
    devices.load_all(&[good("1")], &|| false);
    let listed = || {
        let entries = devices.parts.catalog.list();
        entries.iter().map(|entry| entry.version.to_string()).collect::<Vec<_>>()
    };
    devices.reload("spots", &[bad("2")]).unwrap_err();
    assert_eq!(listed(), ["1", "2"]);
    // The folder was renamed.
    devices.reload("spots", &[bad("3")]).unwrap_err();
    assert_eq!(listed(), ["1", "3"]);
    end(&devices);
}

#[test]
fn a_version_that_waits_for_its_turn_is_loading_and_one_that_is_left_alone_is_as_it_was() {
    let devices = devices();
    let of = |version: &str| Found {
        version: version.into(),
        ..found("spots", Ok(source("spots", version, "engine = \"gauss-mle\"\n")))
    };
    let state = |version: &str| {
        let listed = devices.parts.catalog.list();
        let entry = listed.into_iter().find(|entry| &*entry.version == version);
        entry.map(|entry| match entry.state {
            State::Loading => "loading".to_owned(),
            State::Ready(_) => "ready".to_owned(),
            State::Unavailable(reason) => reason,
        })
    };
    let broken = Found { version: "3".into(), ..found("spots", Err("it cannot be read".into())) };
    devices.announce(&[broken]);
    devices.load_all(
        &[Found { version: "3".into(), ..found("spots", Err("it cannot be read".into())) }],
        &|| false,
    );
    assert_eq!(state("3").as_deref(), Some("it cannot be read"));

    let (tell, told) = mpsc::channel();
    let catalog = Arc::clone(&devices.parts.catalog);
    let look = move |_: &Model| {
        let loading = |entry: &Entry| matches!(entry.state, State::Loading).then_some("loading");
        tell.send(catalog.list().iter().filter_map(loading).collect::<Vec<_>>()).unwrap();
        Err("not as expected".to_owned())
    };
    let unexpected = with_look(of("1"), look);
    let result = devices.reload("spots", &[unexpected, of("2"), of("3")]);
    assert_eq!(result, Err(failed("not as expected")));
    assert_eq!(told.recv().unwrap(), ["loading"; 3]);
    let after = ["1", "2", "3"].map(&state);
    assert_eq!(after, [Some("not as expected".to_owned()), None, Some("it cannot be read".to_owned())]);
    let refused = devices.parts.catalog.get("spots", Some("2")).err();
    assert!(matches!(refused, Some(crate::error::InferError::UnknownModel { .. })), "{refused:?}");
    assert_eq!(devices.parts.status.models().loading, 0);
    end(&devices);
}

#[test]
fn a_cpu_whose_thread_has_panicked_serves_all_its_models_again() {
    let devices = devices();
    let models = [found("spots", Ok(source("spots", "1", "engine = \"gauss-mle\"\n")))];
    devices.announce(&models);
    devices.load_all(&models, &|| false);
    let [cpu] = &devices.devices[..] else { panic!("the CPU alone") };
    let first = cpu.hold().unwrap();
    assert!(!devices.book.is_empty_on(CPU_INDEX));
    first.health.end(Over::Failed("a worker's thread panicked".into()));
    drop(first);
    until("it is taken anew", || cpu.hold().is_some_and(|hold| hold.number == 2));
    until("its model is back", || !devices.book.is_empty_on(CPU_INDEX));
    let serves = || {
        let states = devices.parts.status.devices();
        states.iter().any(|device| device.id == CPU && device.state == DeviceState::Serving)
    };
    until("that is told", serves);
    end(&devices);
}

#[test]
fn a_load_without_a_device_is_told_apart_from_a_broken_model_and_comes_about_later() {
    let devices = devices();
    let [cpu] = &devices.devices[..] else { panic!("the CPU alone") };
    assert_eq!(devices.parts.status.drain_device(CPU, true), Some(true));
    until("it is drained", || cpu.hold().is_none());
    let broken = found("spots", Err("it cannot be read".into()));
    assert_eq!(devices.reload("spots", &[broken]), Err(failed("it cannot be read")));
    let good = found("spots", Ok(source("spots", "1", "engine = \"gauss-mle\"\n")));
    let other = Found { version: "2".into(), ..found("spots", Err("it cannot be read".into())) };
    let NotReloaded { reason, for_now } = devices.reload("spots", std::slice::from_ref(&good)).unwrap_err();
    assert!(for_now && reason.contains("none of its devices is there now: cpu is"), "{reason}");
    // What is broken does not pass, whatever is wrong beside it.
    assert!(!devices.reload("spots", &[good, other]).unwrap_err().for_now);
    devices.parts.status.drain_device(CPU, false);
    until("it is loaded", || !devices.parts.catalog.ready().is_empty());
    end(&devices);
}

#[test]
fn loads_that_do_not_come_about_since_the_server_ends_look_like_no_broken_models() {
    let devices = devices();
    let failed = found("m", Ok(source("m", "1", "engine = \"gauss-mle\"\n")));
    let told = logged(|| {
        devices.not_loaded(&failed, NotLoaded::Failed("it is broken".into()));
        devices.parts.status.begin_drain();
        devices.not_loaded(&failed, NotLoaded::Failed("the server is ending".into()));
    });
    assert!(told.contains("ERROR") && told.contains("it is broken"), "{told}");
    assert!(!told.contains("the server is ending"), "{told}");
    end(&devices);
}
