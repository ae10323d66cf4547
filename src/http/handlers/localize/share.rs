//! Charges a request for the memory that its stack holds: for the first bytes as they come, and for anything beyond them while it is held.
//! A stack that is written in order, and whose client reads, takes only that first share however long it is.

use crate::{
    http::admission::{Beside, Permit},
    image::stack::{Charge, Options},
};
use std::sync::Arc;

/// What a stack is charged for as it comes. Half is for bytes taken from the connection ahead of the work (`drive::Ahead`), a quarter for
/// bytes that cannot be read yet, and a quarter for rows that the client does not take yet.
const STACK_BYTES: u64 = 8 << 20;

/// The most that a stack is charged for as it comes. Without a temporary file, that is all that it may ever hold: there is nowhere to put
/// what finds no room later.
pub(super) fn of_stack(options: &Options) -> u64 {
    let most = options.limits.memory_bytes_max as u64;
    if options.spill_folder.is_some() { most.min(STACK_BYTES) } else { most }
}

/// Memory of one kind that a stack holds.
pub(super) struct Share {
    own_max: u64,
    /// The stack's permit, and what is charged beyond this share's part of it; `None` where nothing is counted.
    charged: Option<(Arc<Permit>, Beside)>,
}

impl Share {
    /// A quarter of what a stack is charged for as it comes.
    pub(super) fn of_stream(permit: Option<&Arc<Permit>>, options: &Options) -> Share {
        Share::new(of_stack(options) / 4, permit)
    }

    /// The share for a file that is held as a whole: its charge is used up by the file itself.
    pub(super) fn beside_file(permit: Option<&Arc<Permit>>) -> Share {
        Share::new(0, permit)
    }

    fn new(own_max: u64, permit: Option<&Arc<Permit>>) -> Share {
        Share { own_max, charged: permit.map(|permit| (Arc::clone(permit), permit.nothing_beside())) }
    }

    /// Reports that `bytes` are held: charges for those beyond the share's own part, or gives them back. Returns whether there is room.
    pub(super) fn holds(&mut self, bytes: usize) -> bool {
        let Some((permit, beyond)) = &mut self.charged else { return true };
        let own = self.own_max.min(permit.bytes());
        beyond.set((bytes as u64).saturating_sub(own))
    }
}

/// Charges for memory before it is taken, until the closure is dropped: for frames that are unpacked, and for the search for spots. This
/// memory has no share of the stack's charge, since a short body may need much of it.
pub(super) fn of_work(permit: Option<&Permit>) -> Charge {
    let mut beside = permit.map(Permit::nothing_beside);
    Box::new(move |bytes| beside.as_mut().map_or(Ok(()), |beside| beside.grow_to(bytes as u64)))
}

#[cfg(test)]
mod tests {
    use super::{super::stack_options, *};
    use crate::{
        config::Config,
        error::InferError,
        http::admission::{Admission, AdmissionLimits},
    };

    #[test]
    fn what_is_beyond_its_own_is_charged_while_it_is_held() {
        let options = stack_options(&Config::default());
        let of_stack = of_stack(&options);
        let own = (of_stack / 4) as usize;
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: of_stack + 100 };
        let admission = Admission::new(limits);
        let permit = Arc::new(admission.admit().expect("it is the first"));
        let beyond = || admission.in_flight().bytes - permit.bytes();
        let mut share = Share::of_stream(Some(&permit), &options);
        assert_eq!((share.holds(50), beyond()), (true, 50), "nothing has come");
        permit.cover(80).expect("there is room");
        assert_eq!((share.holds(90), beyond()), (true, 10));
        permit.cover(of_stack).expect("there is room");
        for (held, fits, charged) in
            [(own, true, 0), (own + 60, true, 60), (own + 101, false, 60), (own + 40, true, 40), (0, true, 0)]
        {
            assert_eq!((share.holds(held), beyond()), (fits, charged), "{held} bytes");
        }
        let mut share = Share::beside_file(Some(&permit));
        assert_eq!((share.holds(50), beyond()), (true, 50), "the file is charged for itself");
    }

    #[test]
    fn frames_are_charged_from_their_first_byte_until_their_reader_is_gone() {
        let limits = AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max: 100 };
        let admission = Admission::new(limits);
        let (permit, other) = (admission.admit().expect("a place"), admission.admit().expect("a place"));
        let charged = || admission.in_flight().bytes;
        let mut charge = of_work(Some(&permit));
        assert_eq!((charge(30), charge(70), charged()), (Ok(()), Ok(()), 70));
        // Refused for ever, and for now; neither takes anything.
        assert!(matches!(charge(101), Err(InferError::TooLarge { got: 101, limit: 100, .. })));
        let mut of_other = of_work(Some(&other));
        assert!(matches!(of_other(31), Err(InferError::Full { limit: 100, .. })));
        assert_eq!(charged(), 70);
        drop(charge);
        assert_eq!((of_other(31), charged()), (Ok(()), 31));
        assert_eq!(of_work(None)(1 << 40), Ok(()), "where nobody counts");
    }
}
