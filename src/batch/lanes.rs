//! What waits for one model, by item shape, most urgent first. Pure: no clock, no lock; the time is passed in.
//!
//! A lane holds jobs whose items can stand in one batch: the same types and shapes without the batch axis. Lanes appear
//! with their first job and go with their last, so that an odd shape holds up nobody else.
//!
//! Jobs are ordered by [`Urgency`]. A job that failed on a device avoids it: the worker that asks for work says by [`Admits`] which jobs
//! it may have, and the others are passed over.
//! A long job lets shorter ones pass now and then (`passing`).

mod front;
mod passing;
#[cfg(test)]
mod tests;

pub use front::Front;

use super::{
    JobKey,
    roster::Avoid,
    urgency::{LEVEL_AGAIN, Rank, Urgency},
};
use crate::engine::{DataType, Setting, Tensor};
use foldhash::HashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Instant,
};

/// What the jobs of a lane have in common: types and shapes of all inputs of an item, without the batch axis, and the setting that they
/// are run with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ItemShape {
    inputs: Vec<(DataType, Vec<usize>)>,
    setting: Option<Setting>,
}

impl ItemShape {
    /// The shape of the items in these inputs; `whole` says that there is no batch axis to leave out.
    pub fn of(inputs: &[Tensor], setting: Option<&Setting>, whole: bool) -> ItemShape {
        let skip = usize::from(!whole);
        let item = |tensor: &Tensor| {
            let item = tensor.shape.get(skip..).unwrap_or_default();
            (tensor.datatype, item.to_vec())
        };
        ItemShape { inputs: inputs.iter().map(item).collect(), setting: setting.cloned() }
    }

    /// What its items are run with.
    pub fn setting(&self) -> Option<&Setting> {
        self.setting.as_ref()
    }

    /// Whether each of its jobs gets a batch of its own: a job of whole frames is already as large as a batch should be.
    fn is_for_one(&self) -> bool {
        self.setting.as_ref().is_some_and(|setting| setting.finder().is_some())
    }
}

/// Whether the worker that asks may take jobs that avoid these devices (`None`: that avoid none).
pub type Admits<'a> = &'a dyn Fn(Option<Avoid>) -> bool;

/// Rows of one job that wait.
#[derive(Debug)]
struct Waiting {
    urgency: Urgency,
    /// When it was accepted.
    pushed: Instant,
    /// All that it has.
    of: usize,
    /// Ascending, not touching; more than one range only after part of a job failed.
    rows: Vec<Range<usize>>,
    /// Shares a batch with no other job.
    alone: bool,
    /// The devices that it avoids since they failed it.
    avoid: Option<Avoid>,
    /// It had its turn: shorter jobs may have the next batch.
    let_pass: bool,
    rank: Rank,
}

impl Waiting {
    fn items(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }
}

/// Rows that come back from a batch that failed.
#[derive(Debug)]
pub struct Back {
    /// Whose.
    pub job: JobKey,
    /// Where it stands in the order.
    pub urgency: Urgency,
    /// Which.
    pub rows: Range<usize>,
    /// How many the job has in all.
    pub of: usize,
    /// Shares no batch from now on.
    pub alone: bool,
    /// The devices that it avoids since they failed it, if any did.
    pub avoid: Option<Avoid>,
}

/// Jobs of one model and one item shape.
#[derive(Debug, Default)]
pub struct Lane {
    jobs: HashMap<JobKey, Waiting>,
    order: BTreeSet<Rank>,
    /// When the place of a job in the order changes.
    moves: BTreeSet<(Instant, JobKey)>,
    /// When a job that has not started by then ends without running.
    ends: BTreeSet<(Instant, JobKey)>,
    /// How many jobs there are of each priority.
    of_priority: BTreeMap<u8, usize>,
    items: usize,
}

impl Lane {
    /// Rows that wait.
    pub fn items(&self) -> usize {
        self.items
    }

    fn insert(&mut self, job: JobKey, waiting: Waiting) {
        self.order.insert(waiting.rank);
        if let Some(at) = waiting.urgency.ends_at() {
            self.ends.insert((at, job));
        }
        if let Some(at) = waiting.urgency.moves_at(&waiting.rank) {
            self.moves.insert((at, job));
        }
        *self.of_priority.entry(waiting.urgency.priority).or_default() += 1;
        self.items += waiting.items();
        self.jobs.insert(job, waiting);
    }

    fn remove(&mut self, job: JobKey) -> Option<Waiting> {
        let waiting = self.jobs.remove(&job)?;
        self.order.remove(&waiting.rank);
        if let Some(at) = waiting.urgency.ends_at() {
            self.ends.remove(&(at, job));
        }
        if let Some(at) = waiting.urgency.moves_at(&waiting.rank) {
            self.moves.remove(&(at, job));
        }
        if let Some(count) = self.of_priority.get_mut(&waiting.urgency.priority) {
            *count -= 1;
        }
        self.items -= waiting.items();
        Some(waiting)
    }

    /// Moves jobs to the level of their age, and behind the others of their level once their patience has ended.
    fn age(&mut self, now: Instant) {
        while let Some(&(at, job)) = self.moves.first()
            && at <= now
        {
            let mut waiting = self.remove(job).expect("whoever moves is waiting");
            waiting.rank = waiting.urgency.moved(now, job);
            self.insert(job, waiting);
        }
    }

    /// Removes jobs whose time is over.
    fn expire(&mut self, now: Instant, late: &mut Vec<JobKey>) {
        while let Some(&(at, job)) = self.ends.first()
            && at <= now
        {
            self.remove(job);
            late.push(job);
        }
    }

    /// Jobs that may be taken, most urgent first.
    fn admitted(&self, admits: Admits<'_>) -> impl Iterator<Item = (&Rank, &Waiting)> {
        // Only jobs that came back from a failed batch avoid a device, and they stand first.
        let plain = admits(None);
        let order = self.order.iter().take_while(move |rank| plain || rank.level == LEVEL_AGAIN);
        order.map(|rank| (rank, &self.jobs[&rank.job])).filter(move |(_, waiting)| admits(waiting.avoid))
    }

    /// The rank of its most urgent job, as of the last [`Lanes::refresh`].
    pub fn head(&self, admits: Admits<'_>) -> Option<Rank> {
        self.admitted(admits).next().map(|(rank, _)| *rank)
    }

    /// What a batch of at most `items_max` rows would be made of; `None` if nothing waits.
    pub fn front(&self, items_max: usize, admits: Admits<'_>) -> Option<Front> {
        let mut front: Option<Front> = None;
        for (rank, waiting) in self.admitted(admits) {
            let front = match &mut front {
                None => front.insert(Front::of(rank, waiting)),
                Some(front) if waiting.alone => {
                    front.shut = true;
                    break;
                }
                Some(front) => {
                    front.join(waiting);
                    front
                }
            };
            if front.shut || front.items >= items_max {
                front.items = front.items.min(items_max);
                break;
            }
        }
        front
    }

    /// Takes at most `items` rows, most urgent first, but for those that are let pass. Marks the last piece of each job that has no rows
    /// left waiting.
    fn take(&mut self, items: usize, admits: Admits<'_>, now: Instant) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut left = items;
        for job in self.passing(items, admits, now) {
            left -= self.take_of(job, left, false, &mut pieces);
        }
        while left > 0
            && let Some(Rank { job, .. }) = self.head(admits)
        {
            let alone = self.jobs[&job].alone;
            if alone && !pieces.is_empty() {
                break;
            }
            left -= self.take_of(job, left, pieces.is_empty(), &mut pieces);
            if alone {
                break;
            }
        }
        pieces
    }

    /// Takes at most `most` rows of a job, and returns how many. `leads`: it is first in the batch by its own urgency.
    fn take_of(&mut self, job: JobKey, most: usize, leads: bool, pieces: &mut Vec<Piece>) -> usize {
        let mut waiting = self.remove(job).expect("ordered jobs are waiting");
        let mut left = most;
        while left > 0
            && let Some(first) = waiting.rows.first_mut()
        {
            let end = first.end.min(first.start + left);
            let rows = first.start..end;
            left -= rows.len();
            first.start = end;
            if first.start == first.end {
                waiting.rows.remove(0);
            }
            let last = waiting.rows.is_empty();
            pieces.push(Piece { job, rows, last });
        }
        if !waiting.rows.is_empty() {
            // It has started, so its patience no longer counts.
            waiting.urgency.patience = None;
            waiting.let_pass |= leads;
            self.insert(job, waiting);
        }
        most - left
    }
}

/// Rows taken from a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whose rows.
    pub job: JobKey,
    /// Which.
    pub rows: Range<usize>,
    /// Nothing of the job waits any more.
    pub last: bool,
}

/// All lanes of one model.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: HashMap<Arc<ItemShape>, Lane>,
    jobs: usize,
}

impl Lanes {
    /// Lets all rows of a new job wait.
    pub fn push(
        &mut self,
        shape: &Arc<ItemShape>,
        job: JobKey,
        urgency: Urgency,
        items: usize,
        now: Instant,
    ) {
        let waiting = Waiting {
            urgency,
            pushed: now,
            of: items,
            rows: std::iter::once(0..items).collect(),
            alone: shape.is_for_one(),
            avoid: None,
            let_pass: false,
            rank: urgency.rank(urgency.level(now), job),
        };
        self.lane(shape).insert(job, waiting);
        self.jobs += 1;
    }

    /// Puts rows that were taken back at the head of the lane, before all jobs that never ran.
    pub fn put_back(&mut self, shape: &Arc<ItemShape>, back: Back, now: Instant) {
        let Back { job, urgency, rows, of, alone, avoid } = back;
        let lane = self.lane(shape);
        let before = lane.remove(job);
        let new = before.is_none();
        let mut waiting = before.unwrap_or(Waiting {
            urgency,
            pushed: now,
            of,
            rows: Vec::new(),
            alone: shape.is_for_one(),
            avoid: None,
            let_pass: false,
            rank: urgency.rank(LEVEL_AGAIN, job),
        });
        (waiting.rank.level, waiting.rank.delayed) = (LEVEL_AGAIN, false);
        waiting.alone |= alone;
        waiting.avoid = avoid.or(waiting.avoid);
        // It has started, so its patience no longer counts.
        waiting.urgency.patience = None;
        waiting.rows.push(rows);
        waiting.rows.sort_by_key(|rows| rows.start);
        waiting.rows.dedup_by(|next, rows| {
            let touch = rows.end == next.start;
            if touch {
                rows.end = next.end;
            }
            touch
        });
        lane.insert(job, waiting);
        self.jobs += usize::from(new);
    }

    /// Takes a job out, if anything of it waits.
    pub fn remove(&mut self, shape: &Arc<ItemShape>, job: JobKey) {
        let found = self.lanes.get_mut(shape).and_then(|lane| lane.remove(job));
        self.jobs -= usize::from(found.is_some());
        self.sweep(shape);
    }

    /// Moves jobs to the place that is due to them by now, and removes those whose time is over.
    pub fn refresh(&mut self, now: Instant) -> Vec<JobKey> {
        let mut late = Vec::new();
        for lane in self.lanes.values_mut() {
            lane.age(now);
            lane.expire(now, &mut late);
        }
        if !late.is_empty() {
            self.jobs -= late.len();
            self.lanes.retain(|_, lane| !lane.jobs.is_empty());
        }
        late
    }

    /// Takes at most `items` rows from the start of one lane, most urgent first.
    pub fn take(
        &mut self,
        shape: &Arc<ItemShape>,
        items: usize,
        admits: Admits<'_>,
        now: Instant,
    ) -> Vec<Piece> {
        let Some(lane) = self.lanes.get_mut(shape) else {
            return Vec::new();
        };
        let pieces = lane.take(items, admits, now);
        self.jobs -= pieces.iter().filter(|piece| piece.last).count();
        self.sweep(shape);
        pieces
    }

    /// How many jobs of a priority have rows waiting.
    pub fn of_priority(&self, priority: u8) -> usize {
        self.lanes.values().filter_map(|lane| lane.of_priority.get(&priority)).sum()
    }

    /// Rows that would run before a new job of `items` rows in this lane, of those that it may not pass; a batch has `batch`.
    pub fn ahead(
        &self,
        shape: &Arc<ItemShape>,
        urgency: Urgency,
        (items, batch): (usize, usize),
        now: Instant,
    ) -> usize {
        let rank = urgency.rank(urgency.level(now), JobKey(u64::MAX));
        let lane = self.lanes.get(shape);
        lane.into_iter()
            .flat_map(|lane| lane.order.range(..rank).map(|rank| &lane.jobs[&rank.job]))
            .filter(|waiting| !waiting.lets_pass(batch, &urgency, items, now))
            .map(Waiting::items)
            .sum()
    }

    /// All lanes, in no order; none is empty.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ItemShape>, &Lane)> {
        self.lanes.iter()
    }

    /// Jobs that have rows waiting.
    pub fn jobs(&self) -> impl Iterator<Item = JobKey> {
        self.lanes.values().flat_map(|lane| lane.jobs.keys().copied())
    }

    /// How many jobs have rows waiting.
    pub fn len(&self) -> usize {
        self.jobs
    }

    /// Rows that wait.
    pub fn items(&self) -> usize {
        self.lanes.values().map(Lane::items).sum()
    }

    /// The most urgent job that may be taken, as of the last [`Lanes::refresh`], and its lane.
    pub fn head(&self, admits: Admits<'_>) -> Option<(Rank, &Arc<ItemShape>)> {
        let heads = self.lanes.iter().filter_map(|(shape, lane)| Some((lane.head(admits)?, shape)));
        heads.min_by_key(|(rank, _)| *rank)
    }

    /// Whether anything waits that may be taken.
    pub fn any(&self, admits: Admits<'_>) -> bool {
        self.lanes.values().any(|lane| lane.head(admits).is_some())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.jobs == 0
    }

    /// The earliest arrival of all that waits.
    pub fn oldest(&self) -> Option<Instant> {
        let jobs = self.lanes.values().flat_map(|lane| lane.jobs.values());
        jobs.map(|waiting| waiting.urgency.arrived).min()
    }

    fn lane(&mut self, shape: &Arc<ItemShape>) -> &mut Lane {
        self.lanes.entry(Arc::clone(shape)).or_default()
    }

    fn sweep(&mut self, shape: &Arc<ItemShape>) {
        if self.lanes.get(shape).is_some_and(|lane| lane.jobs.is_empty()) {
            self.lanes.remove(shape);
        }
    }
}
