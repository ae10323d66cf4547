//! The memory that the process may use: what models may take of it, and whether it exceeds what requests may take, by the options.

use crate::{config::Config, telemetry::host};

/// The memory that there is.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Bytes that the process may have.
    limit: u64,
    /// Bytes above which the system slows it down, where there is such a limit.
    high: Option<u64>,
    /// Bytes shared with the processes of GPUs, used or not.
    shared: u64,
}

/// Bytes that ONNX models on the CPU may take. The rest is for everything else.
pub(super) fn of_models(config: &Config) -> u64 {
    match config.compute_bytes_max {
        0 => host::memory_limit().map_or(u64::MAX, |limit| limit / 8 * 7),
        bytes => bytes,
    }
}

/// Warns at the start if it does not; `shared` bytes are shared with the processes of GPUs. Otherwise, in its first busy hour, the system
/// would kill the process, without a word in its log, or slow it down.
pub(super) fn check(config: &Config, shared: u64) {
    let room = host::memory_limit().map(|limit| Room { limit, high: host::memory_high(), shared });
    if let Some(words) = room.and_then(|room| too_little(config, room)) {
        tracing::warn!("{words}");
    }
}

/// What is wrong, and what to do.
fn too_little(config: &Config, room: Room) -> Option<String> {
    let Config { in_flight_bytes_max: flight, decode_bytes_max: decode, queue_bytes_max: queue, .. } =
        *config;
    let Room { limit, high, shared } = room;
    let sum = [decode, queue, shared].into_iter().fold(flight, u64::saturating_add);
    let (least, is, raise) = match high.filter(|high| *high < limit) {
        Some(high) => (high, "is slowed down above", "raise that (memory.high, MemoryHigh)"),
        None => (limit, "may have", "raise its limit (memory.max, resources.limits.memory, MemoryMax)"),
    };
    // Models, connections and the process itself come on top.
    (sum >= least).then(|| {
        let [sum, least, flight, decode, queue] = [sum, least, flight, decode, queue].map(mib);
        let (with, or) = match shared {
            0 => (String::new(), format!("decode_bytes_max ({decode}) or queue_bytes_max ({queue})")),
            _ => (
                format!(", with the {} that are shared with processes of GPUs", mib(shared)),
                format!("decode_bytes_max ({decode}), queue_bytes_max ({queue}) or isolation_bytes"),
            ),
        };
        format!(
            "requests may hold {sum} of memory{with}, and the process {is} {least}, models and connections included: {raise}, or \
             lower in_flight_bytes_max ({flight}), {or}"
        )
    })
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            in_flight_bytes_max: 100 << 20,
            decode_bytes_max: 20 << 20,
            queue_bytes_max: 3 << 20,
            ..Config::default()
        }
    }

    /// With so many MiB.
    fn room(limit: u64, high: Option<u64>, shared: u64) -> Room {
        Room { limit: limit << 20, high: high.map(|high| high << 20), shared: shared << 20 }
    }

    #[test]
    fn models_leave_an_eighth_of_the_memory_unless_an_option_says_what_they_may_take() {
        let of = |compute_bytes_max| of_models(&Config { compute_bytes_max, ..config() });
        assert_eq!(of(5), 5);
        let limit = host::memory_limit().expect("Linux tells");
        assert_eq!(of(0), limit / 8 * 7);
    }

    #[test]
    fn a_limit_that_requests_alone_may_reach_is_told_with_the_options_to_lower() {
        assert_eq!(too_little(&config(), room(124, None, 0)), None);
        let told = too_little(&config(), room(123, None, 0)).unwrap_or_default();
        for words in [
            "hold 123 MiB of memory, and the process may have 123 MiB,",
            "memory.max",
            "in_flight_bytes_max (100 MiB), decode_bytes_max (20 MiB) or queue_bytes_max (3 MiB)",
        ] {
            assert!(told.contains(words), "{told}");
        }
        let endless = Config { in_flight_bytes_max: u64::MAX, ..config() };
        let all = Room { limit: u64::MAX, high: None, shared: u64::MAX };
        assert!(too_little(&endless, all).is_some());
    }

    #[test]
    fn what_is_shared_with_processes_of_gpus_counts_used_or_not() {
        assert_eq!(too_little(&config(), room(180, None, 56)), None);
        let told = too_little(&config(), room(179, None, 56)).unwrap_or_default();
        for words in [
            "hold 179 MiB of memory, with the 56 MiB that are shared with processes of GPUs, and the process may have 179 MiB,",
            "queue_bytes_max (3 MiB) or isolation_bytes",
        ] {
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn a_limit_above_which_the_process_is_slowed_down_counts_where_it_is_the_lower() {
        assert_eq!(too_little(&config(), room(200, Some(124), 0)), None);
        let told = too_little(&config(), room(200, Some(123), 0)).unwrap_or_default();
        for words in ["the process is slowed down above 123 MiB,", "raise that (memory.high, MemoryHigh)"] {
            assert!(told.contains(words) && !told.contains("memory.max"), "{told}");
        }
        let told = too_little(&config(), room(123, Some(200), 0)).unwrap_or_default();
        assert!(told.contains("may have 123 MiB") && !told.contains("memory.high"), "{told}");
    }
}
