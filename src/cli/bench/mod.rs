//! `ocelli bench`: measures the load that a server sustains.
//!
//! - `arguments`: the flags. `input`: the requests to send, read or generated.
//! - `load`: sends them, in an open or a closed loop. `tally`: the results. `sweep`: which load is next.
//! - `picture`: the curves of latency.

mod arguments;
mod input;
mod load;
mod picture;
mod sweep;
mod tally;

pub(super) use arguments::{command, number, shape};
pub(super) use input::{Source, paths};
pub(super) use load::{Load, Span};
#[cfg(test)]
pub(super) use tally::{Ended, Tally};
pub(super) use tally::{Point, failed};

use super::{
    Exit, Streams,
    client::{Server, Unknown, runtime},
    message::{Ask, Kind, Message},
    output::{self, Output},
    table::table,
};
use arguments::Wanted;
use bytes::Bytes;
use clap::ArgMatches;
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal},
    path::Path,
    time::Duration,
};
use sweep::Plan;

impl Streams<'_> {
    /// Runs `ocelli bench`.
    pub(super) fn bench(&mut self, matches: &ArgMatches) -> Exit {
        let wanted = match arguments::wanted(matches) {
            Ok(wanted) => wanted,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        };
        match runtime() {
            Ok(runtime) => runtime.block_on(self.measure(&wanted)),
            Err(error) => self.complain(&error, Exit::from(&error)),
        }
    }

    async fn measure(&mut self, wanted: &Wanted) -> Exit {
        // Checks that the files can be written before spending minutes on a measurement. They are removed again at once, because an
        // interrupt would leave them behind.
        for path in [&wanted.json, &wanted.picture].into_iter().flatten().filter(|path| !is_stdout(path)) {
            if let Err(error) = Output::create(path) {
                return self.complain(&cannot_write(path, &error), Exit::Failure);
            }
        }
        let load = match load_of(wanted).await {
            Ok(load) => load,
            Err((reason, exit)) => return self.complain(&reason, exit),
        };
        // A request that cannot be answered is not measured.
        let says = load.server.says();
        let late =
            |_| Err(format!("{says}no reply within {} ms (--timeout-ms)", wanted.time_max.as_millis()));
        let first = tokio::time::timeout(wanted.time_max, load.ask(&load.messages[0])).await;
        match first.unwrap_or_else(late) {
            Ok(reply) => {
                if let Err(why) = reply.answers() {
                    let told = format!("{says}the first request is answered with {why}");
                    return self.complain(&told, Exit::Failure);
                }
            }
            Err(reason) => return self.complain(&reason, Exit::Unavailable),
        }
        let plan = match &wanted.plan {
            Some(plan) => plan.clone(),
            None => {
                let span = Span {
                    warm_up: Duration::ZERO,
                    measured: wanted.span.warm_up.max(Duration::from_millis(200)),
                };
                let alone = load.closed(1, span).await.answered_per_second;
                Plan::Sweep { from: (alone / 4.0).max(1.0), step: wanted.step }
            }
        };
        let mut points = Vec::new();
        while let Some(next) = plan.next(&points, wanted.bound_ms) {
            if io::stderr().is_terminal() {
                let _ = write!(self.err, "\rmeasuring {} {next:.1} ...        ", plan.unit());
            }
            points.push(match plan {
                Plan::Callers(_) => load.closed(next as usize, wanted.span).await,
                Plan::Rates(_) | Plan::Sweep { .. } => load.open(next, wanted.arrivals, wanted.span).await,
            });
        }
        if io::stderr().is_terminal() {
            let _ = write!(self.err, "\r{:40}\r", "");
        }
        // In the order of measurement, before sorting.
        if let Some(told) = failed(&points) {
            let _ = writeln!(self.err, "ocelli: {told}");
        }
        if matches!(plan, Plan::Sweep { .. }) {
            points.sort_by(|a, b| a.load.total_cmp(&b.load));
        }
        self.report(wanted, &plan, &load, &points)
    }

    fn report(&mut self, wanted: &Wanted, plan: &Plan, load: &Load, points: &[Point]) -> Exit {
        let of =
            wanted.model.as_ref().map_or("/v2/health/live".into(), |model| model.path("")[1..].to_owned());
        let files = [
            (&wanted.json, json(wanted, plan, load, points, &of).to_string() + "\n"),
            (
                &wanted.picture,
                picture::draw(
                    [&format!("{of}: latency over load"), &how(wanted, plan)],
                    axis(plan),
                    points,
                    wanted.bound_ms,
                ),
            ),
        ];
        let mut text = table(&lines(plan, points, wanted.bound_ms));
        text += &format!("{of} {}\n", borne(plan, points, wanted.bound_ms));
        // Printed first, so that the result of minutes is not lost if a file cannot be written.
        let instead = files.iter().find(|(path, _)| path.as_deref().is_some_and(is_stdout));
        let mut exit = self.print(instead.map_or(&text, |(_, json)| json));
        for (path, text) in files {
            let Some(path) = path.as_deref().filter(|path| !is_stdout(path)) else { continue };
            if let Err(error) = output::write(path, text.as_bytes()) {
                exit = self.complain(&cannot_write(path, &error), Exit::Failure);
            }
        }
        exit
    }
}

/// Whether a name means standard output, as elsewhere.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// The highest load that the server sustained. Its failures are within the limit of a verdict and in no percentile, so they are
/// reported separately.
fn borne(plan: &Plan, points: &[Point], bound_ms: f64) -> String {
    let Some(best) = sweep::best(points, bound_ms) else {
        return format!("bears none of these loads within {bound_ms} ms");
    };
    let told = format!(
        "bears {} {:.1} with a p99 of {:.2} ms (bound {bound_ms} ms)",
        plan.unit(),
        best.load,
        best.p99
    );
    match best.failed {
        0 => told,
        failed => {
            format!("{told}, but {failed} of {} requests failed: {}", best.answered + failed, failures(best))
        }
    }
}

/// The failures, by status or description.
fn failures(point: &Point) -> String {
    let failed = point.statuses.iter().filter(|(status, _)| !status.starts_with('2'));
    let failed: Vec<String> = failed.map(|(status, count)| format!("{count} x {status}")).collect();
    if failed.is_empty() { "0".into() } else { failed.join(", ") }
}

/// The load to send; or why there is none, with the exit code.
async fn load_of(wanted: &Wanted) -> Result<Load, (String, Exit)> {
    let server = Server::there(&wanted.target);
    let files = wanted.input.as_deref().map(paths).transpose().map_err(|reason| (reason, Exit::NoInput))?;
    let messages = match &wanted.model {
        None => vec![Message {
            method: "GET",
            path: "/v2/health/live".into(),
            headers: Vec::new(),
            body: Bytes::new(),
        }],
        Some(model) => {
            let late = |_| {
                let told = format!(
                    "{}no reply within {} ms (--timeout-ms)",
                    server.says(),
                    wanted.time_max.as_millis()
                );
                Err(Unknown::Unreachable(told))
            };
            let described = tokio::time::timeout(wanted.time_max, server.model(model)).await;
            let described = described.unwrap_or_else(late).map_err(|error| match error {
                Unknown::Unreachable(_) => (error.to_string(), Exit::Unavailable),
                Unknown::Refused { .. } => (error.to_string(), Exit::Failure),
            })?;
            let images = described.images || described.task == "localize";
            let kind = wanted.kind.unwrap_or(if images { Kind::Images } else { Kind::Tensors });
            if kind == Kind::Images && !images {
                let told = format!("model {:?} takes no images: leave out --as", model.name);
                return Err((told, Exit::Usage));
            }
            let ask = Ask { model, described: &described, kind, query: "" };
            let source = Source {
                ask,
                shapes: wanted.shapes.clone(),
                items: wanted.items,
                seed: wanted.seed,
                by_tensors: Some("--as tensors"),
            };
            match &files {
                Some(files) => source.files(files).map_err(|reason| (reason, Exit::Failure))?,
                None => source.made_up().map_err(|reason| (reason, Exit::Usage))?,
            }
        }
    };
    Ok(Load {
        server,
        messages: messages.into(),
        time_max: wanted.time_max,
        bound: Duration::from_secs_f64(wanted.bound_ms / 1e3),
        in_flight_max: wanted.in_flight_max,
    })
}

/// How the measurement was made, for later readers of the picture.
fn how(wanted: &Wanted, plan: &Plan) -> String {
    let who = match (plan, wanted.arrivals) {
        (Plan::Callers(_), _) => "callers that wait for their answers",
        (_, load::Arrivals::Constant) => "requests at equal distances",
        (_, load::Arrivals::Poisson(_)) => "requests of independent callers",
    };
    format!(
        "{who}, {} s of each load, times in ms, http://{}",
        wanted.span.measured.as_secs_f64(),
        wanted.target.authority()
    )
}

fn axis(plan: &Plan) -> &'static str {
    match plan {
        Plan::Callers(_) => "callers at once",
        Plan::Rates(_) | Plan::Sweep { .. } => "requests per second",
    }
}

/// The server's stages that have a column.
const STAGES: [&str; 4] = ["decode", "queue", "stage", "compute"];

/// The table: latencies and the medians of the server's stages in milliseconds.
fn lines(plan: &Plan, points: &[Point], bound_ms: f64) -> Vec<Vec<String>> {
    let names = [plan.unit(), "answers/s", "good/s", "p50", "p95", "p99", "p99.9"].map(str::to_uppercase);
    let mut header = names.to_vec();
    header.extend(STAGES.map(str::to_uppercase));
    header.extend(["SENT LATE", "FAILED", "VERDICT"].map(str::to_owned));
    let row = |point: &Point| {
        let mut row = vec![
            format!("{:.1}", point.load),
            format!("{:.1}", point.answered_per_second),
            format!("{:.1}", point.goodput_per_second),
        ];
        let answered = |ms: f64| if point.answered > 0 { format!("{ms:.2}") } else { "-".into() };
        row.extend([point.p50, point.p95, point.p99, point.p99_9].map(answered));
        let stage = |name: &str| point.stages.get(name).map_or("-".into(), |(p50, _)| format!("{p50:.2}"));
        row.extend(STAGES.map(stage));
        row.push(format!("{:.2}", point.late_p99));
        row.push(failures(point));
        row.push(point.verdict(bound_ms).err().unwrap_or_else(|| "ok".into()));
        row
    };
    [header].into_iter().chain(points.iter().map(row)).collect()
}

fn json(wanted: &Wanted, plan: &Plan, load: &Load, points: &[Point], of: &str) -> Value {
    let unit = plan.unit();
    json!({
        "server": format!("http://{}", wanted.target.authority()),
        "model": wanted.model.as_ref().map(|_| of),
        "loop": match plan { Plan::Callers(_) => "closed", Plan::Rates(_) | Plan::Sweep { .. } => "open" },
        "arrivals": match (plan, wanted.arrivals) {
            (Plan::Callers(_), _) => "after each answer",
            (_, load::Arrivals::Constant) => "constant",
            (_, load::Arrivals::Poisson(_)) => "poisson",
        },
        "seed": wanted.seed,
        "messages": load.messages.len(),
        "message_bytes": load.messages.iter().map(|message| message.body.len()).sum::<usize>() / load.messages.len(),
        "slo_ms": wanted.bound_ms,
        "points": points.iter().map(|point| point.json(unit, wanted.bound_ms)).collect::<Vec<_>>(),
        "best": sweep::best(points, wanted.bound_ms).map(|point| point.load),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_is_borne_with_timeouts_says_so() {
        let told = |timeouts: usize| {
            let mut tally = Tally::new(Duration::from_secs(1));
            for turn in 0..1000 {
                let status = if turn < timeouts { Err("timeout") } else { Ok(200) };
                let latency = Duration::from_millis(20);
                let (why, timing) = (String::new(), String::new());
                tally.add(&Ended { status, why, latency, late: Duration::ZERO, timing });
            }
            borne(&Plan::Callers(vec![4]), &[tally.point(4.0, 5.0)], 100.0)
        };
        let plain = told(0);
        assert!(plain.starts_with("bears concurrency 4.0 with a p99 of 20.0"), "{plain}");
        assert!(plain.ends_with("(bound 100 ms)"), "{plain}");
        assert!(
            told(9).ends_with("(bound 100 ms), but 9 of 1000 requests failed: 9 x timeout"),
            "{}",
            told(9)
        );
        assert_eq!(told(11), "bears none of these loads within 100 ms");
    }
}
