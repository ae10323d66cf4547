//! One stack from its first byte to the last of its localizations: reading, looking for spots, fitting and writing overlap,
//! each with a bound on how far it may be ahead.

use super::{
    asked::Asked,
    outgoing::{Event, Outgoing},
};
use crate::{
    batch,
    engine::Setting,
    error::InferError,
    http::{Front, body, call::Call},
    models::Model,
    tasks::localize::{
        Format, Options, Writer,
        stage::{Chunk, Origins, Stager, Step},
    },
};
use bytes::Bytes;
use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

/// Chunks that may be fitted at once.
const CHUNKS: usize = 4;
/// Bytes that are taken from the connection before they are looked at, unless it has no more at the moment: handing them to
/// another thread costs as much as 100 kB of them.
const BYTES: usize = 4 << 20;
/// How long to wait for room in the queue before asking again.
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// What was posted.
pub(super) enum Posted {
    /// A body to be read.
    Stream(body::Reader),
    /// A file that was taken out of a body.
    File(Bytes),
}

type Fitting = Pin<Box<dyn Future<Output = Result<batch::Answer, InferError>> + Send>>;

/// A chunk in the queue.
struct Pending {
    fitting: Fitting,
    origins: Origins,
    setting: Setting,
}

/// The work on one stack.
pub(super) struct Drive {
    front: Arc<Front>,
    model: Arc<Model>,
    call: Call,
    format: Format,
    options: Options,
    /// On the pool while it works.
    stager: Option<Stager>,
    pending: VecDeque<Pending>,
    /// From the first chunk on.
    writer: Option<Writer>,
    begun: bool,
}

impl Drive {
    pub(super) fn new(front: Arc<Front>, model: Arc<Model>, call: Call, asked: Asked) -> Drive {
        let stager = Stager::new(asked.settings, asked.holds, asked.stack, front.limits.stack.clone());
        let options = Options { name: model.name.to_string(), ..asked.options };
        Drive {
            front,
            model,
            call,
            format: asked.format,
            options,
            stager: Some(stager),
            pending: VecDeque::new(),
            writer: None,
            begun: false,
        }
    }

    /// Does all of it. Ends early, without a word, when nobody listens any more.
    pub(super) async fn run(mut self, mut posted: Posted, mut reply: Outgoing) {
        let mut result = self.read(&mut posted, &mut reply).await;
        // What was found before an error is told before it.
        while let Some(pending) = self.pending.pop_front() {
            let settled = self.settle(pending, &mut reply).await;
            result = result.and(settled);
        }
        if let Err(error) = async {
            result?;
            self.end(&mut reply).await
        }
        .await
        {
            self.fail(error, &mut reply).await;
        }
    }

    /// Reads the stack to its end, and queues what is found.
    async fn read(&mut self, posted: &mut Posted, reply: &mut Outgoing) -> Result<(), InferError> {
        loop {
            let mut stager = self.stager.take().expect("it is back after each step");
            let (stager, chunks, step) = self
                .front
                .decode
                .run(move || {
                    let mut chunks = Vec::new();
                    let step = loop {
                        match stager.step() {
                            Ok(Step::Chunk(chunk)) if chunks.len() + 1 < CHUNKS => chunks.push(chunk),
                            step => break step,
                        }
                    };
                    (stager, chunks, step)
                })
                .await?;
            self.stager = Some(stager);
            for chunk in chunks {
                self.queue(chunk, reply).await?;
            }
            match step? {
                Step::Chunk(chunk) => self.queue(chunk, reply).await?,
                Step::Busy => {}
                Step::Wait => self.feed(posted, reply).await?,
                Step::End => return Ok(()),
            }
        }
    }

    fn stager(&mut self) -> &mut Stager {
        self.stager.as_mut().expect("it is back after each step")
    }

    /// Gives the stager more bytes, or says that there are none. Answers that come meanwhile are written.
    async fn feed(&mut self, posted: &mut Posted, reply: &mut Outgoing) -> Result<(), InferError> {
        let reader = match posted {
            Posted::File(file) if file.is_empty() => {
                self.stager().finish();
                return Ok(());
            }
            Posted::File(file) => {
                let bytes = file.split_to(file.len().min(BYTES));
                return self.stager().push(bytes);
            }
            Posted::Stream(reader) => reader,
        };
        let mut taken = 0;
        while taken < BYTES {
            let next = tokio::select! {
                biased;
                next = reader.next() => next?,
                answer = first(&mut self.pending), if !self.pending.is_empty() => {
                    let pending = self.pending.pop_front().expect("its answer came");
                    self.write(answer?, pending.origins, pending.setting, reply).await?;
                    continue;
                }
                caught_up = reply.catch_up(), if reply.is_behind() => {
                    caught_up?;
                    continue;
                }
                // What has come is worth looking at when no more does.
                () = std::future::ready(()), if taken > 0 => break,
            };
            let Some(bytes) = next else {
                self.stager().finish();
                break;
            };
            taken += bytes.len();
            self.stager().push(bytes)?;
        }
        Ok(())
    }

    /// Queues a chunk, once few enough are there.
    async fn queue(&mut self, chunk: Chunk, reply: &mut Outgoing) -> Result<(), InferError> {
        if self.writer.is_none() {
            self.open()?;
        }
        while self.pending.len() >= CHUNKS {
            let pending = self.pending.pop_front().expect("not empty");
            self.settle(pending, reply).await?;
        }
        let Chunk { inputs, items, setting, origins } = chunk;
        let call = self.call.again();
        let ticket = loop {
            match call.try_push(&self.front, &self.model, inputs.clone(), items, Some(setting.clone())) {
                Err(InferError::Full { .. }) if !call.is_late() => match self.pending.pop_front() {
                    Some(pending) => self.settle(pending, reply).await?,
                    None => tokio::time::sleep(FULL_PAUSE).await,
                },
                pushed => break pushed?,
            }
        };
        let (front, model) = (Arc::clone(&self.front), Arc::clone(&self.model));
        let fitting = Box::pin(async move { call.answer(&front, &model, ticket).await });
        self.pending.push_back(Pending { fitting, origins, setting });
        Ok(())
    }

    async fn settle(&mut self, pending: Pending, reply: &mut Outgoing) -> Result<(), InferError> {
        let answer = pending.fitting.await?;
        self.write(answer, pending.origins, pending.setting, reply).await
    }

    /// Makes the writer: what the stack is must be known.
    fn open(&mut self) -> Result<(), InferError> {
        let mut schema = self.stager().schema().map_err(InferError::BadRequest)?;
        schema.notes.push(("served_as".into(), format!("{} {}", self.model.name, self.model.version)));
        let writer = Writer::new(self.format, &schema, &self.options).map_err(InferError::BadRequest)?;
        self.writer = Some(writer);
        Ok(())
    }

    /// Turns an answer into rows, and sends them.
    async fn write(
        &mut self,
        answer: batch::Answer,
        origins: Origins,
        setting: Setting,
        reply: &mut Outgoing,
    ) -> Result<(), InferError> {
        let mut writer = self.writer.take().expect("made before the first chunk was queued");
        let begin = !self.begun;
        let written = self.front.decode.run(move || {
            let mut out = Vec::new();
            if begin {
                writer.begin(&mut out)?;
            }
            let table = origins.table(&answer.outputs, writer.schema(), &setting)?;
            writer.chunk(&table, &mut out)?;
            Ok::<_, String>((writer, out))
        });
        let (writer, out) = written.await?.map_err(InferError::BadRequest)?;
        let conventions = writer.conventions().to_owned();
        self.writer = Some(writer);
        if begin {
            self.begun = true;
            if self.format.streams() {
                reply.send(Event::Begin(conventions)).await?;
            }
        }
        if out.is_empty() { Ok(()) } else { reply.bytes(&out).await }
    }

    /// The rest of the reply.
    async fn end(&mut self, reply: &mut Outgoing) -> Result<(), InferError> {
        if self.writer.is_none() {
            self.open()?;
        }
        let frames = u32::try_from(self.stager().frames()).ok();
        let mut writer = self.writer.take().expect("made above");
        let begin = !self.begun;
        let conventions = writer.conventions().to_owned();
        let ended = self.front.decode.run(move || {
            let mut out = Vec::new();
            if begin {
                writer.begin(&mut out)?;
            }
            let mut pieces = writer.end(frames)?;
            pieces.insert(0, out.into());
            Ok::<_, String>(pieces)
        });
        let pieces = ended.await?.map_err(InferError::BadRequest)?;
        if begin || !self.format.streams() {
            reply.send(Event::Begin(conventions)).await?;
        }
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            reply.send(Event::Bytes(piece)).await?;
        }
        Ok(())
    }

    /// Says what went wrong: as the reply, or as its last member.
    async fn fail(&mut self, error: InferError, reply: &mut Outgoing) {
        let told = match self.writer.take() {
            Some(writer) if self.begun && self.format.streams() => {
                tracing::info!(%error, "a stack broke off after results had been sent");
                Event::Bytes(writer.error(&error.to_string()).into())
            }
            _ => Event::Failed(error),
        };
        // Nobody listens: nobody is told.
        let _ = reply.send(told).await;
    }
}

/// The answer of the first of some.
async fn first(pending: &mut VecDeque<Pending>) -> Result<batch::Answer, InferError> {
    match pending.front_mut() {
        Some(pending) => (&mut pending.fitting).await,
        None => std::future::pending().await,
    }
}
