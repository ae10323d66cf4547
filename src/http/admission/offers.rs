//! Places in flight that are kept only while nobody else needs them: those of requests whose body does not come. Requests that announce a
//! body and send none of it, or next to none, take little memory, and without this they would keep everybody else out.

use super::Permit;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use tokio::sync::oneshot;

/// Places on offer. Whose body has been too slow for longest is first, however often a little of it comes meanwhile.
#[derive(Debug, Default)]
pub(super) struct Offers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    places: BTreeMap<Key, (Arc<Permit>, oneshot::Sender<()>)>,
}

/// Since when the body has been too slow, and a number that no other offer has.
type Key = (Instant, u64);

impl Offers {
    pub(super) fn add(&self, permit: &Arc<Permit>, slow_since: Instant) -> Offer {
        let (tell, told) = oneshot::channel();
        let mut waiting = self.0.lock();
        let key = (slow_since, waiting.next);
        waiting.next += 1;
        waiting.places.insert(key, (Arc::clone(permit), tell));
        Offer { permit: Arc::clone(permit), key, told }
    }

    /// Takes the first place, if there is one.
    pub(super) fn take(&self) -> bool {
        let first = self.0.lock().places.pop_first();
        let Some((_, (permit, tell))) = first else { return false };
        permit.lose_place();
        // A request that just now goes on by itself learns it from `Offer::withdraw`.
        let _ = tell.send(());
        true
    }

    fn remove(&self, key: Key) -> bool {
        // What is removed is dropped after the lock is released: a permit's end is not quick.
        let removed = self.0.lock().places.remove(&key);
        removed.is_some()
    }
}

/// A place on offer, until it is taken or this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    permit: Arc<Permit>,
    key: Key,
    told: oneshot::Receiver<()>,
}

impl Offer {
    /// Waits until another request takes the place.
    pub(crate) async fn taken(&mut self) {
        let _ = (&mut self.told).await;
    }

    /// Keeps the place from now on. False if another request has it already.
    pub(crate) fn withdraw(self) -> bool {
        self.permit.offers().remove(self.key)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.permit.offers().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::tests::admission;
    use crate::error::InferError;
    use futures_util::FutureExt;
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    #[test]
    fn whoever_finds_every_place_taken_gets_that_of_the_body_that_has_been_too_slow_for_longest() {
        let admission = admission();
        let [one, two] = [(); 2].map(|()| Arc::new(admission.admit().unwrap()));
        let since = Instant::now();
        // It is offered last: a little of the body came meanwhile.
        let mut second = two.offer(since + Duration::from_millis(1)).unwrap();
        let mut first = one.offer(since).unwrap();
        let three = admission.admit().unwrap();
        assert!(first.taken().now_or_never().is_some() && second.taken().now_or_never().is_none());
        assert!(!first.withdraw() && second.withdraw());
        // Nobody offers any more, and the end of the one that lost its place frees none.
        drop(one);
        assert_eq!(admission.in_flight().requests, 2);
        assert!(matches!(admission.admit(), Err(InferError::Full { limit: 2, .. })));
        drop((two, three));
        assert_eq!((admission.in_flight().requests, admission.in_flight().refused_requests), (0, 1));
    }

    #[test]
    fn a_request_that_ends_takes_its_offer_along_and_a_call_makes_none() {
        let admission = admission();
        let [one, two] = [(); 2].map(|()| Arc::new(admission.admit().unwrap()));
        let now = Instant::now();
        drop((one.offer(now).unwrap(), one));
        assert_eq!(admission.in_flight().requests, 1);
        let three = admission.admit().unwrap();
        admission.admit().unwrap_err();
        drop((two, three));
        assert!(Arc::new(admission.open().unwrap()).offer(now).is_none());
    }
}
