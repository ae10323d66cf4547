//! The parent's proxy for an engine that runs in a child process. Workers hold it in place of the engine.

use super::{
    parent::{Asks, Child, Held, unexpected},
    recipe::Recipe,
    ticket::{Seats, Ticket},
    wire::{Answer, Ask, CAMERAS_MAX, Copies, Eye, Fitted, Standing, parts},
};
use crate::engine::{
    Airborne, DataType, Ends, Engine, EngineError, Flight, Habits, Setting, Signature, Tensor,
    kernels::Camera, staging::Memory,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// An engine in a child.
#[derive(Debug)]
pub struct ChildEngine {
    child: Arc<Child>,
    number: u64,
    signature: Signature,
    depth: usize,
    seats: Seats,
    standing: Arc<Mutex<Standing>>,
    /// The cameras with maps that the child keeps, with their ids, the newest last.
    cameras: Vec<(Arc<Camera>, u64)>,
}

impl Child {
    /// Has the child create an engine.
    ///
    /// # Errors
    /// Why the child cannot create it.
    pub fn load(self: &Arc<Child>, recipe: &Recipe) -> Result<ChildEngine, EngineError> {
        let number = self.asks.number();
        let ask = Ask::Load { engine: number, recipe: recipe.clone() };
        let loaded = self.asks.ask(&ask, &Copies::default(), Held::default()).and_then(Ticket::wait);
        match loaded?.answer {
            Answer::Loaded { signature, depth, standing } => Ok(ChildEngine {
                child: Arc::clone(self),
                number,
                signature,
                depth,
                seats: Seats::new(depth),
                standing: Arc::new(Mutex::new(standing)),
                cameras: Vec::new(),
            }),
            other => Err(unexpected(&other)),
        }
    }
}

impl ChildEngine {
    fn asks(&self) -> &Asks {
        &self.child.asks
    }

    /// Starts a batch. Inputs that lie in the region are not copied.
    fn begin(
        &mut self,
        inputs: &[Tensor],
        setting: Option<&Setting>,
        reduced: bool,
    ) -> Result<Flight, EngineError> {
        let seat = self.seats.take();
        let setting = match setting {
            Some(setting) => Some(Fitted::of(setting, self.eye(setting.camera())?)),
            None => None,
        };
        // These clones keep the inputs' memory alive.
        let held = Held { inputs: inputs.to_vec(), seat: Some(seat) };
        let (copies, inputs) = Copies::of(inputs.iter().map(parts), |data| self.asks().region.place(data));
        let ask = Ask::Start { engine: self.number, inputs, setting, reduced };
        let ticket = self.asks().ask(&ask, &copies, held)?;
        Ok(Flight::Airborne(Box::new(Away { ticket, standing: Arc::clone(&self.standing) })))
    }

    fn let_go(&self, forgets: bool) {
        let ask = Ask::Rest { engine: self.number, forgets };
        let rested = self.asks().ask(&ask, &Copies::default(), Held::default());
        match rested.and_then(Ticket::wait).map(|reply| reply.answer) {
            Ok(Answer::Rested(standing)) => *self.standing.lock() = standing,
            Ok(other) => tracing::warn!(error = %unexpected(&other), "an idle engine keeps its memory"),
            Err(error) => tracing::warn!(%error, "an idle engine keeps its memory"),
        }
    }

    /// How to refer to a camera in messages to the child. Its maps are copied there once.
    fn eye(&mut self, camera: &Arc<Camera>) -> Result<Eye, EngineError> {
        let (Some(maps), Some((height, width))) = (camera.map_values(), camera.sensor()) else {
            return Ok(Eye::uniform(camera));
        };
        if let Some((_, id)) = self.cameras.iter().find(|(known, _)| Arc::ptr_eq(known, camera)) {
            return Ok(Eye::Known(*id));
        }
        let id = self.asks().number();
        let shape = [height, width];
        let maps = maps.map(|map| (DataType::Fp32, &shape[..], bytemuck::cast_slice(map)));
        let (copies, maps) = Copies::of(maps.into_iter(), |_| None);
        // The child handles later asks after this one, so there is no need to wait for the answer.
        self.asks().ask(
            &Ask::Camera { engine: self.number, camera: id, height, width, maps },
            &copies,
            Held::default(),
        )?;
        if self.cameras.len() == CAMERAS_MAX {
            self.cameras.remove(0);
        }
        self.cameras.push((Arc::clone(camera), id));
        Ok(Eye::Known(id))
    }
}

impl Engine for ChildEngine {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn equip(&mut self, ends: &Ends) -> Result<(), EngineError> {
        let ask = Ask::Equip { engine: self.number, ends: ends.clone() };
        match self.asks().ask(&ask, &Copies::default(), Held::default()).and_then(Ticket::wait)?.answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn start(&mut self, inputs: Vec<Tensor>, setting: Option<&Setting>) -> Result<Flight, EngineError> {
        self.begin(&inputs, setting, false)
    }

    fn start_reduced(&mut self, inputs: Vec<Tensor>) -> Result<Flight, EngineError> {
        self.begin(&inputs, None, true)
    }

    fn memory(&self) -> Memory {
        Memory::Shared(self.child.asks.region.clone())
    }

    fn device_bytes(&self) -> u64 {
        self.standing.lock().device_bytes
    }

    fn habits(&self) -> Habits {
        self.standing.lock().habits
    }

    fn rest(&mut self) {
        self.let_go(false);
    }

    fn forget(&mut self) {
        self.let_go(true);
    }
}

impl Drop for ChildEngine {
    fn drop(&mut self) {
        let unload = Ask::Unload { engine: self.number };
        let unloaded = self.asks().ask(&unload, &Copies::default(), Held::default()).and_then(Ticket::wait);
        if let Err(error) = unloaded {
            // The process is gone, and the engine with it.
            tracing::debug!(%error, "an engine was not unloaded");
        }
    }
}

/// A batch that a child runs. Its inputs are held until the child has answered, even if nobody waits for the answer any more.
struct Away {
    ticket: Ticket,
    standing: Arc<Mutex<Standing>>,
}

impl Airborne for Away {
    fn land(self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
        let reply = self.ticket.wait()?;
        match reply.answer {
            Answer::Landed { standing, .. } => {
                *self.standing.lock() = standing;
                Ok(reply.outputs)
            }
            other => Err(unexpected(&other)),
        }
    }
}
