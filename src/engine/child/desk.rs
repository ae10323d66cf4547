//! Sends a child's answers: text and tensors are written to the child's part of the region, and keep their memory until the
//! parent has read them.

use super::{
    link::{Kind, Link, Message},
    process::leave,
    wire::{Answer, Copies, Standing, parts},
};
use crate::engine::{
    EngineError, Tensor,
    staging::{
        arena::Arena,
        region::{Part, Region},
    },
};
use parking_lot::Mutex;
use std::{collections::HashMap, ops::Range};

/// Longer error messages are cut: they are for people.
const WORDS_MAX: usize = 2000;

/// Sends answers to the parent, for all threads of a child.
pub(super) struct Desk {
    link: Link,
    region: Region,
    results: Arena,
    /// Answers that the parent has not read yet, by id: the part with the text and copies, and outputs that lie in the region.
    out: Mutex<HashMap<u64, (Part, Vec<Tensor>)>>,
}

impl Desk {
    /// Answers are allocated from the range `results` of the region.
    pub(super) fn new(link: Link, region: Region, results: Range<usize>) -> Desk {
        Desk { link, region, results: Arena::new(results), out: Mutex::default() }
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// The parent has read the answer to `id`: frees its memory.
    pub(super) fn taken(&self, id: u64) {
        let read = self.out.lock().remove(&id);
        drop(read);
    }

    /// Answers without tensors. After a fault of the device, this is the last answer.
    pub(super) fn answer(&self, id: u64, answer: Result<Answer, EngineError>) {
        let answer = answer.map_err(shortened);
        self.send(id, &answer, &Copies::default(), Vec::new());
        if let Err(EngineError::Device(_)) = answer {
            leave();
        }
    }

    /// Answers with the outputs of a batch. Outputs that lie in the region stay where they are until the parent has read them; the
    /// others are copied there.
    pub(super) fn land(&self, id: u64, landed: Result<Vec<Tensor>, EngineError>, standing: Standing) {
        match landed {
            Ok(outputs) => {
                let (copies, told) = Copies::of(outputs.iter().map(parts), |data| self.region.place(data));
                let held = outputs.clone();
                self.send(id, &Ok(Answer::Landed { outputs: told, standing }), &copies, held);
            }
            Err(error) => self.answer(id, Err(error)),
        }
    }

    /// Waits while the memory is full of answers that the parent has yet to read.
    fn send(&self, id: u64, answer: &Result<Answer, EngineError>, copies: &Copies<'_>, held: Vec<Tensor>) {
        let words = serde_json::to_vec(answer).expect("answers are plain data");
        let all = copies.bytes() + words.len();
        let lent = self.results.take_waiting(all).map(|span| self.region.part(span));
        let (mut part, sheet) = match Region::or_sheet(lent, all) {
            Ok(found) => found,
            Err(error) => {
                let text =
                    format!("cannot share results of {} bytes with the server: {error}", copies.bytes());
                let refused = Err(EngineError::OutOfMemory(text));
                return self.send(id, &refused, &Copies::default(), Vec::new());
            }
        };
        copies.write(&words, &mut part);
        let (offset, bytes) = ((part.offset() + copies.bytes()) as u64, words.len() as u64);
        self.out.lock().insert(id, (part, held));
        let message = Message { kind: Kind::Answer, id, offset, bytes };
        if let Err(error) = self.link.send_with(&message, sheet.as_ref().map(Region::file)) {
            // The reading thread sees that the parent is gone, and ends the process.
            tracing::debug!(%error, "the parent does not listen any more");
        }
    }
}

fn shortened(error: EngineError) -> EngineError {
    let short = |text: String| text.chars().take(WORDS_MAX).collect();
    match error {
        EngineError::Input(text) => EngineError::Input(short(text)),
        EngineError::OutOfMemory(text) => EngineError::OutOfMemory(short(text)),
        EngineError::Passing(text) => EngineError::Passing(short(text)),
        EngineError::Device(text) => EngineError::Device(short(text)),
    }
}
