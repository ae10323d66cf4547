//! A fair share of device time for each model: start-time fair queueing over virtual seconds. Pure.
//!
//! A model's virtual time advances by the seconds that its batches take, or would take on the fastest of its devices, divided by its
//! weight: by an estimate when a batch is taken, and by the difference when it is measured. A free worker serves, of the models that it
//! can serve, the one that is furthest behind. Priorities and deadlines order the work *within* a model and have no effect here: an
//! urgent job overtakes jobs of its own model only, at the expense of that model's share alone.
//!
//! A model that has work again after a pause starts where the furthest behind of the busy models stands (the start of its running batch,
//! if it has one), so idle time is not saved up. Busy are those that have work waiting or running and that the asking worker serves:
//! models that share no device are not compared. If none is, it starts at the latest virtual time that the worker's device has brought a
//! model to: that model may only be between two requests. Of models at the same point, the one that had less before goes first: an
//! occasional request waits for the batch that runs, but not for the next one of a busy model as well. When devices come or go, models
//! meet whose times have drifted apart; a model then owes at most two of the longest batches and a second.

use super::{ModelKey, roster::DeviceKey};
use foldhash::HashMap;
use std::collections::BTreeSet;

/// Seconds that a model may owe the others at most, in addition to two of the longest batches.
const DEBT_SECONDS: f64 = 1.0;

#[derive(Debug)]
struct Share {
    weight: f64,
    /// Seconds used, as on the model's fastest device, divided by the weight.
    virtual_time: f64,
    /// The virtual time at which the last batch was taken.
    start: f64,
    /// The last batch, in virtual seconds.
    last: f64,
    /// The shorter of the last two: a batch that was held up does not count towards what a model may owe.
    cost: f64,
    /// Batches running.
    running: usize,
    /// It has work again, and has not been placed among the others since.
    fresh: bool,
}

/// The virtual times of all models.
#[derive(Debug, Default)]
pub struct Shares {
    models: HashMap<ModelKey, Share>,
    /// Those with work waiting: few, where many are served.
    waiting: BTreeSet<ModelKey>,
    /// Those with batches running.
    running: BTreeSet<ModelKey>,
    /// The latest virtual time to which each device has brought a model.
    latest: HashMap<DeviceKey, f64>,
}

impl Shares {
    /// Adds a model. A weight that is not a positive number counts as 1.
    pub fn add(&mut self, model: ModelKey, weight: f64) {
        let usable = weight.is_finite() && weight > 0.0;
        self.models.insert(
            model,
            Share {
                weight: if usable { weight } else { 1.0 },
                virtual_time: 0.0,
                start: 0.0,
                last: f64::INFINITY,
                cost: 0.0,
                running: 0,
                fresh: false,
            },
        );
    }

    /// Forgets a model.
    pub fn remove(&mut self, model: ModelKey) {
        self.models.remove(&model);
        self.waiting.remove(&model);
        self.running.remove(&model);
    }

    /// Says whether a model has work waiting.
    pub fn set_waiting(&mut self, model: ModelKey, waiting: bool) {
        let Some(share) = self.models.get_mut(&model) else { return };
        share.fresh = match waiting {
            true => self.waiting.insert(model) || share.fresh,
            false => {
                self.waiting.remove(&model);
                false
            }
        };
    }

    /// The models with work waiting.
    pub fn waiting(&self) -> impl Iterator<Item = ModelKey> {
        self.waiting.iter().copied()
    }

    /// Puts the models that a worker of this device may run now in order, the one furthest behind first. `open` names each once; `serves`
    /// says which models the worker serves at all.
    pub fn order(
        &mut self,
        device: DeviceKey,
        open: &[ModelKey],
        serves: impl Fn(ModelKey) -> bool,
    ) -> Vec<ModelKey> {
        let served = self.running.union(&self.waiting).filter(|key| serves(**key));
        let at_work: Vec<&Share> = served.filter_map(|key| self.models.get(key)).collect();
        let stands = |share: &&Share| match share.running {
            0 => (!share.fresh).then_some(share.virtual_time),
            _ => Some(share.start),
        };
        let latest = || self.latest.get(&device).copied().unwrap_or(0.0);
        let floor = at_work.iter().filter_map(stands).min_by(f64::total_cmp).unwrap_or_else(latest);
        let longest = at_work.iter().map(|share| share.cost).fold(0.0, f64::max);
        let debt_max = floor + DEBT_SECONDS + 2.0 * longest;
        let mut order: Vec<(f64, f64, ModelKey)> = Vec::with_capacity(open.len());
        for &key in open {
            if let Some(share) = self.models.get_mut(&key) {
                let had = share.virtual_time;
                if std::mem::take(&mut share.fresh) {
                    share.virtual_time = share.virtual_time.max(floor);
                }
                share.virtual_time = share.virtual_time.min(debt_max);
                order.push((share.virtual_time, had, key));
            }
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        order.into_iter().map(|(.., key)| key).collect()
    }

    /// Charges a batch that was taken now, by its estimated seconds.
    pub fn charge(&mut self, model: ModelKey, estimate: f64) {
        if let Some(share) = self.models.get_mut(&model) {
            share.running += 1;
            self.running.insert(model);
            share.start = share.virtual_time;
            share.virtual_time += estimate / share.weight;
        }
    }

    /// Replaces what was charged for a batch that this device has ended by its measured seconds.
    pub fn correct(&mut self, device: DeviceKey, model: ModelKey, estimate: f64, measured: f64) {
        if let Some(share) = self.models.get_mut(&model) {
            share.running = share.running.saturating_sub(1);
            if share.running == 0 {
                self.running.remove(&model);
            }
            share.virtual_time += (measured - estimate) / share.weight;
            let cost = measured / share.weight;
            share.cost = cost.min(std::mem::replace(&mut share.last, cost));
            let latest = self.latest.entry(device).or_default();
            *latest = latest.max(share.virtual_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ModelKey = ModelKey(1);
    const B: ModelKey = ModelKey(2);
    const ONE: DeviceKey = DeviceKey(1);
    const OTHER: DeviceKey = DeviceKey(2);

    fn shares(weights: &[(ModelKey, f64)]) -> Shares {
        let mut shares = Shares::default();
        for &(model, weight) in weights {
            shares.add(model, weight);
            shares.set_waiting(model, true);
        }
        shares
    }

    /// Whose turn it is on a device that serves these, by what waits now.
    fn order(shares: &mut Shares, device: DeviceKey, serves: &[ModelKey]) -> Vec<ModelKey> {
        let open: Vec<_> = shares.waiting().filter(|key| serves.contains(key)).collect();
        shares.order(device, &open, |key| serves.contains(&key))
    }

    /// Who is served in `turns` turns of one worker, when a batch takes the model's seconds.
    fn serve(shares: &mut Shares, turns: usize, seconds: impl Fn(ModelKey) -> f64) -> String {
        let turn = |_| {
            let model = order(shares, ONE, &[A, B])[0];
            shares.charge(model, 0.01);
            shares.correct(ONE, model, 0.01, seconds(model));
            if model == A { 'a' } else { 'b' }
        };
        (0..turns).map(turn).collect()
    }

    #[test]
    fn saturated_models_get_device_time_by_weight() {
        let mut equal = shares(&[(A, 1.0), (B, 1.0)]);
        assert_eq!(serve(&mut equal, 6, |_| 1.0), "ababab");
        let mut double = shares(&[(A, 2.0), (B, 1.0)]);
        assert_eq!(serve(&mut double, 6, |_| 1.0), "abaaba");
        let mut long = shares(&[(A, 1.0), (B, 1.0)]);
        assert_eq!(serve(&mut long, 8, |m| if m == A { 3.0 } else { 1.0 }), "abbbabbb");
    }

    #[test]
    fn a_weight_that_is_no_positive_number_counts_as_one() {
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(serve(&mut shares(&[(A, weight), (B, 1.0)]), 4, |_| 1.0), "abab");
        }
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut shares = shares(&[(A, 1.0), (B, 1.0)]);
        shares.set_waiting(B, false);
        assert_eq!(serve(&mut shares, 5, |_| 1.0), "aaaaa");
        shares.set_waiting(B, true);
        assert_eq!(serve(&mut shares, 4, |_| 1.0), "baab", "b does not get five turns");
    }

    /// Whichever of them was loaded first.
    #[test]
    fn who_asks_now_and_then_waits_for_one_batch_of_a_busy_model_at_most() {
        for (busy, seldom) in [(A, B), (B, A)] {
            let mut shares = shares(&[(A, 1.0), (B, 1.0)]);
            shares.set_waiting(seldom, false);
            let mut turn = |asks: bool| {
                let first = order(&mut shares, ONE, &[A, B])[0];
                shares.charge(first, 0.01);
                // It comes while the batch runs.
                if asks {
                    shares.set_waiting(seldom, true);
                }
                if first == seldom {
                    shares.set_waiting(seldom, false);
                }
                shares.correct(ONE, first, 0.01, if first == busy { 1.0 } else { 0.001 });
                first
            };
            let turns = [true, false, false, true, false, true, false].map(&mut turn);
            assert_eq!(turns, [busy, seldom, busy, busy, seldom, busy, seldom]);
        }
    }

    #[test]
    fn after_a_pause_of_all_nobody_is_behind() {
        let mut shares = shares(&[(A, 1.0), (B, 1.0)]);
        shares.set_waiting(B, false);
        serve(&mut shares, 5, |_| 1.0);
        shares.set_waiting(A, false);
        assert!(order(&mut shares, ONE, &[A, B]).is_empty());
        shares.set_waiting(B, true);
        assert_eq!(serve(&mut shares, 1, |_| 1.0), "b");
        shares.set_waiting(A, true);
        assert_eq!(serve(&mut shares, 4, |_| 1.0), "abab");
    }

    /// One caller of A, who sends its next request as soon as it has its answer, and a burst of B after a long silence.
    #[test]
    fn a_burst_after_a_pause_takes_turns_with_a_model_that_is_between_two_requests() {
        let mut shares = shares(&[(A, 1.0), (B, 1.0)]);
        shares.set_waiting(B, false);
        assert_eq!(serve(&mut shares, 1000, |_| 0.01).len(), 1000);
        shares.set_waiting(A, false);
        shares.set_waiting(B, true);
        assert_eq!(serve(&mut shares, 1, |_| 0.01), "b");
        shares.set_waiting(A, true);
        assert_eq!(serve(&mut shares, 6, |_| 0.01), "ababab");
    }

    #[test]
    fn a_batch_that_stood_still_is_not_paid_for_with_as_long_a_silence() {
        let mut shares = shares(&[(A, 1.0), (B, 1.0)]);
        serve(&mut shares, 10, |_| 0.1);
        // The process was stopped for 20 s while a batch of A ran.
        assert_eq!(serve(&mut shares, 1, |_| 20.0), "a");
        let turns = serve(&mut shares, 40, |_| 0.1);
        assert_eq!(turns.find('a'), Some(12), "a second and two batches: {turns}");
    }

    #[test]
    fn a_model_that_comes_late_to_a_device_does_not_lock_the_others_out() {
        let mut shares = shares(&[(A, 1.0), (B, 1.0)]);
        // B had its own device for 100 s, which is gone now; A has been waiting for this one all along.
        assert_eq!(order(&mut shares, ONE, &[A]), [A]);
        for _ in 0..100 {
            assert_eq!(order(&mut shares, OTHER, &[B]), [B]);
            shares.charge(B, 1.0);
            shares.correct(OTHER, B, 1.0, 1.0);
        }
        let turns = serve(&mut shares, 10, |_| 1.0);
        assert_eq!(turns, "aaaabababa");
    }
}
