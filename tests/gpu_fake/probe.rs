//! The product's probe on the fake NVML: every reading, what is missing, other processes, errors as they happen.

use std::{process, sync::mpsc, time::Duration};

use ocelli::devices::probe::{
    GpuId, Sample, Throttled,
    events::{Happening, Watch},
    nvml::NvmlProbe,
    others::{Others, Ourselves},
    sampler::Sampler,
};

use crate::{
    fakes::{
        cuda::FakeCuda,
        nvml::{FakeNvml, library},
    },
    support::{allocate, context},
};

const GIB: u64 = 1 << 30;

fn probe() -> NvmlProbe {
    NvmlProbe::open(Some(&library())).unwrap()
}

/// The names of what is missing.
fn missing(sample: &Sample) -> Vec<&'static str> {
    sample.missing.iter().map(|missing| missing.reading).collect()
}

#[test]
fn a_machine_without_nvml_says_so() {
    let refused = NvmlProbe::open(Some("/nowhere/libnvidia-ml.so.1".as_ref())).err().unwrap().to_string();
    assert!(refused.starts_with("NVML (/nowhere/libnvidia-ml.so.1) cannot be used: "), "{refused}");
}

#[test]
fn all_readings_of_all_gpus_are_taken() {
    let fake = FakeNvml::start("count=2 name=Large memory=80GiB reserved=1GiB");
    fake.tell("set gpu=1 used=9GiB utilization=97 temperature=91 throttle=0x60 power_mw=650000 power_limit_mw=500000 energy_mj=77 replays=3");
    fake.tell(
        "set gpu=1 ecc_corrected=5 ecc_uncorrected=1 pages_pending=1 rows_pending=1 rows_failed=1 recovery=2",
    );
    let mut probe = probe();
    let samples = probe.sample();
    assert_eq!(samples.len(), 2);
    let expected = GpuId {
        uuid: "GPU-fa000000-0000-0000-0000-000000000002".to_owned(),
        pci: "00000000:02:00.0".to_owned(),
    };
    let sick = &samples[1];
    assert_eq!((&sick.gpu, probe.gpus()[1].clone()), (&expected, expected.clone()));
    let memory = sick.memory.unwrap();
    assert_eq!((memory.total, memory.free, memory.held()), (80 * GIB, 70 * GIB, 9 * GIB));
    assert_eq!((sick.utilization_percent, sick.temperature_c), (Some(97), Some(91)));
    assert_eq!((sick.slowdown_c, sick.shutdown_c), (Some(89), Some(92)));
    assert_eq!(sick.throttled, Some(Throttled { thermal: true, power_brake: false, power_cap: false }));
    assert_eq!((sick.power_mw, sick.energy_mj, sick.pcie_replays), (Some(650_000), Some(77), Some(3)));
    assert_eq!(sick.power_limit_mw, Some(500_000));
    assert_eq!((sick.ecc_corrected, sick.ecc_uncorrected), (Some(5), Some(1)));
    assert_eq!(
        (sick.pages_pending, sick.rows_pending, sick.rows_failed),
        (Some(true), Some(true), Some(true))
    );
    assert_eq!((sick.mig, sick.recovery_action), (Some(false), Some(2)));
    assert_eq!((missing(sick), missing(&samples[0])), (vec![], vec![]));
    assert_eq!(samples[0].rows_pending, Some(false));
}

#[test]
fn what_a_gpu_does_not_tell_is_missing_by_name() {
    let fake = FakeNvml::start("");
    for call in ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetFieldValues"] {
        fake.tell(&format!("fault on={call} times=always code=3"));
    }
    fake.tell("set gpu=0 mig=1");
    let sample = &probe().sample()[0];
    let expected = [
        "power_mw",
        "ecc_corrected",
        "rows_pending",
        "rows_failed",
        "utilization_percent",
        "ecc_uncorrected",
        "recovery_action",
    ];
    assert_eq!(missing(sample), expected);
    assert!(!sample.lost);
    assert_eq!((sample.mig, sample.power_mw, sample.temperature_c), (Some(true), None, Some(40)));
}

#[test]
fn what_turns_slowly_is_read_at_one_look_of_ten_and_what_is_decided_by_at_once_at_each() {
    let fake = FakeNvml::start("");
    let mut probe = probe();
    fake.tell("fault on=nvmlDeviceGetTemperatureThreshold lost=15");
    assert!(probe.sample()[0].lost);
    fake.tell("find gpu=0");
    let first = probe.sample().remove(0);
    assert_eq!(
        (first.slowdown_c, first.mig, missing(&first)),
        (Some(89), Some(false), vec![]),
        "read when it is back"
    );
    fake.tell(
        "set gpu=0 used=9GiB utilization=97 ecc_uncorrected=1 recovery=2 temperature=91 rows_pending=1",
    );
    fake.tell("fault on=nvmlDeviceGetPowerUsage times=always code=3");
    for look in 1..10 {
        let sample = probe.sample().remove(0);
        let at_once = (sample.memory.map(|memory| memory.held()), sample.utilization_percent);
        assert_eq!(at_once, (Some(9 * GIB), Some(97)), "look {look}");
        assert_eq!((sample.ecc_uncorrected, sample.recovery_action), (Some(1), Some(2)), "look {look}");
        let later = (sample.temperature_c, sample.rows_pending, sample.power_mw);
        assert_eq!(later, (Some(40), Some(false), first.power_mw), "look {look}");
        assert_eq!((sample.slowdown_c, missing(&sample)), (Some(89), vec![]), "look {look}");
    }
    let tenth = probe.sample().remove(0);
    assert_eq!((tenth.temperature_c, tenth.rows_pending, tenth.power_mw), (Some(91), Some(true), None));
    assert_eq!(missing(&tenth), ["power_mw"]);
    assert_eq!(
        missing(&probe.sample()[0]),
        ["power_mw"],
        "what is missing is missing until it is read again"
    );
    fake.tell("lose gpu=0");
    assert!(probe.sample()[0].lost);
    fake.tell("find gpu=0");
    fake.tell("set gpu=0 temperature=50");
    assert_eq!(probe.sample()[0].temperature_c, Some(50), "of one that was away nothing is known");
}

#[test]
fn a_part_of_a_gpu_has_memory_and_processes_of_its_own() {
    let fake = FakeNvml::start("memory=80GiB");
    for line in [
        "part gpu=0 memory=20GiB",
        "part gpu=0 memory=10GiB",
        "set gpu=0 used=60GiB temperature=55",
        "process gpu=0 pid=4242 memory=59GiB",
        "set gpu=1001 used=1GiB",
        "process gpu=1001 pid=77 memory=1GiB",
    ] {
        fake.tell(line);
    }
    let (part, unknown) = ("MIG-fa000000-0000-0000-0000-000000000201", "MIG-0");
    let (here, elsewhere) = ("0000:01:00.0", "0000:02:00.0");
    let kept = [
        (part, here),
        (unknown, here),
        ("MIG-fa000000-0000-0000-0000-000000000101", elsewhere),
        ("GPU-1", here),
    ];
    let mut probe = probe().with_parts(kept.into_iter());
    let samples = probe.sample();
    let [whole, known, stranger] = &samples[..] else { panic!("{} samples", samples.len()) };
    assert_eq!((&*known.gpu.uuid, &known.gpu.pci), (part, &whole.gpu.pci));
    let memory = known.memory.unwrap();
    assert_eq!((memory.total, memory.free), (10 * GIB, 9 * GIB));
    let pids = |sample: &Sample| {
        sample.processes.clone().unwrap().iter().map(|process| process.pid).collect::<Vec<_>>()
    };
    assert_eq!((pids(known), pids(whole)), (vec![77], vec![4242]));
    assert_eq!((known.temperature_c, known.mig, known.utilization_percent), (Some(55), Some(true), None));
    assert_eq!(missing(known), ["utilization_percent"]);
    // Nothing of the whole is told in its place.
    assert_eq!((stranger.lost, stranger.memory, &stranger.processes), (false, None, &None));
    assert_eq!(missing(stranger), ["utilization_percent", "memory", "processes"]);
    fake.tell("lose gpu=0");
    let samples = probe.sample();
    assert!(samples.iter().all(|sample| sample.lost && sample.memory.is_none()));
}

#[test]
fn a_lost_gpu_is_lost_and_the_others_are_not() {
    let fake = FakeNvml::start("count=2");
    fake.tell("part gpu=1 memory=20GiB");
    let part = ("MIG-fa000000-0000-0000-0000-000000000102", "0000:02:00.0");
    let mut probe = probe().with_parts([part].into_iter());
    assert_eq!(missing(&probe.sample()[2]), ["utilization_percent"]);
    fake.tell("lose gpu=0");
    let samples = probe.sample();
    assert_eq!(samples.iter().map(|sample| sample.lost).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!((samples[0].memory, missing(&samples[1])), (None, vec!["utilization_percent"]));
    // Parts are found by their UUIDs alone, and by these NVML finds nobody then.
    assert_eq!(missing(&samples[2]), ["utilization_percent", "memory", "processes"]);
    fake.tell("find gpu=0");
    assert!(!probe.sample()[0].lost);
}

#[test]
fn a_gpu_that_could_not_be_asked_for_once_is_not_lost() {
    let fake = FakeNvml::start("");
    for (code, lost) in [(999, false), (15, true), (6, true)] {
        let mut probe = probe();
        // By whichever name it is asked for.
        fake.tell(&format!("fault on=nvmlDeviceGetHandleBy* code={code}"));
        let sample = probe.sample().remove(0);
        assert_eq!((sample.lost, missing(&sample)), (lost, vec!["gpu"]), "code {code}");
        assert_eq!(missing(&probe.sample()[0]), Vec::<&str>::new());
    }
}

#[test]
fn a_gpu_that_is_lost_between_two_readings_is_lost() {
    let fake = FakeNvml::start("");
    fake.tell("fault on=nvmlDeviceGetPowerUsage lost=15");
    let sample = &probe().sample()[0];
    assert!(sample.lost);
    assert!(sample.memory.is_some());
}

#[test]
fn we_are_found_by_what_changed_while_we_took_memory() {
    // Our number here, as it is, as a namespace hides it, and where the driver lists nobody of us.
    for (own, pid) in
        [(None, Some(process::id())), (Some("own pid=70001"), Some(70_001)), (Some("own pid=0"), None)]
    {
        let _driver = FakeCuda::start("memory=8GiB context=256MiB");
        let fake = FakeNvml::start("follow");
        if let Some(own) = own {
            fake.tell(own);
        }
        let mut probe = probe();
        fake.tell("process gpu=0 pid=4242 memory=1GiB");
        let before = probe.sample().remove(0);
        assert!(Ourselves::before(process::id()).others(&before).any());
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let _memory = allocate(&stream, 64 << 20).unwrap();
        let after = probe.sample().remove(0);
        let ourselves = Ourselves::before(process::id()).after(process::id(), 0, &before, &after);
        assert_eq!(ourselves, Ourselves { pid, memory: 512 << 20, models: 0 });
        assert_eq!(ourselves.others(&after).memory(), Some(GIB), "{own:?}");
        fake.tell("end gpu=0 pid=4242");
        let alone = probe.sample().remove(0);
        assert!(!ourselves.others(&alone).any(), "{own:?}: {:?}", ourselves.others(&alone));
        // It comes back with more, and is seen whether or not the list can be believed.
        fake.tell("process gpu=0 pid=4243 memory=3GiB");
        let again = ourselves.others(&probe.sample().remove(0));
        assert_eq!(again.memory(), Some(3 * GIB));
        assert_eq!(matches!(again, Others::Processes(_)), pid.is_some());
    }
}

#[test]
fn a_driver_that_hangs_leaves_the_last_look() {
    let fake = FakeNvml::start("");
    let sampler = Sampler::start(Box::new(probe()), Duration::from_millis(1)).unwrap();
    let patience = Duration::from_secs(60);
    sampler.fresh(patience).unwrap();
    fake.tell("fault on=nvmlDeviceGetMemoryInfo_v2 times=always hang");
    // Two more may have been on their way.
    while sampler.fresh(Duration::from_millis(200)).is_some() {}
    let last = sampler.last().unwrap();
    assert_eq!(last.samples[0].memory.unwrap().total, 16 * GIB);
    fake.tell("release");
    assert!(sampler.fresh(patience).unwrap().at > last.at);
}

#[test]
fn errors_are_told_as_they_happen_until_a_gpu_is_lost() {
    let fake = FakeNvml::start("count=3");
    // One has no such events; the others are heard all the same.
    fake.tell("fault on=nvmlDeviceRegisterEvents device=0 times=always code=3");
    let (sender, told) = mpsc::channel();
    let watch = Watch::start(Some(&library()), move |gpu, happening| {
        let _ = sender.send((gpu.pci.clone(), happening));
    });
    let watch = watch.unwrap();
    let next = || told.recv_timeout(Duration::from_secs(60)).unwrap();
    // Until the watch listens, events are lost, as they are with NVML.
    let first = loop {
        fake.tell("xid gpu=1 code=13");
        if let Ok(first) = told.recv_timeout(Duration::from_millis(100)) {
            break first;
        }
    };
    let (second, third) = ("00000000:02:00.0".to_owned(), "00000000:03:00.0".to_owned());
    assert_eq!(first, (second.clone(), Happening::Xid(13)));
    fake.tell("lose gpu=1");
    // What was on its way may come once more.
    assert!((0..3).any(|_| next() == (second.clone(), Happening::Lost)));
    // The others are listened to again.
    let heard = loop {
        fake.tell("xid gpu=2 code=79");
        if let Ok(heard) = told.recv_timeout(Duration::from_millis(100)) {
            break heard;
        }
    };
    assert_eq!(heard, (third, Happening::Xid(79)));
    drop(watch);
}
