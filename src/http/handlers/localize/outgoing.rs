//! Passes a reply from the work to the connection. Many clients send all of a stack before they read anything. What they do not take yet
//! waits here, up to a bound, so that the stack is read on.

use super::share::Share;
use crate::{
    error::InferError,
    http::{call::Spent, reject::Kind},
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::{Bytes, BytesMut};
use std::{collections::VecDeque, pin::pin, time::Duration};
use tokio::sync::mpsc;

/// Counts of what became of the stack: a trailer behind the last byte of a whole reply, for clients that read trailers. Of a reply whose
/// head is sent once the whole stack has been fitted, it is a header as well.
pub(super) const COUNTS: HeaderName = HeaderName::from_static("ocelli-counts");

/// Events that the connection may be behind; after that, bytes are gathered into blocks.
const EVENTS: usize = 16;
/// The most bytes of an event. Bytes that wait are gathered into blocks of this size.
const BLOCK_BYTES: usize = 64 << 10;
/// How long to wait for the connection before asking again whether more may wait.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// What is sent to the reply: that it begins, then its bytes and its end; or, instead of beginning, that there is none.
pub(super) enum Event {
    /// What its head says.
    Begin(Head),
    /// The next bytes, in pieces that are not empty.
    Bytes(Vec<Bytes>),
    /// The reply breaks off: its last bytes, which say why, and the kind of the error.
    Broken(Bytes, Kind),
    /// The reply is whole: trailers with its counts and where all the time went.
    End(HeaderMap),
    /// There will be no reply.
    Failed(InferError),
}

/// What the head of a reply says.
pub(super) struct Head {
    /// Units, origin and frame base.
    pub(super) conventions: String,
    /// Where the time went so far.
    pub(super) spent: Spent,
    /// What became of the stack, if the reply begins once all of it is known.
    pub(super) counts: Option<HeaderValue>,
}

/// Where events go to.
pub(super) struct Outgoing {
    events: mpsc::Sender<Event>,
    /// In blocks, each sent as one event.
    waiting: VecDeque<BytesMut>,
    waiting_bytes: usize,
    waiting_bytes_max: usize,
    share: Share,
}

impl Outgoing {
    /// Creates both ends. At most `waiting_bytes_max` bytes may wait, if the share has room for them.
    pub(super) fn new(waiting_bytes_max: usize, share: Share) -> (Outgoing, mpsc::Receiver<Event>) {
        let (events, coming) = mpsc::channel(EVENTS);
        let waiting = VecDeque::new();
        (Outgoing { events, waiting, waiting_bytes: 0, waiting_bytes_max, share }, coming)
    }

    /// Whether bytes wait here.
    fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes bytes. Waits for the connection only if too many bytes wait already.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub(super) async fn bytes(&mut self, pieces: Vec<Bytes>) -> Result<(), InferError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let small = pieces.iter().map(Bytes::len).sum::<usize>() <= BLOCK_BYTES;
        if small
            && self.waiting.is_empty()
            && let Ok(room) = self.events.try_reserve()
        {
            room.send(Event::Bytes(pieces));
            return Ok(());
        }
        pieces.iter().for_each(|piece| self.keep(piece));
        while self.is_behind() && (self.events.capacity() > 0 || self.events.is_closed()) {
            self.catch_up().await?;
        }
        while self.waiting_bytes > self.waiting_bytes_max {
            self.catch_up().await?;
        }
        while !self.holds() {
            // Others may give back what they hold before this caller reads.
            if let Ok(caught_up) = tokio::time::timeout(FULL_PAUSE, self.catch_up()).await {
                caught_up?;
            }
        }
        Ok(())
    }

    /// Queues bytes behind those that wait already.
    fn keep(&mut self, mut bytes: &[u8]) {
        self.waiting_bytes += bytes.len();
        while !bytes.is_empty() {
            if self.waiting.back().is_none_or(|block| block.len() == BLOCK_BYTES) {
                self.waiting.push_back(BytesMut::new());
            }
            let Some(block) = self.waiting.back_mut() else { return };
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - block.len()));
            block.extend_from_slice(now);
            bytes = later;
        }
    }

    /// Waits for `work`, and passes on waiting bytes meanwhile.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub(super) async fn keep_up_until<T>(&mut self, work: impl Future<Output = T>) -> Result<T, InferError> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                caught_up = self.catch_up(), if self.is_behind() => caught_up?,
            }
        }
    }

    /// Passes on one waiting block, once there is room. Never all at once: the connection would then hold them.
    ///
    /// # Errors
    /// Nobody listens any more.
    async fn catch_up(&mut self) -> Result<(), InferError> {
        if !self.is_behind() {
            return Ok(());
        }
        let room = self.events.reserve().await.map_err(|_| InferError::Cancelled)?;
        let Some(block) = self.waiting.pop_front() else { return Ok(()) };
        self.waiting_bytes -= block.len();
        room.send(Event::Bytes(vec![block.freeze()]));
        self.holds();
        Ok(())
    }

    /// Tells the share how many bytes are held. Returns whether there is room for them.
    fn holds(&mut self) -> bool {
        // While blocks wait, the channel before them is full.
        let on_their_way = if self.is_behind() { EVENTS * BLOCK_BYTES } else { 0 };
        self.share.holds(on_their_way + self.waiting_bytes)
    }

    /// Sends an event behind what waits.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub(super) async fn send(&mut self, event: Event) -> Result<(), InferError> {
        while self.is_behind() {
            self.catch_up().await?;
        }
        self.events.send(event).await.map_err(|_| InferError::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::stack_options, *};
    use crate::{
        config::Config,
        http::admission::{Admission, AdmissionLimits},
    };
    use std::sync::Arc;

    fn outgoing(waiting_bytes_max: usize) -> (Outgoing, mpsc::Receiver<Event>) {
        let share = Share::of_stream(None, &stack_options(&Config::default()));
        Outgoing::new(waiting_bytes_max, share)
    }

    fn piece(bytes: &[u8]) -> Vec<Bytes> {
        vec![Bytes::copy_from_slice(bytes)]
    }

    /// What has come out, put together.
    fn taken(coming: &mut mpsc::Receiver<Event>) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(event) = coming.try_recv() {
            if let Event::Bytes(pieces) = event {
                all.extend(pieces.concat());
            }
        }
        all
    }

    #[tokio::test]
    async fn whoever_does_not_read_holds_nobody_up_below_the_bound() {
        let (mut out, mut coming) = outgoing(1000);
        for number in 0..200_u8 {
            out.bytes(piece(&[number])).await.unwrap();
        }
        assert!(out.is_behind());
        let mut all = taken(&mut coming);
        out.catch_up().await.unwrap();
        all.extend(taken(&mut coming));
        assert_eq!(all, (0..200).collect::<Vec<u8>>());
        assert!(!out.is_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn above_the_bound_it_waits_for_the_reader() {
        let (mut out, mut coming) = outgoing(100);
        for _ in 0..EVENTS {
            out.bytes(piece(&[0; 10])).await.unwrap();
        }
        out.bytes(piece(&[1; 100])).await.unwrap();
        let more = out.bytes(piece(&[2]));
        assert!(tokio::time::timeout(Duration::from_secs(1), more).await.is_err());
        let before = taken(&mut coming).len();
        out.catch_up().await.unwrap();
        let after = taken(&mut coming);
        assert_eq!((before, after.len(), after.last()), (10 * EVENTS, 101, Some(&2)));
    }

    const MIB: usize = 1 << 20;

    /// One whose waiting bytes are charged, for a file.
    fn charged() -> (Arc<Admission>, Outgoing, mpsc::Receiver<Event>) {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 100 << 20 };
        let admission = Admission::new(limits);
        let permit = Arc::new(admission.admit().unwrap());
        let (out, coming) = Outgoing::new(64 * MIB, Share::beside_file(Some(&permit)));
        (admission, out, coming)
    }

    #[tokio::test]
    async fn what_waits_is_charged_until_the_connection_has_taken_it() {
        let (admission, mut out, mut coming) = charged();
        for _ in 0..EVENTS {
            out.bytes(piece(&[0])).await.unwrap();
        }
        out.bytes(piece(&vec![1; 5 * MIB])).await.unwrap();
        let charged = || admission.in_flight().bytes as usize;
        assert_eq!(charged(), 6 * MIB, "one is for events");
        // A block goes for each event that is taken.
        coming.try_recv().unwrap();
        out.catch_up().await.unwrap();
        assert_eq!(charged(), 6 * MIB - BLOCK_BYTES);
        let mut all = 0;
        while out.is_behind() {
            all += taken(&mut coming).len();
            out.catch_up().await.unwrap();
        }
        all += taken(&mut coming).len();
        assert_eq!((all, charged()), (EVENTS - 1 + 5 * MIB, 0));
    }

    #[tokio::test]
    async fn what_is_larger_than_an_event_goes_in_parts_of_which_the_rest_is_charged() {
        let (admission, mut out, mut coming) = charged();
        let bytes: Vec<u8> = (0..6 * MIB).map(|at| (at / 1000) as u8).collect();
        out.bytes(piece(&bytes)).await.unwrap();
        assert_eq!(admission.in_flight().bytes as usize, 6 * MIB, "of all that is here");
        let mut all = Vec::new();
        loop {
            match coming.try_recv() {
                Ok(Event::Bytes(pieces)) => {
                    let event = pieces.concat();
                    assert!(event.len() <= BLOCK_BYTES, "{}", event.len());
                    all.extend(event);
                }
                _ if out.is_behind() => out.catch_up().await.unwrap(),
                _ => break,
            }
        }
        assert!(all == bytes);
        assert_eq!(admission.in_flight().bytes, 0);
    }

    #[tokio::test]
    async fn it_ends_when_nobody_listens() {
        let (mut out, coming) = outgoing(100);
        drop(coming);
        assert!(matches!(out.bytes(piece(&[0])).await, Err(InferError::Cancelled)));
    }
}
