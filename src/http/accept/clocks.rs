//! Tracks what one connection is doing, and decides from that when it must end. Reads no clock: callers pass the time.
//!
//! hyper's own header timer also runs while a kept-alive connection is idle, so a short one closes connections that a load balancer still
//! means to use. Here the header clock starts with the first byte of a request.

use foldhash::{HashMap, HashMapExt};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How long to go on reading after a clock has run out: a process that was suspended must first read what arrived meanwhile.
pub const MEANWHILE: Duration = Duration::from_millis(20);

/// Least time left to a connection's other responses after a reset. It may have made room for them, of which the client must learn first.
const ROOM_TIME_MIN: Duration = Duration::from_secs(1);

/// Responses reset in a row while the client takes nothing of any; then the connection ends, with every response that still waits.
const RESETS_MAX: u32 = 8;

/// The client preface that opens an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that reads slowly must take at least this much in each [`Clocks::write_stall`].
pub(super) const STALL_BYTES_MIN: usize = 64 * 1024;

/// A request is quick that comes no later than this after the answer before. After as many quick ones in turn, the next is expected to be
/// one. Callers that ask in a loop take some 50 µs from the end of an answer within a machine, and 200 within a data centre.
const QUICK: Duration = Duration::from_micros(200);
const QUICK_MIN: u8 = 4;

/// How long a connection may stay in each of its states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clocks {
    /// Between requests. Must exceed the idle time of the load balancer in front, or its requests meet closed sockets.
    pub idle: Duration,
    /// From the first byte of a request to the end of its header.
    pub header: Duration,
    /// For a client that does not read its response: how long it may need for 64 KiB of it, or for the rest if that is less.
    pub write_stall: Duration,
}

impl Clocks {
    /// Longest time between two looks at a connection: a state that begins in between cannot have run out by the second.
    fn shortest(&self) -> Duration {
        self.idle.min(self.header).min(self.write_stall)
    }
}

/// Why a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No request for [`Clocks::idle`].
    Idle,
    /// A request's header took longer than [`Clocks::header`].
    Header,
    /// The client does not read a response.
    Stalled,
    /// Idle, or in a head that was not whole, while a new connection waited for room.
    Evicted,
}

/// What to do with a connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A clock has run out: the connection ends.
    End(Reason),
    /// This request's response has waited for too long: its stream is reset, and the others go on.
    Reset(u64),
    /// Look again then.
    LookAt(Instant),
}

/// What a connection is doing, for tests and for the count of what a drain dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the first byte of a request.
    Idle(Instant),
    /// In the header of a request since then.
    Header(Instant),
    /// A request is being read or answered.
    Busy,
}

/// How far a connection's task has come.
#[derive(Debug)]
enum Task {
    /// It has not run yet, so nobody knows what the client has sent.
    Waits,
    Serves,
    Ended {
        /// It was dropped with a request on it.
        cut: bool,
    },
}

#[derive(Debug)]
struct State {
    task: Task,
    phase: Phase,
    /// Bytes of the HTTP/2 preface seen so far; `None` when it cannot be one any more.
    preface: Option<usize>,
    http2: bool,
    requests: u64,
    /// Answers under way.
    answers: HashMap<u64, OpenRequest>,
    /// Responses reset since the client last took a piece of any.
    reset_in_turn: u32,
    /// When the socket stopped taking bytes (or last had taken [`STALL_BYTES_MIN`]), and how many it has taken since.
    blocked: Option<(Instant, usize)>,
    end_seen: bool,
    body_left: bool,
    /// How long the connection had been idle when bytes last came on it.
    pause: Duration,
    /// Requests that were quick, since the last that was not; no more than [`QUICK_MIN`].
    quick: u8,
    /// When it was asked to close for a new connection.
    evicted: Option<Instant>,
}

impl State {
    fn has_request(&self) -> bool {
        self.phase == Phase::Busy || self.blocked.is_some()
    }
}

#[derive(Debug, Default)]
struct OpenRequest {
    /// Since when a piece of the response has waited for the client's window.
    waits: Option<Instant>,
    /// When part of the request's body was last read.
    body_read: Option<Instant>,
    /// Ends the stream and frees what it holds, if its task listens.
    reset: Option<CancellationToken>,
}

/// What one connection is doing, as its socket and its requests report it.
#[derive(Debug)]
pub struct Watch {
    state: Mutex<State>,
    /// Wakes the connection's task: it was evicted, or a request has begun during a drain.
    news: Notify,
}

impl Watch {
    /// A connection accepted `now`.
    pub fn new(now: Instant) -> Watch {
        Watch {
            news: Notify::new(),
            state: Mutex::new(State {
                task: Task::Waits,
                phase: Phase::Idle(now),
                preface: Some(0),
                http2: false,
                requests: 0,
                answers: HashMap::new(),
                reset_in_turn: 0,
                blocked: None,
                end_seen: false,
                body_left: false,
                pause: Duration::MAX,
                quick: 0,
                evicted: None,
            }),
        }
    }

    /// The connection's task has begun.
    pub fn begins(&self) {
        self.state.lock().task = Task::Serves;
    }

    /// The connection has been served.
    pub fn ends(&self) {
        self.state.lock().task = Task::Ended { cut: false };
    }

    /// The connection's task was dropped.
    pub fn dropped(&self) {
        let mut state = self.state.lock();
        if !matches!(state.task, Task::Ended { .. }) {
            let cut = matches!(state.task, Task::Serves) && state.has_request();
            state.task = Task::Ended { cut };
        }
    }

    /// Whether a request is lost with a connection whose task has ended or is stuck. Also true if the task never ran: a request may have
    /// come.
    pub fn is_cut(&self) -> bool {
        let state = self.state.lock();
        match state.task {
            Task::Waits => true,
            Task::Serves => state.has_request(),
            Task::Ended { cut } => cut,
        }
    }

    /// Bytes arrived; an empty slice means that the client has ended its side.
    pub fn read(&self, bytes: &[u8], now: Instant) {
        let mut state = self.state.lock();
        state.end_seen |= bytes.is_empty();
        if let Phase::Idle(since) = state.phase {
            state.pause = now.saturating_duration_since(since);
        }
        if bytes.is_empty() || state.http2 {
            return;
        }
        if let Phase::Idle(_) = state.phase {
            state.phase = Phase::Header(now);
        }
        if let Some(seen) = state.preface {
            let more = bytes.len().min(PREFACE.len() - seen);
            let same = bytes[..more] == PREFACE[seen..seen + more];
            state.preface = same.then_some(seen + more);
            if state.preface == Some(PREFACE.len()) {
                // From here on a connection without a request is idle: proxies open them ahead of need.
                state.http2 = true;
                state.phase = Phase::Idle(now);
            }
        }
    }

    /// The socket takes no more bytes for now.
    pub fn write_blocked(&self, now: Instant) {
        self.state.lock().blocked.get_or_insert((now, 0));
    }

    /// The socket took `count` bytes.
    pub fn wrote(&self, count: usize, now: Instant) {
        if let Some((since, taken)) = &mut self.state.lock().blocked {
            *taken += count;
            if *taken >= STALL_BYTES_MIN {
                (*since, *taken) = (now, 0);
            }
        }
    }

    /// Everything written so far has gone to the socket.
    pub fn flushed(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.blocked.take().is_some() {
            // The client was busy with the response; its time to send another request begins now.
            state.phase = match state.phase {
                Phase::Idle(_) => Phase::Idle(now),
                Phase::Header(_) => Phase::Header(now),
                Phase::Busy => Phase::Busy,
            };
        }
    }

    /// A request's header is complete. Returns the number that identifies the request in the calls below.
    pub fn request_begins(&self) -> u64 {
        let mut state = self.state.lock();
        state.requests += 1;
        state.phase = Phase::Busy;
        // Not counted as bytes come: on HTTP/2, those between requests may only acknowledge the answer.
        state.quick = if state.pause <= QUICK { QUICK_MIN.min(state.quick + 1) } else { 0 };
        let request = state.requests;
        state.answers.insert(request, OpenRequest::default());
        request
    }

    /// The token that ends a request's stream when cancelled. For a request that has ended, it is cancelled already.
    pub fn reset_of(&self, request: u64) -> CancellationToken {
        let mut state = self.state.lock();
        match state.answers.get_mut(&request) {
            Some(answer) => answer.reset.get_or_insert_default().clone(),
            None => {
                let ended = CancellationToken::new();
                ended.cancel();
                ended
            }
        }
    }

    /// Ends a request's stream. Returns whether others are open. They may have waited for connection window that it held: each has at least
    /// `ROOM_TIME_MIN` of `write_stall` left.
    pub fn reset(&self, request: u64, write_stall: Duration, now: Instant) -> bool {
        self.reset_of(request).cancel();
        self.request_ends(request, now);
        let mut state = self.state.lock();
        state.reset_in_turn += 1;
        let spent = write_stall.saturating_sub(ROOM_TIME_MIN);
        for since in state.answers.values_mut().filter_map(|answer| answer.waits.as_mut()) {
            *since = (*since).max(now - spent);
        }
        !state.answers.is_empty()
    }

    /// Since when a piece of the response has waited for the client's window, if one does. [`Watch::write_blocked`] reports waits for the
    /// socket.
    pub fn answer_waits(&self, request: u64, since: Option<Instant>) {
        let mut state = self.state.lock();
        let Some(answer) = state.answers.get_mut(&request) else { return };
        // The piece that waited has been taken, even if the next one waits already.
        if std::mem::replace(&mut answer.waits, since).is_some() {
            state.reset_in_turn = 0;
        }
    }

    /// Part of a request's body was read. A client may send all of it before it reads the response: the stall clock starts no earlier than
    /// this, and the body has a clock of its own.
    pub fn body_read(&self, request: u64, now: Instant) {
        if let Some(answer) = self.state.lock().answers.get_mut(&request) {
            answer.body_read = Some(now);
        }
    }

    /// The response has ended or was abandoned.
    pub fn request_ends(&self, request: u64, now: Instant) {
        let mut state = self.state.lock();
        state.answers.remove(&request);
        if state.answers.is_empty() {
            state.phase = Phase::Idle(now);
        }
    }

    /// A request was answered before its body had been read.
    pub fn body_left(&self) {
        self.state.lock().body_left = true;
    }

    /// Whether the client may still be sending a body that nobody reads.
    pub fn may_still_send(&self) -> bool {
        let state = self.state.lock();
        state.body_left && !state.end_seen
    }

    /// Whether the connection speaks HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.state.lock().http2
    }

    /// Requests begun so far.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Requests that have not been answered completely.
    pub fn requests_open(&self) -> usize {
        self.state.lock().answers.len()
    }

    /// Whether a request's head has arrived whose response has not all gone to the socket.
    pub fn has_request(&self) -> bool {
        self.state.lock().has_request()
    }

    /// Whether the next request should come at any moment: the connection is idle, and its caller asks again at once.
    pub fn is_expecting(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let quick = state.quick == QUICK_MIN && state.blocked.is_none();
        matches!(state.phase, Phase::Idle(since) if quick && now.saturating_duration_since(since) <= QUICK)
    }

    /// What the connection is doing.
    pub fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    /// Since when it could be evicted: it has been idle, or its request's head has been coming where `heads` count. `None` if it is at
    /// work, or has been evicted.
    pub fn evictable_since(&self, heads: bool) -> Option<Instant> {
        let state = self.state.lock();
        let since = match state.phase {
            Phase::Idle(since) => since,
            Phase::Header(since) if heads => since,
            _ => return None,
        };
        (!state.has_request() && state.evicted.is_none()).then_some(since)
    }

    /// Asks the connection to close, to make room for a new one.
    pub fn evict(&self, now: Instant) {
        self.state.lock().evicted = Some(now);
        self.news.notify_one();
    }

    /// When it was evicted, if it was.
    pub fn evicted(&self) -> Option<Instant> {
        self.state.lock().evicted
    }

    /// A request has begun during a drain.
    pub fn asked_in_drain(&self) {
        self.news.notify_one();
    }

    /// Resolves when the connection was evicted, or a request has begun during a drain.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// What to do, or when to look again.
    pub fn verdict(&self, clocks: &Clocks, now: Instant) -> Verdict {
        let state = self.state.lock();
        // A client that was still sending had no time to read.
        let after = |since: Instant, read: Option<Instant>| read.map_or(since, |read| read.max(since));
        let body_read = state.answers.values().filter_map(|answer| answer.body_read).max();
        let blocked =
            state.blocked.map(|(since, _)| (after(since, body_read), Verdict::End(Reason::Stalled)));
        // A client that takes none of several responses in a row takes none at all.
        let ended = (state.reset_in_turn >= RESETS_MAX).then_some(Verdict::End(Reason::Stalled));
        let not_taken = state.answers.iter().filter_map(|(&request, answer)| {
            Some((after(answer.waits?, answer.body_read), ended.unwrap_or(Verdict::Reset(request))))
        });
        // A blocked socket holds up all responses.
        let stalled = blocked.into_iter().chain(not_taken).min_by_key(|(since, _)| *since);
        let (since, clock, verdict) = match (stalled, state.phase) {
            (Some((since, verdict)), _) => (since, clocks.write_stall, verdict),
            (None, Phase::Idle(since)) => (since, clocks.idle, Verdict::End(Reason::Idle)),
            (None, Phase::Header(since)) => (since, clocks.header, Verdict::End(Reason::Header)),
            (None, Phase::Busy) => return Verdict::LookAt(now + clocks.shortest()),
        };
        if now >= since + clock {
            verdict
        } else {
            Verdict::LookAt((since + clock).min(now + clocks.shortest()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    const CLOCKS: Clocks = Clocks {
        idle: Duration::from_secs(75),
        header: Duration::from_secs(10),
        write_stall: Duration::from_secs(30),
    };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Plays `events` on a connection accepted at zero; then it must be ended at `end` and not a second before.
    fn check(events: impl Fn(&Watch, Instant), end: u64, reason: Reason) {
        check_verdict(events, end, Verdict::End(reason));
    }

    /// The same for an answer of it.
    fn check_reset(events: impl Fn(&Watch, Instant), end: u64, request: u64) {
        check_verdict(events, end, Verdict::Reset(request));
    }

    fn check_verdict(events: impl Fn(&Watch, Instant), end: u64, verdict: Verdict) {
        let zero = Instant::now();
        let watch = Watch::new(zero);
        events(&watch, zero);
        let before = watch.verdict(&CLOCKS, zero + s(end - 1));
        assert!(matches!(before, Verdict::LookAt(at) if at <= zero + s(end)), "{before:?}");
        assert_eq!(watch.verdict(&CLOCKS, zero + s(end)), verdict);
    }

    #[test]
    fn a_request_is_expected_at_once_of_a_caller_whose_last_four_came_so() {
        let zero = Instant::now();
        let us = |micros: u64| zero + Duration::from_micros(micros);
        let watch = Watch::new(zero);
        let ask = |from: u64, until: u64| {
            watch.read(b"GET / HTTP/1.1\r\n\r\n", us(from));
            let request = watch.request_begins();
            assert!(!watch.is_expecting(us(from)), "a request is there");
            watch.request_ends(request, us(until));
        };
        for (number, after) in [1, 200, 200, 100].into_iter().enumerate() {
            let end = 1000 * number as u64;
            assert!(!watch.is_expecting(us(end)), "{number} were quick");
            ask(end + after, end + 1000);
        }
        assert!(watch.is_expecting(us(4000)) && watch.is_expecting(us(4200)));
        assert!(!watch.is_expecting(us(4201)), "it is late");
        watch.write_blocked(us(4100));
        assert!(!watch.is_expecting(us(4100)), "the answer has not gone out");
        watch.flushed(us(4150));
        ask(4200, 5000);
        assert!(watch.is_expecting(us(5000)));
        ask(5201, 6000);
        assert!(!watch.is_expecting(us(6000)), "one was late");
    }

    #[test]
    fn what_only_acknowledges_an_answer_is_no_quick_request() {
        let zero = Instant::now();
        let us = |micros: u64| zero + Duration::from_micros(micros);
        let watch = Watch::new(zero);
        watch.read(PREFACE, zero);
        for begun in (0..8).map(|number| 10_000 * number) {
            watch.read(b"a head", us(begun + 9000));
            watch.request_ends(watch.request_begins(), us(begun + 10_000));
            for after in [20, 40, 60, 80, 100] {
                watch.read(b"a window", us(begun + 10_000 + after));
                assert!(!watch.is_expecting(us(begun + 10_000 + after)), "its requests come after 9 ms");
            }
        }
    }

    #[test]
    fn only_a_connection_without_a_request_and_with_all_of_its_answers_sent_is_idle() {
        let zero = Instant::now();
        let watch = Watch::new(zero);
        assert_eq!(watch.evictable_since(false), Some(zero));
        let request = watch.request_begins();
        assert_eq!(watch.evictable_since(false), None);
        watch.write_blocked(zero + s(1));
        watch.request_ends(request, zero + s(2));
        assert_eq!(watch.evictable_since(false), None, "the socket has not taken all of the answer");
        watch.flushed(zero + s(3));
        assert_eq!(watch.evictable_since(false), Some(zero + s(3)));
        watch.evict(zero + s(4));
        assert_eq!((watch.evictable_since(false), watch.evicted()), (None, Some(zero + s(4))));
    }

    #[test]
    fn a_new_connection_may_stay_silent_for_the_idle_time() {
        check(|_, _| (), 75, Reason::Idle);
    }

    #[test]
    fn the_header_clock_starts_with_the_first_byte_and_more_bytes_do_not_reset_it() {
        check(
            |watch, zero| {
                watch.read(b"G", zero + s(5));
                watch.read(b"ET / HT", zero + s(14));
            },
            15,
            Reason::Header,
        );
    }

    #[test]
    fn after_an_answer_only_the_idle_clock_runs() {
        check(
            |watch, zero| {
                watch.read(b"GET / HTTP/1.1\r\n\r\n", zero);
                let request = watch.request_begins();
                watch.request_ends(request, zero + s(40));
            },
            115,
            Reason::Idle,
        );
    }

    #[test]
    fn a_request_at_work_has_no_clock_here() {
        let zero = Instant::now();
        let watch = Watch::new(zero);
        watch.request_begins();
        let verdict = watch.verdict(&CLOCKS, zero + s(3600));
        assert_eq!(verdict, Verdict::LookAt(zero + s(3610)));
    }

    #[test]
    fn an_http2_connection_without_a_request_is_idle_and_a_half_preface_is_a_half_header() {
        check(
            |watch, zero| {
                watch.read(&PREFACE[..10], zero);
                watch.read(&PREFACE[10..], zero + s(1));
                watch.read(b"settings", zero + s(2));
            },
            76,
            Reason::Idle,
        );
        check(|watch, zero| watch.read(&PREFACE[..10], zero), 10, Reason::Header);
    }

    #[test]
    fn a_client_that_takes_a_byte_now_and_then_is_stalled_and_one_that_takes_enough_is_not() {
        check(
            |watch, zero| {
                watch.request_begins();
                watch.write_blocked(zero);
                watch.wrote(100, zero + s(20));
                watch.write_blocked(zero + s(20));
            },
            30,
            Reason::Stalled,
        );
        check(
            |watch, zero| {
                watch.request_begins();
                watch.write_blocked(zero);
                watch.wrote(STALL_BYTES_MIN, zero + s(20));
                watch.write_blocked(zero + s(20));
            },
            50,
            Reason::Stalled,
        );
    }

    #[test]
    fn a_client_that_takes_nothing_while_it_sends_is_stalled_only_when_it_has_sent() {
        let sends = |watch: &Watch, request, zero: Instant| {
            (0..100).for_each(|second| watch.body_read(request, zero + s(second)));
        };
        check(
            |watch, zero| {
                let request = watch.request_begins();
                watch.write_blocked(zero + s(5));
                sends(watch, request, zero);
            },
            129,
            Reason::Stalled,
        );
        // Another request's body does not open this one's window.
        check_reset(
            |watch, zero| {
                let (first, second) = (watch.request_begins(), watch.request_begins());
                watch.answer_waits(first, Some(zero + s(5)));
                sends(watch, second, zero);
            },
            35,
            1,
        );
        check_reset(
            |watch, zero| {
                let request = watch.request_begins();
                watch.answer_waits(request, Some(zero + s(5)));
                sends(watch, request, zero);
            },
            129,
            1,
        );
    }

    #[test]
    fn the_idle_time_begins_when_the_last_byte_has_gone_out() {
        check(
            |watch, zero| {
                let request = watch.request_begins();
                watch.write_blocked(zero);
                watch.request_ends(request, zero + s(1));
                watch.wrote(10, zero + s(25));
                watch.flushed(zero + s(25));
            },
            100,
            Reason::Idle,
        );
    }

    #[test]
    fn an_answer_that_a_zero_window_holds_back_is_stalled_but_one_that_is_still_being_made_is_not() {
        check_reset(
            |watch, zero| {
                let first = watch.request_begins();
                let second = watch.request_begins();
                watch.answer_waits(first, None);
                watch.answer_waits(second, Some(zero + s(3)));
            },
            33,
            2,
        );
    }

    #[test]
    fn stalled_answers_end_one_by_one_and_a_socket_that_takes_nothing_ends_all() {
        let zero = Instant::now();
        let watch = Watch::new(zero);
        let requests = [3, 1, 2].map(|second| {
            let request = watch.request_begins();
            watch.answer_waits(request, Some(zero + s(second)));
            (request, watch.reset_of(request))
        });
        assert_eq!(watch.verdict(&CLOCKS, zero + s(33)), Verdict::Reset(2));
        // Each may make room for the others, which are not at fault then.
        for (second, left) in [(33, 2), (34, 1), (35, 0)] {
            let now = zero + s(second);
            let Verdict::Reset(request) = watch.verdict(&CLOCKS, now) else { panic!("none is reset") };
            let (_, reset) = requests.iter().find(|(number, _)| *number == request).unwrap();
            assert_eq!(watch.reset(request, CLOCKS.write_stall, now), left > 0);
            assert!(reset.is_cancelled());
            assert_eq!(requests.iter().filter(|(_, reset)| !reset.is_cancelled()).count(), left);
            let next = now + s(1);
            let early = watch.verdict(&CLOCKS, next - Duration::from_nanos(1));
            assert!(matches!(early, Verdict::LookAt(at) if at == next || left == 0), "{early:?}");
        }
        assert_eq!(watch.phase(), Phase::Idle(zero + s(35)));
        check(
            |watch, zero| {
                let request = watch.request_begins();
                watch.write_blocked(zero + s(4));
                watch.answer_waits(request, Some(zero + s(5)));
            },
            34,
            Reason::Stalled,
        );
    }

    #[test]
    fn a_connection_of_which_no_answer_is_taken_ends_after_some_resets_and_one_that_takes_any_goes_on() {
        for takes in [false, true] {
            let zero = Instant::now();
            let watch = Watch::new(zero);
            let requests: Vec<u64> = (0..20).map(|_| watch.request_begins()).collect();
            requests.iter().for_each(|request| watch.answer_waits(*request, Some(zero)));
            let mut now = zero + CLOCKS.write_stall;
            for turn in 0..RESETS_MAX {
                let Verdict::Reset(request) = watch.verdict(&CLOCKS, now) else { panic!("{turn}") };
                assert!(watch.reset(request, CLOCKS.write_stall, now));
                now += ROOM_TIME_MIN;
            }
            if takes {
                let left =
                    requests.into_iter().find(|request| !watch.reset_of(*request).is_cancelled()).unwrap();
                watch.answer_waits(left, Some(now));
            }
            let verdict = watch.verdict(&CLOCKS, now);
            match takes {
                false => assert_eq!(verdict, Verdict::End(Reason::Stalled)),
                true => assert!(matches!(verdict, Verdict::Reset(_)), "{verdict:?}"),
            }
        }
    }

    #[test]
    fn a_request_is_there_until_the_last_byte_of_its_answer_has_gone_out() {
        let zero = Instant::now();
        let watch = Watch::new(zero);
        assert!(!watch.has_request());
        let request = watch.request_begins();
        watch.write_blocked(zero);
        watch.request_ends(request, zero + s(1));
        assert!(watch.has_request(), "some of the answer waits for the socket");
        watch.flushed(zero + s(2));
        assert!(!watch.has_request());
    }
}
