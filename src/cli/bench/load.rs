//! Generates load and waits for every request to end. In an open loop, requests are sent at times that do not depend on the answers,
//! as independent callers do. In a closed loop, a fixed number of callers each wait for their answer before they send again.
//!
//! In an open loop the latency of a request counts from when it was due. If a server stalls, every request that was due meanwhile
//! shows the delay, so there is no "coordinated omission". A separate thread sleeps until each request is due and spawns it, because
//! the runtime's timer has a resolution of a millisecond.

use super::{
    super::{
        client::{Server, told},
        message::Message,
    },
    tally::{Ended, Point, Tally, words},
};
use crate::{random::Random, words::causes};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Handle, sync::Semaphore, task::JoinSet, time::Instant};

/// When requests of an open loop are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Arrivals {
    /// At equal intervals.
    Constant,
    /// As from independent callers: a Poisson process with this seed.
    Poisson(u64),
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Span {
    /// Requests in this time before the measurement do not count.
    pub(in crate::cli) warm_up: Duration,
    pub(in crate::cli) measured: Duration,
}

/// A complete reply.
#[derive(Debug, Default)]
pub(in crate::cli) struct Reply {
    pub(in crate::cli) status: u16,
    /// The header `Server-Timing`.
    timing: String,
    /// The error that it gives, if it is not a success.
    why: String,
}

impl Reply {
    /// Checks that it is a success.
    ///
    /// # Errors
    /// Its status and error, if it is not.
    pub(in crate::cli) fn answers(&self) -> Result<(), String> {
        match self.status {
            200..300 => Ok(()),
            status => Err(words(Ok(status), &self.why)),
        }
    }
}

/// Bytes of a refusal that are kept, to find its reason.
const SAYS_BYTES_MAX: usize = 64 << 10;

/// Sends the requests of a measurement.
#[derive(Clone)]
pub(in crate::cli) struct Load {
    pub(in crate::cli) server: Server,
    /// Sent in rotation; at least one.
    pub(in crate::cli) messages: Arc<[Message]>,
    /// How long a reply may take.
    pub(in crate::cli) time_max: Duration,
    /// The highest latency of a good answer.
    pub(in crate::cli) bound: Duration,
    /// Requests in flight at once. Beyond that, requests are sent late, which counts as latency.
    pub(in crate::cli) in_flight_max: usize,
}

impl Load {
    /// Measures an open loop of `rate` requests per second. Returns when all have ended.
    pub(in crate::cli) async fn open(&self, rate: f64, arrivals: Arrivals, span: Span) -> Point {
        let tally = Arc::new(Mutex::new(Tally::new(self.bound)));
        let (load, shared, handle) = (self.clone(), Arc::clone(&tally), Handle::current());
        let sent =
            tokio::task::spawn_blocking(move || load.send_all(rate, arrivals, span, &shared, &handle)).await;
        let Ok(places) = sent else { unreachable!("the sending thread does not panic") };
        // All permits are available again once the last request has ended.
        let _all = places.acquire_many(self.in_flight_max as u32).await;
        let tally = tally.lock();
        tally.point(rate, span.measured.as_secs_f64())
    }

    /// Sends all requests. Runs on a thread that may block.
    fn send_all(
        &self,
        rate: f64,
        arrivals: Arrivals,
        span: Span,
        tally: &Arc<Mutex<Tally>>,
        handle: &Handle,
    ) -> Arc<Semaphore> {
        let places = Arc::new(Semaphore::new(self.in_flight_max));
        let mut due = Due::new(rate, arrivals);
        let began = Instant::now();
        for turn in 0.. {
            let at = due.next();
            if at >= span.warm_up + span.measured {
                break;
            }
            std::thread::sleep((began + at).saturating_duration_since(Instant::now()));
            let Ok(place) = handle.block_on(Arc::clone(&places).acquire_owned()) else { break };
            let (load, tally) = (self.clone(), Arc::clone(tally));
            handle.spawn(async move {
                let ended = load.once(turn, began + at).await;
                if at >= span.warm_up {
                    tally.lock().add(&ended);
                }
                drop(place);
            });
        }
        places
    }

    /// Measures a closed loop of this many callers. Returns when all requests have ended. A request that still runs when the span
    /// ends has begun within it, so its latency or failure counts: a server that hangs must not look good for what it answered
    /// before. If no request ends in the span, rates are over the time that all of them took.
    pub(in crate::cli) async fn closed(&self, callers: usize, span: Span) -> Point {
        let tally = Arc::new(Mutex::new(Tally::new(self.bound)));
        let end = span.warm_up + span.measured;
        let (began, turn) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (load, tally, turn) = (self.clone(), Arc::clone(&tally), Arc::clone(&turn));
            tasks.spawn(async move {
                loop {
                    let ended = load.once(turn.fetch_add(1, Ordering::Relaxed), Instant::now()).await;
                    // Assigned by its end, so that a second of load is a second of answers.
                    let at = began.elapsed();
                    if at >= end {
                        return (at, ended);
                    }
                    if at >= span.warm_up {
                        tally.lock().add(&ended);
                    }
                }
            });
        }
        let last = tasks.join_all().await;
        let mut tally = tally.lock();
        let measured = if tally.count() > 0 {
            last.iter().for_each(|(_, ended)| tally.add_after(ended));
            span.measured
        } else {
            last.iter().for_each(|(_, ended)| tally.add(ended));
            last.iter().map(|(at, _)| *at - span.warm_up).max().unwrap_or(span.measured)
        };
        tally.point(callers as f64, measured.as_secs_f64())
    }

    /// Sends one request that was due at `due`.
    async fn once(&self, turn: usize, due: Instant) -> Ended {
        let late = due.elapsed();
        let asked =
            tokio::time::timeout(self.time_max, self.ask(&self.messages[turn % self.messages.len()])).await;
        let (status, reply) = match asked {
            Ok(Ok(reply)) => (Ok(reply.status), reply),
            Ok(Err(why)) => (Err("connection"), Reply { why, ..Reply::default() }),
            Err(_) => {
                let why = format!("no reply within {} ms", self.time_max.as_millis());
                (Err("timeout"), Reply { why, ..Reply::default() })
            }
        };
        Ended { status, why: reply.why, latency: due.elapsed(), late, timing: reply.timing }
    }

    /// Sends a message and reads all of its reply.
    ///
    /// # Errors
    /// A message, if no complete reply came.
    pub(in crate::cli) async fn ask(&self, message: &Message) -> Result<Reply, String> {
        let reply = self.server.send(message.request()?).await?;
        let (status, success) = (reply.status().as_u16(), reply.status().is_success());
        let timing = reply.headers().get("server-timing").and_then(|value| value.to_str().ok());
        let timing = timing.unwrap_or_default().to_owned();
        let (mut body, mut says) = (reply.into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| causes(&error))?;
            if let Some(piece) = frame.data_ref().filter(|_| !success) {
                says.extend_from_slice(&piece[..piece.len().min(SAYS_BYTES_MAX - says.len())]);
            }
        }
        Ok(Reply { status, timing, why: told(&says).unwrap_or_default() })
    }
}

/// The times at which requests are due.
struct Due {
    rate: f64,
    random: Option<Random>,
    turn: u64,
    at: f64,
}

impl Due {
    fn new(rate: f64, arrivals: Arrivals) -> Due {
        let random = match arrivals {
            Arrivals::Constant => None,
            Arrivals::Poisson(seed) => Some(Random::new(seed)),
        };
        Due { rate, random, turn: 0, at: 0.0 }
    }

    /// The next time, from the beginning.
    fn next(&mut self) -> Duration {
        let at = match &mut self.random {
            None => self.turn as f64 / self.rate,
            Some(random) => {
                self.at -= (1.0 - random.unit()).ln() / self.rate;
                self.at
            }
        };
        self.turn += 1;
        Duration::from_secs_f64(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::failed;
    use super::*;
    use axum::{Router, http::StatusCode, routing::get};
    use bytes::Bytes;
    use futures_util::FutureExt;

    #[test]
    fn requests_are_due_at_the_rate_that_was_asked_for() {
        let mut due = Due::new(250.0, Arrivals::Constant);
        assert_eq!([(); 3].map(|()| due.next().as_millis()), [0, 4, 8]);
        let mut due = Due::new(1000.0, Arrivals::Poisson(7));
        let last = (0..100_000).map(|_| due.next()).last().expect("some").as_secs_f64();
        // Within five standard deviations of a sum of this many gaps.
        assert!((last - 100.0).abs() < 5.0 * 100.0 / 100_000_f64.sqrt(), "{last}");
    }

    fn load(router: Router, in_flight_max: usize) -> Load {
        let message = Message { method: "GET", path: "/".into(), headers: Vec::new(), body: Bytes::new() };
        Load {
            server: Server::Here(router),
            messages: [message].into(),
            time_max: Duration::from_secs(60),
            bound: Duration::from_secs(60),
            in_flight_max,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stall_is_the_latency_of_all_that_was_due_meanwhile() {
        // The first request occupies the only permit until all others are due. Only latencies from the due times show that.
        let first = Arc::new(AtomicUsize::new(0));
        let answer = move || {
            let first = Arc::clone(&first);
            async move {
                if first.fetch_add(1, Ordering::Relaxed) == 0 {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            }
        };
        let span = Span { warm_up: Duration::ZERO, measured: Duration::from_millis(200) };
        let point =
            load(Router::new().route("/", get(answer)), 1).open(100.0, Arrivals::Constant, span).await;
        assert_eq!((point.answered, point.failed), (20, 0));
        // The last request was due 190 ms after the beginning, and waited for the rest of the stall.
        assert!(point.p50 >= 190.0, "{point:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn callers_of_a_closed_loop_wait_for_their_answers() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (inside, seen) = (Arc::clone(&now), Arc::clone(&most));
        let answer = move || {
            let (inside, seen) = (Arc::clone(&inside), Arc::clone(&seen));
            async move {
                seen.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
            }
        };
        let span = Span { warm_up: Duration::ZERO, measured: Duration::from_millis(50) };
        let point = load(Router::new().route("/", get(answer)), 1).closed(3, span).await;
        assert!(point.answered > 0 && most.load(Ordering::SeqCst) <= 3, "{point:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_takes_longer_than_is_measured_has_a_latency() {
        let answer = async || tokio::time::sleep(Duration::from_millis(30)).await;
        let span = Span { warm_up: Duration::from_millis(1), measured: Duration::from_millis(1) };
        let point = load(Router::new().route("/", get(answer)), 1).closed(1, span).await;
        assert_eq!((point.answered, point.failed), (1, 0));
        // The rate is over the time that the requests took, not over a thousandth of a second.
        assert!(point.p50 >= 30.0 && point.answered_per_second < 40.0, "{point:?}");
    }

    /// A server that gives this many quick answers; each further one takes `then`.
    fn tiring(quick: usize, then: Duration) -> Router {
        let asked = Arc::new(AtomicUsize::new(0));
        let answer = move || {
            let before = asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(if before < quick { Duration::from_millis(10) } else { then })
        };
        Router::new().route("/", get(answer))
    }

    /// The span begins between two quick answers.
    const SPAN: Span = Span { warm_up: Duration::from_millis(995), measured: Duration::from_secs(5) };

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_within_a_closed_loop_has_failed() {
        let mut load = load(tiring(440, Duration::MAX), 1);
        load.time_max = Duration::from_secs(10);
        let point = load.closed(4, SPAN).await;
        assert_eq!((point.answered, point.failed), (44, 4), "{point:?}");
        assert_eq!(point.statuses["timeout"], 4);
        assert_eq!(point.verdict(60_000.0), Err("8.3 % failed".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_refusal_is_told_with_its_status_and_what_the_server_says() {
        let asked = Arc::new(AtomicUsize::new(0));
        let answer = move || {
            let turn = asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(10)).map(move |()| match turn {
                0 => (StatusCode::OK, String::new()),
                1 => (StatusCode::TOO_MANY_REQUESTS, r#"{"error":"the queue is full"}"#.into()),
                2 => (StatusCode::BAD_GATEWAY, "<html>".repeat(SAYS_BYTES_MAX)),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":"later"}"#.into()),
            })
        };
        let load = load(Router::new().route("/", get(answer)), 1);
        let span = Span { warm_up: Duration::ZERO, measured: Duration::from_millis(35) };
        let point = load.closed(1, span).await;
        assert_eq!(
            failed(&[point]).as_deref(),
            Some("3 of 4 requests failed, the first with status 429: the queue is full")
        );
        let told = load.ask(&load.messages[0]).await.expect("a reply").answers();
        assert_eq!(told, Err("status 500: later".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_the_span_of_a_closed_loop_has_a_latency_and_is_in_no_rate() {
        let point = load(tiring(120, Duration::from_secs(20)), 1).closed(1, SPAN).await;
        assert_eq!((point.answered, point.failed), (22, 0), "{point:?}");
        assert!(point.max >= 20_000.0 && point.p50 < 20_000.0, "{point:?}");
        assert_eq!((point.seconds, point.answered_per_second, point.goodput_per_second), (5.0, 4.2, 4.2));
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_ends_within_the_span_rates_are_over_what_all_callers_took() {
        let point = load(tiring(0, Duration::from_secs(31)), 1).closed(3, SPAN).await;
        assert_eq!((point.answered, point.failed), (3, 0), "{point:?}");
        assert!(
            (point.seconds - 30.0).abs() < 0.1 && (point.answered_per_second - 0.1).abs() < 0.01,
            "{point:?}"
        );
    }
}
