//! Whether requests that should wait for a GPU have enough time for it, by the options.

use crate::config::{Backend, Config, WhileWaiting};

/// Warns at the start if they do not: all of them would be late while the GPU is away and the CPU does not stand in yet.
pub(super) fn check(config: &Config) {
    if let Some(words) = too_short(config) {
        tracing::warn!("{words}");
    }
}

/// What is wrong, and what to do.
fn too_short(config: &Config) -> Option<String> {
    let Config { backend, while_waiting, auto_timeout_ms: until, timeout_ms: have, .. } = *config;
    let waits = backend == Backend::Auto && while_waiting == WhileWaiting::Wait;
    (waits && until > have).then(|| {
        format!(
            "while_waiting is wait, and requests have {} ms (timeout_ms) unless they or their model say otherwise: where a GPU is away for \
             longer they are answered with 504, until {} ms (auto_timeout_ms) have passed and the CPU answers; lower auto_timeout_ms, or \
             raise timeout_ms",
            have.as_millis(),
            until.as_millis()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn requests_that_are_to_wait_for_longer_than_they_may_take_are_told_with_both_options() {
        let ms = Duration::from_millis;
        let config = Config { timeout_ms: ms(30_000), auto_timeout_ms: ms(30_001), ..Config::default() };
        assert_eq!(too_short(&config), None, "the CPU answers meanwhile");
        let waits = Config { while_waiting: WhileWaiting::Wait, ..config };
        let told = too_short(&waits).unwrap_or_default();
        for words in ["requests have 30000 ms (timeout_ms)", "until 30001 ms (auto_timeout_ms) have passed"] {
            assert!(told.contains(words), "{told}");
        }
        let enough = Config { auto_timeout_ms: ms(30_000), ..waits.clone() };
        assert_eq!(too_short(&enough), None);
        let without = Config { backend: Backend::Cpu, ..waits };
        assert_eq!(too_short(&without), None);
    }
}
