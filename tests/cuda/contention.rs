//! Servers that want one GPU, as processes: who gets it when, and how long that takes, and what it costs to look. The
//! measurements are run by hand:
//!
//! ```text
//! cargo test --test cuda -- --ignored --nocapture contention::timeline
//! cargo test --test cuda -- --ignored --nocapture contention::from_free_to_serving
//! cargo test --test cuda -- --ignored --nocapture contention::what_looking_costs
//! ```

use crate::machine::{GPU, MODES, Machine, ON_GPU, Running, id, until};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Room for one of them: the fitter's guess wants 864 MiB beside others.
const ROOM_FOR_ONE: &str = "memory=2GiB context=1300MiB";

async fn post(server: &Running, what: &str) {
    post_to(server, 0, what).await;
}

async fn post_to(server: &Running, gpu: usize, what: &str) {
    let reply = server.send("POST", &format!("/v2/devices/{}/{what}", id(gpu)), &[], "").await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
}

async fn state(server: &Running) -> String {
    server.device(GPU).await["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn processes_that_want_one_gpu_get_it_in_the_order_in_which_they_came_and_do_not_trade_it() {
    let machine = Machine::new(ROOM_FOR_ONE);
    let spots = [("spots", ON_GPU)];
    let one = machine.serving("thread", ON_GPU, &[]).await;
    let expected = one.localize().await;
    let two = machine.start("process", &spots, &[]).await;
    two.until_state("waiting", "contended").await;
    let three = machine.start("thread", &spots, &[]).await;
    three.until_state("waiting", "contended").await;
    two.until_ready().await;
    three.until_ready().await;
    let servers = [&one, &two, &three];
    // Each leaves it, and comes to the end of the queue.
    for (leaves, next) in [(0, 1), (1, 2), (2, 0), (0, 1)] {
        post(servers[leaves], "drain").await;
        servers[next].until_state("serving", "proved").await;
        post(servers[leaves], "resume").await;
        servers[leaves].until_state("waiting", "contended").await;
        // Who has it keeps it: nobody else comes near, over several looks of theirs.
        for _ in 0..3 {
            let looked = tokio::time::Instant::now() + Duration::from_millis(600);
            for (index, server) in servers.iter().enumerate() {
                let (rows, device) = server.localize_on().await;
                assert_eq!(rows.len(), expected.len());
                assert_eq!(
                    device == GPU,
                    index == next,
                    "{index} is answered by {device} while {next} has the GPU"
                );
                assert_eq!(state(server).await == "serving", index == next);
            }
            assert_eq!(machine.held().len(), 1, "{:?}", machine.held());
            tokio::time::sleep_until(looked).await;
        }
    }
    for (server, times) in servers.iter().zip([2, 2, 1]) {
        let metric = format!(
            "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"proved\",state=\"serving\"}} {times}"
        );
        assert!(server.get("/metrics").await.1.lines().any(|line| line == metric), "{metric}");
    }
    for server in [one, two, three] {
        server.end();
    }
    machine.assert_empty();
}

#[tokio::test]
async fn the_next_in_the_queue_goes_by_what_the_one_before_has_left() {
    for isolation in MODES {
        let machine = Machine::new(ROOM_FOR_ONE);
        // The memory is read before that, so a look that is finished when the first one serves shows what was there before.
        machine
            .tell("nvml", "still fault on=nvmlDeviceGetUtilizationRates sleep_us=1500000 times=always")
            .await;
        machine.occupy(0, "1900MiB").await;
        let spots = [("spots", ON_GPU)];
        let (one, other) =
            tokio::join!(machine.start(isolation, &spots, &[]), machine.start(isolation, &spots, &[]));
        for server in [&one, &other] {
            server.until_state("waiting", "contended").await;
        }
        machine.vacate(0).await;
        let serve = async || [state(&one).await == "serving", state(&other).await == "serving"];
        until("one serves", async || serve().await != [false, false]).await;
        let next = if serve().await[0] { &other } else { &one };
        let looked = async || {
            let gpu = next.device(GPU).await;
            gpu["reason"].as_str().unwrap().starts_with("other processes compute on it, and")
        };
        until("the other has looked", looked).await;
        for server in [one, other] {
            assert_eq!(server.said("the GPU has no room now"), Vec::<String>::new(), "{isolation}");
            server.end();
        }
        machine.assert_empty();
    }
}

#[tokio::test]
async fn a_server_that_starts_loads_its_models_before_the_next_one_looks_at_what_is_left() {
    for isolation in MODES {
        // Beside the context of one there is room for the other, and beside its models there is not.
        let machine = Machine::new("memory=1500MiB context=300MiB");
        machine.tell("cuda", "still fault on=kernel:fit_xynb_f32 sleep_us=200000 times=always").await;
        let spots = [("a", ON_GPU), ("b", ON_GPU)];
        let one = machine.start(isolation, &spots, &[]).await;
        one.until_said("the GPU serves: a forward pass works").await;
        let other = machine.start(isolation, &spots, &[]).await;
        other.until_state("waiting", "turn").await;
        assert!(one.said("model is ready").len() < 2, "{:?}", one.said("model is ready"));
        one.until_ready().await;
        other.until_state("waiting", "contended").await;
        for server in [&one, &other] {
            let refused = server.said("the model is not served here");
            assert_eq!((refused, server.said("the GPU has no room now")), (vec![], vec![]), "{isolation}");
        }
        assert_eq!(other.said("the GPU serves: a forward pass works"), Vec::<String>::new());
        one.end();
        other.end();
        machine.assert_empty();
    }
}

/// As without persistence mode, where NVML initialises each GPU first.
#[tokio::test]
async fn a_gpu_is_not_taken_before_an_nvml_that_starts_slowly_has_told_who_uses_it() {
    let machine = Machine::new(ROOM_FOR_ONE);
    machine.tell("nvml", "still fault on=nvmlInit_v2 hang").await;
    machine.occupy(0, "1900MiB").await;
    let server = machine.start("thread", &[("spots", ON_GPU)], &[]).await;
    server.until_ready().await;
    assert_eq!(server.localize_on().await.1, "cpu");
    let gpu = server.device(GPU).await;
    assert_eq!((&gpu["state"], &gpu["cause"]), (&"waiting".into(), &"contended".into()), "{gpu}");
    machine.tell("nvml", "still clear").await;
    let looked = async || server.device(GPU).await["memory"]["free_bytes"].as_u64() == Some(148 << 20);
    until("it has looked", looked).await;
    server.until_state("waiting", "contended").await;
    machine.vacate(0).await;
    server.until_state("serving", "proved").await;
    server.end();
    machine.assert_empty();
}

/// A column of the picture.
const COLUMN: Duration = Duration::from_millis(500);

/// What one server did, by columns.
#[derive(Default, Clone)]
struct Row {
    held: Vec<bool>,
    by_gpu: Vec<usize>,
    by_cpu: Vec<usize>,
}

impl Row {
    fn at(&mut self, column: usize) -> usize {
        if self.held.len() <= column {
            self.held.resize(column + 1, false);
            self.by_gpu.resize(column + 1, 0);
            self.by_cpu.resize(column + 1, 0);
        }
        column
    }

    fn answers(&self) -> String {
        let letter = |(gpu, cpu): (&usize, &usize)| match (gpu, cpu) {
            (0, 0) => ' ',
            (_, 0) => 'G',
            (0, _) => 'c',
            _ => 'x',
        };
        self.by_gpu.iter().zip(&self.by_cpu).map(letter).collect()
    }

    fn holds(&self) -> String {
        self.held.iter().map(|held| if *held { '#' } else { ' ' }).collect()
    }
}

/// Two servers of which each is busy at other times: who has the GPU when, and which device answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn timeline() {
    const LENGTH: Duration = Duration::from_secs(40);
    // From and to, s: when requests come, one after the other.
    const BUSY: [&[(u64, u64)]; 2] = [&[(0, 10), (18, 34)], &[(4, 24), (36, 40)]];
    let machine = Machine::new(ROOM_FOR_ONE);
    let idle = [("idle-release-ms", "1500")];
    let one = machine.start("thread", &[("spots", ON_GPU)], &idle).await;
    one.until_ready().await;
    let two = machine.start("thread", &[("spots", ON_GPU)], &idle).await;
    two.until_ready().await;
    let expected = one.localize().await.len();
    let rows = RefCell::new(vec![Row::default(); 2]);
    let began = Instant::now();
    let column = || (began.elapsed().as_millis() / COLUMN.as_millis()) as usize;
    let sends = async |index: usize, server: &Running| {
        while began.elapsed() < LENGTH {
            let second = began.elapsed().as_secs();
            if !BUSY[index].iter().any(|(from, to)| (*from..*to).contains(&second)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let (spots, device) = server.localize_on().await;
            assert_eq!(spots.len(), expected, "every answer is right");
            let row = &mut rows.borrow_mut()[index];
            let at = row.at(column());
            if device == GPU { row.by_gpu[at] += 1 } else { row.by_cpu[at] += 1 }
        }
    };
    let watches = async {
        while began.elapsed() < LENGTH {
            let held = machine.held();
            for (row, server) in rows.borrow_mut().iter_mut().zip([&one, &two]) {
                let at = row.at(column());
                row.held[at] |= held.iter().any(|(id, _)| *id == server.id());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(sends(0, &one), sends(1, &two), watches);
    one.end();
    two.end();
    machine.assert_empty();
    let scale: String = (0..LENGTH.as_secs()).step_by(5).map(|second| format!("{second:<10}")).collect();
    println!("      s  {scale}");
    for (name, row) in ["one", "two"].iter().zip(rows.borrow().iter()) {
        println!("{name} holds   |{}", row.holds());
        println!("{name} answers |{}", row.answers());
    }
    let both = rows
        .borrow()
        .iter()
        .map(|row| row.by_gpu.iter().sum::<usize>() + row.by_cpu.iter().sum::<usize>())
        .sum::<usize>();
    println!(
        "{both} requests, all answered rightly; # the GPU is held, G the GPU answers, c the CPU, x both"
    );
}

/// From the moment at which others have left a GPU to the one at which it serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn from_free_to_serving() {
    // Each has a keeper and looks of its own: one round is a measurement on each.
    const GPUS: usize = 4;
    const ROUNDS: usize = 8;
    for isolation in MODES {
        let machine = Machine::new(&format!("count={GPUS} memory=2GiB"));
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        let states = async || {
            let (_, text) = server.get("/v2/devices").await;
            let told: serde_json::Value = serde_json::from_str(&text).unwrap();
            let devices = told["devices"].as_array().unwrap().clone();
            let state = |gpu: usize| {
                let device = devices.iter().find(|device| device["id"] == id(gpu)).unwrap();
                (device["state"].as_str().unwrap().to_owned(), device["cause"].as_str().unwrap().to_owned())
            };
            (0..GPUS).map(state).collect::<Vec<_>>()
        };
        let all = async |state: &str, cause: &str| {
            let stand = async || states().await.iter().all(|(at, why)| at == state && why == cause);
            until(&format!("all are {state}, {cause}"), stand).await;
        };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            all("serving", "proved").await;
            for gpu in 0..GPUS {
                post_to(&server, gpu, "drain").await;
            }
            all("fenced", "drain").await;
            until("they are given back", async || machine.held().is_empty()).await;
            for gpu in 0..GPUS {
                machine.occupy(gpu, "2040MiB").await;
            }
            // A look from before would have the GPUs tried, and then left alone for longer.
            for gpu in 0..GPUS {
                let seen =
                    async || server.device(&id(gpu)).await["memory"]["free_bytes"].as_u64() < Some(100 << 20);
                until("it is seen", seen).await;
                post_to(&server, gpu, "resume").await;
            }
            all("waiting", "contended").await;
            let mut left: Vec<(usize, Instant)> = Vec::new();
            for gpu in 0..GPUS {
                machine.vacate(gpu).await;
                left.push((gpu, Instant::now()));
            }
            while !left.is_empty() {
                let states = states().await;
                let serves = left.extract_if(.., |(gpu, _)| states[*gpu].0 == "serving");
                times.extend(serves.map(|(_, free)| free.elapsed()));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        server.end();
        machine.assert_empty();
        times.sort();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!("{isolation}: {} times, least {:?}, p50 {:?}, p99 {:?}", times.len(), at(0), at(50), at(99));
    }
}

/// CPU time of a process's threads so far, by their names, as the kernel counts it: in hundredths of a second. Of several of one
/// name it is the first: threads have the name of who started them, as the fake NVML's that reads what it is told.
fn thread_times(process: u32) -> BTreeMap<String, u64> {
    let mut times: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let (name, stat) = (read("comm").trim().to_owned(), read("stat"));
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        // After the state: ten more, then user and system time.
        let ticks: u64 = rest.split(' ').skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
        let number = thread.file_name().to_str().unwrap().parse().unwrap();
        let first = times.entry(name).or_insert((number, ticks));
        *first = (*first).min((number, ticks));
    }
    times.into_iter().map(|(name, (_, ticks))| (name, ticks)).collect()
}

/// CPU time of the threads that look at a GPU and keep it, while it serves and nobody asks for anything.
#[tokio::test]
#[ignore = "a measurement"]
async fn what_looking_costs() {
    const LENGTH: Duration = Duration::from_secs(120);
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ON_GPU, &[]).await;
        let (before, began) = (thread_times(server.id()), Instant::now());
        tokio::time::sleep(LENGTH).await;
        let (after, took) = (thread_times(server.id()), began.elapsed().as_secs_f64());
        let mut all = 0.0;
        for (name, ticks) in &after {
            let seconds = (ticks - before.get(name).unwrap_or(&0)) as f64 / 100.0;
            if name.starts_with("ocelli-keep") || name.starts_with("gpu-") {
                all += seconds;
                println!("{isolation}: {name} {seconds:.2} s");
            }
        }
        println!("{isolation}: {all:.2} s of {took:.0} s, {:.2} % of a core", 100.0 * all / took);
        server.end();
        machine.assert_empty();
    }
}

/// In compute mode EXCLUSIVE_PROCESS, or with as many clients of MPS as there may be.
#[tokio::test]
async fn a_gpu_that_others_have_to_themselves_is_waited_for_and_not_taken_for_sick() {
    for isolation in MODES {
        for code in [46, 808] {
            let machine = Machine::new("");
            machine
                .tell("cuda", &format!("still fault on=cuDevicePrimaryCtxRetain code={code} times=always"))
                .await;
            let server = machine.start(isolation, &[("spots", ON_GPU)], &[]).await;
            server.until_said("the GPU has no room now").await;
            let waits = async || {
                let (gpu, code) = (server.device(GPU).await, format!("code {code}"));
                let reason = gpu["reason"].as_str().unwrap();
                gpu["state"] == "waiting"
                    && gpu["cause"] == "memory"
                    && reason.contains("others have it to themselves")
                    && reason.contains(&code)
            };
            until("it waits, and says why", waits).await;
            machine.tell("cuda", "still clear").await;
            server.until_state("serving", "proved").await;
            assert_eq!(server.said("\"ERROR\""), Vec::<String>::new());
            server.end();
            machine.assert_empty();
        }
    }
}
