//! `dynamic_batching` of a `config.pbtxt`, as far as it says how requests wait: levels of priority, and the policies of their
//! queues.

use super::map::Told;
use crate::{
    batch::{QueuePolicies, QueuePolicy, Then},
    models::manifest::{Waiting, queue::WAIT_MAX},
    protocol::inference::{ModelDynamicBatching, ModelQueuePolicy, model_queue_policy::TimeoutAction},
};
use std::time::Duration;

/// How requests wait, and the priority of those that do not say where levels are given: they begin with 1, our priorities
/// with 0.
pub(super) fn waiting(told: &mut Told, dynamic: &ModelDynamicBatching) -> (Waiting, Option<u8>) {
    let mut waiting = Waiting::default();
    let (levels, usual) = (dynamic.priority_levels, dynamic.default_priority_level);
    let mut priority = None;
    if levels > 0 || usual > 0 {
        if !(1..=levels).contains(&usual) {
            told.wrong(format!(
                "dynamic_batching.default_priority_level is {usual}, allowed: 1 to priority_levels, which is {levels}"
            ));
        }
        match u8::try_from(levels) {
            Ok(levels) => waiting.priorities = levels.max(1),
            Err(_) => told.wrong(format!(
                "dynamic_batching.priority_levels is {levels}, allowed: 0 to {}: that many are told apart",
                u8::MAX
            )),
        }
        priority = u8::try_from(usual.saturating_sub(1)).ok();
    }
    let mut policies = QueuePolicies::default();
    if let Some(default) = &dynamic.default_queue_policy {
        policies.default = policy(told, "dynamic_batching.default_queue_policy", default);
    }
    for (level, own) in &dynamic.priority_queue_policy {
        let at = format!("dynamic_batching.priority_queue_policy[{level}]");
        let own = policy(told, &at, own);
        match u8::try_from(*level).ok().filter(|level| (1..=levels).contains(&u64::from(*level))) {
            Some(level) => drop(policies.of_priority.insert(level - 1, own)),
            None => told.wrong(format!("{at} is for no level; priority_levels is {levels}")),
        }
    }
    waiting.policies = policies;
    (waiting, priority)
}

fn policy(told: &mut Told, at: &str, policy: &ModelQueuePolicy) -> QueuePolicy {
    let wait_max = Duration::from_micros(policy.default_timeout_microseconds);
    if wait_max > WAIT_MAX {
        told.wrong(format!(
            "{at}.default_timeout_microseconds is {}, allowed: 0 to {}",
            policy.default_timeout_microseconds,
            WAIT_MAX.as_micros()
        ));
    }
    QueuePolicy {
        jobs_max: Some(policy.max_queue_size as usize).filter(|max| *max > 0),
        wait_max: Some(wait_max).filter(|wait| !wait.is_zero()),
        then: match policy.timeout_action() {
            TimeoutAction::Reject => Then::Refuse,
            TimeoutAction::Delay => Then::Delay,
        },
        may_shorten: policy.allow_timeout_override,
    }
}
