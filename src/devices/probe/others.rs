//! How much of a GPU's memory other processes hold.
//!
//! The driver lists processes by their ids on the host. Within a PID namespace, a process does not know its id there, and may be shown no
//! list at all. So our entry is found by what changed while we took memory. If that is inconclusive, only memory is compared: what is
//! held, less what we hold.

use super::{Process, Sample};

/// What is known of our own process on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ourselves {
    /// Our id in the driver's list.
    pub pid: Option<u32>,
    /// Bytes that we hold, by the driver's count.
    pub memory: u64,
    /// The part of these that models held when that was measured.
    pub models: u64,
}

/// What other processes have on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Others {
    /// The other processes.
    Processes(Vec<Process>),
    /// The processes are unknown; this is what they hold, bytes.
    Memory(u64),
    /// Neither processes nor memory can be read.
    Unknown,
}

impl Others {
    /// Whether there are any. Unknown counts as none: otherwise a GPU without readings would be contended for ever.
    pub fn any(&self) -> bool {
        match self {
            Others::Processes(processes) => !processes.is_empty(),
            Others::Memory(bytes) => *bytes > SLACK,
            Others::Unknown => false,
        }
    }

    /// Bytes that they hold, as far as known.
    pub fn memory(&self) -> Option<u64> {
        match self {
            Others::Processes(processes) => processes.iter().map(|process| process.memory).sum(),
            Others::Memory(bytes) => Some(*bytes),
            Others::Unknown => None,
        }
    }
}

/// Less than a context takes: the driver's count may differ by as much.
const SLACK: u64 = 64 << 20;

impl Ourselves {
    /// The state before we have anything on a GPU. `pid` is our id, which the driver may not use.
    pub fn before(pid: u32) -> Ourselves {
        Ourselves { pid: Some(pid), memory: 0, models: 0 }
    }

    /// The state once all was given back but a context of so many bytes, which a library keeps.
    pub fn left(self, context: u64) -> Ourselves {
        Ourselves { memory: context, models: 0, ..self }
    }

    /// The state after we took memory, of which models have `models` bytes, from a look just before and one just after.
    ///
    /// We are the entry that is new; if our own id is in the list, it is that one, and if we had a context there before, the one that we
    /// were. Otherwise, if several or none are new, our id in the list is unknown.
    pub fn after(self, own: u32, models: u64, before: &Sample, after: &Sample) -> Ourselves {
        let held = |sample: &Sample| sample.memory.map_or(0, |memory| memory.held());
        let none = Vec::new();
        let list = |sample: &'_ Sample| sample.processes.clone().unwrap_or_default();
        let (earlier, later) = (list(before), after.processes.as_ref().unwrap_or(&none));
        let came: Vec<&Process> =
            later.iter().filter(|process| earlier.iter().all(|other| other.pid != process.pid)).collect();
        let was = |process: &&Process| self.memory > 0 && Some(process.pid) == self.pid;
        let listed = later.iter().find(|process| process.pid == own).or_else(|| later.iter().find(was));
        let ours = listed.or(match came.as_slice() {
            [one] => Some(*one),
            _ => None,
        });
        let grown = self.memory + held(after).saturating_sub(held(before));
        Ourselves {
            pid: ours.map(|process| process.pid),
            memory: ours.and_then(|process| process.memory).unwrap_or(grown),
            models,
        }
    }

    /// The same with models that hold so many bytes now: where no sample tells what we hold, the estimate changes by the difference.
    pub fn with_models(self, models: u64) -> Ourselves {
        Ourselves { memory: (self.memory + models).saturating_sub(self.models), models, ..self }
    }

    /// Whether a sample tells what we hold, separately from others.
    pub fn is_told(&self, sample: &Sample) -> bool {
        let mut listed = sample.processes.iter().flatten();
        listed.any(|process| Some(process.pid) == self.pid && process.memory.is_some())
    }

    /// Bytes that we hold by this sample; if it does not tell, what we held when the GPU was taken.
    pub fn held(&self, sample: &Sample) -> u64 {
        let mut listed = sample.processes.iter().flatten();
        let ours = listed.find(|process| Some(process.pid) == self.pid);
        ours.and_then(|process| process.memory).unwrap_or(self.memory)
    }

    /// What others have by this sample.
    pub fn others(&self, sample: &Sample) -> Others {
        let by_memory = || match sample.memory {
            Some(memory) => Others::Memory(memory.held().saturating_sub(self.held(sample))),
            None => Others::Unknown,
        };
        let Some(processes) = &sample.processes else {
            return by_memory();
        };
        let listed = self.pid.is_some_and(|own| processes.iter().any(|process| process.pid == own));
        // We hold memory and are not in the list, so the list cannot be trusted.
        if self.memory > 0 && !listed {
            return by_memory();
        }
        let others =
            processes.iter().filter(|process| Some(process.pid) != self.pid).copied().collect::<Vec<_>>();
        match by_memory() {
            // Memory is held that nobody in the list has, as when the list is of another namespace.
            Others::Memory(bytes) if others.is_empty() && bytes > SLACK => Others::Memory(bytes),
            _ => Others::Processes(others),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{GpuId, Memory},
        *,
    };

    const GIB: u64 = 1 << 30;
    const OWN: u32 = 17;

    /// A sample of a GPU of 80 GiB with these processes, of which `held` bytes are held.
    fn sample(held: u64, processes: Option<&[(u32, u64)]>) -> Sample {
        let gpu = GpuId { uuid: "GPU-1".to_owned(), pci: String::new() };
        let memory = Some(Memory { total: 80 * GIB, free: 79 * GIB - held, reserved: GIB });
        let listed = |list: &[(u32, u64)]| {
            list.iter().map(|&(pid, bytes)| Process { pid, memory: Some(bytes) }).collect()
        };
        Sample { memory, processes: processes.map(listed), ..Sample::of(gpu) }
    }

    #[test]
    fn we_are_not_among_the_others() {
        let before = sample(5 * GIB, Some(&[(4, 5 * GIB)]));
        let after = sample(8 * GIB, Some(&[(4, 5 * GIB), (OWN, 3 * GIB)]));
        let ourselves = Ourselves::before(OWN).after(OWN, GIB, &before, &after);
        assert_eq!(ourselves, Ourselves { pid: Some(OWN), memory: 3 * GIB, models: GIB });
        assert_eq!(
            ourselves.others(&after),
            Others::Processes(vec![Process { pid: 4, memory: Some(5 * GIB) }])
        );
        assert!(Ourselves::before(OWN).others(&before).any());
        let grown = sample(9 * GIB, Some(&[(4, 5 * GIB), (OWN, 4 * GIB)]));
        assert_eq!((ourselves.held(&grown), ourselves.held(&before)), (4 * GIB, 3 * GIB));
        let alone = sample(4 * GIB, Some(&[(OWN, 4 * GIB)]));
        assert_eq!(ourselves.others(&alone), Others::Processes(vec![]), "what came since is ours, too");
    }

    #[test]
    fn an_unknown_number_of_ours_is_the_one_that_came() {
        let before = sample(5 * GIB, Some(&[(4, 5 * GIB)]));
        let after = sample(8 * GIB, Some(&[(4, 5 * GIB), (70_001, 3 * GIB)]));
        let ourselves = Ourselves::before(OWN).after(OWN, GIB, &before, &after);
        assert_eq!(ourselves.pid, Some(70_001));
        assert_eq!(ourselves.others(&after).memory(), Some(5 * GIB));
    }

    #[test]
    fn a_context_that_stayed_is_ours_when_the_gpu_is_taken_again() {
        let before = sample(5 * GIB, Some(&[(4, 5 * GIB)]));
        let first = sample(8 * GIB, Some(&[(4, 5 * GIB), (70_001, 3 * GIB)]));
        let left = Ourselves::before(OWN).after(OWN, 2 * GIB, &before, &first).left(GIB);
        assert_eq!(left, Ourselves { pid: Some(70_001), memory: GIB, models: 0 });
        let between = sample(GIB, Some(&[(70_001, GIB)]));
        assert_eq!((left.others(&between).any(), left.held(&between)), (false, GIB));
        let again = sample(4 * GIB, Some(&[(70_001, 4 * GIB)]));
        let ourselves = left.after(OWN, 3 * GIB, &between, &again);
        assert_eq!(ourselves, Ourselves { pid: Some(70_001), memory: 4 * GIB, models: 3 * GIB });
        // Without a list, what it took this time comes to what stayed.
        let [between, again] = [GIB, 4 * GIB].map(|held| sample(held, None));
        let left = Ourselves { pid: None, ..left };
        assert!(!left.others(&between).any());
        assert_eq!(left.after(OWN, 3 * GIB, &between, &again).memory, 4 * GIB);
    }

    #[test]
    fn where_two_came_at_once_memory_alone_is_counted() {
        let before = sample(0, Some(&[]));
        let after = sample(8 * GIB, Some(&[(70_001, 3 * GIB), (70_002, 5 * GIB)]));
        let ourselves = Ourselves::before(OWN).after(OWN, GIB, &before, &after);
        assert_eq!(ourselves, Ourselves { pid: None, memory: 8 * GIB, models: GIB });
        let later = sample(20 * GIB, Some(&[(70_001, 3 * GIB), (70_002, 17 * GIB)]));
        assert_eq!(ourselves.others(&later), Others::Memory(12 * GIB));
    }

    #[test]
    fn without_a_list_memory_alone_is_counted() {
        for empty in [None, Some(&[][..])] {
            let before = sample(5 * GIB, empty);
            let after = sample(8 * GIB, empty);
            let ourselves = Ourselves::before(OWN).after(OWN, GIB, &before, &after);
            assert_eq!(ourselves, Ourselves { pid: None, memory: 3 * GIB, models: GIB });
            assert_eq!(ourselves.others(&after), Others::Memory(5 * GIB));
            // A model of two came; one of one had been there.
            let later = sample(10 * GIB, empty);
            assert_eq!(ourselves.with_models(3 * GIB).others(&later), Others::Memory(5 * GIB));
            assert_eq!(Ourselves::before(OWN).others(&before).memory(), Some(5 * GIB));
            // The driver's count may differ from ours by this much.
            assert!(!ourselves.others(&sample(3 * GIB + SLACK, empty)).any());
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_contention() {
        let gpu = GpuId { uuid: "GPU-1".to_owned(), pci: String::new() };
        let others = Ourselves::before(OWN).others(&Sample::of(gpu));
        assert_eq!(others, Others::Unknown);
        assert!(!others.any());
    }
}
