//! `dynamic_batching` of a `config.pbtxt`, as far as it says how requests wait: levels of priority, and the policies of their
//! queues.

use super::map::Told;
use crate::{
    batch::{QueuePolicies, QueuePolicy, Then},
    models::manifest::{Waiting, queue::WAIT_MAX},
    protocol::inference::{ModelDynamicBatching, ModelQueuePolicy, model_queue_policy::TimeoutAction},
};
use std::{collections::BTreeMap, time::Duration};

/// What somebody says of how requests wait. What is open stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Queueing {
    levels: Option<u64>,
    usual: Option<u64>,
    default: Option<ModelQueuePolicy>,
    of_priority: Option<BTreeMap<u64, ModelQueuePolicy>>,
}

impl Queueing {
    /// Of a message, of which these members were given.
    pub(super) fn of(dynamic: ModelDynamicBatching, given: &dyn Fn(&str) -> bool) -> Queueing {
        Queueing {
            levels: given("priority_levels").then_some(dynamic.priority_levels),
            usual: given("default_priority_level").then_some(dynamic.default_priority_level),
            default: dynamic.default_queue_policy,
            of_priority: given("priority_queue_policy").then_some(dynamic.priority_queue_policy),
        }
    }

    /// How requests wait, and the priority of those that do not say, where it was so until now.
    ///
    /// # Errors
    /// Everything that is out of its range, or does not go with the rest.
    pub fn over(&self, now: &Waiting, priority: u8) -> Result<(Waiting, u8), String> {
        let policies = &now.policies;
        let own = |(priority, own): (&u8, &QueuePolicy)| (u64::from(*priority) + 1, message(own));
        let whole = ModelDynamicBatching {
            priority_levels: self.levels.unwrap_or(now.priorities.into()),
            default_priority_level: self.usual.unwrap_or(u64::from(priority) + 1),
            default_queue_policy: Some(self.default.unwrap_or_else(|| message(&policies.default))),
            priority_queue_policy: (self.of_priority.clone())
                .unwrap_or_else(|| policies.of_priority.iter().map(own).collect()),
            ..ModelDynamicBatching::default()
        };
        let mut told = Told::default();
        let (waiting, usual) = waiting(&mut told, &whole);
        told.into_wrong().map_or(Ok((waiting, usual.unwrap_or(priority))), Err)
    }
}

/// A policy as the message that says it.
fn message(policy: &QueuePolicy) -> ModelQueuePolicy {
    let action = match policy.then {
        Then::Refuse => TimeoutAction::Reject,
        Then::Delay => TimeoutAction::Delay,
    };
    ModelQueuePolicy {
        timeout_action: action.into(),
        default_timeout_microseconds: policy.wait_max.map_or(0, |wait| wait.as_micros() as u64),
        allow_timeout_override: policy.may_shorten,
        max_queue_size: policy.jobs_max.map_or(0, |jobs| u32::try_from(jobs).unwrap_or(u32::MAX)),
    }
}

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

#[cfg(test)]
mod tests {
    use super::{super::queueing, *};
    use serde_json::{Value, json};

    #[test]
    fn what_is_said_of_waiting_goes_over_what_is_so() {
        let default = QueuePolicy { jobs_max: Some(5), ..QueuePolicy::default() };
        let policies = QueuePolicies { default, ..QueuePolicies::default() };
        let now = Waiting { priorities: 3, policies };
        let changed = |dynamic: Value| {
            let Value::Object(members) = dynamic else { panic!("members are expected") };
            queueing(members).and_then(|queueing| queueing.over(&now, 2))
        };
        assert_eq!(changed(json!({})), Ok((now.clone(), 2)));
        assert_eq!(
            changed(json!({ "priority_levels": 3, "default_queue_policy": null })),
            Ok((now.clone(), 2))
        );
        let (waiting, priority) =
            changed(json!({ "priority_queue_policy": { "1": { "timeout_action": "DELAY" } } })).unwrap();
        assert_eq!((waiting.priorities, waiting.policies.of(1).jobs_max, priority), (3, Some(5), 2));
        assert_eq!(waiting.policies.of(0).then, Then::Delay);
        assert_eq!(changed(json!({ "default_priority_level": 2 })), Ok((now.clone(), 1)));
        let told = changed(json!({ "priority_levels": 2 })).unwrap_err();
        assert!(
            told.contains("default_priority_level is 3, allowed: 1 to priority_levels, which is 2"),
            "{told}"
        );
        let told = changed(json!({ "default_queue_policy": { "size": 2 } })).unwrap_err();
        assert!(told.contains("size"), "{told}");
    }
}
