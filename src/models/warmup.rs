//! Warm-up runs that a model's author configures: with zeros, with random numbers, or with the data of a file.

use super::{Model, scan};
use crate::{
    engine::{DataType, Dim, Tensor, regular_file::Folder},
    random::Random,
};
use bytes::Bytes;
use std::{io::Read, path::Path};

/// The folder of these files in a model's folder.
const FOLDER: &str = "warmup";
/// More data is refused as a mistake.
const BYTES_MAX: usize = 1 << 30;

/// A warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Warmup {
    /// For messages.
    pub name: String,
    /// Items; each of them gets the same data. `None` for a model without a batch axis.
    pub items: Option<usize>,
    /// How often to run it.
    pub runs: usize,
    /// One for each input that requests bring.
    pub inputs: Vec<WarmupInput>,
}

/// An input of a warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct WarmupInput {
    /// The input's name.
    pub name: String,
    /// Its element type.
    pub datatype: DataType,
    /// Its shape, without the batch axis.
    pub dims: Vec<usize>,
    /// What it is filled with.
    pub fill: Fill,
}

/// What an input is filled with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fill {
    /// Zeros; empty strings.
    Zeros,
    /// Random numbers, from 0 to 1 or, for integers, to 127; empty strings. They are the same each time the server
    /// starts.
    Chance,
    /// The bytes of this file.
    File(String),
}

impl Warmup {
    /// The model's inputs for one run; files are read from the model's folder.
    ///
    /// # Errors
    /// Inputs that do not match the model's, and files that cannot be read or have the wrong size.
    pub fn tensors(&self, model: &Model, folder: &Path) -> Result<Vec<Tensor>, String> {
        self.given(model, folder)
            .map(|given| model.interface.inward(&given))
            .map_err(|why| format!("warm-up {:?}: {why}", self.name))
    }

    fn given(&self, model: &Model, folder: &Path) -> Result<Vec<Tensor>, String> {
        let specs = &model.interface.signature.inputs;
        if let Some(input) = self.inputs.iter().find(|input| specs.iter().all(|spec| spec.name != input.name))
        {
            return Err(format!("the model has no input {:?}", input.name));
        }
        specs
            .iter()
            .map(|spec| {
                let input = self.inputs.iter().find(|input| input.name == spec.name);
                let input = input.ok_or_else(|| format!("it has nothing for input {:?}", spec.name))?;
                let shape: Vec<usize> = self.items.into_iter().chain(input.dims.iter().copied()).collect();
                let fits = spec.datatype == input.datatype
                    && spec.shape.len() == shape.len()
                    && spec.shape.iter().zip(&shape).all(|(dim, extent)| dim.takes(*extent));
                if !fits {
                    let expected: Vec<i64> = spec.shape.iter().copied().map(Dim::number).collect();
                    return Err(format!(
                        "input {:?} is {} {shape:?}, but the model takes {} {expected:?}",
                        spec.name, input.datatype, spec.datatype
                    ));
                }
                let items = self.items.unwrap_or(1);
                let item = input
                    .data(&model.name, folder, items)
                    .map_err(|why| format!("input {:?}: {why}", spec.name))?;
                Ok(Tensor { datatype: input.datatype, shape, data: Bytes::from(item.repeat(items)) })
            })
            .collect()
    }
}

impl WarmupInput {
    /// The bytes of one item. `items` copies of it, together, must not exceed the limit. Of a file that is
    /// too long, the first bytes are used, as in Triton.
    fn data(&self, model: &str, folder: &Path, items: usize) -> Result<Vec<u8>, String> {
        let elements = self.dims.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent));
        // An empty string consists of its length, 4 bytes.
        let bytes = elements.and_then(|elements| elements.checked_mul(self.datatype.size().unwrap_or(4)));
        let limit = BYTES_MAX / items.max(1);
        let too_large =
            || format!("{items} items of {:?} have more than the limit of {BYTES_MAX} bytes", self.dims);
        let bytes = bytes.filter(|bytes| *bytes <= limit).ok_or_else(too_large)?;
        match &self.fill {
            Fill::Zeros => Ok(vec![0; bytes]),
            Fill::Chance => Ok(chance(self.datatype, bytes, 0)),
            Fill::File(name) => {
                let told = |why| format!("file {FOLDER}/{name}: {why}");
                let folder = Folder::open(&folder.join(FOLDER))
                    .map_err(|error| told(format!("cannot read it: {error}")))?;
                let file = scan::inside(&folder, name).map_err(told)?;
                let mut data = Vec::new();
                let wanted = if self.datatype.size().is_some() { bytes } else { limit };
                // Reading one byte more than wanted detects a file that is longer.
                file.take(wanted as u64 + 1)
                    .read_to_end(&mut data)
                    .map_err(|error| told(format!("cannot read it: {error}")))?;
                let (datatype, dims, got) = (self.datatype, &self.dims, data.len());
                match datatype.size() {
                    None if got > limit => {
                        return Err(told(format!(
                            "{items} items of it have more than the limit of {BYTES_MAX} bytes"
                        )));
                    }
                    Some(_) if got < bytes => {
                        return Err(told(format!(
                            "it has {got} bytes, expected {bytes} for {datatype} {dims:?}"
                        )));
                    }
                    Some(_) if got > bytes => {
                        tracing::warn!(
                            model,
                            "file {FOLDER}/{name} is longer than the {bytes} bytes of {datatype} {dims:?}: its first bytes are used"
                        );
                        data.truncate(bytes);
                    }
                    _ => {}
                }
                Ok(data)
            }
        }
    }
}

/// Pseudo-random numbers in [0, 1), or integers up to 127; the same seed gives the same numbers.
pub fn chance(datatype: DataType, bytes: usize, seed: u64) -> Vec<u8> {
    // The multiplication spreads successive seeds; the generator itself advances by another step.
    let mut random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95));
    let Some(size) = datatype.size() else { return vec![0; bytes] };
    let mut data = Vec::with_capacity(bytes);
    while data.len() < bytes {
        match datatype {
            DataType::Fp16 => data.extend(half::f16::from_f64(random.unit()).to_le_bytes()),
            DataType::Bf16 => data.extend(half::bf16::from_f64(random.unit()).to_le_bytes()),
            DataType::Fp32 => data.extend((random.unit() as f32).to_le_bytes()),
            DataType::Fp64 => data.extend(random.unit().to_le_bytes()),
            DataType::Bool => data.push((random.bits() & 1) as u8),
            _ => data.extend(&(random.bits() & 127).to_le_bytes()[..size]),
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        models::{
            Declared,
            testing::{model_of, source},
        },
        tasks::testing::spec,
    };

    fn model() -> Model {
        let mut signature = crate::tasks::testing::signature(&[("y", &[-1, 2])]);
        signature.inputs = vec![spec("x", DataType::Fp32, &[-1, 3])];
        let mut source = source("m", "1", "");
        source.manifest.declared = Some(Declared { items_max: Some(4), ..Declared::default() });
        model_of(&source, signature).unwrap()
    }

    fn warmup(dims: &[usize], fill: Fill) -> Warmup {
        let input = WarmupInput { name: "x".into(), datatype: DataType::Fp32, dims: dims.to_vec(), fill };
        Warmup { name: "w".into(), items: Some(2), runs: 1, inputs: vec![input] }
    }

    #[test]
    fn every_item_gets_the_same_data() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("warmup")).unwrap();
        std::fs::write(folder.path().join("warmup/x"), [0, 0, 128, 63].repeat(3)).unwrap();
        // A longer one, of which the first bytes are used.
        std::fs::create_dir(folder.path().join("warmup/sub")).unwrap();
        std::fs::write(folder.path().join("warmup/sub/x"), [[0, 0, 128, 63].repeat(3), vec![9; 5]].concat())
            .unwrap();
        let file = |name: &str| Fill::File(name.into());
        for (fill, first) in [(Fill::Zeros, 0.0), (file("x"), 1.0), (file("sub/x"), 1.0)] {
            let tensors = warmup(&[3], fill).tensors(&model(), folder.path()).unwrap();
            assert_eq!(
                (tensors[0].shape.as_slice(), tensors[0].to_f32().unwrap()),
                (&[2, 3][..], vec![first; 6])
            );
        }
        let random = warmup(&[3], Fill::Chance).tensors(&model(), folder.path()).unwrap();
        let values = random[0].to_f32().unwrap();
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)) && values[0] != values[1]);
        assert_eq!(values[..3], values[3..]);
    }

    #[test]
    fn what_does_not_fit_is_told_with_the_name_of_the_warm_up() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("warmup")).unwrap();
        std::fs::write(folder.path().join("warmup/short"), [0; 4]).unwrap();
        std::fs::write(folder.path().join("outside"), [0; 12]).unwrap();
        let check = |warmup: &Warmup, expected: &str| {
            let error = warmup.tensors(&model(), folder.path()).unwrap_err();
            assert!(error.starts_with("warm-up \"w\": ") && error.contains(expected), "{error}");
        };
        check(&warmup(&[4], Fill::Zeros), "input \"x\" is FP32 [2, 4], but the model takes FP32 [-1, 3]");
        check(
            &warmup(&[3], Fill::File("short".into())),
            "warmup/short: it has 4 bytes, expected 12 for FP32 [3]",
        );
        check(&warmup(&[3], Fill::File("../outside".into())), "leads out");
        std::fs::create_dir(folder.path().join("other")).unwrap();
        std::fs::write(folder.path().join("other/file"), [0; 12]).unwrap();
        std::os::unix::fs::symlink("../other", folder.path().join("warmup/sub")).unwrap();
        check(&warmup(&[3], Fill::File("sub/file".into())), "leads out");
        check(&warmup(&[3], Fill::File("lost".into())), "cannot read it");
        let pipe = folder.path().join("warmup/pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        check(&warmup(&[3], Fill::File("pipe".into())), "warmup/pipe: cannot read it: it is not a file");
        let mut other = warmup(&[3], Fill::Zeros);
        other.inputs[0].name = "z".into();
        check(&other, "no input \"z\"");
        other.inputs.clear();
        check(&other, "nothing for input \"x\"");
    }
}
