//! The second side of a [`drive`](super::drive): from the model's answers to the bytes of the reply.

use super::{
    finding::{Found, Pending},
    outgoing::{COUNTS, Event, Head, Outgoing},
};
use crate::{
    batch::Fallback,
    error::InferError,
    http::{
        Front,
        admission::{Beside, charged, keeping},
        call::{Call, Spent},
        decode::Step,
        reject::Problem,
    },
    tasks::localize::{Format, Pieces, Writer},
    telemetry::metrics::DropReason,
};
use axum::http::{HeaderMap, HeaderValue};
use std::{sync::Arc, time::Instant};
use tokio::sync::mpsc;

/// Writes what was found, in order.
pub(super) struct Telling {
    front: Arc<Front>,
    /// Memory set aside for the reply, beside what the request takes.
    held: Option<Beside>,
    /// Where the stages of its trace are noted.
    call: Call,
    format: Format,
    /// `None` while it works on the pool.
    writer: Option<Writer>,
    begun: bool,
    /// Bytes that the last rows took. The next rows get as much room at once: they take about as many.
    room: usize,
    /// Where the time went for all answers so far.
    spent: Spent,
}

impl Telling {
    pub(super) fn new(front: &Arc<Front>, call: Call, format: Format) -> Telling {
        let (front, writer, spent) = (Arc::clone(front), None, Spent::default());
        Telling { front, held: None, call, format, writer, begun: false, room: 0, spent }
    }

    /// Writes all that comes. Ends without an error when finding broke off, too.
    pub(super) async fn run(
        &mut self,
        coming: &mut mpsc::Receiver<Found>,
        reply: &mut Outgoing,
    ) -> Result<(), InferError> {
        while let Some(found) = reply.keep_up_until(coming.recv()).await? {
            match found {
                Found::Begin(writer) => {
                    self.hold(writer.holds())?;
                    self.writer = Some(*writer);
                }
                Found::Chunk(pending) => self.rows(pending, reply).await?,
                Found::End(frames, pixel_nm) => return self.end(frames, pixel_nm, reply).await,
            }
        }
        Ok(())
    }

    /// Sets aside what the writer holds until the end, which may be far more than the posted stack.
    fn hold(&mut self, bytes: usize) -> Result<(), InferError> {
        match (&mut self.held, &self.call.permit) {
            (Some(held), _) => held.grow_to(bytes as u64)?,
            (None, Some(permit)) => self.held = Some(permit.beside(bytes as u64)?),
            (None, None) => {}
        }
        Ok(())
    }

    fn take(&mut self) -> Writer {
        self.writer.take().expect("it comes before the first chunk, and is back after each")
    }

    /// Turns an answer into rows, and sends them.
    async fn rows(&mut self, pending: Pending, reply: &mut Outgoing) -> Result<(), InferError> {
        let Pending { fitting, tally, origins, setting, decode } = pending;
        let answer = reply.keep_up_until(fitting).await??;
        let mut writer = self.take();
        writer.ran_on(&answer.device, answer.fallback.map(Fallback::name));
        let spent = Spent::on(decode, &answer);
        self.spent.include(&spent);
        let (begin, room, answered) = (!self.begun, self.room, Instant::now());
        // What is set aside travels with the writer.
        let held = self.held.take();
        let write = move || {
            let mut out = Pieces::with_room(room);
            if begin {
                writer.begin(&mut out)?;
            }
            let table = origins.table(&answer.outputs, writer.schema(), &setting)?;
            writer.chunk(table, &mut out)?;
            Ok::<_, String>((writer, out, held))
        };
        let written = self.front.decode.run(Step::Answer, charged(self.call.permit.as_ref(), write));
        let written = reply.keep_up_until(written).await?;
        spent.replied(&self.front, &tally, answered.elapsed());
        let (writer, out, held) =
            tally.ended(written.and_then(|written| written.map_err(InferError::BadRequest)))?;
        self.held = held;
        self.call.stage("encode", || answered.elapsed());
        self.hold(writer.holds())?;
        if begin {
            self.begun = true;
            if self.format.streams() {
                let conventions = writer.conventions().to_owned();
                reply
                    .send(Event::Begin(Head { conventions, spent: self.spent.clone(), counts: None }))
                    .await?;
            }
        }
        self.writer = Some(writer);
        // Rows of text vary a little in length.
        self.room = out.appended() + out.appended() / 16;
        reply.bytes(out.into_vec()).await
    }

    /// The rest of the reply.
    async fn end(
        &mut self,
        frames: u64,
        pixel_nm: Option<[f64; 2]>,
        reply: &mut Outgoing,
    ) -> Result<(), InferError> {
        let frames = u32::try_from(frames).ok();
        let mut writer = self.take();
        if let Some(pixel_nm) = pixel_nm {
            writer.take_pixel_nm(pixel_nm);
        }
        let begin = !self.begun;
        let conventions = writer.conventions().to_owned();
        warn_of_left_out(writer.counts().over_spots_max);
        let counts = HeaderValue::from_str(&writer.counts().to_line(frames)).ok();
        let answered = Instant::now();
        let held = self.held.take();
        let end = move || {
            let mut out = Pieces::default();
            if begin {
                writer.begin(&mut out)?;
            }
            let mut pieces = out.into_vec();
            pieces.extend(writer.end(frames)?.into_iter().filter(|piece| !piece.is_empty()));
            Ok::<_, String>((pieces, held))
        };
        let ended = self.front.decode.run(Step::Answer, charged(self.call.permit.as_ref(), end)).await?;
        let (pieces, held) = ended.map_err(InferError::BadRequest)?;
        // The pieces stay charged until the client has taken them.
        let pieces = match held.map(Arc::new) {
            Some(held) => pieces.into_iter().map(|piece| keeping(piece, &held)).collect(),
            None => pieces,
        };
        self.call.stage("encode", || answered.elapsed());
        if begin || !self.format.streams() {
            let head = Head { conventions, spent: self.spent.clone(), counts: counts.clone() };
            reply.send(Event::Begin(head)).await?;
        }
        reply.send(Event::Bytes(pieces)).await?;
        if let Some(counts) = counts {
            let mut trailers = HeaderMap::from_iter([(COUNTS, counts)]);
            self.spent.tell(&mut trailers);
            reply.send(Event::End(trailers)).await?;
        }
        Ok(())
    }

    /// Reports an error: as the reply, or as its last member.
    pub(super) async fn fail(self, error: InferError, reply: &mut Outgoing) {
        let draining = error == InferError::Draining;
        warn_of_left_out(self.writer.as_ref().map_or(0, |writer| writer.counts().over_spots_max));
        let told = match self.writer {
            Some(writer) if self.begun && self.format.streams() => {
                tracing::info!(%error, "a stack broke off after results had been sent");
                let Problem { kind, detail, .. } = Problem::from(&error);
                Event::Broken(writer.error(&detail, &kind.address()).into(), kind)
            }
            _ => Event::Failed(error),
        };
        // If the client has gone, nobody needs to be told.
        if reply.send(told).await.is_ok() && draining {
            self.front.metrics.dropped(DropReason::Request).inc();
        }
    }
}

/// Says in the log how many spots were not fitted since their frames had more than they may: results without them may look whole.
pub(super) fn warn_of_left_out(over_spots_max: u64) {
    if over_spots_max > 0 {
        tracing::warn!(
            over_spots_max,
            "spots of a stack were not fitted, the weakest of frames with more than they may have; spots_max allows more"
        );
    }
}
