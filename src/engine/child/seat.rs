//! One engine in a child, with two threads as a worker has: one creates it, starts its batches in the order in which they came,
//! and drops it; the other waits for the batches that were started.

use super::{
    desk::Desk,
    process::leave,
    recipe::{Place, Recipe},
    wire::{Answer, Ask, CAMERAS_MAX, Fitted, Standing, TensorAt, Words},
};
use crate::engine::{
    Airborne, Engine, EngineError, Flight, Setting, Tensor, kernels::Camera, staging::Region,
};
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

/// A message to an engine's thread: the id of the ask, its text in shared memory, and the parsed ask.
type Told = (u64, Words, Ask);

/// Handle to an engine on its own thread.
pub(super) struct Seated {
    tell: mpsc::Sender<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Seated {
    /// Creates the engine on a thread of its own, which then answers `id`.
    pub(super) fn load(desk: &Arc<Desk>, place: &Place, recipe: Recipe, id: u64) -> io::Result<Seated> {
        let (tell, told) = mpsc::channel();
        let (desk, place) = (Arc::clone(desk), place.clone());
        let thread = std::thread::Builder::new().name("ocelli-engine".into()).spawn(move || {
            // A panic leaves the engine in an unknown state.
            catch_unwind(AssertUnwindSafe(|| Seat::run(&desk, place, &recipe, id, &told)))
                .unwrap_or_else(|_| leave());
        })?;
        Ok(Seated { tell, thread: Some(thread) })
    }

    /// Passes an ask on to the engine; false if the engine is gone.
    pub(super) fn tell(&self, id: u64, words: Words, ask: Ask) -> bool {
        self.tell.send((id, words, ask)).is_ok()
    }

    /// Whether its thread has ended by itself, since the engine could not be created.
    pub(super) fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unloads the engine. Its thread answers `id` by itself, so nobody else has to wait for it.
    pub(super) fn leave(mut self, id: u64, words: Words, unload: Ask) {
        drop(self.thread.take());
        self.tell(id, words, unload);
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The thread ends when its channel is closed.
        self.tell = mpsc::channel().0;
        if thread.join().is_err() {
            tracing::error!("the thread of an engine panicked");
        }
    }
}

/// The engine, on its thread.
struct Seat<'a> {
    desk: &'a Arc<Desk>,
    cameras: Vec<(u64, Arc<Camera>)>,
    /// Waits for started batches; created with the first one.
    landing: Option<Landing>,
    engine: Box<dyn Engine + Send>,
}

impl Seat<'_> {
    fn run(desk: &Arc<Desk>, place: Place, recipe: &Recipe, id: u64, told: &mpsc::Receiver<Told>) {
        let bound = match &place {
            Place::Cpu(_) => Ok(()),
            Place::Gpu(context, _) => context.bind().map_err(EngineError::from),
        };
        let engine = match bound.and_then(|()| recipe.make(&place)) {
            Ok(engine) => engine,
            Err(error) => return desk.answer(id, Err(error)),
        };
        // The engine holds whatever it needs of the place.
        drop(place);
        let (signature, depth, standing) =
            (engine.signature().clone(), engine.depth(), Standing::of(&*engine));
        desk.answer(id, Ok(Answer::Loaded { signature, depth, standing }));
        let mut seat = Seat { desk, cameras: Vec::new(), landing: None, engine };
        while let Ok((id, words, ask)) = told.recv() {
            match ask {
                Ask::Camera { camera, height, width, maps, .. } => {
                    desk.answer(id, seat.camera(&words, camera, [height, width], &maps));
                }
                Ask::Equip { ends, .. } => {
                    desk.answer(id, seat.engine.equip(&ends).map(|()| Answer::Done));
                }
                Ask::Start { inputs, setting, reduced, .. } => {
                    let begun = seat.begin(&words, &inputs, setting.as_ref(), reduced);
                    seat.start(id, begun);
                }
                Ask::Rest { forgets, .. } => {
                    seat.landing = None;
                    match forgets {
                        true => seat.engine.forget(),
                        false => seat.engine.rest(),
                    }
                    desk.answer(id, Ok(Answer::Rested(Standing::of(&*seat.engine))));
                }
                Ask::Unload { .. } => {
                    drop(seat);
                    return desk.answer(id, Ok(Answer::Done));
                }
                other => tracing::error!(?other, "not for an engine"),
            }
        }
    }

    /// Stores a camera. Beyond the limit the oldest is forgotten, as the parent does.
    fn camera(
        &mut self,
        words: &Words,
        id: u64,
        size: [usize; 2],
        maps: &[TensorAt],
    ) -> Result<Answer, EngineError> {
        let pixels = size[0].checked_mul(size[1]);
        let map = |at: &TensorAt| {
            let (region, offset) = words.find(at.place, self.desk.region())?;
            let bytes = region.read(offset, at.bytes)?;
            let values: Vec<f32> =
                bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
            match Some(values.len()) == pixels {
                true => Ok(values),
                false => {
                    Err(format!("a map of {} values for {} x {} pixels", values.len(), size[0], size[1]))
                }
            }
        };
        let maps = maps.iter().map(map).collect::<Result<Vec<_>, String>>().map_err(EngineError::Input)?;
        let maps = <[Vec<f32>; 3]>::try_from(maps);
        let maps =
            maps.map_err(|maps| EngineError::Input(format!("{} maps of a camera, not 3", maps.len())))?;
        if self.cameras.len() == CAMERAS_MAX {
            self.cameras.remove(0);
        }
        self.cameras.push((id, Arc::new(Camera::of_maps(size, maps))));
        Ok(Answer::Done)
    }

    fn start(&mut self, id: u64, begun: Result<Flight, EngineError>) {
        match begun {
            Ok(Flight::Airborne(flight)) => {
                let standing = Standing::of(&*self.engine);
                let landing = self.landing.take().map_or_else(|| Landing::start(self.desk), Ok);
                match landing {
                    Ok(landing) => self
                        .landing
                        .insert(landing)
                        .flights
                        .send((id, flight, standing))
                        .unwrap_or_else(|_| leave()),
                    Err(error) => {
                        let error = EngineError::Device(format!("no thread to land batches on: {error}"));
                        self.desk.answer(id, Err(error));
                    }
                }
            }
            Ok(Flight::Landed(outputs)) => self.desk.land(id, Ok(outputs), Standing::of(&*self.engine)),
            Err(error) => self.desk.answer(id, Err(error)),
        }
    }

    fn begin(
        &mut self,
        words: &Words,
        inputs: &[TensorAt],
        setting: Option<&Fitted>,
        reduced: bool,
    ) -> Result<Flight, EngineError> {
        let inputs = inputs.iter().map(|at| tensor(self.desk.region(), words, at));
        let inputs = inputs.collect::<Result<Vec<Tensor>, String>>().map_err(EngineError::Input)?;
        let setting = setting.map(|fitted| self.setting(fitted)).transpose().map_err(EngineError::Input)?;
        match reduced {
            true => self.engine.start_reduced(inputs),
            false => self.engine.start(inputs, setting.as_ref()),
        }
    }

    fn setting(&self, fitted: &Fitted) -> Result<Setting, String> {
        let camera = fitted.eye.camera().or_else(|id| {
            let known = self.cameras.iter().find(|(known, _)| *known == id);
            known.map(|(_, camera)| Arc::clone(camera)).ok_or_else(|| format!("no camera {id} is known"))
        })?;
        Ok(fitted.setting(camera))
    }
}

/// A tensor where the parent wrote it.
#[allow(unsafe_code, reason = "memory that another process wrote")]
fn tensor(common: &Region, words: &Words, at: &TensorAt) -> Result<Tensor, String> {
    let (region, offset) = words.find(at.place, common)?;
    // SAFETY: the parent does not write it until it has an answer, and by then the engine is done with it.
    let data = unsafe { region.view(offset, at.bytes) }?;
    let tensor = Tensor { datatype: at.datatype, shape: at.shape.clone(), data };
    let elements = tensor.shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
    match tensor.datatype.size() {
        Some(size) if elements.and_then(|elements| elements.checked_mul(size)) != Some(tensor.data.len()) => {
            Err(format!("{} bytes for a tensor of {:?}", tensor.data.len(), tensor.shape))
        }
        _ => Ok(tensor),
    }
}

/// Waits for batches, oldest first, and sends their answers. Dropping it waits for all.
struct Landing {
    flights: mpsc::Sender<(u64, Box<dyn Airborne>, Standing)>,
    thread: Option<JoinHandle<()>>,
}

impl Landing {
    fn start(desk: &Arc<Desk>) -> io::Result<Landing> {
        let (flights, coming) = mpsc::channel::<(u64, Box<dyn Airborne>, Standing)>();
        let desk = Arc::clone(desk);
        let thread = std::thread::Builder::new().name("ocelli-land".into()).spawn(move || {
            for (id, flight, standing) in coming {
                let landed = catch_unwind(AssertUnwindSafe(|| flight.land())).unwrap_or_else(|_| leave());
                desk.land(id, landed, standing);
            }
        })?;
        Ok(Landing { flights, thread: Some(thread) })
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.flights = mpsc::channel().0;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            leave();
        }
    }
}
