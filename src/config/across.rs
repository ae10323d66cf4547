//! What must hold between options: each alone may be fine and both together not.

use super::{
    Config, Isolation, Setting,
    kind::bytes_text,
    mistake::{Mistake, Origin},
};
use std::net::SocketAddr;

/// A rule between two options.
struct Rule {
    /// The two, as the table names them.
    between: [&'static str; 2],
    holds: fn(&Config) -> bool,
    /// What must be, and why.
    must: fn(&Config) -> String,
}

const RULES: &[Rule] = &[
    Rule {
        between: ["admin_listen", "listen"],
        holds: |config| apart_from_listen(config.admin_listen, config),
        must: |_| "admin_listen must differ from listen (or be empty, for none)".into(),
    },
    Rule {
        between: ["grpc_listen", "listen"],
        holds: |config| apart_from_listen(config.grpc_listen, config),
        must: |_| "grpc_listen must differ from listen (or be empty, for none)".into(),
    },
    Rule {
        between: ["grpc_listen", "admin_listen"],
        holds: |config| both_apart(config.grpc_listen, config.admin_listen),
        must: |_| "grpc_listen must differ from admin_listen (or be empty, for none)".into(),
    },
    Rule {
        between: ["grpc_listen", "metrics_listen"],
        holds: |config| both_apart(config.grpc_listen, config.metrics_listen),
        must: |_| "grpc_listen must differ from metrics_listen (or be empty, for none)".into(),
    },
    Rule {
        between: ["metrics_listen", "listen"],
        holds: |config| apart_from_listen(config.metrics_listen, config),
        must: |_| "metrics_listen must differ from listen, which has /metrics as well".into(),
    },
    Rule {
        between: ["metrics_listen", "admin_listen"],
        holds: |config| both_apart(config.metrics_listen, config.admin_listen),
        must: |_| "metrics_listen must differ from admin_listen, which has /metrics as well".into(),
    },
    Rule {
        between: ["header_timeout_ms", "idle_timeout_ms"],
        holds: |config| config.header_timeout_ms < config.idle_timeout_ms,
        must: |_| {
            "header_timeout_ms must be less than idle_timeout_ms, or idle connections would be closed first"
                .into()
        },
    },
    Rule {
        between: ["body_bytes_max", "in_flight_bytes_max"],
        holds: |config| config.body_bytes_max <= config.in_flight_bytes_max,
        must: |_| {
            "body_bytes_max must be at most in_flight_bytes_max, or the largest body could never be let in"
                .into()
        },
    },
    Rule {
        between: ["body_bytes_max", "queue_bytes_max"],
        holds: |config| config.body_bytes_max <= config.queue_bytes_max,
        must: |_| {
            "body_bytes_max must be at most queue_bytes_max, or the largest request could never be queued"
                .into()
        },
    },
    Rule {
        between: ["image_pixels_max", "decode_bytes_max"],
        holds: |config| decoded_bytes(config) <= config.decode_bytes_max,
        must: |config| {
            format!(
                "decode_bytes_max must be at least 4 bytes for each of image_pixels_max ({}), or the largest image could never be decoded",
                bytes_text(decoded_bytes(config))
            )
        },
    },
    Rule {
        between: ["gpu_jpeg", "isolation"],
        holds: |config| !config.gpu_jpeg || config.isolation == Isolation::Thread,
        must: |_| {
            "gpu_jpeg needs isolation = \"thread\": with \"process\" the server, which has the images, uses no GPU itself".into()
        },
    },
    Rule {
        between: ["timeout_ms", "timeout_ms_max"],
        holds: |config| config.timeout_ms <= config.timeout_ms_max,
        must: |_| "timeout_ms must be at most timeout_ms_max".into(),
    },
];

/// Whether a listener can have its address beside the API's.
fn apart_from_listen(one: Option<SocketAddr>, config: &Config) -> bool {
    one.is_none_or(|one| config.listen.iter().all(|listen| apart(one, *listen)))
}

/// Whether two listeners can both have theirs.
fn both_apart(one: Option<SocketAddr>, other: Option<SocketAddr>) -> bool {
    one.zip(other).is_none_or(|(one, other)| apart(one, other))
}

/// Whether both can be listened on. Port 0 becomes a free one; an unspecified address takes the port on all of them.
fn apart(a: SocketAddr, b: SocketAddr) -> bool {
    let same_address = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == 0 || a.port() != b.port() || !same_address
}

/// One image of the largest size at 4 bytes a pixel.
fn decoded_bytes(config: &Config) -> u64 {
    config.image_pixels_max.saturating_mul(4)
}

/// Adds a mistake for each rule that does not hold. Rules about an option that is `broken` by itself wait until that
/// one is mended.
pub(super) fn check(config: &Config, settings: &[Setting], broken: &[&str], mistakes: &mut Vec<Mistake>) {
    for rule in RULES {
        if rule.between.iter().any(|name| broken.contains(name)) || (rule.holds)(config) {
            continue;
        }
        let find = |name: &str| {
            settings
                .iter()
                .find(|setting| setting.spec.name == name)
                .expect("rules name options of the table")
        };
        let [a, b] = rule.between.map(find);
        // Blame what somebody set, and of two settings the one that is easier to change.
        let (blamed, other) = if b.origin > a.origin { (b, a) } else { (a, b) };
        let from = match &other.origin {
            Origin::Default => "the default".to_string(),
            origin => format!("from {origin}"),
        };
        mistakes.push(Mistake {
            origin: blamed.origin.clone(),
            found: format!("{} = {:?}", blamed.spec.name, blamed.text),
            reason: format!("{}; {} is {:?}, {from}", (rule.must)(config), other.spec.name, other.text),
        });
    }
}
