//! Which devices a model is loaded on: what its manifest asks for, against what there is. Pure.

use crate::models::{Engine, Manifest, manifest::Placing};

/// A device that models may be placed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The machine's own processors.
    Cpu,
    /// A GPU, by its number.
    Gpu(usize),
}

/// Where a model goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Indices of devices, at least one.
    pub(super) on: Vec<usize>,
    /// The CPU, where it serves only while none of these can.
    pub(super) stands_in: Option<usize>,
    /// What is not as its manifest has it, for the log.
    pub(super) notes: Vec<String>,
}

/// Places a model on some of `devices`. `no_onnx` says of each why ONNX models cannot run there.
///
/// # Errors
/// Why it can run on none.
pub(super) fn place(
    manifest: &Manifest,
    devices: &[Kind],
    no_onnx: &[Option<String>],
) -> Result<Placed, String> {
    let Placing { devices: asked, fallback, memory_bytes_max, .. } = &manifest.placement;
    let mut notes = Vec::new();
    let refused = |index: usize| match manifest.engine {
        Engine::Onnx => no_onnx[index].as_deref(),
        Engine::GaussMle(_) => None,
    };
    let wanted = |kind: Kind| match kind {
        _ if asked.is_empty() => true,
        Kind::Cpu => asked.iter().any(|word| word == "cpu"),
        Kind::Gpu(ordinal) => asked.iter().any(|word| word == "gpu" || *word == format!("gpu:{ordinal}")),
    };
    let among = |choose: &dyn Fn(Kind) -> bool| -> Vec<usize> {
        devices.iter().enumerate().filter(|(_, kind)| choose(**kind)).map(|(index, _)| index).collect()
    };
    let (out, mut on): (Vec<usize>, _) =
        among(&wanted).into_iter().partition(|index| refused(*index).is_some());
    // All GPUs have the same to say, mostly.
    let mut whys: Vec<&str> = out.iter().filter_map(|index| refused(*index)).collect();
    whys.dedup();
    let whys = whys.join("; ");
    if on.is_empty() {
        let why = if out.is_empty() { format!("there is {}", list(devices)) } else { whys };
        let asked = if asked.is_empty() { "all".to_owned() } else { format!("{asked:?}") };
        let cpu = among(&|kind| kind == Kind::Cpu);
        if cpu.is_empty() {
            return Err(format!("{why}, but backend is gpu, which takes no CPU: use backend auto"));
        }
        if *fallback == Some(false) {
            return Err(format!("placement.devices = {asked} and fallback = false, but {why}"));
        }
        notes.push(format!("placement.devices = {asked}, but {why}: the model runs on the CPU"));
        on = cpu;
    } else if !out.is_empty() {
        notes.push(format!("the model runs on {} of {} devices: {whys}", on.len(), on.len() + out.len()));
    }
    if memory_bytes_max.is_some() && on.iter().all(|index| devices[*index] == Kind::Cpu) {
        notes.push(
            "placement.memory_bytes_max limits memory of GPUs only, and the model runs on the CPU".into(),
        );
    }
    let cpu = devices.iter().position(|kind| *kind == Kind::Cpu);
    let stands_in = cpu.filter(|cpu| !on.contains(cpu) && *fallback != Some(false));
    Ok(Placed { on, stands_in, notes })
}

/// Such as `the CPU and gpu:0`.
fn list(devices: &[Kind]) -> String {
    let name = |kind: &Kind| match kind {
        Kind::Cpu => "the CPU".to_owned(),
        Kind::Gpu(ordinal) => format!("gpu:{ordinal}"),
    };
    let names: Vec<String> = devices.iter().map(name).collect();
    match names.as_slice() {
        [] => "no device".to_owned(),
        [only] => format!("{only} only"),
        [rest @ .., last] => format!("{} and {last} only", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 3] = [Kind::Cpu, Kind::Gpu(0), Kind::Gpu(1)];
    const FITTER: &str = "engine = \"gauss-mle\"\n";

    fn check(manifest: &str, devices: &[Kind], on: Result<&[usize], &str>) -> Vec<String> {
        let manifest = Manifest::parse(manifest).unwrap();
        let on_gpu = |kind: &Kind| matches!(kind, Kind::Gpu(_)).then(|| "it is the CPU's build".to_owned());
        let no_onnx: Vec<Option<String>> = devices.iter().map(on_gpu).collect();
        let placed = place(&manifest, devices, &no_onnx);
        match (&placed, on) {
            (Ok(placed), Ok(on)) => assert_eq!(placed.on, on, "{placed:?}"),
            (Err(got), Err(expected)) => assert_eq!(got, expected),
            _ => panic!("{placed:?} instead of {on:?}"),
        }
        placed.map(|placed| placed.notes).unwrap_or_default()
    }

    #[test]
    fn a_fitter_runs_on_every_device_unless_its_manifest_says_where() {
        for (devices, on) in [
            ("\"all\"", &[0, 1, 2][..]),
            ("\"cpu\"", &[0]),
            ("\"gpu\"", &[1, 2]),
            ("\"gpu:1\"", &[2]),
            ("[\"gpu:0\", \"cpu\"]", &[0, 1]),
        ] {
            let manifest = format!("{FITTER}[placement]\ndevices = {devices}\n");
            assert!(check(&manifest, &ALL, Ok(on)).is_empty());
        }
        assert!(check(FITTER, &ALL, Ok(&[0, 1, 2])).is_empty());
    }

    #[test]
    fn what_asks_for_a_gpu_that_is_not_there_runs_on_the_cpu_unless_it_forbids_that() {
        let manifest = format!("{FITTER}[placement]\ndevices = \"gpu:3\"\n");
        let notes = check(&manifest, &ALL, Ok(&[0]));
        assert_eq!(
            notes,
            [
                "placement.devices = [\"gpu:3\"], but there is the CPU, gpu:0 and gpu:1 only: the model runs on the CPU"
            ]
        );
        let never = format!("{manifest}fallback = false\n");
        let why = "placement.devices = [\"gpu:3\"] and fallback = false, but there is the CPU only";
        check(&never, &[Kind::Cpu], Err(why));
    }

    #[test]
    fn onnx_models_run_where_the_runtime_can_and_the_reason_is_told_where_it_cannot() {
        let notes = check("", &ALL, Ok(&[0]));
        assert_eq!(notes, ["the model runs on 1 of 3 devices: it is the CPU's build"]);
        let notes = check("[placement]\ndevices = \"gpu\"\n", &ALL, Ok(&[0]));
        assert_eq!(
            notes,
            ["placement.devices = [\"gpu\"], but it is the CPU's build: the model runs on the CPU"]
        );
        let why = "it is the CPU's build, but backend is gpu, which takes no CPU: use backend auto";
        check("", &[Kind::Gpu(0)], Err(why));
        let placed = place(&Manifest::default(), &ALL, &[None, None, None]).unwrap();
        assert_eq!((placed.on, placed.notes.len()), (vec![0, 1, 2], 0));
    }

    #[test]
    fn a_limit_of_memory_that_nothing_is_held_to_is_said() {
        let limit = format!("{FITTER}[placement]\nmemory_bytes_max = 1000\n");
        assert_eq!(check(&limit, &[Kind::Cpu], Ok(&[0])).len(), 1);
        assert!(check(&limit, &ALL, Ok(&[0, 1, 2])).is_empty());
    }
}
