//! The part of `dynamic_batching` in a `config.pbtxt` that says how requests wait: priority levels and the policies of their
//! queues.

use super::findings::Findings;
use crate::{
    batch::{OnTimeout, QueuePolicies, QueuePolicy},
    models::manifest::{Waiting, queue::WAIT_MAX},
    protocol::inference::{ModelDynamicBatching, ModelQueuePolicy, model_queue_policy::TimeoutAction},
};
use serde_json::Value;
use std::collections::BTreeMap;

/// A change to how requests wait. What is `None` stays unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Queueing {
    levels: Option<u64>,
    usual: Option<u64>,
    default: SaidPolicy,
    /// By level; an empty map removes the policies of all levels.
    of_priority: Option<BTreeMap<u64, SaidPolicy>>,
}

/// The change to one queue's policy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct SaidPolicy {
    timeout_action: Option<i32>,
    default_timeout_microseconds: Option<u64>,
    allow_timeout_override: Option<bool>,
    max_queue_size: Option<u32>,
}

impl SaidPolicy {
    /// From a message and the JSON that it was read from: only the JSON distinguishes a missing member from one that is 0.
    fn of(policy: ModelQueuePolicy, json: Option<&Value>) -> SaidPolicy {
        let said = |member: &str| json.is_some_and(|json| !json[member].is_null());
        SaidPolicy {
            timeout_action: said("timeout_action").then_some(policy.timeout_action),
            default_timeout_microseconds: said("default_timeout_microseconds")
                .then_some(policy.default_timeout_microseconds),
            allow_timeout_override: said("allow_timeout_override").then_some(policy.allow_timeout_override),
            max_queue_size: said("max_queue_size").then_some(policy.max_queue_size),
        }
    }

    fn over(&self, now: &ModelQueuePolicy) -> ModelQueuePolicy {
        ModelQueuePolicy {
            timeout_action: self.timeout_action.unwrap_or(now.timeout_action),
            default_timeout_microseconds: self
                .default_timeout_microseconds
                .unwrap_or(now.default_timeout_microseconds),
            allow_timeout_override: self.allow_timeout_override.unwrap_or(now.allow_timeout_override),
            max_queue_size: self.max_queue_size.unwrap_or(now.max_queue_size),
        }
    }
}

impl Queueing {
    /// From a message and the JSON that it was read from.
    pub(super) fn of(dynamic: &ModelDynamicBatching, json: &Value) -> Queueing {
        let said = |member: &str| json.get(member).filter(|value| !value.is_null());
        let of_priority = said("priority_queue_policy").map(|levels| {
            let of_level = |level: u64| {
                let mut levels = levels.as_object().into_iter().flatten();
                levels.find(|(of, _)| of.parse() == Ok(level)).map(|(_, policy)| policy)
            };
            let policies = dynamic.priority_queue_policy.iter();
            policies.map(|(level, policy)| (*level, SaidPolicy::of(*policy, of_level(*level)))).collect()
        });
        Queueing {
            levels: said("priority_levels").map(|_| dynamic.priority_levels),
            usual: said("default_priority_level").map(|_| dynamic.default_priority_level),
            default: SaidPolicy::of(
                dynamic.default_queue_policy.unwrap_or_default(),
                said("default_queue_policy"),
            ),
            of_priority,
        }
    }

    /// Applies the change to `now` and `priority`. Returns how requests wait, and their default priority.
    ///
    /// # Errors
    /// Everything that is out of range or contradicts the rest.
    pub fn over(&self, now: &Waiting, priority: u8) -> Result<(Waiting, u8), String> {
        let policies = &now.policies;
        let own = |(priority, own): (&u8, &QueuePolicy)| (u64::from(*priority) + 1, message(own));
        let mut of_priority: BTreeMap<u64, ModelQueuePolicy> = policies.of_priority.iter().map(own).collect();
        if self.of_priority.as_ref().is_some_and(BTreeMap::is_empty) {
            of_priority.clear();
        }
        if let Some(levels) = self.levels {
            of_priority.retain(|level, _| *level <= levels);
        }
        for (level, said) in self.of_priority.iter().flatten() {
            let own = of_priority.entry(*level).or_default();
            *own = said.over(own);
        }
        let whole = ModelDynamicBatching {
            priority_levels: self.levels.unwrap_or(now.priorities.into()),
            default_priority_level: self.usual.unwrap_or(u64::from(priority) + 1),
            default_queue_policy: Some(self.default.over(&message(&policies.default))),
            priority_queue_policy: of_priority,
            ..ModelDynamicBatching::default()
        };
        let mut told = Findings::default();
        let (waiting, usual) = waiting(&mut told, &whole);
        told.into_none().map(|()| (waiting, usual.unwrap_or(priority)))
    }
}

/// A policy as a message.
fn message(policy: &QueuePolicy) -> ModelQueuePolicy {
    let action = match policy.then {
        OnTimeout::Refuse => TimeoutAction::Reject,
        OnTimeout::Delay => TimeoutAction::Delay,
    };
    ModelQueuePolicy {
        timeout_action: action.into(),
        default_timeout_microseconds: policy.wait_max.map_or(0, |wait| wait.as_micros() as u64),
        allow_timeout_override: policy.may_shorten,
        max_queue_size: policy.jobs_max.map_or(0, |jobs| u32::try_from(jobs).unwrap_or(u32::MAX)),
    }
}

/// How requests wait, and their default priority if levels are given. Triton's levels begin with 1, this server's priorities
/// with 0.
pub(super) fn waiting(told: &mut Findings, dynamic: &ModelDynamicBatching) -> (Waiting, Option<u8>) {
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

fn policy(told: &mut Findings, at: &str, policy: &ModelQueuePolicy) -> QueuePolicy {
    let at = format!("{at}.default_timeout_microseconds");
    let wait_max = told.capped(&at, policy.default_timeout_microseconds, WAIT_MAX);
    QueuePolicy {
        jobs_max: Some(policy.max_queue_size as usize).filter(|max| *max > 0),
        wait_max: Some(wait_max).filter(|wait| !wait.is_zero()),
        then: match policy.timeout_action() {
            TimeoutAction::Reject => OnTimeout::Refuse,
            TimeoutAction::Delay => OnTimeout::Delay,
        },
        may_shorten: policy.allow_timeout_override,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::overrides, *};
    use serde_json::{Map, json};
    use std::time::Duration;

    fn queueing(dynamic: Value) -> Result<Queueing, String> {
        let config = Map::from_iter([("dynamic_batching".to_owned(), dynamic)]);
        Ok(overrides(config, "m", None)?.queue.unwrap_or_default())
    }

    #[test]
    fn what_is_said_of_waiting_goes_over_what_is_so() {
        let default = QueuePolicy { jobs_max: Some(5), ..QueuePolicy::default() };
        let policies = QueuePolicies { default, ..QueuePolicies::default() };
        let now = Waiting { priorities: 3, policies };
        let changed = |dynamic: Value| queueing(dynamic).and_then(|queueing| queueing.over(&now, 2));
        assert_eq!(changed(json!({})), Ok((now.clone(), 2)));
        assert_eq!(
            changed(json!({ "priority_levels": 3, "default_queue_policy": null })),
            Ok((now.clone(), 2))
        );
        let (waiting, priority) =
            changed(json!({ "priority_queue_policy": { "1": { "timeout_action": "DELAY" } } })).unwrap();
        assert_eq!((waiting.priorities, waiting.policies.of(1).jobs_max, priority), (3, Some(5), 2));
        assert_eq!(waiting.policies.of(0).then, OnTimeout::Delay);
        assert_eq!(changed(json!({ "default_priority_level": 2 })), Ok((now.clone(), 1)));
        let told = changed(json!({ "priority_levels": 2 })).unwrap_err();
        assert!(
            told.contains("default_priority_level is 3, allowed: 1 to priority_levels, which is 2"),
            "{told}"
        );
        let told = changed(json!({ "default_queue_policy": { "size": 2 } })).unwrap_err();
        assert!(told.contains("size"), "{told}");
    }

    #[test]
    fn of_a_policy_what_is_not_named_stays() {
        let (one, two) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)));
        let own = QueuePolicy { wait_max: two, then: OnTimeout::Delay, ..QueuePolicy::default() };
        let default = QueuePolicy { jobs_max: Some(5), wait_max: one, ..QueuePolicy::default() };
        let policies = QueuePolicies { default, of_priority: [(0, own), (1, own)].into() };
        let now = Waiting { priorities: 2, policies };
        let changed = |dynamic: Value| {
            queueing(dynamic).and_then(|queueing| queueing.over(&now, 1)).unwrap().0.policies
        };
        let got = changed(json!({ "default_queue_policy": { "max_queue_size": 1, "timeout_action": null } }));
        let default = QueuePolicy { jobs_max: Some(1), ..default };
        assert_eq!(got, QueuePolicies { default, ..now.policies.clone() });
        // An explicit 0 counts as given.
        let got = changed(json!({ "default_queue_policy": { "default_timeout_microseconds": 0 } }));
        assert_eq!((got.default.wait_max, got.default.jobs_max), (None, Some(5)));
        let got = changed(json!({ "priority_queue_policy": { "1": { "max_queue_size": 3 } } }));
        let first = QueuePolicy { jobs_max: Some(3), ..own };
        assert_eq!(got.of_priority, [(0, first), (1, own)].into());
        assert!(changed(json!({ "priority_queue_policy": {} })).of_priority.is_empty());
        // Removing levels removes their policies.
        let got = changed(json!({ "priority_levels": 1, "default_priority_level": 1 }));
        assert_eq!(got.of_priority, [(0, own)].into());
    }
}
