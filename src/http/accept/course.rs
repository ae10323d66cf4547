//! Decides when a connection is told to go away and when it is ended: by its clocks, by the stages of the shutdown, or by a new connection
//! that waits for its place.

use super::{MEANWHILE, Phase, Reason, Shared, Verdict, Watch};
use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// How long, after the listener closes, a connection may still take to send the head of its first request. It cannot know that we are
/// closing.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(500);

/// How often an HTTP/2 connection that was told that we are closing is checked, and ended if no request is on it. Its client has that long
/// to acknowledge, which hyper waits for; a client that is gone never does.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    GoOn,
    /// Answer the requests that are on it, and no more.
    GoAway,
    /// Drop it, with all that is on it.
    End,
}

/// A connection's way to its end, and when it is looked at next.
pub(super) struct Course<'a> {
    shared: &'a Shared,
    watch: Arc<Watch>,
    peer: SocketAddr,
    /// Opened during a drain, and served as usual. If it were told to go at its first request, its client would open another connection,
    /// again and again while the drain lasts, each time with a request that may be under way when it learns.
    began_in_drain: bool,
    drain_seen: bool,
    close_seen: bool,
    /// Whether it was told to go because it was idle.
    idle_seen: bool,
    evict_seen: bool,
    /// Whether the reason for its end has been counted.
    counted: bool,
    /// Whether a clock had run out when it was last looked at.
    over: bool,
    /// When its clocks are looked at next.
    pub(super) look_at: Instant,
    /// Set when the listener closes: how long the head of its first request is waited for.
    pub(super) first_request_until: Option<Instant>,
    /// When it is ended if no request is on it.
    pub(super) farewell_until: Option<Instant>,
}

impl<'a> Course<'a> {
    pub(super) fn new(shared: &'a Shared, watch: Arc<Watch>, peer: SocketAddr, now: Instant) -> Course<'a> {
        Course {
            began_in_drain: shared.stages.is_draining(),
            shared,
            watch,
            peer,
            drain_seen: false,
            close_seen: false,
            idle_seen: false,
            evict_seen: false,
            counted: false,
            over: false,
            look_at: now,
            first_request_until: None,
            farewell_until: None,
        }
    }

    /// Whether it is still to be told of a drain.
    pub(super) fn awaits_drain(&self) -> bool {
        !self.drain_seen
    }

    /// Whether it is still to be told that the listener closes.
    pub(super) fn awaits_close(&self) -> bool {
        !self.close_seen
    }

    /// Looks at its clocks.
    pub(super) fn looked_at(&mut self, now: Instant) -> Action {
        let clocks = &self.shared.settings.clocks;
        match self.watch.verdict(clocks, now) {
            Verdict::LookAt(at) => {
                self.over = false;
                self.look_at = at;
                Action::GoOn
            }
            // If the process was suspended, a clock runs out before what arrived meanwhile has been read: look again shortly.
            _ if !self.over => {
                self.over = true;
                self.look_at = now + MEANWHILE;
                Action::GoOn
            }
            Verdict::Reset(request) => {
                self.shared.connections.streams_reset.fetch_add(1, Ordering::Relaxed);
                tracing::info!(peer = %self.peer, "an answer was not taken in reply_stall_ms: it is ended alone");
                self.over = false;
                self.look_at = now;
                if self.watch.reset(request, clocks.write_stall, now) {
                    return Action::GoOn;
                }
                // A client that read none of its open responses is told to go away.
                self.count(Reason::Stalled);
                self.says_farewell(now);
                Action::GoAway
            }
            Verdict::End(Reason::Idle) if !self.idle_seen => {
                // HTTP/2 sends a GOAWAY and may need a moment for it.
                self.idle_seen = true;
                self.count(Reason::Idle);
                self.look_at = now + clocks.header;
                Action::GoAway
            }
            Verdict::End(reason) => {
                self.count(reason);
                Action::End
            }
        }
    }

    /// It was evicted, or a request has begun during a drain.
    pub(super) fn news(&mut self, now: Instant) -> Action {
        if self.watch.evicted().is_some() && !std::mem::replace(&mut self.evict_seen, true) {
            return self.evicted(now);
        }
        let asked_in_drain = self.shared.stages.is_draining() && !self.began_in_drain;
        if asked_in_drain && self.watch.is_http2() { Action::GoAway } else { Action::GoOn }
    }

    fn evicted(&mut self, now: Instant) -> Action {
        self.idle_seen = true;
        self.count(Reason::Evicted);
        if self.shared.settings.eviction.heads && matches!(self.watch.phase(), Phase::Header(_)) {
            // There is nothing to answer, and the rest of the head may never come.
            return Action::End;
        }
        let soonest = now + FAREWELL;
        // Responses may have been handed over whole and wait for the window of an HTTP/2 client, who has its time for those.
        self.farewell_until = Some(match self.watch.phase() {
            Phase::Idle(since) if self.watch.requests() > 0 => {
                soonest.max(since + self.shared.settings.clocks.write_stall)
            }
            _ => soonest,
        });
        Action::GoAway
    }

    /// A drain has begun.
    pub(super) fn draining(&mut self) -> Action {
        self.drain_seen = true;
        if self.watch.is_http2() && self.watch.requests() > 0 { Action::GoAway } else { Action::GoOn }
    }

    /// The listener closes.
    pub(super) fn closing(&mut self, now: Instant) -> Action {
        self.close_seen = true;
        let http2 = self.watch.is_http2();
        if !http2 && self.watch.requests() == 0 {
            self.first_request_until = Some(now + FIRST_REQUEST_GRACE);
            return Action::GoOn;
        }
        if http2 {
            self.says_farewell(now);
        }
        Action::GoAway
    }

    /// The time for a first request is over.
    pub(super) fn first_request_due(&mut self, now: Instant) -> Action {
        self.first_request_until = None;
        if self.watch.is_http2() {
            self.says_farewell(now);
        }
        // Part of a head is no request yet: the client can send it elsewhere.
        if matches!(self.watch.phase(), Phase::Header(_)) { Action::End } else { Action::GoAway }
    }

    /// The time of a farewell is over.
    pub(super) fn farewell_due(&mut self, now: Instant) -> Action {
        if !self.watch.has_request() {
            return Action::End;
        }
        self.says_farewell(now);
        Action::GoOn
    }

    /// Starts a farewell. Without a close, the client does not read its responses. Some may have been handed over whole and wait for its
    /// window, so it has `write_stall` for those.
    fn says_farewell(&mut self, now: Instant) {
        let time = if self.close_seen { FAREWELL } else { self.shared.settings.clocks.write_stall };
        self.farewell_until = Some(now + time);
    }

    /// Counts the reason for its end, once. A response that is lost with it is logged.
    fn count(&mut self, reason: Reason) {
        if std::mem::replace(&mut self.counted, true) {
            return;
        }
        let counts = &self.shared.connections;
        let counter = match reason {
            Reason::Idle => &counts.ended_idle,
            Reason::Header => &counts.ended_header,
            Reason::Evicted => &counts.ended_evicted,
            Reason::Stalled => {
                tracing::info!(peer = %self.peer, "an answer was not taken in reply_stall_ms: its connection ends");
                &counts.ended_stalled
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
