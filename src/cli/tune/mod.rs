//! `ocelli tune`: tries a model in this process with different batches, instances and threads, and prints the best setup within
//! a latency bound as tables for its manifest. Each trial loads the model again.
//!
//! - `plan`: which setups are tried, and which is best.

mod plan;

use super::{
    Exit, Streams,
    bench::{Load, Point, Source, Span, failed, number, paths, shape},
    client::{Name, Server, runtime_here},
    message::{Ask, Kind},
    table::table,
};
use crate::{
    app::{AppError, Local},
    config::Config,
    models::Manifest,
    tasks::localize::Settings,
};
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use plan::{Search, Setup, Trial};
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    path::PathBuf,
    time::Duration,
};

/// The arguments beside the options.
pub(super) fn arguments() -> Vec<Arg> {
    let bounded = |name: &'static str, value: &'static str, default: &'static str, min: f64| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .default_value(default)
            .value_parser(number(min, 3_600_000.0))
    };
    vec![
        Arg::new("model")
            .value_name("MODEL")
            .required(true)
            .help("NAME or NAME/VERSION, a model of the folder"),
        bounded("p99-ms", "MS", "100", 0.001).help("The bound on the 99th percentile of the latency"),
        bounded("seconds", "S", "4", 0.01).help("How long each trial is measured, for all numbers of callers together"),
        Arg::new("concurrency")
            .long("concurrency")
            .value_name("N,…")
            .value_delimiter(',')
            .default_value("1,4,16,64")
            .value_parser(value_parser!(u16).range(1..=4096))
            .help("Numbers of callers at once; a trial ends at the first that breaks the bound"),
        Arg::new("input")
            .long("input")
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .value_hint(clap::ValueHint::AnyPath)
            .help("A file to send, or a folder of files; default: made-up input"),
        Arg::new("shape")
            .long("shape")
            .value_name("NAME=N,…")
            .action(ArgAction::Append)
            .conflicts_with("input")
            .help("The shape of a made-up input, where the model leaves it open; may be repeated"),
        Arg::new("items")
            .long("items")
            .value_name("N")
            .value_parser(value_parser!(u32).range(1..=1_000_000))
            .help("Items in a request: in a made-up one, or as many as the files have; default: one, or 1000 ROIs for a fitter"),
    ]
}

/// The parsed arguments.
struct Wanted {
    model: Name,
    bound_ms: f64,
    seconds: f64,
    callers: Vec<usize>,
    /// Files to send.
    input: Option<Vec<PathBuf>>,
    shapes: BTreeMap<String, Vec<usize>>,
    items: Option<usize>,
}

/// ROIs per request by default: about as many as in one camera frame with many spots.
const ROIS_OF_A_REQUEST: usize = 1000;

/// How long a reply may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);

impl Streams<'_> {
    /// Runs `ocelli tune`.
    pub(super) fn tune(&mut self, config: &Config, matches: &ArgMatches) -> Exit {
        let real = |name: &str| *matches.get_one::<f64>(name).expect("clap has a default");
        let shapes = matches.get_many::<String>("shape").into_iter().flatten().map(|text| shape(text));
        let shapes = match shapes.collect::<Result<_, String>>() {
            Ok(shapes) => shapes,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        };
        let input = matches.get_one::<PathBuf>("input").map(|path| paths(path)).transpose();
        let input = match input {
            Ok(input) => input,
            Err(reason) => return self.complain(&reason, Exit::NoInput),
        };
        let wanted = Wanted {
            model: Name::parse(matches.get_one::<String>("model").expect("clap requires the model")),
            bound_ms: real("p99-ms"),
            seconds: real("seconds"),
            callers: matches
                .get_many::<u16>("concurrency")
                .into_iter()
                .flatten()
                .copied()
                .map(usize::from)
                .collect(),
            input,
            shapes,
            items: matches.get_one::<u32>("items").map(|items| *items as usize),
        };
        match self.trials(config, wanted) {
            Ok(exit) => exit,
            Err(error) => self.complain(&error, Exit::from(&error)),
        }
    }

    fn trials(&mut self, config: &Config, mut wanted: Wanted) -> Result<Exit, AppError> {
        // Loads the model unchanged first, to learn whether it has a batch axis, and the box size of a fitter.
        let runtime = runtime_here(config)?;
        let model = (&*wanted.model.name, wanted.model.version.as_deref());
        let local = {
            let _inside = runtime.enter();
            Local::start(config, model, &|_| {})?
        };
        let (whole, side) = (local.model().rules.whole, local.model().fit.as_ref().map(Settings::box_px));
        local.end();
        let mut items = wanted.items.unwrap_or(if side.is_some() { ROIS_OF_A_REQUEST } else { 1 });
        if let Some(side) = side {
            if wanted.items.is_some() && wanted.shapes.contains_key("rois") {
                return Err(AppError::Failed(
                    "--items and --shape rois=... both say how many: leave out one".into(),
                ));
            }
            let rois = wanted.shapes.entry("rois".into()).or_insert_with(|| vec![items, side, side]);
            items = rois.first().copied().unwrap_or(items);
            wanted.items = None;
        }
        let sizes = match side {
            Some(_) => plan::ROIS,
            None if whole => &[],
            None => plan::ITEMS,
        };
        let search = Search::new(config.compute_threads, sizes, items);
        let most = search.trials_max() as f64 * wanted.seconds;
        let _ = writeln!(
            self.err,
            "at most {} trials of {} s: batch.items_max, then batch.wait_ms_max, then instances and threads; at most {:.0} s",
            search.trials_max(),
            wanted.seconds,
            most
        );
        let mut done = Vec::new();
        for step in 0.. {
            let Some(setups) = search.step(step, &done) else { break };
            for setup in setups {
                let points = match trial(config, &wanted, setup) {
                    Ok(points) => points,
                    // Larger batches may run out of memory, or be refused by the model: the other trials still count.
                    Err(error) if done.iter().any(|trial: &Trial| trial.best.is_some()) => {
                        let _ = writeln!(self.err, "ocelli: {setup} cannot be tried: {error}");
                        Vec::new()
                    }
                    Err(error) => return Err(error),
                };
                // Reported even if the failures are within the limit of a verdict.
                if let Some(told) = failed(&points) {
                    let _ = writeln!(self.err, "ocelli: {setup}: {told}");
                }
                done.push(Trial::of(setup, &points, wanted.bound_ms));
                if io::stderr().is_terminal() {
                    let _ = write!(self.err, "\r{} trials done ", done.len());
                }
            }
        }
        if io::stderr().is_terminal() {
            let _ = write!(self.err, "\r{:30}\r", "");
        }
        let best = plan::best(&done);
        let mut text = table(&lines(&done)) + "\n";
        text += &match best {
            Some(best) => plan::manifest(best, config.compute_threads),
            None => {
                format!("# nothing bears even the fewest callers within a p99 of {} ms\n", wanted.bound_ms)
            }
        };
        Ok(match (self.print(&text), best) {
            (Exit::Ok, None) => Exit::Failure,
            (exit, _) => exit,
        })
    }
}

/// Measures a setup with increasing numbers of callers.
fn trial(config: &Config, wanted: &Wanted, setup: Setup) -> Result<Vec<Point>, AppError> {
    let config = Config { compute_threads: setup.threads, ..config.clone() };
    let change = |manifest: &mut Manifest| {
        manifest.batch.items_max = Some(setup.items_max);
        manifest.batch.sizes = None;
        manifest.batch.wait_max = Duration::from_millis(setup.wait_ms_max);
        manifest.placement.instances = setup.instances;
    };
    let runtime = runtime_here(&config)?;
    let local = {
        let _inside = runtime.enter();
        let model = (&*wanted.model.name, wanted.model.version.as_deref());
        Local::start(&config, model, &change)?
    };
    let measured = runtime.block_on(measure(Server::here(&local), wanted));
    local.end();
    measured.map_err(AppError::Failed)
}

async fn measure(server: Server, wanted: &Wanted) -> Result<Vec<Point>, String> {
    let described = server.model(&wanted.model).await.map_err(|error| error.to_string())?;
    let images = described.images && described.task != "localize";
    let kind = if images { Kind::Images } else { Kind::Tensors };
    let ask = Ask { model: &wanted.model, described: &described, kind, query: "" };
    let source =
        Source { ask, shapes: wanted.shapes.clone(), items: wanted.items, seed: 1, by_tensors: None };
    let messages = match &wanted.input {
        Some(files) => source.files(files)?,
        None => source.made_up()?,
    };
    let load = Load {
        server,
        messages: messages.into(),
        time_max: ANSWER_MAX,
        bound: Duration::from_secs_f64(wanted.bound_ms / 1e3),
        in_flight_max: 1,
    };
    load.ask(&load.messages[0]).await?.answers().map_err(|why| {
        format!("the first request is answered with {why}; input that the model takes is given with --input or --shape")
    })?;
    let each = Duration::from_secs_f64(wanted.seconds / wanted.callers.len() as f64);
    let span = Span { warm_up: each / 5, measured: each * 4 / 5 };
    let mut points: Vec<Point> = Vec::new();
    for callers in &wanted.callers {
        if points.last().is_some_and(|last| last.verdict(wanted.bound_ms).is_err()) {
            break;
        }
        points.push(load.closed(*callers, span).await);
    }
    Ok(points)
}

fn lines(done: &[Trial]) -> Vec<Vec<String>> {
    let header =
        ["ITEMS_MAX", "WAIT_MS_MAX", "INSTANCES", "THREADS", "CALLERS", "ANSWERS/S", "P99 MS", "FAILED"]
            .map(str::to_owned);
    let row = |trial: &Trial| {
        let Setup { items_max, wait_ms_max, instances, threads } = trial.setup;
        let mut row =
            vec![items_max.to_string(), wait_ms_max.to_string(), instances.to_string(), threads.to_string()];
        row.extend(match trial.best {
            Some((callers, rate, p99)) => [format!("{callers}"), format!("{rate:.1}"), format!("{p99:.2}")],
            None if trial.untried => ["-".into(), "-".into(), "not tried".into()],
            None => ["-".into(), "-".into(), "not borne".into()],
        });
        row.push(if trial.untried { "-".into() } else { trial.failed.to_string() });
        row
    };
    [header.to_vec()].into_iter().chain(done.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::bench::{Ended, Tally},
        *,
    };

    #[test]
    fn failures_that_a_verdict_allows_are_in_the_table() {
        let trial = |failures: usize| {
            let mut tally = Tally::new(Duration::from_secs(1));
            for turn in 0..1000 {
                let status = if turn < failures { Err("timeout") } else { Ok(200) };
                let (why, timing) = (String::new(), String::new());
                tally.add(&Ended {
                    status,
                    why,
                    latency: Duration::from_millis(2),
                    late: Duration::ZERO,
                    timing,
                });
            }
            let setup = Setup { items_max: 8, wait_ms_max: 0, instances: 1, threads: 2 };
            Trial::of(setup, &[tally.point(4.0, 1.0)], 100.0)
        };
        let rows = lines(&[trial(0), trial(3), trial(11)]);
        assert_eq!(rows[0].last().map(String::as_str), Some("FAILED"));
        let shown = |row: &[String]| (row[4].clone(), row[7].clone());
        let expected = [("4", "0"), ("4", "3"), ("-", "11")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(rows[1..].iter().map(|row| shown(row)).collect::<Vec<_>>(), expected);
    }
}
