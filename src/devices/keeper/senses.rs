//! What the keepers of all GPUs observe together: NVML's readings, and Xid errors as they happen. Both come from threads of their own, so
//! that a driver that hangs blocks nobody. Without NVML, nothing is observed, and that is logged once.

use super::super::{
    health::xid,
    probe::{
        GpuId, Missing, Probe, Sample,
        events::{Happening, Watch},
        nvml::{NvmlProbe, Unavailable},
        sampler::{Look, Sampler},
    },
};
use crate::engine::cuda::Gpu;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// The time between two looks at all GPUs.
const PERIOD: Duration = Duration::from_millis(500);
/// A look that is older says nothing of the present.
pub(super) const AGE_MAX: Duration = Duration::from_secs(3);
/// A first look that takes longer than this counts as one that never comes. It initialises each GPU, which takes seconds without
/// persistence mode.
const FIRST: Duration = Duration::from_secs(60);

/// The most events of one GPU that wait for its keeper; older ones are dropped for newer ones.
const HAPPENINGS_MAX: usize = 1000;

type Happenings = Arc<Mutex<Inboxes>>;

/// Events of the GPUs that are kept, until their keepers take them. Events of other GPUs on the machine are ignored.
struct Inboxes(Vec<Inbox>);

struct Inbox {
    uuid: String,
    pci: String,
    happenings: VecDeque<Happening>,
}

impl Inboxes {
    /// Empty inboxes for GPUs, by UUID and PCI address.
    fn of(gpus: Vec<(String, String)>) -> Inboxes {
        let inbox = |(uuid, pci)| Inbox { uuid, pci, happenings: VecDeque::new() };
        Inboxes(gpus.into_iter().map(inbox).collect())
    }

    /// Whether a keeper looks after a GPU, or a part of it.
    fn keep(&self, gpu: &GpuId) -> bool {
        self.0.iter().any(|inbox| gpu.is(&inbox.uuid, &inbox.pci))
    }

    /// Adds an event; for a GPU of which parts (MIG) are kept, to each part.
    fn put(&mut self, gpu: &GpuId, happening: Happening) {
        for inbox in self.0.iter_mut().filter(|inbox| gpu.is(&inbox.uuid, &inbox.pci)) {
            if inbox.happenings.len() == HAPPENINGS_MAX {
                inbox.happenings.pop_front();
            }
            inbox.happenings.push_back(happening);
        }
    }

    /// The events of a GPU since the last call, oldest first.
    fn take(&mut self, uuid: &str) -> Vec<Happening> {
        let mine = self.0.iter_mut().filter(|inbox| inbox.uuid == uuid);
        mine.flat_map(|inbox| inbox.happenings.drain(..)).collect()
    }
}

/// An error that a GPU repeats, as under a process that carries on through it, is logged at most once in this time.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// The events that were logged, and how many like them were left out since. Keepers still get each event.
#[derive(Default)]
struct Told(HashMap<(String, Happening), (Instant, u64)>);

impl Told {
    /// If this event is to be logged: how many like it were left out since the last one.
    fn tell(&mut self, gpu: &str, happening: Happening, now: Instant) -> Option<u64> {
        match self.0.get_mut(&(gpu.to_owned(), happening)) {
            Some((at, passed_over)) if now.saturating_duration_since(*at) < TOLD_AGAIN => {
                *passed_over += 1;
                None
            }
            Some(known) => Some(std::mem::replace(known, (now, 0)).1),
            None => {
                self.0.insert((gpu.to_owned(), happening), (now, 0));
                Some(0)
            }
        }
    }
}

/// The readings that each GPU was reported not to give: logged once, whatever happens to NVML.
#[derive(Default)]
struct Silent(HashSet<(String, &'static str)>);

impl Silent {
    /// The readings that a GPU does not give and that were not logged yet, with the reasons; `None` if there are none. A lost GPU is
    /// passed over.
    fn news(&mut self, sample: &Sample) -> Option<String> {
        let missing = sample.missing.iter().filter(|_| !sample.lost);
        let news = missing.filter(|missing| self.0.insert((sample.gpu.uuid.clone(), missing.reading)));
        let words: Vec<String> = news.map(|Missing { reading, why }| format!("{reading} ({why})")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// What the keepers observe with.
pub(super) struct Senses {
    sampler: Option<Sampler>,
    happenings: Happenings,
}

/// What can be learnt of a GPU from outside.
pub(super) enum Known {
    /// Nothing: there is no NVML, or it does not know this GPU.
    Nothing,
    /// NVML does not answer.
    Silence,
    /// A look.
    Look {
        /// When it began.
        began: Instant,
        /// When it was finished.
        at: Instant,
        /// What it shows of this GPU.
        sample: Box<Sample>,
    },
}

impl Senses {
    /// Starts to look. `library`: NVML, where it is not the system's. `kept`: the GPUs that have keepers.
    pub(super) fn start<'a>(library: Option<&Path>, kept: impl Iterator<Item = &'a Gpu>) -> Senses {
        let kept = kept.map(|gpu| (gpu.id.clone(), gpu.pci.clone())).collect();
        let happenings = Arc::new(Mutex::new(Inboxes::of(kept)));
        let probe = Opening {
            library: library.map(Path::to_owned),
            happenings: Arc::clone(&happenings),
            opened: None,
            was_open: false,
            has_lost: false,
            tries: Tries::default(),
            silent: Silent::default(),
        };
        let sampler = Sampler::start(Box::new(probe), PERIOD)
            .inspect_err(|error| tracing::warn!(%error, "no thread to look at GPUs with"))
            .ok();
        Senses { sampler, happenings }
    }

    /// What is known of a GPU. `since`: when the caller started asking; `seen`: whether a look has shown the GPU before.
    pub(super) fn look(&self, gpu: &Gpu, seen: bool, since: Instant, now: Instant) -> Known {
        match &self.sampler {
            Some(sampler) => known(&gpu.id, sampler.last(), seen, since, now),
            None => Known::Nothing,
        }
    }

    /// A look that finishes after this call, if one comes soon.
    pub(super) fn fresh(&self, gpu: &Gpu) -> Option<Sample> {
        let look = self.sampler.as_ref()?.fresh(AGE_MAX)?;
        look.samples.iter().find(|sample| sample.gpu.uuid == gpu.id).cloned()
    }

    /// The events of a GPU since the last call.
    pub(super) fn happened(&self, gpu: &Gpu) -> Vec<Happening> {
        self.happenings.lock().take(&gpu.id)
    }
}

/// What is known of a GPU by the last look at all, `None` before the first. A GPU that was `seen` before is not free because it is not
/// listed any more.
fn known(uuid: &str, last: Option<Look>, seen: bool, since: Instant, now: Instant) -> Known {
    let unlisted = if seen { Known::Silence } else { Known::Nothing };
    match last {
        None if now.saturating_duration_since(since) < FIRST => Known::Silence,
        // It has never answered, so it counts as absent.
        None => Known::Nothing,
        Some(look) if look.samples.is_empty() => unlisted,
        Some(look) if now.saturating_duration_since(look.at) > AGE_MAX => Known::Silence,
        Some(look) => match look.samples.iter().find(|sample| sample.gpu.uuid == uuid) {
            Some(sample) => Known::Look { began: look.began, at: look.at, sample: Box::new(sample.clone()) },
            None => unlisted,
        },
    }
}

/// Opens NVML at the first look, on the thread that looks. If that fails, or a GPU of ours is missing or lost, it is tried again now and
/// then: a driver may start after us, and a GPU that comes back may be found only by an NVML that is opened after that.
struct Opening {
    library: Option<PathBuf>,
    happenings: Happenings,
    opened: Option<(NvmlProbe, Option<Watch>)>,
    /// It was open before.
    was_open: bool,
    /// By the last look, a GPU of ours is lost.
    has_lost: bool,
    tries: Tries,
    silent: Silent,
}

/// At which looks to try: after 10 more, and twice as many each time, up to five minutes of them.
#[derive(Debug, Default)]
struct Tries {
    failed: u32,
    looks_left: u32,
}

const LOOKS_MIN: u32 = 10;
const LOOKS_MAX: u32 = 600;

impl Tries {
    /// Whether to try at this look. If it is asked again, the previous try counts as failed.
    fn is_due(&mut self) -> bool {
        if self.looks_left > 0 {
            self.looks_left -= 1;
            return false;
        }
        self.looks_left = LOOKS_MIN.saturating_mul(1 << self.failed.min(16)).min(LOOKS_MAX) - 1;
        self.failed += 1;
        true
    }

    /// All is there: if something goes, it is tried after the least pause.
    fn succeeded(&mut self) {
        *self = Tries { failed: 0, looks_left: LOOKS_MIN };
    }

    /// Whether this is the first try: later ones are reported only if they succeed.
    fn is_first(&self) -> bool {
        self.failed == 1
    }
}

impl Opening {
    /// Whether NVML knows all GPUs that are kept: while a driver starts, it may not.
    fn has_all(&self, probe: &NvmlProbe) -> bool {
        let inboxes = self.happenings.lock();
        inboxes.0.iter().all(|inbox| probe.gpus().iter().any(|gpu| gpu.is(&inbox.uuid, &inbox.pci)))
    }

    /// Opens it; `again`: it was open until now.
    fn open(&self, again: bool) -> Option<(NvmlProbe, Option<Watch>)> {
        let library = self.library.as_deref();
        let failed = |error: &Unavailable| match self.tries.is_first() {
            true if self.was_open => tracing::warn!(
                %error,
                "NVML cannot be opened again: GPUs that are not ours are left alone; it is tried again now and then"
            ),
            true => tracing::warn!(
                %error,
                "GPUs are taken without looking who else uses them; it is tried again now and then"
            ),
            false => tracing::debug!(%error, "NVML still cannot be used"),
        };
        let kept: Vec<_> = {
            let inboxes = self.happenings.lock();
            inboxes.0.iter().map(|inbox| (inbox.uuid.clone(), inbox.pci.clone())).collect()
        };
        let kept = kept.iter().map(|(uuid, pci)| (uuid.as_str(), pci.as_str()));
        let probe = NvmlProbe::open(library).inspect_err(failed).ok()?.with_parts(kept);
        if !self.tries.is_first() && !again {
            tracing::info!("NVML can be used now: it is seen who else uses GPUs");
        }
        let (happenings, told) = (Arc::clone(&self.happenings), Mutex::new(Told::default()));
        let watch = Watch::start(library, move |gpu, happening| {
            let device = &*gpu.uuid;
            let inboxes = || happenings.lock();
            if !inboxes().keep(gpu) {
                // No keeper reacts, and other users of that GPU may cause many: debug only.
                tracing::debug!(
                    device,
                    ?happening,
                    "the driver tells of a GPU that this server does not use"
                );
                return;
            }
            // Before its keeper gets it, so that what follows comes later in the log.
            let since = told.lock().tell(device, happening, Instant::now());
            match (happening, since) {
                (_, None) => tracing::debug!(device, ?happening, "the same again"),
                (Happening::Xid(number), Some(passed_over)) => {
                    let follows = xid::follows(number).words();
                    tracing::warn!(
                        device,
                        xid = number,
                        follows,
                        passed_over,
                        "the driver tells of an error (Xid) on the GPU"
                    );
                }
                (Happening::UnknownXid, Some(passed_over)) => {
                    let follows = xid::Follows::Doubt.words();
                    tracing::warn!(
                        device,
                        follows,
                        passed_over,
                        "the driver tells of an error (Xid) on the GPU, without its number"
                    );
                }
                (Happening::Lost, Some(_)) => {
                    tracing::warn!(device, "the driver cannot reach the GPU any more");
                }
            }
            inboxes().put(gpu, happening);
        });
        let watch = watch.inspect_err(|error| tracing::warn!(%error, "Xid errors are not heard")).ok();
        Some((probe, watch))
    }
}

impl Probe for Opening {
    fn look(&mut self) -> Option<Vec<Sample>> {
        let has_all = !self.has_lost && self.opened.as_ref().is_some_and(|(probe, _)| self.has_all(probe));
        if has_all {
            self.tries.succeeded();
        } else if self.tries.is_due() {
            // NVML searches for GPUs only when it is first opened. So all that is open of it is closed before, or it would find the same
            // ones.
            let before = self.opened.take();
            let again = before.is_some();
            if let Some((probe, watch)) = before {
                drop(probe);
                if let Some(watch) = watch {
                    watch.end();
                }
            }
            self.opened = self.open(again);
            if again && self.opened.is_none() {
                self.tries.looks_left = 0;
            }
        }
        self.was_open |= self.opened.is_some();
        let samples = match &mut self.opened {
            Some((probe, _)) => probe.sample(),
            // GPUs that others were seen on are not free because they cannot be seen.
            None if self.was_open => return None,
            None => Vec::new(),
        };
        let inboxes = self.happenings.lock();
        self.has_lost = samples.iter().any(|sample| sample.lost && inboxes.keep(&sample.gpu));
        drop(inboxes);
        for sample in &samples {
            let device = &*sample.gpu.uuid;
            // GPUs without a keeper are not reported.
            if self.happenings.lock().0.iter().any(|inbox| inbox.uuid == *device)
                && let Some(readings) = self.silent.news(sample)
            {
                let sees_others = sample.memory.is_some() || sample.processes.is_some();
                match sees_others {
                    true => tracing::info!(
                        device,
                        readings,
                        "NVML does not tell all of this GPU: these readings are left out"
                    ),
                    // As when NVML has stopped working: the GPU is taken without knowing who else uses it.
                    false => tracing::warn!(device, readings, "NVML does not tell who else uses this GPU"),
                }
            }
        }
        Some(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, pci: &str) -> GpuId {
        GpuId { uuid: uuid.into(), pci: pci.into() }
    }

    #[test]
    fn what_happens_to_gpus_that_nobody_keeps_leaves_room_for_what_happens_to_ours() {
        let (ours, others) = (gpu("GPU-1", "00000000:01:00.0"), gpu("GPU-2", "00000000:02:00.0"));
        let mut inboxes = Inboxes::of(vec![("GPU-1".into(), "0000:01:00.0".into())]);
        assert_eq!([&ours, &others].map(|gpu| inboxes.keep(gpu)), [true, false]);
        for _ in 0..=HAPPENINGS_MAX {
            inboxes.put(&others, Happening::Xid(13));
        }
        inboxes.put(&ours, Happening::Xid(48));
        assert_eq!(inboxes.take("GPU-1"), [Happening::Xid(48)]);
        assert_eq!(inboxes.take("GPU-1"), [], "it is told once");
    }

    #[test]
    fn a_gpu_counts_as_unwatched_only_where_there_is_no_nvml() {
        let (t0, s) = (Instant::now(), Duration::from_secs);
        let known_of = |seen: bool, last: Option<&[&str]>, at: u64| {
            let sample = |uuid: &&str| Sample::of(gpu(uuid, ""));
            let look = |uuids: &[&str]| Look {
                began: t0,
                at: t0 + s(1),
                samples: uuids.iter().map(sample).collect(),
            };
            match known("GPU-1", last.map(look), seen, t0, t0 + s(at)) {
                Known::Nothing => "nothing",
                Known::Silence => "silence",
                Known::Look { .. } => "a look",
            }
        };
        let known = |last, at| known_of(false, last, at);
        assert_eq!([12, 59, 60].map(|at| known(None, at)), ["silence", "silence", "nothing"]);
        let ours: &[&str] = &["GPU-2", "GPU-1"];
        assert_eq!([1, 4, 5].map(|at| known(Some(ours), at)), ["a look", "a look", "silence"]);
        assert_eq!([&[][..], &["GPU-2"]].map(|seen| known(Some(seen), 1)), ["nothing"; 2]);
        assert_eq!([&[][..], &["GPU-2"]].map(|left| known_of(true, Some(left), 1)), ["silence"; 2]);
    }

    #[test]
    fn an_nvml_that_cannot_be_opened_again_shows_nothing_rather_than_no_gpus() {
        let opening = |was_open| Opening {
            library: Some("/nowhere/libnvidia-ml.so".into()),
            happenings: Arc::new(Mutex::new(Inboxes::of(Vec::new()))),
            opened: None,
            was_open,
            has_lost: false,
            tries: Tries::default(),
            silent: Silent::default(),
        };
        assert_eq!([false, true].map(|was_open| opening(was_open).look()), [Some(Vec::new()), None]);
    }

    #[test]
    fn an_error_over_and_over_is_told_once_a_minute_with_how_many_there_were() {
        let (mut told, t0) = (Told::default(), Instant::now());
        let mut at = |second, gpu, happening| told.tell(gpu, happening, t0 + Duration::from_secs(second));
        assert_eq!(at(0, "GPU-1", Happening::Xid(13)), Some(0));
        assert_eq!([1, 59].map(|second| at(second, "GPU-1", Happening::Xid(13))), [None; 2]);
        assert_eq!(at(59, "GPU-1", Happening::Xid(31)), Some(0), "another");
        assert_eq!(at(59, "GPU-2", Happening::Xid(13)), Some(0), "elsewhere");
        assert_eq!(at(60, "GPU-1", Happening::Xid(13)), Some(2));
        assert_eq!(at(61, "GPU-1", Happening::Xid(13)), None);
    }

    #[test]
    fn what_a_gpu_does_not_tell_is_said_once_by_its_name() {
        let missing = |reading| Missing { reading, why: "Not Supported".into() };
        let sample = |uuid, missing| Sample { missing, ..Sample::of(gpu(uuid, "")) };
        let (mut silent, first) =
            (Silent::default(), sample("GPU-1", vec![missing("power_mw"), missing("mig")]));
        assert_eq!(silent.news(&first).as_deref(), Some("power_mw (Not Supported), mig (Not Supported)"));
        assert_eq!(silent.news(&first), None);
        let more = sample("GPU-1", vec![missing("power_mw"), missing("energy_mj")]);
        assert_eq!(silent.news(&more).as_deref(), Some("energy_mj (Not Supported)"));
        assert_eq!(
            silent.news(&sample("GPU-2", vec![missing("mig")])).as_deref(),
            Some("mig (Not Supported)")
        );
        let lost = Sample { lost: true, ..sample("GPU-3", vec![missing("gpu")]) };
        assert_eq!(silent.news(&lost), None);
    }

    #[test]
    fn of_more_than_may_wait_the_oldest_are_dropped() {
        let ours = gpu("GPU-1", "00000000:01:00.0");
        let mut inboxes = Inboxes::of(vec![("GPU-1".into(), "0000:01:00.0".into())]);
        inboxes.put(&ours, Happening::UnknownXid);
        for _ in 1..HAPPENINGS_MAX {
            inboxes.put(&ours, Happening::Xid(13));
        }
        inboxes.put(&ours, Happening::Lost);
        let taken = inboxes.take("GPU-1");
        assert_eq!((taken.len(), taken.first()), (HAPPENINGS_MAX, Some(&Happening::Xid(13))));
        assert_eq!(taken.last(), Some(&Happening::Lost));
    }

    #[test]
    fn what_happens_to_a_gpu_is_heard_by_all_parts_of_it() {
        let whole = gpu("GPU-1", "00000000:C1:00.0");
        let parts = ["MIG-a", "MIG-b"].map(|part| (part.to_owned(), "0000:c1:00.0".to_owned()));
        let elsewhere = ("MIG-c".to_owned(), "0000:c2:00.0".to_owned());
        let mut inboxes = Inboxes::of(parts.into_iter().chain([elsewhere]).collect());
        inboxes.put(&whole, Happening::Xid(48));
        for (part, heard) in [("MIG-a", true), ("MIG-b", true), ("MIG-c", false), ("GPU-1", false)] {
            assert_eq!(inboxes.take(part) == [Happening::Xid(48)], heard, "{part}");
        }
    }

    #[test]
    fn what_cannot_be_opened_is_tried_again_ever_more_rarely_and_told_once() {
        let mut tries = Tries::default();
        let (mut at, mut told) = (Vec::new(), 0);
        for look in 0..3000 {
            if tries.is_due() {
                at.push(look);
                told += u32::from(tries.is_first());
            }
        }
        let pauses: Vec<i32> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!((at[0], told), (0, 1));
        assert_eq!(pauses[..8], [10, 20, 40, 80, 160, 320, 600, 600]);
        tries.succeeded();
        let due = (0..40).filter(|_| tries.is_due()).count();
        assert_eq!((due, tries.failed), (2, 2), "after 10 looks and 10 more");
    }
}
