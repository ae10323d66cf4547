//! Whether the memory that the process may have is more than requests may take, by the options.

use crate::config::Config;

/// Says at the start that it is not: otherwise the system ends the process at its first busy hour, without a word in its log.
pub(super) fn check(config: &Config, limit: Option<u64>) {
    if let Some(words) = limit.and_then(|limit| too_little(config, limit)) {
        tracing::warn!("{words}");
    }
}

/// What is wrong, and what to do.
fn too_little(config: &Config, limit: u64) -> Option<String> {
    let Config { in_flight_bytes_max: flight, decode_bytes_max: decode, queue_bytes_max: queue, .. } =
        *config;
    let sum = flight.saturating_add(decode).saturating_add(queue);
    // Models, connections and the process itself come on top.
    (sum >= limit).then(|| {
        let [sum, limit, flight, decode, queue] = [sum, limit, flight, decode, queue].map(mib);
        format!(
            "requests may hold {sum} of memory, and the process may have {limit}, models and connections included: raise its limit \
             (memory.max, resources.limits.memory, MemoryMax), or lower in_flight_bytes_max ({flight}), decode_bytes_max \
             ({decode}) or queue_bytes_max ({queue})"
        )
    })
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_requests_alone_may_reach_is_told_with_the_options_to_lower() {
        let config = Config {
            in_flight_bytes_max: 100 << 20,
            decode_bytes_max: 20 << 20,
            queue_bytes_max: 3 << 20,
            ..Config::default()
        };
        assert_eq!(too_little(&config, 124 << 20), None);
        let told = too_little(&config, 123 << 20).unwrap_or_default();
        for words in [
            "hold 123 MiB of memory, and the process may have 123 MiB,",
            "in_flight_bytes_max (100 MiB), decode_bytes_max (20 MiB) or queue_bytes_max (3 MiB)",
        ] {
            assert!(told.contains(words), "{told}");
        }
        let endless = Config { in_flight_bytes_max: u64::MAX, ..config };
        assert!(too_little(&endless, u64::MAX).is_some());
    }
}
