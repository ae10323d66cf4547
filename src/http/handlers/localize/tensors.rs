//! `POST /v2/models/{model}/infer` for a fitter: `rois` or `frames` in, a tensor per column of the results out.
//!
//! Inputs: `rois` `[n, b, b]`, with `corners` `[n, 2]` and `frame` `[n]` beside it where the caller has them, or `frames`
//! `[t, h, w]`; UINT16 or FP32. Parameters of the request, and keys of its query, are those of
//! [`settings`].
//! Positions are in pixels from the centre of the frame's first pixel (of the ROI's, without corners), z in um.

use super::{share, telling::warn_of_left_out};
use crate::{
    batch,
    engine::{
        DataType, Dim, Setting, Signature, Tensor, TensorSpec, gauss_mle::frames::FrameMemory, kernels::SIDE,
        tensor::bytes_of,
    },
    error::{InferError, bad},
    http::{
        Front,
        admission::{Beside, Permit},
        call::{Call, Spent},
        query,
        streamed::Queued,
        tally::Tally,
        wire::{
            Parameter, Parameters,
            reply::OutputParameters,
            request::{InferRequest, Input},
        },
    },
    image::stack::{Format, Options, Raw, SampleType},
    tasks::localize::{
        Columns, Holds, OVER_SPOTS_MAX, Schema, Settings, Table,
        chunk::{Chunk, Origins},
        settings::{self, KEYS},
        stage::{CORNERS_NEEDED, Stager, Step},
    },
    words::{clipped, meant},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Parameters that clients of the protocol send as well. They mean nothing to a fit, or were read before.
const PROTOCOL_KEYS: [&str; 6] =
    ["binary_data_output", "priority", "sequence_end", "sequence_id", "sequence_start", "timeout"];

/// How far out a ROI may lie, px: positions are in single precision, which rounds by up to 0.004 px there.
const CORNER_MAX: u32 = 1 << 16;

/// A fitter's inputs and outputs, for metadata. `corners`, `frame` and `frames` are left out: metadata cannot mark an input as optional.
pub(in crate::http) fn signature(settings: &Settings) -> Signature {
    let spec = |name: String, datatype, axes| TensorSpec { name, datatype, shape: vec![Dim::Free; axes] };
    let outputs = settings.schema(false).map(|schema| {
        columns(Table::new(&schema), &schema).into_iter().map(|(name, tensor)| spec(name, tensor.datatype, 1))
    });
    Signature {
        platform: "ocelli_gauss_mle".into(),
        inputs: vec![spec("rois".into(), DataType::Fp32, 3)],
        outputs: outputs.map(Iterator::collect).unwrap_or_default(),
        defaulted: Vec::new(),
        unshaped: Vec::new(),
        left_out: Vec::new(),
    }
}

/// The columns of a table under their names.
fn columns(table: Table, schema: &Schema) -> Vec<(String, Tensor)> {
    let rows = table.rows();
    let tensor = |datatype, data| Tensor { datatype, shape: vec![rows], data };
    let floats = |column: Vec<f32>| tensor(DataType::Fp32, bytes_of(column));
    let parameters = schema.model.parameters();
    let mut columns = vec![("frame".to_owned(), tensor(DataType::Uint32, bytes_of(table.frame)))];
    for (parameter, column) in parameters.iter().zip(table.theta) {
        columns.push((parameter.name().to_owned(), floats(column)));
    }
    for (parameter, column) in parameters.iter().zip(table.errors) {
        columns.push((format!("{}_error", parameter.name()), floats(column)));
    }
    for ([a, b], column) in schema.model.covariances().iter().zip(table.covariances) {
        columns.push((format!("{}{}_covariance", a.name(), b.name()), floats(column)));
    }
    columns.push(("log_likelihood_ratio".into(), floats(table.log_likelihood_ratio)));
    columns.push(("p_value".into(), floats(table.p_value)));
    columns.push(("iterations".into(), tensor(DataType::Uint8, table.iterations.into())));
    columns.push(("status".into(), tensor(DataType::Uint8, table.status.into())));
    if schema.score.is_some() {
        columns.push(("detection_score".into(), floats(table.score)));
    }
    columns
}

/// The result of a request: tensors by name, parameters beside them, and where the time went.
pub(in crate::http) struct Fitted {
    pub(in crate::http) outputs: Vec<(String, Tensor)>,
    pub(in crate::http) parameters: OutputParameters,
    pub(in crate::http) spent: Spent,
}

/// Fits what a request brings.
pub(in crate::http) async fn fit(
    front: &Arc<Front>,
    tally: &Arc<Tally>,
    settings: &Settings,
    call: &Call,
    request: InferRequest,
) -> Result<Fitted, InferError> {
    let model = tally.model();
    let mut settings = changed(settings, &request.parameters, &model.name)?;
    let began = Instant::now();
    let given = RoisOrFrames::of(request.inputs)?;
    let searched = matches!(given, RoisOrFrames::Frames(_));
    let (chunks, schema, held) = match given {
        RoisOrFrames::Rois(rois) => {
            settings.suit_rois(rois.rois.shape[2]).map_err(bad)?;
            let schema = settings.schema(false).map_err(InferError::BadRequest)?;
            let setting = settings.setting_of(None).map_err(InferError::BadRequest)?;
            (rois.chunk(setting)?.into_iter().collect(), schema, None)
        }
        // Answered here, because the stack reader takes a file without frames for one that was cut short.
        RoisOrFrames::Frames(frames) if frames.shape[0] == 0 => {
            settings.setting_of(None).map_err(InferError::BadRequest)?;
            (Vec::new(), settings.schema(true).map_err(InferError::BadRequest)?, None)
        }
        RoisOrFrames::Frames(frames) => {
            let options = Options { limits: front.limits.stack.limits, spill_folder: None, file_alone: true };
            let (whole, memory) = (front.queue.is_on_gpu(model.key), model.frames.clone());
            let permit = call.permit.clone();
            let search = move || search(settings, &frames, options, (whole, memory), permit.as_deref());
            let found = call.in_time(async { front.decode.run(call.step(), search).await? }).await?;
            call.stage("decode", || began.elapsed());
            found
        }
    };
    // With chunks, the queue checks this.
    if chunks.is_empty() && call.is_late() {
        return Err(call.late());
    }
    let mut spent = Spent { decode: began.elapsed(), ..Spent::default() };
    let mut queued = Vec::with_capacity(chunks.len());
    for Chunk { inputs, items, setting, origins } in chunks {
        let ticket = call.push(front, tally, inputs, items, Some(setting.clone()))?;
        queued.push((Queued::new(call.clone(), Arc::clone(tally), ticket), origins, setting));
    }
    // From here on the queue accounts for the chunks.
    drop(held);
    let mut table = Table::new(&schema);
    for (queued, origins, setting) in queued {
        let ran: batch::Answer = queued.answer(front).await?;
        spent.include(&Spent::on(Duration::ZERO, &ran));
        let more = origins.table(&ran.outputs, &schema, &setting).map_err(InferError::Internal)?;
        table.append(more);
    }
    warn_of_left_out(table.over_spots_max);
    // Spots that are in no row have no place in columns.
    let parameters =
        if searched { vec![(OVER_SPOTS_MAX, table.over_spots_max)] } else { OutputParameters::new() };
    Ok(Fitted { outputs: columns(table, &schema), parameters, spent })
}

/// The changes that a request's query makes to a model's settings, by the same keys as its parameters.
pub(in crate::http) struct Changes<'m> {
    settings: &'m Settings,
    said: Vec<(&'static str, String)>,
}

impl<'m> Changes<'m> {
    /// Reads a query for a model with these settings.
    ///
    /// # Errors
    /// 400 naming a key that is unknown or has an invalid value.
    pub(in crate::http) fn of(query: &str, settings: &'m Settings) -> Result<Changes<'m>, InferError> {
        let read = || {
            let each = query::pairs(query)?.into_iter().map(|(key, value)| {
                let (_, known) = KEYS
                    .into_iter()
                    .find(|(_, known)| *known == key)
                    .ok_or_else(|| query::unknown(&key, KEYS.map(|(_, key)| key)))?;
                settings.clone().set(known, &value)?;
                Ok((known, value.into_owned()))
            });
            each.collect::<Result<_, String>>()
        };
        Ok(Changes { settings, said: read().map_err(bad)? })
    }

    /// Adds the changes to the parameters, which must not contradict them.
    ///
    /// # Errors
    /// 400 naming the key that has two values.
    pub(in crate::http) fn join(self, parameters: &mut Parameters) -> Result<(), InferError> {
        let with = |key, value: &str| {
            let mut settings = self.settings.clone();
            settings.set(key, value).map(|()| settings)
        };
        for (key, value) in &self.said {
            match parameters.get(*key) {
                // One value can be written in several ways: the resulting settings are compared.
                Some(other) if with(key, &text_of(other)) != with(key, value) => {
                    return Err(bad(format!(
                        "{key} is {value:?} in the query and {other} in the parameters: say it once"
                    )));
                }
                Some(_) => {}
                None => {
                    parameters.insert((*key).to_owned(), Parameter::Text(value.clone()));
                }
            }
        }
        Ok(())
    }
}

/// A parameter as the text of a setting.
fn text_of(value: &Parameter) -> String {
    // Some clients write every number with a fraction, even if it is zero.
    fn plain(written: &str) -> &str {
        written.trim_end_matches('0').strip_suffix('.').unwrap_or(written)
    }
    match value {
        Parameter::Text(text) => text.clone(),
        Parameter::Number(written) => plain(written).to_owned(),
        Parameter::Numbers(written) => written.split(',').map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// A model's settings with a request's changes.
fn changed(settings: &Settings, parameters: &Parameters, model: &str) -> Result<Settings, InferError> {
    let mut settings = settings.clone();
    let mut said = Vec::new();
    for (key, value) in parameters.iter().filter(|(key, _)| !PROTOCOL_KEYS.contains(&key.as_str())) {
        if !KEYS.iter().any(|(_, known)| known == key) {
            let known = KEYS.map(|(_, key)| key);
            let hint = meant(key, known);
            let key = clipped(key);
            return Err(bad(format!("unknown parameter {key:?}; there are {}{hint}", known.join(", "))));
        }
        let text = text_of(value);
        settings.set(key, &text).map_err(InferError::BadRequest)?;
        said.push((key.as_str(), text.clone()));
        if key == "preset" && settings.columns() != Columns::All {
            return Err(bad(format!(
                "preset is {text:?}, but tensors have columns of their own: post the stack to /predictions/{}",
                model
            )));
        }
    }
    settings::agree(&said).map_err(|(_, why)| bad(why))?;
    settings.heeds(&said).map_err(bad)?;
    Ok(settings)
}

/// Looks for spots in posted frames, or leaves that to the engine. All memory that it takes, chunks included, is charged to the permit; it
/// may be many times the size of the frames.
fn search(
    settings: Settings,
    frames: &Tensor,
    options: Options,
    (whole, memory): (bool, Option<FrameMemory>),
    permit: Option<&Permit>,
) -> Result<(Vec<Chunk>, Schema, Option<Beside>), InferError> {
    let sample = if frames.datatype == DataType::Uint16 { SampleType::U16 } else { SampleType::F32 };
    let side = |extent: usize| u32::try_from(extent).unwrap_or(u32::MAX);
    let raw = Raw {
        width: side(frames.shape[2]),
        height: side(frames.shape[1]),
        sample,
        frames: Some(frames.shape[0] as u64),
    };
    let stager = Stager::new(settings, Holds::Frames, Some(Format::Raw(raw)), options);
    let [of_frames, beside] = [(); 2].map(|()| share::of_work(permit));
    let mut stager = stager.charging(of_frames, beside).whole(whole, memory);
    stager.push(frames.data.clone())?;
    stager.finish();
    let (mut chunks, mut cut, mut held) = (Vec::new(), 0, permit.map(Permit::nothing_beside));
    loop {
        match stager.step(false)? {
            Step::Chunk(chunk) => {
                cut += chunk.bytes() as u64;
                chunks.push(chunk);
                held.as_mut().map_or(Ok(()), |held| held.grow_to(cut))?;
            }
            Step::Busy => {}
            Step::Wait | Step::End => break,
        }
    }
    Ok((chunks, stager.schema().map_err(InferError::BadRequest)?, held))
}

/// What a request brings.
enum RoisOrFrames {
    Rois(Rois),
    Frames(Tensor),
}

struct Rois {
    rois: Tensor,
    corners: Option<Vec<[u32; 2]>>,
    frames: Option<Vec<u32>>,
}

impl RoisOrFrames {
    fn of(inputs: Vec<Input>) -> Result<RoisOrFrames, InferError> {
        let [mut rois, mut frames, mut corners, mut frame] = [None, None, None, None];
        for Input { name, tensor, .. } in inputs {
            let place = match name.as_str() {
                // A raw request has no name for its only input.
                "rois" | "" => &mut rois,
                "frames" => &mut frames,
                "corners" => &mut corners,
                "frame" => &mut frame,
                other => {
                    return Err(bad(format!("no input {other:?}; there are rois, corners, frame, frames")));
                }
            };
            if place.replace(tensor).is_some() {
                return Err(bad(format!("input {name:?} is given twice")));
            }
        }
        match (rois, frames) {
            (Some(rois), None) => {
                let items = pixels("rois", &rois)?;
                let corners = corners.map(|corners| whole("corners", &corners, &[items, 2])).transpose()?;
                let frames = frame.map(|frame| whole("frame", &frame, &[items])).transpose()?;
                if let Some(far) = corners.iter().flatten().find(|corner| **corner > CORNER_MAX) {
                    return Err(bad(format!(
                        "input \"corners\" has {far}, at most {CORNER_MAX}: positions beyond it would lose more than 0.004 px in single precision"
                    )));
                }
                let corners = corners.map(|corners| corners.as_chunks::<2>().0.to_vec());
                Ok(RoisOrFrames::Rois(Rois { rois, corners, frames }))
            }
            (None, Some(frames)) if corners.is_none() && frame.is_none() => {
                pixels("frames", &frames)?;
                Ok(RoisOrFrames::Frames(frames))
            }
            (None, Some(_)) => Err(bad("corners and frame belong to rois; frames have none")),
            _ => Err(bad("expected either the input rois or the input frames")),
        }
    }
}

impl Rois {
    /// One chunk, which the queue splits; none where there are no ROIs.
    fn chunk(self, setting: Setting) -> Result<Option<Chunk>, InferError> {
        let Rois { rois, corners, frames } = self;
        let items = rois.shape[0];
        if rois.shape[1] != rois.shape[2] {
            return Err(bad(format!("input \"rois\" has shape {:?}, expected [n, b, b]", rois.shape)));
        }
        if items == 0 {
            return Ok(None);
        }
        // A body can hold so many smaller ROIs that what is set aside for each would outgrow it.
        if !SIDE.contains(&rois.shape[1]) {
            let (low, high) = (SIDE.start(), SIDE.end());
            let shape = &rois.shape;
            return Err(bad(format!(
                "input \"rois\" has shape {shape:?}, expected a side from {low} to {high}"
            )));
        }
        if corners.is_none() && setting.camera().sensor().is_some() {
            return Err(bad(CORNERS_NEEDED));
        }
        let flat =
            corners.as_deref().map_or_else(|| vec![0; 2 * items], |corners| corners.as_flattened().to_vec());
        let corners_tensor =
            Tensor { datatype: DataType::Uint32, shape: vec![items, 2], data: bytes_of(flat) };
        let origins = Origins::of(items, frames, corners);
        Ok(Some(Chunk { inputs: vec![rois, corners_tensor], items, setting, origins }))
    }
}

/// Checks a tensor of pixels; returns its number of planes.
fn pixels(name: &str, tensor: &Tensor) -> Result<usize, InferError> {
    match (tensor.datatype, &tensor.shape[..]) {
        // A shape without elements may claim any number of planes, and nothing that was sent bounds it.
        (DataType::Uint16 | DataType::Fp32, [count, height, width])
            if *count > 0 && (*height == 0 || *width == 0) =>
        {
            Err(bad(format!("input {name:?} has shape {:?}: its planes have no pixels", tensor.shape)))
        }
        (DataType::Uint16 | DataType::Fp32, [count, _, _]) => Ok(*count),
        (datatype, shape) => Err(bad(format!(
            "input {name:?} is {datatype} of shape {shape:?}, expected UINT16 or FP32 of three axes"
        ))),
    }
}

/// Whole numbers of any type that holds no fractions.
fn whole(name: &str, tensor: &Tensor, shape: &[usize]) -> Result<Vec<u32>, InferError> {
    let wrong = || {
        bad(format!(
            "input {name:?} is {} of shape {:?}, expected UINT32, INT32 or INT64 of shape {shape:?}, of 0 to {}",
            tensor.datatype,
            tensor.shape,
            u32::MAX
        ))
    };
    let words = tensor.data.as_chunks::<4>().0.iter();
    let numbers: Option<Vec<u32>> = match tensor.datatype {
        DataType::Uint32 => Some(words.map(|word| u32::from_le_bytes(*word)).collect()),
        DataType::Int32 => words.map(|word| u32::try_from(i32::from_le_bytes(*word)).ok()).collect(),
        DataType::Int64 => {
            let words = tensor.data.as_chunks::<8>().0.iter();
            words.map(|word| u32::try_from(i64::from_le_bytes(*word)).ok()).collect()
        }
        _ => None,
    };
    numbers.filter(|_| tensor.shape == shape).ok_or_else(wrong)
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
    };
    use axum::http::HeaderMap;

    fn given(name: &str, shape: &[usize]) -> Result<RoisOrFrames, InferError> {
        let tensor = Tensor { datatype: DataType::Fp32, shape: shape.to_vec(), data: Vec::new().into() };
        RoisOrFrames::of(vec![Input::whole(name.to_owned(), tensor)])
    }

    #[test]
    fn parameters_that_contradict_each_other_are_refused_by_name() {
        let told = |parameters: &str| {
            let parameters: Parameters = serde_json::from_str(parameters).expect("parameters");
            changed(&Settings::default(), &parameters, "spots").map_err(|error| error.to_string())
        };
        let mut gradient = Settings::default();
        gradient.set("gradient_min", "300").expect("a number");
        gradient.heeds(&[("method", "net-gradient"), ("gradient_min", "300")]).expect("an effect");
        assert_eq!(told(r#"{"method": "net-gradient", "gradient_min": 300}"#), Ok(gradient));
        let error = told(r#"{"method": "net-gradient", "noise_min": 5}"#).expect_err("contradictory");
        assert!(error.contains("noise_min is of the method contrast"), "{error}");
        let error = told(r#"{"photons_min": 200, "noise_min": 5}"#).expect_err("contradictory");
        assert!(error.contains("noise_min is given beside photons_min"), "{error}");
        let error = told(r#"{"gradient_min": 300, "radius_px": 3}"#).expect_err("without effect");
        assert!(error.contains("radius_px is of the method contrast"), "{error}");
        let error = told(r#"{"depth_um": 0.4}"#).expect_err("without effect");
        assert!(error.contains("depth_um is of the psf xyznb, but the psf is xynb:"), "{error}");
    }

    #[test]
    fn what_the_query_says_is_as_if_a_parameter_said_it_and_must_not_differ_from_one() {
        let told = |query: &str, parameters: &str| {
            let mut parameters: Parameters = serde_json::from_str(parameters).expect("parameters");
            Changes::of(query, &Settings::default())
                .and_then(|changes| changes.join(&mut parameters))
                .and_then(|()| changed(&Settings::default(), &parameters, "spots"))
                .map_err(|error| error.to_string())
        };
        let mut wide = Settings::default();
        for (key, value) in [("psf", "xynbs"), ("sigma_px", "1.5")] {
            wide.set(key, value).expect("a setting");
        }
        for (query, parameters) in [
            ("psf=xynbs&sigma_px=1.5", "{}"),
            ("psf=xynbs", r#"{"sigma_px": 1.5, "priority": 1}"#),
            ("psf=xynbs&sigma_px=1.50", r#"{"sigma_px": 1.5, "psf": "xynbs"}"#),
            ("psf=xynbs", r#"{"sigma_px": [1.5, 1.5]}"#),
            ("psf=xynbs&sigma_px=1.5", r#"{"sigma_px": [1.50]}"#),
        ] {
            assert_eq!(told(query, parameters), Ok(wide.clone()), "{query} {parameters}");
        }
        for (query, parameters, expected) in [
            (
                "psf=xynb",
                r#"{"psf": "xynbs"}"#,
                r#"psf is "xynb" in the query and "xynbs" in the parameters"#,
            ),
            (
                "sigma_px=1.4",
                r#"{"sigma_px": [1.4, 1.5]}"#,
                r#"sigma_px is "1.4" in the query and [1.4,1.5] in"#,
            ),
            ("sigma_px=1.4", r#"{"sigma_px": 1.5}"#, r#"sigma_px is "1.4" in the query and 1.5 in"#),
            ("gian=2", "{}", r#"unknown key "gian" in the query; there are psf"#),
            ("priority=1", "{}", r#"unknown key "priority" in the query"#),
            ("box_px=8", "{}", r#"box_px is "8", expected an odd number"#),
            ("noise_min=5", r#"{"photons_min": 200}"#, "noise_min is given beside photons_min"),
        ] {
            let error = told(query, parameters).expect_err(query);
            assert!(error.contains(expected), "{query} {parameters}: {error}");
        }
    }

    #[test]
    fn planes_without_a_pixel_are_refused_however_many_there_are_said_to_be() {
        for name in ["rois", "frames"] {
            for shape in [[1 << 62, 0, 0], [1 << 40, 0, 7], [1, 7, 0]] {
                let told = given(name, &shape).err().expect("refused").to_string();
                assert!(told.ends_with("its planes have no pixels"), "{told}");
            }
        }
        let Ok(RoisOrFrames::Rois(none)) = given("rois", &[0, 7, 7]) else { panic!("no ROIs are taken") };
        let setting = Settings::default().setting().expect("the defaults go together");
        assert!(none.chunk(setting).expect("nothing to fit").is_none());
    }

    #[tokio::test]
    async fn no_frames_are_no_rows_with_the_columns_of_frames() {
        let (front, model) = (front(&[]), model(Duration::from_secs(60)));
        let call = Call::of(&HeaderMap::new(), &model, Duration::from_secs(60)).expect("no headers");
        let tally = Arc::new(Tally::of(&model));
        let told = async |parameters: &str| {
            let tensor =
                Tensor { datatype: DataType::Uint16, shape: vec![0, 40, 96], data: Vec::new().into() };
            let request = InferRequest {
                id: None,
                parameters: serde_json::from_str(parameters).expect("parameters"),
                inputs: vec![Input::whole("frames".to_owned(), tensor)],
                outputs: Vec::new(),
                binary_default: false,
            };
            fit(&front, &tally, &Settings::default(), &call, request).await
        };
        let Fitted { outputs, parameters, .. } = told("{}").await.expect("nothing is asked");
        assert_eq!(parameters, [(OVER_SPOTS_MAX, 0)]);
        assert!(outputs.iter().all(|(_, column)| column.shape == [0] && column.data.is_empty()));
        assert!(outputs.iter().any(|(name, _)| name == "detection_score"));
        let wrong = told(r#"{"sigma_px": 1000}"#).await.err().expect("no such width").to_string();
        assert!(wrong.contains("sigma_px"), "{wrong}");
    }

    #[test]
    fn an_input_that_is_given_twice_is_refused_also_without_a_name() {
        let input = |name: &str, count| {
            let tensor = Tensor {
                datatype: DataType::Uint16,
                shape: vec![count, 7, 7],
                data: vec![0; 98 * count].into(),
            };
            Input::whole(name.to_owned(), tensor)
        };
        for second in ["rois", ""] {
            let told = RoisOrFrames::of(vec![input("rois", 1), input(second, 3)])
                .err()
                .expect("refused")
                .to_string();
            assert_eq!(told, format!("input {second:?} is given twice"));
        }
    }

    #[test]
    fn what_is_cut_out_of_frames_is_charged_before_it_waits_in_the_queue() {
        // Spots in a grid: their ROIs take more bytes than the frames.
        const SIDE: usize = 96;
        // More than are looked at at once.
        const FRAMES: usize = 64;
        let lit = |i: usize| (i / SIDE % 8, i % SIDE % 8) == (4, 4);
        let frame = (0..SIDE * SIDE).map(|i| if lit(i) { 60_000_u16 } else { 100 });
        let frames: Vec<u16> = (0..FRAMES).flat_map(|_| frame.clone()).collect();
        let searched = |bytes_in_flight_max| {
            let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max };
            let admission = Admission::new(limits);
            let permit = admission.admit().expect("it is the first");
            let mut settings = Settings::default();
            settings.set("box_px", "11").expect("odd");
            let frames = Tensor {
                datatype: DataType::Uint16,
                shape: vec![FRAMES, SIDE, SIDE],
                data: bytes_of(frames.clone()),
            };
            let options =
                Options { spill_folder: None, file_alone: true, ..stack_options(&Config::default()) };
            let (chunks, _, held) = search(settings, &frames, options, (false, None), Some(&permit))?;
            let inputs = chunks.iter().flat_map(|chunk| &chunk.inputs);
            let cut = inputs.map(|input| input.data.len() as u64).sum::<u64>();
            assert!(cut > frames.data.len() as u64, "{cut} bytes are cut: too few to show anything");
            let in_flight = admission.in_flight().bytes;
            assert!(in_flight > cut, "{in_flight} bytes are set aside for {cut}");
            drop((held, permit));
            assert_eq!(admission.in_flight().bytes, 0);
            Ok::<u64, InferError>(in_flight)
        };
        let taken = searched(1 << 30).expect("there is room");
        let refused = searched(taken - 1).expect_err("there is less");
        assert!(matches!(refused, InferError::Full { .. } | InferError::TooLarge { .. }), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_thread_counts_against_the_deadline_and_so_does_finding_nothing() {
        let front = front(&[]);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = Box::pin(
            front.decode.run(crate::http::decode::Step::Request(0), move || released.recv().is_ok()),
        );
        assert!(futures_util::poll!(&mut other).is_pending());
        let time = Duration::from_secs(2);
        let model = model(time);
        let tally = Arc::new(Tally::of(&model));
        let given = |name: &str, shape: [usize; 3]| {
            let data = vec![0; 2 * shape.iter().product::<usize>()].into();
            let tensor = Tensor { datatype: DataType::Uint16, shape: shape.to_vec(), data };
            let inputs = vec![Input::whole(name.to_owned(), tensor)];
            InferRequest {
                id: None,
                parameters: Parameters::default(),
                inputs,
                outputs: Vec::new(),
                binary_default: false,
            }
        };
        let call = Call::of(&HeaderMap::new(), &model, Duration::from_secs(60)).expect("no headers");
        let settings = Settings::default();
        let told = fit(&front, &tally, &settings, &call, given("frames", [1, 64, 64]));
        let told = tokio::time::timeout(Duration::from_secs(3600), told).await.expect("not for ever").err();
        let late = Some(InferError::Late("no answer within the deadline of 2000 ms".into()));
        assert_eq!(told, late);
        let past = call.sooner_by(time);
        let told = fit(&front, &tally, &settings, &past, given("rois", [0, 7, 7])).await.err();
        assert_eq!(told, late);
        release.send(()).expect("it waits");
        assert_eq!(other.await, Ok(true));
    }
}
