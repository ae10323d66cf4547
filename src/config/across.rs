//! Rules between options: two values may each be allowed and yet contradict each other.

use super::{
    Config, Isolation, Setting,
    kind::bytes_text,
    mistake::{Mistake, Origin},
};
use std::net::{IpAddr, SocketAddr};

/// A rule between two options.
struct Rule {
    /// The two, as the table names them.
    between: [&'static str; 2],
    holds: fn(&Config) -> bool,
    /// The text of the rule, with its reason.
    must: fn(&Config) -> String,
}

const RULES: &[Rule] = &[
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
        between: ["stack_spill_bytes_max", "stack_spill_total_bytes_max"],
        holds: |config| config.stack_spill_bytes_max <= config.stack_spill_total_bytes_max,
        must: |_| {
            "stack_spill_bytes_max must be at most stack_spill_total_bytes_max, or the largest stack could never be kept".into()
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
        holds: |config| !config.gpu_jpeg || config.isolation != Isolation::Process,
        must: |_| {
            "gpu_jpeg needs isolation = \"thread\" (or \"auto\"): with \"process\" the server, which has the images, uses no GPU itself".into()
        },
    },
    Rule {
        between: ["timeout_ms", "timeout_ms_max"],
        holds: |config| config.timeout_ms <= config.timeout_ms_max,
        must: |_| "timeout_ms must be at most timeout_ms_max".into(),
    },
];

/// A listener's option, its addresses, and what else a user may do than set another address.
type Listener = (&'static str, fn(&Config) -> &[SocketAddr], &'static str);

const LISTENERS: [Listener; 4] = [
    ("listen", |config| &config.listen, ""),
    ("admin_listen", |config| config.admin_listen.as_slice(), " (or be empty, for none)"),
    (
        "metrics_listen",
        |config| config.metrics_listen.as_slice(),
        " (or be empty: listen and admin_listen have /metrics as well)",
    ),
    ("grpc_listen", |config| config.grpc_listen.as_slice(), " (or be empty, for none)"),
];

/// Pairs of options whose addresses cannot both be listened on, with the rule that is broken. A pair may be one option twice.
fn clashes(config: &Config) -> Vec<([&'static str; 2], String)> {
    let mut clashes = Vec::new();
    for (index, (name, addresses, or)) in LISTENERS.iter().enumerate() {
        let own = addresses(config);
        let twice = own.iter().enumerate().find_map(|(at, a)| clash(&own[..at], *a));
        clashes.extend(twice.map(|why| ([*name, *name], format!("{why}: leave one out"))));
        for (other, others, _) in &LISTENERS[..index] {
            let why = own.iter().find_map(|address| clash(others(config), *address));
            clashes.extend(
                why.map(|why| ([*name, *other], format!("{name} must differ from {other}{or}: {why}"))),
            );
        }
    }
    clashes
}

/// Why `address` cannot be listened on beside the others.
fn clash(others: &[SocketAddr], address: SocketAddr) -> Option<String> {
    let other = others.iter().find(|other| !apart(**other, address))?;
    Some(match *other == address {
        true => format!("{address} cannot be listened on twice"),
        false => format!("{other} and {address} cannot both be listened on"),
    })
}

/// Whether both addresses can be listened on. Port 0 becomes a free port. An unspecified address takes its port on all addresses,
/// and `[::]` on those of IPv4 as well. An IPv4-mapped IPv6 address counts as its IPv4 address.
fn apart(a: SocketAddr, b: SocketAddr) -> bool {
    let plain = |address: SocketAddr| match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        // Kept unchanged, with its scope (interface).
        IpAddr::V6(_) => address,
    };
    let (a, b) = (plain(a), plain(b));
    let takes =
        |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    a.port() == 0 || a.port() != b.port() || !(a == b || takes(a, b) || takes(b, a))
}

/// Size of the largest decoded image, at 4 bytes per pixel.
fn decoded_bytes(config: &Config) -> u64 {
    config.image_pixels_max.saturating_mul(4)
}

/// Adds a mistake for each rule that does not hold. Rules about an option whose own value is `broken` are skipped.
pub(super) fn check(config: &Config, settings: &[Setting], broken: &[&str], mistakes: &mut Vec<Mistake>) {
    let rules = RULES.iter().filter(|rule| !(rule.holds)(config));
    let rules = rules.map(|rule| (rule.between, (rule.must)(config)));
    for (between, must) in clashes(config).into_iter().chain(rules) {
        if between.iter().any(|name| broken.contains(name)) {
            continue;
        }
        let find = |name: &str| {
            settings
                .iter()
                .find(|setting| setting.spec.name == name)
                .expect("rules name options of the table")
        };
        let [a, b] = between.map(find);
        // Blame the option whose origin is stronger: one that is set rather than a default, and of two that are set the one that
        // is easier to change.
        let (blamed, other) = if b.origin > a.origin { (b, a) } else { (a, b) };
        let from = match &other.origin {
            Origin::Default => "the default".to_string(),
            origin => format!("from {origin}"),
        };
        let reason = match blamed.spec.name == other.spec.name {
            true => must,
            false => format!("{must}; {} is {:?}, {from}", other.spec.name, other.text),
        };
        mistakes.push(Mistake {
            origin: blamed.origin.clone(),
            found: format!("{} = {:?}", blamed.spec.name, blamed.text),
            reason,
        });
    }
}
