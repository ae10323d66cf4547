//! Turns for work that may keep a thread for long, so that such work never has all threads.

use super::Step;
use crate::batch::urgency::AGE_STEP;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use tokio::sync::oneshot;

/// A text of so many bytes is long if it is numbers: to read them takes 5 to 25 ns a byte, so up to a tenth of a second.
pub(crate) const LONG_NUMBERS: usize = 4 << 20;
/// The same for a text that is mostly files in base64, and for a form.
pub(crate) const LONG_FILES: usize = 32 << 20;

/// A bound on such work. Who finds no turn waits by the order in which jobs get a thread: by priority, which rises with age, then by
/// arrival.
pub(super) struct SlowTurns(Mutex<State>);

struct State {
    free: usize,
    /// Of the one that came last.
    number: u64,
    /// By when each would have the highest level.
    waiting: BTreeMap<Place, oneshot::Sender<Turn>>,
}

type Place = (Instant, u64);

impl SlowTurns {
    pub(super) fn new(at_once: usize) -> SlowTurns {
        SlowTurns(Mutex::new(State { free: at_once, number: 0, waiting: BTreeMap::new() }))
    }

    /// Waits for a turn.
    pub(super) async fn take(self: &Arc<Self>, step: Step) -> Turn {
        let (waits, turn) = {
            let mut state = self.0.lock();
            if state.free > 0 {
                state.free -= 1;
                return Turn(Arc::clone(self));
            }
            state.number += 1;
            let steps = if let Step::Request(priority) = step { priority.into() } else { 0 };
            let place = (Instant::now() + AGE_STEP * steps, state.number);
            let (sender, turn) = oneshot::channel();
            state.waiting.insert(place, sender);
            (Waits { turns: self, place }, turn)
        };
        let turn = turn.await.expect("a place that is waited for is given up for a turn alone");
        drop(waits);
        turn
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.lock().free
    }
}

/// The place of one that waits, which goes with it.
struct Waits<'a> {
    turns: &'a SlowTurns,
    place: Place,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.turns.0.lock().waiting.remove(&self.place);
    }
}

/// A turn, which the next one has when it is dropped.
pub(super) struct Turn(Arc<SlowTurns>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        let Some((_, next)) = state.waiting.pop_first() else {
            state.free += 1;
            return;
        };
        drop(state);
        // If the next one has just left, its turn is dropped here, and the one behind it has it.
        drop(next.send(Turn(Arc::clone(&self.0))));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::READ, *};
    use futures_util::poll;

    #[tokio::test]
    async fn the_most_urgent_is_next_and_then_who_came_first() {
        let turns = Arc::new(SlowTurns::new(1));
        let first = turns.take(READ).await;
        let [mut late, mut soon, mut sooner] =
            [Step::Request(2), READ, READ].map(|step| Box::pin(turns.take(step)));
        for waits in [&mut late, &mut soon, &mut sooner] {
            assert!(poll!(waits).is_pending());
        }
        let mut urgent = Box::pin(turns.take(Step::Request(0)));
        assert!(poll!(&mut urgent).is_pending());
        drop(first);
        let second = urgent.await;
        assert!(poll!(&mut soon).is_pending() && poll!(&mut sooner).is_pending());
        drop(second);
        let third = soon.await;
        assert!(poll!(&mut sooner).is_pending() && poll!(&mut late).is_pending());
        drop(third);
        drop(sooner.await);
        drop(late.await);
        assert_eq!(turns.free(), 1);
    }

    #[tokio::test]
    async fn who_leaves_takes_no_turn_along() {
        let turns = Arc::new(SlowTurns::new(1));
        let first = turns.take(READ).await;
        let [mut leaves, mut just_left, mut stays] = [READ; 3].map(|step| Box::pin(turns.take(step)));
        for waits in [&mut leaves, &mut just_left, &mut stays] {
            assert!(poll!(waits).is_pending());
        }
        drop(leaves);
        // It has the turn, but does not know.
        drop(first);
        assert!(poll!(&mut stays).is_pending());
        drop(just_left);
        let last = stays.await;
        assert_eq!((turns.free(), turns.0.lock().waiting.len()), (0, 0));
        drop(last);
        assert_eq!(turns.free(), 1);
    }
}
