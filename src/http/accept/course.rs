//! When a connection is told to go and when it is ended: by its clocks, by the stages of the end, and by who waits for its place.

use super::{MEANWHILE, Phase, Reason, Verdict, Watch, connection::Shared};
use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// When the listener closes: how long a connection that has not sent the head of its first request yet may still do so. It cannot know
/// that we are closing.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(500);

/// How often an HTTP/2 connection that was told that we are closing is looked at, and ended where no request is on it. Its client has
/// that long to say that it has heard, which hyper waits for; one that has gone never does.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    /// Answer what is on it, and nothing more.
    GoAway,
    /// Drop it, with all that is on it.
    End,
}

/// What has become of a connection, and when it is looked at next.
pub(super) struct Course<'a> {
    shared: &'a Shared,
    watch: Arc<Watch>,
    peer: SocketAddr,
    /// One that opens while we drain is served like before: told to go at its first request, its client would open another, again and
    /// again for as long as that goes on, each time with a request that may be under way when it hears.
    began_in_drain: bool,
    drain_seen: bool,
    close_seen: bool,
    /// Whether it was told to go since nothing came on it.
    idle_seen: bool,
    /// Whether what ends it has been counted.
    counted: bool,
    /// Whether a time was over when it was last looked at.
    over: bool,
    /// When its clocks are looked at.
    pub(super) look_at: Instant,
    /// The head of its first request has come by then, or is not waited for.
    pub(super) first_request_until: Option<Instant>,
    /// What is on it then is all that it goes on for.
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

    /// Whether it may still be asked to make room.
    pub(super) fn may_be_evicted(&self) -> bool {
        !self.idle_seen
    }

    /// Its clocks.
    pub(super) fn looked_at(&mut self, now: Instant) -> Then {
        let clocks = &self.shared.settings.clocks;
        match self.watch.verdict(clocks, now) {
            Verdict::LookAt(at) => {
                self.over = false;
                self.look_at = at;
                Then::GoOn
            }
            // Where the process stood still, times are over before what came meanwhile is seen.
            _ if !self.over => {
                self.over = true;
                self.look_at = now + MEANWHILE;
                Then::GoOn
            }
            Verdict::Reset(request) => {
                self.shared.connections.streams_reset.fetch_add(1, Ordering::Relaxed);
                tracing::info!(peer = %self.peer, "an answer was not taken in reply_stall_ms: it is ended alone");
                self.over = false;
                self.look_at = now;
                if self.watch.reset(request, clocks.write_stall, now) {
                    return Then::GoOn;
                }
                // Who takes none of several answers is told to go away.
                self.count(Reason::Stalled);
                self.says_farewell(now);
                Then::GoAway
            }
            Verdict::End(Reason::Idle) if !self.idle_seen => {
                // HTTP/2 says GOAWAY and may need a moment for it.
                self.idle_seen = true;
                self.count(Reason::Idle);
                self.look_at = now + clocks.header;
                Then::GoAway
            }
            Verdict::End(reason) => {
                self.count(reason);
                Then::End
            }
        }
    }

    /// Another waits for its place.
    pub(super) fn evicted(&mut self, now: Instant) -> Then {
        self.idle_seen = true;
        self.count(Reason::Evicted);
        self.farewell_until = Some(now + FAREWELL);
        Then::GoAway
    }

    /// The first request of a drain has come.
    pub(super) fn asked_in_drain(&self) -> Then {
        if self.watch.is_http2() && !self.began_in_drain { Then::GoAway } else { Then::GoOn }
    }

    /// A drain has begun.
    pub(super) fn draining(&mut self) -> Then {
        self.drain_seen = true;
        if self.watch.is_http2() && self.watch.requests() > 0 { Then::GoAway } else { Then::GoOn }
    }

    /// The listener closes.
    pub(super) fn closing(&mut self, now: Instant) -> Then {
        self.close_seen = true;
        let http2 = self.watch.is_http2();
        if !http2 && self.watch.requests() == 0 {
            self.first_request_until = Some(now + FIRST_REQUEST_GRACE);
            return Then::GoOn;
        }
        if http2 {
            self.says_farewell(now);
        }
        Then::GoAway
    }

    /// No first request is waited for any more.
    pub(super) fn first_request_due(&mut self, now: Instant) -> Then {
        self.first_request_until = None;
        if self.watch.is_http2() {
            self.says_farewell(now);
        }
        // Half a head is no request yet: nothing is lost that cannot be sent elsewhere.
        if matches!(self.watch.phase(), Phase::Header(_)) { Then::End } else { Then::GoAway }
    }

    /// The time of a farewell is over.
    pub(super) fn farewell_due(&mut self, now: Instant) -> Then {
        if !self.watch.has_request() {
            return Then::End;
        }
        self.says_farewell(now);
        Then::GoOn
    }

    /// Where nobody takes its answers, some may have gone whole to where they wait for the client: it has its time for those.
    fn says_farewell(&mut self, now: Instant) {
        let time = if self.close_seen { FAREWELL } else { self.shared.settings.clocks.write_stall };
        self.farewell_until = Some(now + time);
    }

    /// Counts what ends it, once; of an answer that is lost with it, the log tells.
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
