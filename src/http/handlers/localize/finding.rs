//! The first side of a [`drive`](super::drive): from the connection's bytes to chunks of ROIs in the queue.

use super::{
    asked::Asked,
    share::{self, Share},
};
use crate::{
    batch::Answer,
    engine::Setting,
    error::InferError,
    http::{
        Front,
        admission::{Beside, Permit, charged},
        body,
        call::Call,
        streamed::Queued,
        tally::Tally,
    },
    image::stack,
    models::Model,
    tasks::localize::{
        Format, Options, Writer,
        chunk::{Chunk, Origins},
        stage::{Stager, Step},
    },
};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Chunks that are handed over at once, and bytes of them after which no more are cut. Waking a thread costs as much as searching 100 kB.
const CHUNKS_AT_ONCE: usize = 4;
const CUT_BYTES_AT_ONCE: usize = 4 << 20;
/// A little of a file may become so much that it is looked at many times before more of the body is needed. A client that goes away
/// meanwhile would go unnoticed for minutes: the end of its connection stands behind all that it has sent. So after this many looks, each
/// further look lets another step be read ahead, up to a maximum: what the client's socket and ours buffer by default. Where sockets may
/// buffer more (`net.ipv4.tcp_rmem`, `tcp_wmem`), the end is seen once all but that much has been looked at.
const LOOKS_FREE: usize = 16;
const AHEAD_STEP_BYTES: usize = 64 << 10;
const AHEAD_BYTES_MAX: usize = 8 << 20;
/// How long to wait for more of a chunk before what is there is fitted.
const PATIENCE: Duration = Duration::from_millis(5);

/// What was posted.
pub(super) enum Posted {
    /// A body to be read.
    Stream(body::Reader),
    /// A file that was taken out of a body.
    File(Bytes),
}

/// What was found, in this order: the writer for the rows, chunks, and at the end the number of frames and the size of a pixel, which some
/// files state only there.
pub(super) enum Found {
    Begin(Box<Writer>),
    Chunk(Pending),
    End(u64, Option<[f64; 2]>),
}

/// A chunk in the queue.
pub(super) struct Pending {
    pub(super) fitting: Pin<Box<dyn Future<Output = Result<Answer, InferError>> + Send>>,
    /// Counts the chunk once its rows are written.
    pub(super) tally: Arc<Tally>,
    pub(super) origins: Origins,
    pub(super) setting: Setting,
    /// How long it took to find. Of several chunks found at once, the first has the time of all.
    pub(super) decode: Duration,
}

/// Reads a stack and queues what is in it.
pub(super) struct Finding {
    front: Arc<Front>,
    model: Arc<Model>,
    call: Call,
    format: Format,
    options: Options,
    first_frame: u32,
    /// `None` while it works on the pool.
    stager: Option<Stager>,
    begun: bool,
    /// Memory set aside for chunks until they are in the queue.
    held: Option<Beside>,
    /// Time spent on frames that have given no chunk yet.
    looked: Duration,
}

impl Finding {
    pub(super) fn new(front: Arc<Front>, model: Arc<Model>, call: Call, asked: Asked) -> Finding {
        let reading = stack::Options { file_alone: asked.file_alone, ..front.limits.stack.clone() };
        let stager = Stager::new(asked.settings, asked.holds, asked.stack, reading);
        let [frames, beside] = [(); 2].map(|()| share::of_work(call.permit.as_deref()));
        let mut stager = stager.charging(frames, beside).posted();
        if let Some(came) = asked.came {
            stager = stager.packed(came);
        }
        let stager = stager.whole(front.queue.is_on_gpu(model.key), model.frames.clone());
        let options = Options { name: model.name.to_string(), ..asked.options };
        Finding {
            front,
            model,
            held: call.permit.as_deref().map(Permit::nothing_beside),
            call,
            format: asked.format,
            options,
            first_frame: asked.first_frame,
            stager: Some(stager),
            begun: false,
            looked: Duration::ZERO,
        }
    }

    /// Reads the stack to its end. While some of it is looked at, takes up to `bytes_max` bytes from the connection.
    pub(super) async fn run(
        mut self,
        posted: Posted,
        bytes_max: usize,
        found: mpsc::Sender<Found>,
    ) -> Result<(), InferError> {
        self.charge_for(&posted);
        let held = self.call.permit.as_deref().map(Permit::nothing_beside);
        let mut supply = Supply::new(posted, bytes_max, held);
        let (mut hurry, mut fed) = (false, None::<Fed>);
        loop {
            let mut stager = self.stager.take().expect("it is back after each step");
            let fresh = fed.take().unwrap_or_default();
            let mut cut = Cut { chunks: Vec::new(), bytes: 0, held: self.held.take() };
            let look = move || {
                let began = Instant::now();
                // Fed on the pool, since this may write to a file.
                let step = fresh.to(&mut stager).and_then(|()| cut.fill(&mut stager, hurry));
                (stager, cut, step, began.elapsed())
            };
            // The clock starts anew: it covers this look and the chunks found in it, not the time that the client takes to send.
            let call = self.call.again();
            let looking = self.front.decode.run(self.call.step(), charged(self.call.permit.as_ref(), look));
            let (stager, cut, step, took) = call.in_time(supply.gather_while(looking)).await?;
            supply.is_attended()?;
            let waited = call.arrived.elapsed();
            self.stager = Some(stager);
            self.looked += took;
            self.held = cut.held;
            let mut bytes = cut.bytes;
            for chunk in cut.chunks {
                bytes -= chunk.bytes();
                self.queue(chunk, waited, &found).await?;
                if let Some(held) = &mut self.held {
                    held.set(bytes as u64);
                }
            }
            match step? {
                Step::Chunk(_) | Step::Busy => {}
                Step::Wait => {
                    fed = supply.more(!hurry).await?;
                    hurry = fed.is_none();
                }
                Step::End => break,
            }
        }
        self.noted();
        self.begin(&found).await?;
        let frames = self.stager().frames();
        let pixel_nm = self.stager().pixel_nm();
        tell(&found, Found::End(frames, pixel_nm)).await
    }

    /// Charges for bytes of a stream that wait to be read, if they may go to a file instead. A posted file was charged for with its body;
    /// and without a temporary file, a stream is charged as it comes for all that it may hold.
    fn charge_for(&mut self, posted: &Posted) {
        let options = &self.front.limits.stack;
        if matches!(posted, Posted::Stream(_)) && options.spill_folder.is_some() {
            let mut share = Share::of_stream(self.call.permit.as_ref(), options);
            let may_hold = Box::new(move |bytes| share.holds(bytes));
            self.stager = self.stager.take().map(|stager| stager.within(may_hold));
        }
    }

    /// Notes the work since the last call, and returns how long it took.
    fn noted(&mut self) -> Duration {
        let decode = std::mem::take(&mut self.looked);
        if decode > Duration::ZERO {
            self.call.stage("decode", || decode);
        }
        decode
    }

    fn stager(&mut self) -> &mut Stager {
        self.stager.as_mut().expect("it is back after each step")
    }

    /// Makes the writer, once it is known what the stack is.
    async fn begin(&mut self, found: &mpsc::Sender<Found>) -> Result<(), InferError> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        let mut schema = self.stager().schema().map_err(InferError::BadRequest)?;
        schema.first_frame = self.first_frame;
        schema.notes.push(("served_as".into(), format!("{} {}", self.model.name, self.model.version)));
        let writer = Writer::new(self.format, &schema, &self.options).map_err(InferError::BadRequest)?;
        tell(found, Found::Begin(Box::new(writer))).await
    }

    /// Queues a chunk that took `waited` to be cut, once few enough are in flight.
    async fn queue(
        &mut self,
        chunk: Chunk,
        waited: Duration,
        found: &mpsc::Sender<Found>,
    ) -> Result<(), InferError> {
        self.begin(found).await?;
        let room = found.reserve().await.map_err(|_| InferError::Cancelled)?;
        let Chunk { inputs, items, setting, origins } = chunk;
        let decode = self.noted();
        let call = self.call.again().sooner_by(waited);
        let (tally, ticket) = loop {
            let tally = Arc::new(Tally::of(&self.model));
            match call.push(&self.front, &tally, inputs.clone(), items, Some(setting.clone())) {
                Err(InferError::Full { .. }) if !call.is_late() => tally.again(),
                pushed => break (tally, pushed?),
            }
            self.front.queue.room().await;
        };
        let (front, queued) = (Arc::clone(&self.front), Queued::new(call, Arc::clone(&tally), ticket));
        let fitting = Box::pin(async move { queued.answer(&front).await });
        room.send(Found::Chunk(Pending { fitting, tally, origins, setting, decode }));
        Ok(())
    }
}

/// Chunks that were cut and are not in the queue yet.
struct Cut {
    chunks: Vec<Chunk>,
    /// Bytes of all chunks.
    bytes: usize,
    /// What is set aside for them. The stager itself charges for one chunk.
    held: Option<Beside>,
}

impl Cut {
    /// Cuts as many chunks as are handed over at once, or as there is room for.
    fn fill(&mut self, stager: &mut Stager, hurry: bool) -> Result<Step, InferError> {
        loop {
            match stager.step(hurry)? {
                Step::Chunk(chunk) => {
                    self.bytes += chunk.bytes();
                    self.chunks.push(chunk);
                }
                step => return Ok(step),
            }
            let enough = self.chunks.len() == CHUNKS_AT_ONCE || self.bytes >= CUT_BYTES_AT_ONCE;
            // Charged before another chunk is cut.
            if enough || self.held.as_mut().is_some_and(|held| !held.set(self.bytes as u64)) {
                return Ok(Step::Busy);
            }
        }
    }
}

async fn tell(found: &mpsc::Sender<Found>, what: Found) -> Result<(), InferError> {
    found.send(what).await.map_err(|_| InferError::Cancelled)
}

/// What a stager is fed before its next step.
#[derive(Default)]
struct Fed {
    pieces: Vec<Bytes>,
    /// There is no more.
    ended: bool,
}

impl Fed {
    fn to(self, stager: &mut Stager) -> Result<(), InferError> {
        self.pieces.into_iter().try_for_each(|bytes| stager.push(bytes))?;
        if self.ended {
            stager.finish();
        }
        Ok(())
    }
}

/// Bytes on their way to the stager.
struct Supply {
    posted: Posted,
    waiting: VecDeque<Bytes>,
    /// Bytes of all that waits.
    bytes: usize,
    /// With so many bytes waiting, no more are taken; also the most that is handed out at once.
    bytes_max: usize,
    /// Looks so far at what was handed out last.
    looks: usize,
    /// What is set aside for bytes beyond `bytes_max`.
    held: Option<Beside>,
    ended: bool,
    /// Why no more will come.
    failed: Option<InferError>,
}

impl Supply {
    fn new(posted: Posted, bytes_max: usize, held: Option<Beside>) -> Supply {
        let waiting = VecDeque::new();
        Supply { posted, waiting, bytes: 0, bytes_max, looks: 0, held, ended: false, failed: None }
    }

    /// Fails once the client has gone.
    fn is_attended(&self) -> Result<(), InferError> {
        if self.failed == Some(InferError::Cancelled) { Err(InferError::Cancelled) } else { Ok(()) }
    }

    /// Whether more may be taken from the connection.
    fn has_room(&mut self) -> bool {
        let ahead = match self.posted {
            Posted::Stream(_) => self.looks.saturating_sub(LOOKS_FREE).saturating_mul(AHEAD_STEP_BYTES),
            Posted::File(_) => 0,
        };
        self.bytes < self.bytes_max.saturating_add(ahead.min(AHEAD_BYTES_MAX)) && self.set_aside()
    }

    /// Sets aside what waits beyond `bytes_max`, or gives it back. Returns whether there was room.
    fn set_aside(&mut self) -> bool {
        let beyond = self.bytes.saturating_sub(self.bytes_max);
        self.held.as_mut().is_none_or(|held| held.set(beyond as u64))
    }

    /// Takes what comes while other work is done, up to a bound.
    async fn gather_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        self.looks += 1;
        loop {
            let wanted = !self.ended && self.failed.is_none() && self.has_room();
            tokio::select! {
                biased;
                done = &mut work => return done,
                next = next(&mut self.posted, self.bytes_max), if wanted => self.take(next),
            }
        }
    }

    /// Hands out what has come, and tells whether it was the last. Waits only if nothing has come; with `briefly`, not for long, and gives
    /// `None` if still nothing has.
    async fn more(&mut self, briefly: bool) -> Result<Option<Fed>, InferError> {
        if self.waiting.is_empty() {
            if self.failed.is_some() && briefly {
                return Ok(None); // first what is there
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if !self.ended {
                let next = next(&mut self.posted, self.bytes_max);
                let next = if briefly {
                    match tokio::time::timeout(PATIENCE, next).await {
                        Ok(next) => next,
                        Err(_) => return Ok(None),
                    }
                } else {
                    next.await
                };
                self.take(next);
            }
            // Also takes what is there already.
            self.gather_while(std::future::ready(())).await;
        }
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while bytes < self.bytes_max
            && let Some(piece) = self.waiting.pop_front()
        {
            bytes += piece.len();
            pieces.push(piece);
        }
        (self.bytes, self.looks) = (self.bytes - bytes, 0);
        self.set_aside();
        Ok(Some(Fed { pieces, ended: self.ended && self.waiting.is_empty() }))
    }

    fn take(&mut self, next: Result<Option<Bytes>, InferError>) {
        match next {
            Ok(Some(bytes)) => {
                self.bytes += bytes.len();
                self.waiting.push_back(bytes);
            }
            Ok(None) => self.ended = true,
            Err(error) => self.failed = Some(error),
        }
    }
}

/// The next bytes; of a file, at most `at_most`. Nothing is lost if the future is dropped before they are there.
async fn next(posted: &mut Posted, at_most: usize) -> Result<Option<Bytes>, InferError> {
    match posted {
        Posted::Stream(reader) => reader.next().await,
        Posted::File(file) if file.is_empty() => Ok(None),
        Posted::File(file) => Ok(Some(file.split_to(file.len().min(at_most)))),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::stack_options, *};
    use crate::{
        config::Config,
        http::{
            admission::{Admission, AdmissionLimits},
            testing::{front, model},
        },
        image::stack::{Format as Stack, Raw, SampleType},
        tasks::localize::{Holds, Settings},
    };
    use axum::http::HeaderMap;
    use futures_util::poll;

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_thread_counts_against_the_deadline_of_a_stack() {
        let front = front(&[]);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = Box::pin(
            front.decode.run(crate::http::decode::Step::Request(0), move || released.recv().is_ok()),
        );
        assert!(poll!(&mut other).is_pending());
        let model = model(Duration::from_secs(2));
        let call = Call::of(&HeaderMap::new(), &model, Duration::from_secs(60)).expect("no headers");
        let query = "dtype=u16&shape=64,64";
        let asked = Asked::of(query, &HeaderMap::new(), Settings::default()).expect("it can be asked");
        let finding = Finding::new(Arc::clone(&front), model, call, asked);
        let (found, _coming) = mpsc::channel(4);
        let told = finding.run(Posted::File(vec![0; 2 * 64 * 64].into()), 1 << 20, found);
        let told =
            tokio::time::timeout(Duration::from_secs(3600), told).await.expect("it is not waited for ever");
        assert_eq!(told, Err(InferError::Late("no answer within the deadline of 2000 ms".into())));
        release.send(()).expect("it waits");
        assert_eq!(other.await, Ok(true));
    }

    /// Looks many times at the first of 6 MiB, after which the client has gone. Returns how many looks there were before that was seen, and
    /// how many bytes waited then.
    async fn looks_before_the_end(bytes_in_flight_max: u64, looks_max: usize) -> (usize, usize) {
        const PIECE: usize = 16 << 10;
        let gone = Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let pieces = (0..6 * (1 << 20) / PIECE).map(|_| Ok(Bytes::from_static(&[0; PIECE]))).chain([gone]);
        let body = axum::body::Body::from_stream(futures_util::stream::iter(pieces));
        let reader = body::Reader::new(body, front(&[]).limits.stack_body);
        let admission = Admission::new(AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max });
        let permit = admission.admit().expect("it is the first");
        let mut supply = Supply::new(Posted::Stream(reader), 1 << 20, Some(permit.nothing_beside()));
        let mut looks = 0;
        while looks < looks_max && supply.is_attended().is_ok() {
            looks += 1;
            // Lasts long enough for much to be taken.
            let mut polls = 0;
            let look = std::future::poll_fn(|context| {
                polls += 1;
                context.waker().wake_by_ref();
                if polls > 500 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            });
            supply.gather_while(look).await;
        }
        let waits = supply.bytes;
        // It is handed out as it would have been.
        while let Ok(Some(fed)) = supply.more(false).await {
            let bytes: usize = fed.pieces.iter().map(Bytes::len).sum();
            assert!(bytes <= (1 << 20) && !fed.ended, "{bytes}");
        }
        assert_eq!(admission.in_flight().bytes, 0);
        (looks, waits)
    }

    #[tokio::test]
    async fn that_a_caller_has_gone_is_seen_while_what_he_sent_is_looked_at() {
        const MIB: usize = 1 << 20;
        assert_eq!(looks_before_the_end(1 << 30, 10).await, (10, MIB), "few looks take no more");
        assert_eq!(looks_before_the_end(1 << 30, 1000).await, (LOOKS_FREE + 81, 6 * MIB));
        let (looks, waits) = looks_before_the_end(100, 1000).await;
        assert!(looks == 1000 && waits <= MIB + (16 << 10), "{waits} bytes without room for them");
    }

    #[test]
    fn chunks_are_charged_before_they_wait_and_no_more_are_cut_than_there_is_room_for() {
        const SIDE: usize = 512;
        let lit = |at: usize| (at / SIDE % 4, at % SIDE % 4) == (2, 2);
        let frame: Vec<u16> = (0..SIDE * SIDE).map(|at| if lit(at) { 6000 } else { 5 }).collect();
        let fill = |bytes_in_flight_max: u64| {
            let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max };
            let admission = Admission::new(limits);
            let permit = admission.admit().expect("it is the first");
            let mut settings = Settings::default();
            for (key, value) in [
                ("box_px", "11"),
                ("sigma_px", "0.3"),
                ("radius_px", "1"),
                ("noise_min", "1"),
                ("spots_max", "65536"),
            ] {
                settings.set(key, value).expect("a setting");
            }
            let raw = Raw { width: SIDE as u32, height: SIDE as u32, sample: SampleType::U16, frames: None };
            let options = stack_options(&Config::default());
            let stager = Stager::new(settings, Holds::Frames, Some(Stack::Raw(raw)), options);
            let [frames, beside] = [(); 2].map(|()| share::of_work(Some(&permit)));
            let mut stager = stager.charging(frames, beside);
            for _ in 0..4 {
                stager.push(bytemuck::cast_slice(&frame).to_vec().into()).expect("memory");
            }
            let mut cut = Cut { chunks: Vec::new(), bytes: 0, held: Some(permit.nothing_beside()) };
            let step = cut.fill(&mut stager, false).expect("there is room");
            assert!(matches!(step, Step::Busy), "there is more");
            let charged = admission.in_flight().bytes;
            // What they were copied from is there beside them.
            let largest = cut.chunks.iter().map(Chunk::bytes).max().expect("one at least");
            assert!(charged as usize > cut.bytes + largest, "{charged} of {} and {largest}", cut.bytes);
            (cut.chunks.len(), charged)
        };
        let (chunks, charged) = fill(1 << 30);
        assert_eq!(chunks, 2, "of 2.6 MB each");
        assert_eq!(fill(charged - 1).0, 1);
    }
}
