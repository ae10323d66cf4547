//! Forward passes, with zeros and with what the model's author asks for: a model is served when one has worked at every batch size on its device, which also allocates
//! what that size needs, and tells what it holds.

use super::{
    device::Refusal,
    health::Health,
    plan::{Buffers, Footprint},
};
use crate::{
    engine::{DataType, Dim, Engine, EngineError, Signature, Tensor, TensorView, child::Executor},
    models::{Model, Source},
    tasks::localize::Settings,
};
use std::time::{Duration, Instant};

/// What the forward passes told.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    /// The last pass at the smallest size, everything being warm.
    pub(super) canary: Duration,
    /// Memory on a device of its own.
    pub(super) footprint: Option<Footprint>,
}

/// Runs that a model's author asks for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    name: String,
    runs: usize,
    inputs: Vec<Tensor>,
}

impl Asked {
    /// All of a model.
    ///
    /// # Errors
    /// Files that cannot be read, or do not fit the model.
    pub(super) fn of(source: &Source, model: &Model) -> Result<Vec<Asked>, String> {
        let asked = source.manifest.warmups.iter().map(|warmup| {
            let inputs = warmup.tensors(model, &source.folder)?;
            Ok(Asked { name: warmup.name.clone(), runs: warmup.runs, inputs })
        });
        asked.collect()
    }

    /// Data may be what it likes: it is copied to where any type can be read.
    fn run(&self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let aligned: Vec<Tensor> = self.inputs.iter().map(|tensor| tensor.view().to_tensor()).collect();
        let views: Vec<TensorView<'_>> = aligned.iter().map(Tensor::view).collect();
        for _ in 0..self.runs {
            let ran = engine.run(&views, None);
            ran.map_err(|error| failed(&format!("warm-up {:?}", self.name), error))?;
        }
        Ok(())
    }
}

/// Runs every engine at every batch size, and as its author asks.
///
/// # Errors
/// What failed at which size.
pub(super) fn prove(
    engines: &mut [Box<dyn Engine + Send>],
    model: &Model,
    asked: &[Asked],
    gpu: Option<(&Executor, &Health)>,
) -> Result<Proof, Refusal> {
    let busy = || gpu.map(|(_, health)| health.busy());
    let noted = |error: EngineError| {
        if let Some((_, health)) = gpu {
            health.note(&error);
        }
        Refusal::from(error)
    };
    let gpu_memory = |gpu: &Executor| {
        let _busy = busy();
        gpu.memory().map_err(noted)
    };
    let mut footprint: Option<Footprint> = None;
    let mut canary = Duration::ZERO;
    let instances = engines.len() as u64;
    for engine in engines {
        let equipped = {
            let _busy = busy();
            engine.equip(&model.ends)
        };
        equipped.map_err(noted)?;
        let weights = engine.device_bytes();
        let mut buffers = Vec::new();
        for &size in &model.rules.sizes {
            // As many as may be on their way have memory of their own.
            for _ in 0..engine.depth() {
                let _busy = busy();
                forward(&mut **engine, model, size).map_err(noted)?;
            }
            let bytes = engine.device_bytes().saturating_sub(weights);
            buffers.push(Buffers { items: size, bytes, staging: engine.staging_bytes() });
        }
        let held = engine.device_bytes();
        // Elsewhere than on a GPU, frames are looked at before.
        if let (Some(fit), Some(_)) = (&model.fit, gpu) {
            for _ in 0..engine.depth() {
                let _busy = busy();
                look(&mut **engine, fit).map_err(noted)?;
            }
        }
        let frames = engine.device_bytes().saturating_sub(held);
        for asked in asked {
            let _busy = busy();
            asked.run(&mut **engine).map_err(noted)?;
        }
        let smallest = model.rules.sizes.first().copied().unwrap_or(1);
        let _busy = busy();
        canary = forward(&mut **engine, model, smallest).map_err(noted)?;
        if let (Some((gpu, _)), None) = (gpu, &footprint) {
            let info = gpu_memory(gpu)?;
            let (free, total) = (info.free, info.total);
            footprint = Some(Footprint { instances, weights, buffers, frames, free, total });
        }
    }
    if let (Some((gpu, _)), Some(footprint)) = (gpu, &mut footprint) {
        // Growing left free memory behind, which is not the driver's to keep.
        let trimmed = {
            let _busy = busy();
            gpu.trim()
        };
        trimmed.map_err(noted)?;
        footprint.free = gpu_memory(gpu)?.free;
    }
    Ok(Proof { canary, footprint })
}

/// One forward pass with zeros at a batch size: allocates what that size needs, and proves that the model runs.
fn forward(engine: &mut dyn Engine, model: &Model, size: usize) -> Result<Duration, EngineError> {
    let setting = model.fit.clone().map(|mut fit| fit.setting()).transpose().map_err(EngineError::Input)?;
    let shapes = warm_shapes(&model.signature, model, size);
    let inputs: Vec<Tensor> =
        shapes.into_iter().map(|(datatype, shape)| Tensor::zeros(datatype, &shape)).collect();
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    let started = Instant::now();
    match engine.run(&views, setting.as_ref()) {
        Ok(_) => Ok(started.elapsed()),
        // With free extents we can only guess a shape; the model may rightly refuse the guess.
        Err(error) if guessed(&model.signature, model) => {
            tracing::warn!(model = &*model.name, size, %error, "no forward pass at load: free shapes, and a guess was refused");
            Ok(started.elapsed())
        }
        Err(error) => Err(failed(&format!("a forward pass with zeros at batch size {size}"), error)),
    }
}

/// One dark frame: has a fitter take the memory that whole frames need, however many, and proves that it looks for spots.
fn look(engine: &mut dyn Engine, fit: &Settings) -> Result<(), EngineError> {
    let mut fit = fit.clone();
    let setting = fit.setting().map_err(EngineError::Input)?;
    let (height, width) = setting.camera().sensor().unwrap_or((GUESS, GUESS));
    let Ok(finder) = fit.finder(setting.camera(), width, height) else {
        // Whoever sends frames is told why.
        return Ok(());
    };
    let options = *finder.options();
    let setting = setting.finding(options);
    let (frame, corner) = (vec![0_f32; width * height], [0_u32; 2]);
    let views = [
        TensorView {
            datatype: DataType::Fp32,
            shape: vec![1, height, width],
            data: bytemuck::cast_slice(&frame),
        },
        TensorView { datatype: DataType::Uint32, shape: vec![1, 2], data: bytemuck::cast_slice(&corner) },
    ];
    engine
        .run(&views, Some(&setting))
        .map_err(|error| failed("the search for spots in a dark frame", error))?;
    Ok(())
}

/// The same error, with what failed.
fn failed(what: &str, error: EngineError) -> EngineError {
    let with = |reason: String| format!("{what} failed: {reason}");
    match error {
        EngineError::Input(reason) => EngineError::Input(with(reason)),
        EngineError::OutOfMemory(reason) => EngineError::OutOfMemory(with(reason)),
        EngineError::Device(reason) => EngineError::Device(with(reason)),
    }
}

/// Input types and shapes for a forward pass: the pixels of an image, [`GUESS`] for extents that nobody fixed.
fn warm_shapes(signature: &Signature, model: &Model, size: usize) -> Vec<(DataType, Vec<usize>)> {
    signature
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let mut datatype = input.datatype;
            let fixed = |dim: &Dim| if let Dim::Fixed(n) = dim { *n } else { GUESS };
            let mut shape: Vec<usize> = input.shape.iter().map(fixed).collect();
            if let (0, Some(image)) = (index, &model.image) {
                let [width, height] = image.size().unwrap_or([GUESS as u32; 2]);
                shape = image.item_shape(width, height);
                if let Some(pixels) = &image.pixels {
                    (datatype, shape) = (DataType::Uint8, pixels.shape(width, height));
                }
            }
            if let (0, Some(fit)) = (index, &model.fit) {
                shape = vec![1, fit.box_px(), fit.box_px()];
            }
            if !model.rules.whole {
                shape[0] = size;
            }
            (datatype, shape)
        })
        .collect()
}

/// An extent that most networks which take any extent will take.
const GUESS: usize = 64;

/// Whether [`warm_shapes`] had to guess an extent.
fn guessed(signature: &Signature, model: &Model) -> bool {
    if model.fit.is_some() {
        return false;
    }
    let own_size = model.image.as_ref().is_some_and(|image| image.size().is_none());
    let inputs = signature.inputs.iter().skip(usize::from(model.image.is_some()));
    let first = usize::from(!model.rules.whole);
    own_size || inputs.flat_map(|input| input.shape.iter().skip(first)).any(|dim| *dim == Dim::Free)
}
