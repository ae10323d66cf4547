//! `ocelli predict`: one stack through a fitter, without a server. Frames are read and searched on a thread of their own while
//! those before are fitted.

use super::AppError;
use crate::{
    config::Config,
    engine::{Engine, TensorView, gauss_mle::GaussMle},
    http,
    models::{self, Engine as Runs},
    tasks::localize::{
        Counts, Format, Holds, Options, Schema, Settings, Writer,
        chunk::Chunk,
        options, picasso_metadata, settings,
        stage::{Stager, Step},
    },
};
use bytes::Bytes;
use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::mpsc,
};

/// Chunks that may wait to be fitted.
const CHUNKS_AHEAD: usize = 4;
/// Bytes read at once.
const BYTES: usize = 1 << 20;

/// What to do.
pub struct Predict {
    /// Name of the fitter in the model folder.
    pub model: String,
    /// The stack.
    pub stack: PathBuf,
    /// Where to write to; its extension says the format where `format` does not.
    pub output: PathBuf,
    /// What to write.
    pub format: Option<Format>,
    /// Changes of the model's settings, and of how the output looks.
    pub set: Vec<(String, String)>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Bytes of the stack that were read.
    pub bytes: u64,
    /// Of so many.
    pub bytes_in_all: u64,
    /// Frames that were read.
    pub frames: u64,
    /// Localizations that were fitted.
    pub spots: u64,
}

/// What the reading thread hands over.
enum Found {
    Chunk(Box<Chunk>, Box<Schema>),
    End { frames: u64, schema: Box<Schema> },
}

/// Fits a stack and writes the result; `tell` is told how far it is.
///
/// # Errors
/// What is wrong with the model, the stack or the output. A result that was begun in a format that streams stays, and ends
/// with the error; any other is removed.
pub fn predict(
    config: &Config,
    wanted: &Predict,
    tell: &mut dyn FnMut(Progress),
) -> Result<Counts, AppError> {
    let failed = AppError::Failed;
    let mut settings = settings(config, &wanted.model).map_err(failed)?;
    let format = match wanted.format {
        Some(format) => format,
        None => by_extension(&wanted.output).map_err(failed)?,
    };
    let input = open(&wanted.stack).map_err(failed)?;
    let name = wanted
        .output
        .file_stem()
        .map_or_else(|| "localizations".into(), |s| s.to_string_lossy().into_owned());
    let mut written = Options { name, ..Options::default() };
    let holds = set(&wanted.set, &mut settings, &mut written).map_err(failed)?;
    if format.has_open_columns() {
        written.columns = settings.columns();
    }
    let stager = Stager::new(settings, holds, None, http::stack_options(config));
    let mut engine = GaussMle::new(config.compute_threads).map_err(failed)?;

    let mut output = Output::create(&wanted.output, format).map_err(failed)?;
    let result = std::thread::scope(|scope| {
        let (chunks, coming) = mpsc::sync_channel(CHUNKS_AHEAD);
        let reading = scope.spawn(move || read(stager, input, &chunks));
        let written = output.write(&mut engine, &coming, &written, tell);
        drop(coming);
        let read = reading.join().map_err(|_| "the reading thread panicked".to_owned()).and_then(|read| read);
        // Why reading ended is the cause of what writing lacks.
        read.and(written)
    });
    match result {
        Ok(counts) => Ok(counts),
        Err(why) => {
            output.give_up(&why);
            Err(failed(why))
        }
    }
}

/// Makes the changes that are asked for, by the keys of a request's query. Says what the frames of the stack are.
fn set(
    changes: &[(String, String)],
    settings: &mut Settings,
    options: &mut Options,
) -> Result<Holds, String> {
    let mut holds = Holds::Auto;
    // It says more of what another one says.
    let (ranges, others): (Vec<_>, Vec<_>) = changes.iter().partition(|(key, _)| key == "z_range_um");
    for (key, value) in others.into_iter().chain(ranges) {
        match key.as_str() {
            "input" => {
                holds = Holds::from_name(value)
                    .ok_or_else(|| format!("input is {value:?}, expected auto, frames or rois"))?;
            }
            key if options::KEYS.contains(&key) => options.set(key, value)?,
            key if settings::KEYS.iter().any(|(_, known)| *known == key) => settings.set(key, value)?,
            key => {
                let known = options::KEYS.into_iter().chain(settings::KEYS.map(|(_, key)| key));
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(format!("unknown setting {key:?}; there are input, {known}"));
            }
        }
    }
    Ok(holds)
}

/// The settings of a fitter in the model folder.
fn settings(config: &Config, name: &str) -> Result<Settings, String> {
    let found = models::scan(&config.models)?;
    let of_name: Vec<_> = found.iter().filter(|found| found.name == name).collect();
    let Some(found) = of_name.last() else {
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        return Err(format!(
            "there is no model {name:?} in {}; there are {}",
            config.models.display(),
            names.join(", ")
        ));
    };
    let source = found.source.as_ref().map_err(|reason| format!("model {name:?}: {reason}"))?;
    match &source.manifest.engine {
        Runs::GaussMle(fit) => Ok(fit.settings.clone()),
        Runs::Onnx => Err(format!(
            "model {name:?} does not fit spots: serve it with `ocelli serve`, and post images to /predictions/{name}"
        )),
    }
}

fn by_extension(path: &Path) -> Result<Format, String> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let format = extension.as_deref().and_then(|extension| match extension {
        "jsonl" => Some(Format::Ndjson),
        "h5" => Some(Format::Hdf5),
        "arrow" => Some(Format::Arrow),
        other => Format::ALL.into_iter().find(|format| format.file_extension() == other),
    });
    format.ok_or_else(|| {
        let known = Format::ALL.map(Format::file_extension).join(", ");
        format!(
            "{} does not say by its extension what to write; known are {known}; or give --format",
            path.display()
        )
    })
}

fn open(path: &Path) -> Result<File, String> {
    File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Reads the stack, and hands over what is found in it.
fn read(
    mut stager: Stager,
    mut input: File,
    chunks: &mpsc::SyncSender<(Progress, Found)>,
) -> Result<(), String> {
    let bytes_in_all = input.metadata().map_or(0, |metadata| metadata.len());
    let mut progress = Progress { bytes_in_all, ..Progress::default() };
    loop {
        let step = stager.step(false).map_err(|error| error.to_string())?;
        progress.frames = stager.frames();
        let schema = || Ok::<_, String>(Box::new(stager.schema()?));
        let told = match step {
            Step::Chunk(chunk) => chunks.send((progress, Found::Chunk(Box::new(chunk), schema()?))),
            Step::End => {
                // Whoever does not listen any more has a reason of its own.
                let _ = chunks.send((progress, Found::End { frames: stager.frames(), schema: schema()? }));
                return Ok(());
            }
            Step::Busy => continue,
            Step::Wait => {
                let mut buffer = vec![0; BYTES];
                let count = input.read(&mut buffer).map_err(|error| format!("cannot read on: {error}"))?;
                buffer.truncate(count);
                progress.bytes += count as u64;
                if count == 0 {
                    stager.finish();
                } else {
                    stager.push(Bytes::from(buffer)).map_err(|error| error.to_string())?;
                }
                continue;
            }
        };
        if told.is_err() {
            return Ok(());
        }
    }
}

/// The file that is written.
struct Output {
    path: PathBuf,
    file: File,
    format: Format,
    writer: Option<Writer>,
}

impl Output {
    fn create(path: &Path, format: Format) -> Result<Output, String> {
        let file = File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Output { path: path.to_owned(), file, format, writer: None })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.file.write_all(bytes).map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }

    fn write(
        &mut self,
        engine: &mut GaussMle,
        coming: &mpsc::Receiver<(Progress, Found)>,
        options: &Options,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Counts, String> {
        let mut spots = 0;
        while let Ok((progress, read)) = coming.recv() {
            let mut out = Vec::new();
            let schema = match &read {
                Found::Chunk(_, schema) | Found::End { schema, .. } => schema,
            };
            let mut writer = match self.writer.take() {
                Some(writer) => writer,
                None => {
                    let mut writer = Writer::new(self.format, schema, options)?;
                    writer.begin(&mut out)?;
                    writer
                }
            };
            match read {
                Found::Chunk(chunk, _) => {
                    let Chunk { inputs, items, setting, origins } = *chunk;
                    let views: Vec<TensorView<'_>> = inputs
                        .iter()
                        .map(|input| TensorView {
                            datatype: input.datatype,
                            shape: input.shape.clone(),
                            data: &input.data,
                        })
                        .collect();
                    let outputs = engine.run(&views, Some(&setting)).map_err(|error| error.to_string())?;
                    let table = origins.table(&outputs, writer.schema(), &setting)?;
                    writer.chunk(&table, &mut out)?;
                    spots += items as u64;
                    self.writer = Some(writer);
                    self.put(&out)?;
                    tell(Progress { spots, ..progress });
                }
                Found::End { frames, schema } => {
                    self.put(&out)?;
                    let frames = u32::try_from(frames).ok();
                    self.beside(&schema, frames.unwrap_or(u32::MAX))?;
                    let counts = writer.counts().clone();
                    for piece in writer.end(frames)? {
                        self.put(&piece)?;
                    }
                    tell(Progress { spots, ..progress });
                    return Ok(Counts { frames: frames.unwrap_or(counts.frames), ..counts });
                }
            }
        }
        Err("the stack was not read to its end".to_owned())
    }

    /// Picasso wants a YAML file beside its HDF5.
    fn beside(&self, schema: &Schema, frames: u32) -> Result<(), String> {
        let (Format::Hdf5, Some(size)) = (self.format, schema.frame_size) else { return Ok(()) };
        let path = self.path.with_extension("yaml");
        std::fs::write(&path, picasso_metadata(schema, frames, size))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Ends what was begun with the error, or leaves nothing.
    fn give_up(&mut self, why: &str) {
        match self.writer.take() {
            Some(writer) if self.format.streams() => {
                let _ = self.put(&writer.error(why));
            }
            _ => {
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }
}
