//! From sources to a configuration, as a caller sees it.

use super::*;
use crate::blessed;
use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

/// The content of the sources: the file's text, variables, flags.
struct GivenSources<'a> {
    file: &'a str,
    variables: &'a [(&'a str, &'a str)],
    flags: &'a [(&'static str, &'a str)],
}

const NOTHING: GivenSources<'static> = GivenSources { file: "", variables: &[], flags: &[] };

fn read(given: &GivenSources<'_>) -> Result<Loaded, ConfigError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ocelli.toml");
    fs::write(&path, given.file).expect("a file");
    load(&Sources {
        file: Some(path),
        environment: (given.variables.iter()).map(|(name, value)| (name.into(), value.into())).collect(),
        flags: (given.flags.iter()).map(|(name, value)| (*name, value.into())).collect(),
        cores: 6,
    })
}

/// The lines of the report, without the folder that the file lies in.
fn mistakes(given: &GivenSources<'_>) -> Vec<String> {
    let error = read(given).expect_err("mistakes");
    let text = error.to_string();
    let lines = text.lines().skip(1).map(|line| {
        let line = line.trim_start();
        match line.find("ocelli.toml") {
            Some(at) if line.starts_with('/') => line[at..].to_string(),
            _ => line.to_string(),
        }
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), error.mistakes.len(), "one line each: {text}");
    lines
}

fn check_mistake(given: &GivenSources<'_>, expected: &str) {
    assert_eq!(mistakes(given), [expected]);
}

#[test]
fn every_default_is_allowed_and_holds_with_the_others() {
    let loaded = read(&NOTHING).expect("defaults are right");
    assert_eq!(loaded.config.listen, ["127.0.0.1:8000".parse().expect("an address")]);
    assert_eq!(loaded.config.in_flight_bytes_max, 1 << 30);
    assert_eq!(loaded.config.idle_timeout_ms, Duration::from_secs(75));
    assert_eq!(loaded.config.compute_threads, 6);
    assert_eq!(loaded.config.backend, Backend::Auto);
    assert_eq!(loaded.config.log_dir, None);
    assert_eq!(loaded.config.onnx_runtime, Path::new("libonnxruntime.so"), "the system's library");
    assert_eq!(Config::default().listen, loaded.config.listen);
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let file = "queue_items_max = 1\nparts_max = 1\nconnections_max = 1\n";
    let variables = [("OCELLI_QUEUE_ITEMS_MAX", "2"), ("OCELLI_PARTS_MAX", "2"), ("HOME", "/")];
    let flags = [("queue_items_max", "3")];
    let loaded = read(&GivenSources { file, variables: &variables, flags: &flags }).expect("no mistakes");
    let config = &loaded.config;
    assert_eq!((config.queue_items_max, config.parts_max, config.connections_max), (3, 2, 1));
    assert_eq!(config.requests_in_flight_max, 1024);
    let origin = |name: &str| {
        let setting = loaded.settings.iter().find(|s| s.spec.name == name);
        setting.expect("an option").origin.to_string()
    };
    assert_eq!(origin("queue_items_max"), "--queue-items-max");
    assert_eq!(origin("parts_max"), "OCELLI_PARTS_MAX");
    assert!(origin("connections_max").ends_with("ocelli.toml:3"));
    assert_eq!(origin("requests_in_flight_max"), "default");
}

#[test]
fn all_mistakes_of_all_sources_are_reported_together_with_their_places() {
    let lines = mistakes(&GivenSources {
        file: "# a file\nparts_max = 0\nqueue_item_max = 5\nbackend = \"tpu\"\nlisten = 8000\n\ntimeout_ms = 900_000\n",
        variables: &[("OCELLI_LISTENER", "127.0.0.1:1"), ("OCELLI_DECODE_BYTES_MAX", "lots")],
        flags: &[("log_filter", "inof")],
    });
    let beginnings = [
        "ocelli.toml:2: parts_max = \"0\": must be a whole number from 1 to 100000",
        "ocelli.toml:3: queue_item_max: unknown option; nearest: queue_items_max",
        "ocelli.toml:4: backend = \"tpu\": must be one of auto, cpu, gpu",
        "ocelli.toml:5: listen: is of type integer: must be an IP address and a port",
        "OCELLI_DECODE_BYTES_MAX: decode_bytes_max = \"lots\": must be a number of bytes from 1KiB to 16TiB",
        "OCELLI_LISTENER: unknown variable; nearest: OCELLI_LISTEN",
        "--log-filter: log_filter = \"inof\": \"inof\" is not a level; nearest: info",
        "ocelli.toml:7: timeout_ms = \"900000\": timeout_ms must be at most timeout_ms_max; timeout_ms_max is \"600000\", the default",
    ];
    assert_eq!(lines.len(), beginnings.len(), "{lines:#?}");
    for (line, beginning) in lines.iter().zip(beginnings) {
        assert!(line.starts_with(beginning), "{line}\nis not\n{beginning}");
    }
}

#[test]
fn a_value_that_another_source_overrides_is_checked_all_the_same() {
    check_mistake(
        &GivenSources { file: "parts_max = 0\n", flags: &[("parts_max", "7")], ..NOTHING },
        "ocelli.toml:1: parts_max = \"0\": must be a whole number from 1 to 100000",
    );
}

#[test]
fn broken_lines_of_the_file_are_named_without_hiding_the_mistakes_of_others() {
    let lines = mistakes(&GivenSources {
        file: "parts_max = \nconnections_max = 0\nlisten = \"127.0.0.1:1\nparts_max = 3\n",
        ..NOTHING
    });
    assert!(lines[0].starts_with("ocelli.toml:1: "), "{lines:#?}");
    assert!(
        (lines.iter()).any(|line| line.starts_with("ocelli.toml:2: connections_max = \"0\"")),
        "{lines:#?}"
    );
    assert!((lines.iter()).any(|line| line.starts_with("ocelli.toml:3: ")), "{lines:#?}");
}

#[test]
fn an_option_given_twice_in_the_file_is_a_mistake() {
    let lines = mistakes(&GivenSources { file: "parts_max = 3\nparts_max = 4\n", ..NOTHING });
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].starts_with("ocelli.toml:2: parts_max"), "{lines:#?}");
    assert!(lines[0].contains("duplicate key"), "{lines:#?}");
}

#[test]
fn tables_in_the_file_are_refused_with_the_reason() {
    check_mistake(
        &GivenSources { file: "[queue]\nitems_max = 3\n", ..NOTHING },
        "ocelli.toml:1: queue: unknown option; options stand at the top, outside of tables",
    );
}

#[test]
fn numbers_in_the_file_stand_without_quotes_and_sizes_in_either_way() {
    let loaded =
        read(&GivenSources { file: "body_bytes_max = 0x10_0000\nqueue_bytes_max = \"3GiB\"\n", ..NOTHING })
            .expect("no mistakes");
    assert_eq!(loaded.config.body_bytes_max, 1 << 20);
    assert_eq!(loaded.config.queue_bytes_max, 3 << 30);
    check_mistake(
        &GivenSources { file: "parts_max = \"3\"\n", ..NOTHING },
        "ocelli.toml:1: parts_max: is text (\"3\"): must be a whole number from 1 to 100000, without quotes",
    );
    check_mistake(
        &GivenSources { file: "parts_max = 99999999999999999999999\n", ..NOTHING },
        "ocelli.toml:1: parts_max = \"99999999999999999999999\": must be a whole number from 1 to 100000",
    );
    check_mistake(
        &GivenSources { file: "timeout_ms = 1.5\n", ..NOTHING },
        "ocelli.toml:1: timeout_ms: is of type float: must be whole milliseconds from 1 to 86400000",
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake_that_names_it() {
    let sources = |path: &str| Sources {
        file: None,
        environment: vec![("OCELLI_CONFIG".into(), path.into())],
        flags: Vec::new(),
        cores: 1,
    };
    let error = load(&sources("/no/such/file.toml")).expect_err("no file");
    assert!(error.to_string().contains("/no/such/file.toml: cannot be read: "), "{error}");
    assert!(load(&sources("")).is_ok(), "an empty name is no file");
}

#[test]
fn what_is_not_utf8_is_a_mistake_and_not_a_panic() {
    use std::os::unix::ffi::OsStringExt;
    let error = load(&Sources {
        file: None,
        environment: vec![
            ("OCELLI_MODELS".into(), OsString::from_vec(vec![0xff])),
            (OsString::from_vec(b"OCELLI_\xff\n".to_vec()), "1".into()),
        ],
        flags: vec![("models", OsString::from_vec(vec![0xfe]))],
        cores: 1,
    })
    .expect_err("not UTF-8");
    assert_eq!(error.mistakes.len(), 3, "{error}");
    assert_eq!(error.to_string().lines().count(), 4, "{error}");
}

#[test]
fn what_was_to_be_an_option_s_value_and_cannot_be_is_no_mistake_of_its_default_as_well() {
    use std::os::unix::ffi::OsStringExt;
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(&file, "log_dir = 3\n").expect("a file");
    let sources = Sources {
        file: Some(file.path().to_owned()),
        environment: Vec::new(),
        flags: vec![("models", OsString::from_vec(b"caf\xe9".to_vec())), ("parts_max", "0".into())],
        cores: 1,
    };
    let all = ["models", "log_dir", "parts_max", "base_path"];
    let error = load_with(&sources, |_| all.map(|option| (option, "is not there".to_owned())).to_vec());
    let told = error.expect_err("mistakes").to_string();
    assert_eq!(told.matches("is not there").count(), 1, "{told}");
    assert!(told.ends_with("base_path = \"\": is not there"), "{told}");
}

#[test]
fn variables_of_a_kubernetes_service_named_ocelli_are_no_mistake() {
    let variables = [
        ("OCELLI_SERVICE_HOST", "10.0.0.1"),
        ("OCELLI_SERVICE_PORT", "8000"),
        ("OCELLI_SERVICE_PORT_HTTP", "8000"),
        ("OCELLI_PORT", "tcp://10.0.0.1:8000"),
        ("OCELLI_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("OCELLI_PORT_8000_TCP_PROTO", "tcp"),
        ("OCELLI_PORT_8000_TCP_PORT", "8000"),
        ("OCELLI_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("OCELLI_ADMIN_SERVICE_HOST", "10.0.0.2"),
        ("OCELLI_ADMIN_PORT_8002_TCP_ADDR", "10.0.0.2"),
    ];
    read(&GivenSources { variables: &variables, ..NOTHING }).expect("no mistakes");
    let lines = mistakes(&GivenSources {
        variables: &[("OCELLI_PORT", "8000"), ("OCELLI_PORT_RANGE", "1")],
        ..NOTHING
    });
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[test]
fn variables_of_the_build_the_tests_and_the_deployment_are_no_mistake() {
    let others = ["OCELLI_COMMIT", "OCELLI_BLESS", "OCELLI_CRDS", "OCELLI_IMAGE"].map(|name| (name, "1"));
    read(&GivenSources { variables: &others, ..NOTHING }).expect("no mistakes");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let refused = |file: &str, part: &str| {
        let lines = mistakes(&GivenSources { file, ..NOTHING });
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains(part), "{}\nlacks\n{part}", lines[0]);
    };
    refused("admin_listen = \"127.0.0.1:8000\"", "admin_listen must differ from listen");
    refused("grpc_listen = \"0.0.0.0:8000\"", "grpc_listen must differ from listen");
    refused("grpc_listen = \"127.0.0.1:8002\"", "grpc_listen must differ from admin_listen");
    refused(
        "listen = \"0.0.0.0:8002\"",
        "ocelli.toml:1: listen = \"0.0.0.0:8002\": admin_listen must differ from listen (or be empty, for none): 0.0.0.0:8002 and \
         127.0.0.1:8002 cannot both be listened on; admin_listen is \"127.0.0.1:8002\", the default",
    );
    refused("idle_timeout_ms = 10000", "header_timeout_ms must be less than idle_timeout_ms");
    refused("in_flight_bytes_max = \"255MiB\"", "body_bytes_max must be at most in_flight_bytes_max");
    refused("queue_bytes_max = \"255MiB\"", "body_bytes_max must be at most queue_bytes_max");
    refused("decode_bytes_max = \"255MiB\"", "at least 4 bytes for each of image_pixels_max (256MiB)");
    refused("timeout_ms_max = 29999", "timeout_ms must be at most");
    for file in [
        "listen = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"",
        "listen = \"127.0.0.1:80\"\nadmin_listen = \"127.0.0.2:80\"",
        "listen = \"127.0.0.1:8002\"\nadmin_listen = \"\"",
        "decode_bytes_max = \"256MiB\"",
        "timeout_ms_max = 30000",
    ] {
        read(&GivenSources { file, ..NOTHING }).expect(file);
    }
}

/// Checks two addresses that are both in `listen`, and that two real sockets agree.
fn both_at_listen(a: &str, b: &str, together: bool) {
    let file = format!("listen = \"{a},{b}\"\nadmin_listen = \"\"\n");
    match read(&GivenSources { file: &file, ..NOTHING }) {
        Ok(_) => assert!(together, "{a} and {b} are let through"),
        Err(error) => assert!(!together, "{error}"),
    }
    // Only if the machine has both addresses: IPv6 may be off. The port was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let bound = |text: &str| {
        let mut address: SocketAddr = text.parse().expect("an address");
        address.set_port(if address.port() == 0 { 0 } else { free });
        TcpListener::bind(address)
    };
    let alone = [a, b].map(|text| bound(text).is_ok());
    let first = bound(a);
    if alone == [true, true] && first.is_ok() {
        assert_eq!(bound(b).is_ok(), together, "{a} and {b} at port {free}");
    }
}

#[test]
fn what_is_listened_on_twice_is_refused_as_the_system_would_refuse_it() {
    for (a, b) in [
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("0.0.0.0:8000", "127.0.0.1:8000"),
        ("127.0.0.1:8000", "[::]:8000"),
        ("[::1]:8000", "[::]:8000"),
        ("0.0.0.0:8000", "[::]:8000"),
        ("[::ffff:127.0.0.1]:8000", "127.0.0.1:8000"),
    ] {
        both_at_listen(a, b, false);
    }
    for (a, b) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:8000", "127.0.0.2:8000"),
        ("127.0.0.1:8000", "[::1]:8000"),
        ("0.0.0.0:8000", "[::1]:8000"),
    ] {
        both_at_listen(a, b, true);
    }
}

#[test]
fn two_listeners_at_one_address_are_told_with_it_and_with_all_other_mistakes() {
    let lines = mistakes(&GivenSources {
        file: "listen = \"127.0.0.1:9000,127.0.0.1:9000\"\ngrpc_listen = \"127.0.0.1:9001\"\nparts_max = 0\n",
        flags: &[("metrics_listen", "127.0.0.1:9001"), ("admin_listen", "0.0.0.0:9000")],
        ..NOTHING
    });
    let expected = [
        "ocelli.toml:3: parts_max = \"0\": must be a whole number from 1 to 100000",
        "ocelli.toml:1: listen = \"127.0.0.1:9000,127.0.0.1:9000\": 127.0.0.1:9000 cannot be listened on twice: leave one out",
        "--admin-listen: admin_listen = \"0.0.0.0:9000\": admin_listen must differ from listen (or be empty, for none): 127.0.0.1:9000 \
         and 0.0.0.0:9000 cannot both be listened on; listen is \"127.0.0.1:9000,127.0.0.1:9000\", from ",
        "--metrics-listen: metrics_listen = \"127.0.0.1:9001\": grpc_listen must differ from metrics_listen (or be empty, for none): \
         127.0.0.1:9001 cannot be listened on twice; grpc_listen is \"127.0.0.1:9001\", from ",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\nis not\n{expected}");
    }
}

#[test]
fn a_rule_about_a_broken_option_waits_until_it_is_mended() {
    check_mistake(
        &GivenSources { file: "idle_timeout_ms = 0\nheader_timeout_ms = 80000\n", ..NOTHING },
        "ocelli.toml:1: idle_timeout_ms = \"0\": must be whole milliseconds from 1 to 86400000",
    );
}

#[test]
fn onnx_runtime_comes_from_ort_dylib_path_where_nothing_else_names_it() {
    let library = |file: &str, variables: &[(&str, &str)]| {
        let given = GivenSources { file, variables, flags: &[] };
        let loaded = read(&given).expect("no mistakes");
        let setting = (loaded.settings.iter()).find(|s| s.spec.name == "onnx_runtime");
        (loaded.config.onnx_runtime.display().to_string(), setting.expect("an option").origin.to_string())
    };
    let ort = ("ORT_DYLIB_PATH", "/ort.so");
    assert_eq!(library("onnx_runtime = \"\"", &[ort]), ("/ort.so".into(), "ORT_DYLIB_PATH".into()));
    assert_eq!(
        library("", &[ort, ("OCELLI_ONNX_RUNTIME", "/own.so")]),
        ("/own.so".into(), "OCELLI_ONNX_RUNTIME".into())
    );
    assert_eq!(library("", &[("ORT_DYLIB_PATH", "")]).0, "libonnxruntime.so");
    // A bare name of a file in the working folder, which is the repository's here.
    assert_eq!(library("onnx_runtime = \"Cargo.toml\"", &[]).0, "./Cargo.toml");
    assert_eq!(library("onnx_runtime = \"libother.so\"", &[]).0, "libother.so");
}

#[test]
fn names_are_told_apart_by_file_variable_and_flag() {
    for (i, a) in OPTIONS.iter().enumerate() {
        assert!(
            !a.doc.is_empty() && a.doc.ends_with('.') && a.more.ends_with('.'),
            "{} is documented in sentences",
            a.name
        );
        for b in &OPTIONS[i + 1..] {
            assert_ne!(a.name, b.name);
            assert_ne!(a.flag(), b.flag());
        }
        assert_ne!(a.flag(), "config", "--config names the file");
    }
}

#[test]
fn the_default_file_lists_every_option_and_reads_back_as_the_defaults() {
    let rendered = toml_defaults();
    blessed::check("deploy/ocelli.toml", &rendered, "config");
    let loaded = read(&GivenSources { file: &rendered, ..NOTHING }).expect("no mistakes");
    assert_eq!(loaded.config, read(&NOTHING).expect("defaults").config);
    for setting in loaded.settings {
        assert!(matches!(setting.origin, Origin::File { .. }), "{} is missing", setting.spec.name);
    }
}

#[test]
fn the_reference_of_options_is_the_table() {
    blessed::check("docs/options.md", &options_md(), "config");
}

#[test]
fn a_token_is_shown_nowhere_not_even_a_wrong_one() {
    let token = "correct-horse-battery";
    let of = |text: &str| read(&GivenSources { variables: &[("OCELLI_ADMIN_TOKEN", text)], ..NOTHING });
    let loaded = of(token).expect("long enough");
    assert_eq!(loaded.config.admin_token, Some(Secret::from(token)));
    assert!(!format!("{:?}", loaded.config).contains("horse"), "{:?}", loaded.config);
    for wrong in ["horse", "horse battery staple and so on"] {
        let error = of(wrong).expect_err("too short, or with spaces").to_string();
        assert!(error.contains("admin_token") && !error.contains("horse"), "{error}");
    }
}

#[test]
fn what_may_be_secret_is_not_shown_where_it_is_not_utf8_or_no_address() {
    use std::os::unix::ffi::OsStringExt;
    for (option, value) in [
        ("admin_token", &b"correct-horse-battery\xff"[..]),
        ("otlp_endpoint", b"http://me:horse@collector:4318"),
        ("otlp_endpoint", b"http://me:horse@collector\xff"),
    ] {
        for by_flag in [true, false] {
            let value = OsString::from_vec(value.to_vec());
            let (flags, environment) = match by_flag {
                true => (vec![(option, value)], Vec::new()),
                false => (Vec::new(), vec![(format!("OCELLI_{}", option.to_uppercase()).into(), value)]),
            };
            let error =
                load(&Sources { file: None, environment, flags, cores: 1 }).expect_err("refused").to_string();
            assert!(error.contains(option) && !error.contains("horse"), "{error}");
        }
    }
}

#[test]
fn several_addresses_stand_with_commas_between_them() {
    let of = |text: &str| read(&GivenSources { variables: &[("OCELLI_LISTEN", text)], ..NOTHING });
    let both = of("127.0.0.1:8000, [::1]:8080").expect("two addresses").config.listen;
    assert_eq!(both.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.1:8000", "[::1]:8080"]);
    assert!(of("127.0.0.1:8000,").is_err());
    let clash = of("127.0.0.1:8000,0.0.0.0:8002").expect_err("8002 is the admin listener's");
    assert!(clash.to_string().contains("admin_listen must differ"), "{clash}");
}
