//! Which devices a model is loaded on: what its manifest asks for, matched with what there is. Pure.

use crate::{
    engine::cuda::Gpu,
    models::{
        Engine, Manifest,
        manifest::{Fallback, Placing},
    },
};

/// A device that models may be placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The machine's own processors.
    Cpu,
    /// A GPU.
    Gpu {
        /// Its number.
        ordinal: usize,
        /// Its UUID.
        id: String,
        /// The vendor's name of it.
        name: String,
    },
}

impl Kind {
    /// A GPU.
    pub(super) fn gpu(gpu: &Gpu) -> Kind {
        Kind::Gpu { ordinal: gpu.ordinal, id: gpu.id.clone(), name: gpu.name.clone() }
    }

    /// Whether it is among `placement.devices`, which means all devices if empty.
    fn is_asked_for(&self, asked: &[String]) -> bool {
        asked.is_empty() || asked.iter().any(|word| self.is_meant_by(word))
    }

    /// Whether a word of `placement.devices` names it.
    fn is_meant_by(&self, word: &str) -> bool {
        match self {
            Kind::Cpu => word == "cpu",
            Kind::Gpu { ordinal, id, name } => {
                let number = word.strip_prefix("gpu:").unwrap_or(word).parse() == Ok(*ordinal);
                // As in `CUDA_VISIBLE_DEVICES`, the beginning of a UUID is enough.
                let uuid = (word.starts_with("GPU-") || word.starts_with("MIG-")) && id.starts_with(word);
                word == "gpu" || number || uuid || (word.contains('*') && matches(word, name))
            }
        }
    }
}

/// Whether a name matches a pattern, in which `*` stands for anything; case does not matter.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_lowercase(), name.to_lowercase());
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match left.split_once(part) {
            Some((_, after)) => left = after,
            None => return false,
        }
    }
    left.ends_with(last)
}

/// Where a model is placed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Indices of devices, at least one.
    pub(super) on: Vec<usize>,
    /// The device that serves only while none of `on` can.
    pub(super) stands_in: Option<usize>,
    /// The devices that the manifest asks for are not there: those of `on` serve instead.
    pub(super) instead: bool,
    /// What differs from the manifest, for the log.
    pub(super) notes: Vec<String>,
}

impl Placed {
    /// Whether a device should have the model, to serve it or to stand by.
    pub(super) fn has(&self, index: usize) -> bool {
        self.on.contains(&index) || self.stands_in == Some(index)
    }
}

/// Places a model on some of `devices`. For each of them, `taken` says why other models leave no place there, and `no_onnx` why ONNX
/// models cannot run there.
///
/// # Errors
/// Why it can run on no device.
pub(super) fn place(
    manifest: &Manifest,
    devices: &[Kind],
    taken: &[Option<String>],
    no_onnx: &[Option<String>],
) -> Result<Placed, String> {
    let Placing { devices: asked, fallback, memory_bytes_max, exclusive, .. } = &manifest.placement;
    let mut notes = Vec::new();
    let refused = |index: usize| match manifest.engine {
        Engine::Onnx => no_onnx[index].as_deref().or(taken[index].as_deref()),
        Engine::GaussMle(_) => taken[index].as_deref(),
    };
    let meant = (0..devices.len()).filter(|index| devices[*index].is_asked_for(asked));
    let (out, mut on): (Vec<usize>, Vec<usize>) = meant.partition(|index| refused(*index).is_some());
    let other = |choose: &dyn Fn(&Kind) -> bool| {
        let fits = |(index, kind): (usize, &Kind)| {
            (choose(kind) && refused(index).is_none() && !on.contains(&index)).then_some(index)
        };
        devices.iter().enumerate().find_map(fits)
    };
    let mut stands_in = match fallback.unwrap_or(Fallback::Cpu) {
        Fallback::Cpu => other(&|kind| *kind == Kind::Cpu),
        Fallback::OtherGpu => other(&|kind| *kind != Kind::Cpu),
        Fallback::Never => None,
    };
    // Mostly all GPUs give the same reason.
    let mut whys: Vec<&str> = out.into_iter().filter_map(refused).collect();
    whys.dedup();
    let whys = whys.join("; ");
    let instead = on.is_empty();
    if instead {
        let why = if whys.is_empty() { format!("there is {}", list(devices)) } else { whys };
        let asked = if asked.is_empty() { "all".to_owned() } else { format!("{asked:?}") };
        match (stands_in.take(), fallback) {
            (Some(other), _) => {
                let runs = name(&devices[other]);
                notes.push(format!("placement.devices = {asked}, but {why}: the model runs on {runs}"));
                on.push(other);
            }
            (None, None | Some(Fallback::Cpu)) => {
                return Err(format!("{why}, but backend is gpu, which takes no CPU: use backend auto"));
            }
            (None, Some(Fallback::OtherGpu)) => {
                return Err(format!(
                    "placement.devices = {asked} and fallback = \"other-gpu\", but {why}, and no other GPU can run it"
                ));
            }
            (None, Some(Fallback::Never)) => {
                return Err(format!("placement.devices = {asked} and fallback = \"never\", but {why}"));
            }
        }
    } else if !whys.is_empty() {
        notes.push(format!("the model runs on {} of the devices that it may run on: {whys}", on.len()));
    }
    let on_cpu = |index: &usize| devices[*index] == Kind::Cpu;
    if memory_bytes_max.is_some() && on.iter().all(on_cpu) {
        notes.push(
            "placement.memory_bytes_max limits memory of GPUs only, and the model runs on the CPU".into(),
        );
    }
    if *exclusive && on.iter().all(on_cpu) {
        notes
            .push("placement.exclusive is about GPUs, and the model runs on the CPU, which all share".into());
    }
    if *fallback == Some(Fallback::OtherGpu) && stands_in.is_none() && !instead {
        notes.push("placement.fallback = \"other-gpu\", but there is no other GPU that can run it".into());
    }
    if *fallback == Some(Fallback::Cpu) && stands_in.is_none() && !on.iter().any(on_cpu) {
        notes.push("placement.fallback = \"cpu\", but backend is gpu, which takes no CPU".into());
    }
    Ok(Placed { on, stands_in, instead, notes })
}

/// Whether a GPU is among the devices that a model may run on, whoever holds it now.
pub(super) fn may_use_gpu(manifest: &Manifest, devices: &[Kind], no_onnx: &[Option<String>]) -> bool {
    let runs = |no_onnx: &Option<String>| manifest.engine != Engine::Onnx || no_onnx.is_none();
    devices.iter().zip(no_onnx).any(|(kind, no_onnx)| {
        *kind != Kind::Cpu && kind.is_asked_for(&manifest.placement.devices) && runs(no_onnx)
    })
}

/// Such as `gpu:0`.
fn name(kind: &Kind) -> String {
    match kind {
        Kind::Cpu => "the CPU".to_owned(),
        Kind::Gpu { ordinal, .. } => format!("gpu:{ordinal}"),
    }
}

/// Such as `the CPU and gpu:0`.
fn list(devices: &[Kind]) -> String {
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

    fn gpu(ordinal: usize) -> Kind {
        let name = ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"][ordinal];
        Kind::Gpu { ordinal, id: format!("GPU-fa00000{ordinal}-0000"), name: name.to_owned() }
    }

    fn all() -> [Kind; 3] {
        [Kind::Cpu, gpu(0), gpu(1)]
    }
    /// No model has a GPU for itself.
    const NOBODY: [Option<String>; 3] = [const { None }; 3];
    const FITTER: &str = "engine = \"gauss-mle\"\n";

    fn check(manifest: &str, devices: &[Kind], on: Result<&[usize], &str>) -> Vec<String> {
        let manifest = Manifest::parse(manifest).unwrap();
        let on_gpu =
            |kind: &Kind| matches!(kind, Kind::Gpu { .. }).then(|| "it is the CPU's build".to_owned());
        let no_onnx: Vec<Option<String>> = devices.iter().map(on_gpu).collect();
        let placed = place(&manifest, devices, &NOBODY[..devices.len()], &no_onnx);
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
            ("\"1\"", &[2]),
            ("\"GPU-fa000001-0000\"", &[2]),
            ("\"GPU-fa000000\"", &[1]),
            ("[\"*a100*\", \"cpu\"]", &[0, 1]),
            ("\"NVIDIA*40*\"", &[2]),
            ("\"*\"", &[1, 2]),
        ] {
            let manifest = format!("{FITTER}[placement]\ndevices = {devices}\n");
            assert!(check(&manifest, &all(), Ok(on)).is_empty());
        }
        assert!(check(FITTER, &all(), Ok(&[0, 1, 2])).is_empty());
    }

    #[test]
    fn a_model_may_use_a_gpu_that_it_is_not_kept_from_and_that_can_run_it() {
        let may = |manifest: &str, devices: &[Kind], no_onnx: &[Option<String>]| {
            may_use_gpu(&Manifest::parse(manifest).unwrap(), devices, no_onnx)
        };
        let no_gpu_build = [None, Some("it is the CPU's build".to_owned()), Some(String::new())];
        assert!(
            may("", &all(), &NOBODY) && !may("", &all(), &no_gpu_build) && !may("", &[Kind::Cpu], &[None])
        );
        assert!(may(FITTER, &all(), &no_gpu_build));
        assert!(may("[placement]\ndevices = [\"cpu\", \"gpu:1\"]", &all(), &NOBODY));
        assert!(!may("[placement]\ndevices = [\"cpu\", \"gpu:7\"]", &all(), &NOBODY));
    }

    #[test]
    fn what_serves_while_the_devices_are_away_is_what_fallback_says() {
        let placed = |placement: &str| {
            let manifest = Manifest::parse(&format!("{FITTER}[placement]\n{placement}\n")).unwrap();
            let placed = place(&manifest, &all(), &NOBODY, &[const { None }; 3]).unwrap();
            (placed.on, placed.stands_in, placed.instead)
        };
        assert_eq!(placed("devices = \"0\""), (vec![1], Some(0), false));
        assert_eq!(placed("devices = \"0\"\nfallback = \"cpu\""), (vec![1], Some(0), false));
        assert_eq!(placed("devices = \"0\"\nfallback = \"other-gpu\""), (vec![1], Some(2), false));
        assert_eq!(placed("devices = \"0\"\nfallback = \"never\""), (vec![1], None, false));
        assert_eq!(placed("devices = \"7\"\nfallback = \"other-gpu\""), (vec![1], None, true));
        assert_eq!(placed("devices = \"*H100*\""), (vec![0], None, true));
        assert_eq!(placed("devices = \"all\""), (vec![0, 1, 2], None, false), "the CPU is one of them");
    }

    #[test]
    fn what_asks_for_a_gpu_that_is_not_there_runs_on_the_cpu_unless_it_forbids_that() {
        let manifest = format!("{FITTER}[placement]\ndevices = \"gpu:3\"\n");
        let notes = check(&manifest, &all(), Ok(&[0]));
        assert_eq!(
            notes,
            [
                "placement.devices = [\"gpu:3\"], but there is the CPU, gpu:0 and gpu:1 only: the model runs on the CPU"
            ]
        );
        let never = format!("{manifest}fallback = \"never\"\n");
        let why = "placement.devices = [\"gpu:3\"] and fallback = \"never\", but there is the CPU only";
        check(&never, &[Kind::Cpu], Err(why));
    }

    #[test]
    fn onnx_models_run_where_the_runtime_can_and_the_reason_is_told_where_it_cannot() {
        let notes = check("", &all(), Ok(&[0]));
        assert_eq!(notes, ["the model runs on 1 of the devices that it may run on: it is the CPU's build"]);
        let notes = check("[placement]\ndevices = \"gpu\"\n", &all(), Ok(&[0]));
        assert_eq!(
            notes,
            ["placement.devices = [\"gpu\"], but it is the CPU's build: the model runs on the CPU"]
        );
        let why = "it is the CPU's build, but backend is gpu, which takes no CPU: use backend auto";
        check("", &[gpu(0)], Err(why));
        let placed = place(&Manifest::default(), &all(), &NOBODY, &[None, None, None]).unwrap();
        assert_eq!((placed.on, placed.notes.len()), (vec![0, 1, 2], 0));
    }

    #[test]
    fn a_gpu_that_another_model_has_for_itself_is_left_out() {
        let taken = [None, Some("gpu:0 is large's alone (placement.exclusive)".to_owned()), None];
        let placed = |placement: &str| {
            let manifest = Manifest::parse(&format!("{FITTER}[placement]\n{placement}\n")).unwrap();
            place(&manifest, &all(), &taken, &NOBODY)
                .map(|placed| (placed.on, placed.stands_in, placed.notes.len()))
        };
        assert_eq!(
            placed("devices = \"gpu\""),
            Ok((vec![2], Some(0), 1)),
            "the other GPU has it, and it is said"
        );
        assert_eq!(placed("devices = \"gpu:0\""), Ok((vec![0], None, 1)), "the CPU instead");
        assert_eq!(placed("devices = \"1\"\nfallback = \"other-gpu\""), Ok((vec![2], None, 1)));
        assert_eq!(
            placed("devices = \"gpu:0\"\nfallback = \"never\""),
            Err("placement.devices = [\"gpu:0\"] and fallback = \"never\", but gpu:0 is large's alone (placement.exclusive)"
                .to_owned())
        );
        let alone = format!("{FITTER}[placement]\ndevices = \"cpu\"\nexclusive = true\n");
        assert_eq!(check(&alone, &all(), Ok(&[0])).len(), 1, "nobody has the CPU for itself");
    }

    #[test]
    fn a_limit_of_memory_that_nothing_is_held_to_is_said() {
        let limit = format!("{FITTER}[placement]\nmemory_bytes_max = 1000\n");
        assert_eq!(check(&limit, &[Kind::Cpu], Ok(&[0])).len(), 1);
        assert!(check(&limit, &all(), Ok(&[0, 1, 2])).is_empty());
    }
}
