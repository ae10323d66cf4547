//! The flags of `ocelli bench`, and what they ask for.

use super::{
    super::{client::Name, message::Kind, target::Target},
    load::{Arrivals, Span},
    sweep::Plan,
};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// The command.
pub(in crate::cli) fn command() -> Command {
    let file = |name: &'static str, value: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .value_parser(value_parser!(PathBuf))
            .value_hint(clap::ValueHint::AnyPath)
    };
    let list = |name: &'static str| Arg::new(name).long(name).value_delimiter(',');
    Command::new("bench")
        .about("Measure a server: latency over load, at rising rates until it can bear no more")
        // clap shows a required group before all other arguments, whatever their order.
        .override_usage("ocelli bench [OPTIONS] <URL> <MODEL|--live>")
        .group(ArgGroup::new("loop").args(["rate", "concurrency"]))
        .group(ArgGroup::new("asked").args(["model", "live"]).required(true))
        .args([
            Arg::new("url").value_name("URL").required(true).help("The server, http://HOST[:PORT]"),
            Arg::new("model").value_name("MODEL").help("NAME or NAME/VERSION"),
            Arg::new("live")
                .long("live")
                .action(ArgAction::SetTrue)
                .help("Ask /v2/health/live instead of a model, to see the most that this client and the path to the server allow"),
            list("rate")
                .value_name("R,…")
                .value_parser(number(0.001, 1e6))
                .help("Open loop: these rates, in requests per second, instead of a sweep"),
            list("concurrency")
                .value_name("N,…")
                .value_parser(value_parser!(u16).range(1..=4096))
                .help("Closed loop: this many callers at once, each of which waits for its answer"),
            one("rate-from", "R").conflicts_with("loop").value_parser(number(0.001, 1e6)).help(
                "The first rate of the sweep; default: a quarter of the rate that a single caller gets during the warm-up",
            ),
            one("rate-step", "FACTOR").conflicts_with("loop").default_value("1.5").value_parser(number(1.01, 100.0)).help("The factor from one rate of the sweep to the next"),
            one("arrivals", "WORD").conflicts_with("concurrency").default_value("poisson").value_parser(["poisson", "constant"]).help(
                "How the requests of an open loop are spaced: like those of independent callers (poisson), or evenly (constant)",
            ),
            one("slo-ms", "MS").default_value("100").value_parser(number(0.001, 1e6)).help(
                "The bound on the 99th percentile of the latency; the sweep ends when it is exceeded, or more than 1 % of the requests fail",
            ),
            one("seconds", "S").default_value("5").value_parser(number(0.01, 86_400.0)).help("How long each load is measured"),
            one("warm-up-seconds", "S").default_value("1").value_parser(number(0.0, 86_400.0)).help("How long requests are sent before each measurement, without being counted"),
            one("timeout-ms", "MS").default_value("10000").value_parser(number(1.0, 1e7)).help("How long an answer may take"),
            one("in-flight-max", "N").conflicts_with("concurrency").default_value("1024").value_parser(value_parser!(u16).range(1..=60_000)).help(
                "The most requests in flight in an open loop; any beyond are sent late, which counts as latency",
            ),
            file("input", "PATH").conflicts_with("live").help("A file to send, or a folder whose files are sent in turn; default: made-up input"),
            one("as", "WORD").conflicts_with("live").value_parser(["images", "tensors"]).help("What to send; default: images if the model takes them"),
            Arg::new("shape").long("shape").value_name("NAME=N,…").action(ArgAction::Append).conflicts_with_all(["live", "input"]).help(
                "The shape of a made-up input, where the model leaves it open; may be repeated; only inputs with a --shape are then sent",
            ),
            one("items", "N")
                .conflicts_with_all(["live", "input"])
                .value_parser(value_parser!(u16).range(1..))
                .help("Items in a request of made-up tensors, along the first axis if the model leaves it open; default: one"),
            one("seed", "N").default_value("1").value_parser(value_parser!(u64)).help("The seed for arrivals and for made-up input"),
            file("json", "FILE").help("Writes all measurements to a file, or with - to the standard output in place of the table"),
            file("picture", "FILE.svg").help("Draws the latency over the load"),
        ])
}

fn one(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

/// A number within bounds.
pub(in crate::cli) fn number(
    min: f64,
    max: f64,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| format!("must be a number from {min} to {max}"))
    }
}

/// The parsed arguments.
pub(super) struct Wanted {
    pub(super) target: Target,
    /// `None`: ask only whether the server is live.
    pub(super) model: Option<Name>,
    /// `None`: a sweep from a starting rate that is still to be determined.
    pub(super) plan: Option<Plan>,
    pub(super) step: f64,
    pub(super) arrivals: Arrivals,
    pub(super) bound_ms: f64,
    pub(super) span: Span,
    pub(super) time_max: Duration,
    pub(super) in_flight_max: usize,
    pub(super) input: Option<PathBuf>,
    pub(super) kind: Option<Kind>,
    pub(super) shapes: BTreeMap<String, Vec<usize>>,
    pub(super) items: Option<usize>,
    pub(super) seed: u64,
    pub(super) json: Option<PathBuf>,
    pub(super) picture: Option<PathBuf>,
}

/// Interprets the arguments.
///
/// # Errors
/// A message for the user.
pub(super) fn wanted(matches: &ArgMatches) -> Result<Wanted, String> {
    let text = |name: &str| matches.get_one::<String>(name);
    let real = |name: &str| *matches.get_one::<f64>(name).expect("clap has a default");
    let whole = |name: &str| usize::from(*matches.get_one::<u16>(name).expect("clap has a default"));
    let seconds = |name: &str| Duration::from_secs_f64(real(name));
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let picture = path("picture");
    let is_svg = |path: &PathBuf| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("svg"));
    if let Some(other) = picture.as_ref().filter(|path| !is_svg(path)) {
        return Err(format!("--picture is {other:?}: it is an SVG, and its name must end with .svg"));
    }
    let seed = *matches.get_one::<u64>("seed").expect("clap has a default");
    let step = real("rate-step");
    let plan = if let Some(rates) = matches.get_many::<f64>("rate") {
        Some(Plan::Rates(rates.copied().collect()))
    } else if let Some(callers) = matches.get_many::<u16>("concurrency") {
        Some(Plan::Callers(callers.copied().map(usize::from).collect()))
    } else {
        matches.get_one::<f64>("rate-from").map(|from| Plan::Sweep { from: *from, step })
    };
    Ok(Wanted {
        target: Target::parse(text("url").expect("clap requires the address"))?,
        model: text("model").map(|model| Name::parse(model)),
        plan,
        step,
        arrivals: match text("arrivals").map(String::as_str) {
            Some("constant") => Arrivals::Constant,
            _ => Arrivals::Poisson(seed),
        },
        bound_ms: real("slo-ms"),
        span: Span { warm_up: seconds("warm-up-seconds"), measured: seconds("seconds") },
        time_max: Duration::from_secs_f64(real("timeout-ms") / 1e3),
        in_flight_max: whole("in-flight-max"),
        input: path("input"),
        kind: text("as").map(|word| if word == "images" { Kind::Images } else { Kind::Tensors }),
        shapes: matches
            .get_many::<String>("shape")
            .into_iter()
            .flatten()
            .map(|text| shape(text))
            .collect::<Result<_, _>>()?,
        items: matches.get_one::<u16>("items").copied().map(usize::from),
        seed,
        json: path("json"),
        picture,
    })
}

/// `NAME=1,3,8`.
pub(in crate::cli) fn shape(text: &str) -> Result<(String, Vec<usize>), String> {
    let refused = || format!("--shape is {text:?}, expected NAME=N,… such as image=1,3,224,224");
    let (name, sides) = text.split_once('=').ok_or_else(refused)?;
    let sides = sides.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| refused())?;
    Ok((name.to_owned(), sides))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &[&str]) -> Result<Option<Plan>, String> {
        let matches = command()
            .try_get_matches_from(["bench"].iter().chain(given))
            .map_err(|error| error.to_string())?;
        wanted(&matches).map(|wanted| wanted.plan)
    }

    #[test]
    fn loads_are_a_sweep_or_rates_or_callers() {
        let url = "http://127.0.0.1:8000";
        assert_eq!(check(&[url, "m"]), Ok(None));
        assert_eq!(check(&[url, "m", "--rate-from", "5"]), Ok(Some(Plan::Sweep { from: 5.0, step: 1.5 })));
        assert_eq!(check(&[url, "m", "--rate", "10,20.5"]), Ok(Some(Plan::Rates(vec![10.0, 20.5]))));
        assert_eq!(check(&[url, "m", "--concurrency", "1,8"]), Ok(Some(Plan::Callers(vec![1, 8]))));
        assert!(check(&[url, "--live"]).is_ok());
        assert!(check(&[url, "m", "--picture", "x.SVG"]).is_ok());
        for wrong in [
            &[url][..],
            &[url, "m", "--live"],
            &[url, "m", "--rate", "1", "--concurrency", "1"],
            &["ftp://x", "m"],
            &[url, "m", "--rate", "0"],
            &[url, "m", "--shape", "x"],
            // An argument that would have no effect is refused.
            &[url, "m", "--concurrency", "1", "--arrivals", "constant"],
            &[url, "m", "--concurrency", "1", "--in-flight-max", "8"],
            &[url, "m", "--concurrency", "1", "--rate-from", "8"],
            &[url, "m", "--rate", "1", "--rate-step", "2"],
            &[url, "--live", "--items", "2"],
            &[url, "--live", "--input", "x.png"],
            &[url, "m", "--input", "x.npy", "--shape", "x=1"],
            &[url, "m", "--input", "x.npy", "--items", "2"],
            &[url, "m", "--picture", "x.png"],
            &[url, "m", "--picture", "svg"],
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
