//! Whether a network computes each row for itself, by numbers: a row is run in two companies, and has to come out the same.
//!
//! Shapes do not tell it of a network that mixes its rows and keeps how many they are: a sum along the first axis, attention over it, a
//! convolution for which it is a side of the picture. Served in batches, such a network would answer each caller with something
//! of the others.

use super::warm::warm_shapes;
use crate::{
    engine::{DataType, Engine, EngineError, Tensor, TensorView},
    models::{Model, chance},
};

/// Numbers that differ by more than this part of the largest of their row are others. Both companies are as large and run by the same
/// kernels, so that little is left to rounding, but in networks that are quantized as they run: of these the scale is that of all rows.
const TOLERANCE: f32 = 0.1;

/// How that was seen, if a row depends on its company. Networks that are given no numbers with a fraction (integers may count
/// or point somewhere, so they stay zero), that refuse what they are given, or give something else each time, cannot be asked.
///
/// # Errors
/// Of the device.
pub(super) fn mixed<Busy>(
    engine: &mut dyn Engine,
    model: &Model,
    busy: impl Fn() -> Busy,
) -> Result<Option<String>, EngineError> {
    let Some(rows) = model.rules.sizes.iter().copied().find(|size| *size > 1) else { return Ok(None) };
    let shapes = warm_shapes(&model.signature, model, rows);
    let given = |(datatype, _): &(DataType, Vec<usize>)| is_number(*datatype, model);
    if model.rules.whole || model.fit.is_some() || !shapes.iter().any(given) {
        return Ok(None);
    }
    let mut run = |seeds: &[u64]| {
        let inputs: Vec<Tensor> =
            shapes.iter().map(|(datatype, shape)| filled(*datatype, shape, seeds, model)).collect();
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let _busy = busy();
        match engine.run(&views, None) {
            Ok(outputs) => Ok(Some(outputs)),
            Err(EngineError::Input(_)) => Ok(None),
            Err(error) => Err(error),
        }
    };
    // The first row and the last keep their numbers, once each: sums may run in one direction.
    let last = rows - 1;
    let seeds: Vec<u64> = (0..rows as u64).collect();
    let others = |kept: usize| -> Vec<u64> {
        seeds.iter().map(|seed| if *seed == kept as u64 { *seed } else { seed + rows as u64 }).collect()
    };
    let Some(before) = run(&seeds)? else { return Ok(None) };
    for row in [0, last] {
        let Some(after) = run(&others(row))? else { return Ok(None) };
        // Zeros may have had a row each.
        if let Some(why) = miscounted(&before, model, rows).or_else(|| miscounted(&after, model, rows)) {
            return Ok(Some(why));
        }
        let Some(output) = differs(&before, &after, row) else { continue };
        let Some(again) = run(&seeds)? else { return Ok(None) };
        if differs(&before, &again, row).is_some() {
            tracing::info!(model = &*model.name, "the network gives other numbers each time");
            return Ok(None);
        }
        let name = &model.signature.outputs[output].name;
        return Ok(Some(format!(
            "row {row} of {rows} of output {name:?} changes with what is in the others, so they are not computed each for itself \
             (batch.axis = \"items\" says that they are)"
        )));
    }
    Ok(None)
}

/// What shows that the first axis of an output does not count so many items.
fn miscounted(outputs: &[Tensor], model: &Model, items: usize) -> Option<String> {
    let mut both = model.signature.outputs.iter().zip(outputs);
    let (spec, Tensor { shape, .. }) = both.find(|(_, output)| output.shape.first() != Some(&items))?;
    let name = &spec.name;
    Some(format!(
        "output {name:?} has shape {shape:?} for {items} items, so its first axis does not count them"
    ))
}

/// The first output of which this row is another.
fn differs(before: &[Tensor], after: &[Tensor], row: usize) -> Option<usize> {
    before.iter().zip(after).position(|(before, after)| {
        let (before, after) = (of_row(before, row), of_row(after, row));
        let rounded = is_float(before.datatype).then(|| before.to_f32().zip(after.to_f32())).flatten();
        match rounded {
            Some((before, after)) => {
                let pairs = || before.iter().zip(&after).filter(|(a, b)| a.is_finite() && b.is_finite());
                let largest = pairs().flat_map(|(a, b)| [a.abs(), b.abs()]).fold(0.0, f32::max);
                pairs().any(|(a, b)| (a - b).abs() > TOLERANCE * largest)
            }
            None => before.data != after.data,
        }
    })
}

/// One row of an output that has some.
fn of_row(output: &Tensor, row: usize) -> Tensor {
    let rows = output.shape.first().copied().unwrap_or(1).max(1);
    let bytes = output.data.len() / rows;
    Tensor {
        datatype: output.datatype,
        shape: output.shape.get(1..).unwrap_or_default().to_vec(),
        data: output.data.slice(row * bytes..(row + 1) * bytes),
    }
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp32 | DataType::Fp64 | DataType::Fp16 | DataType::Bf16)
}

/// Whether any number will do for an input of this type: also of pixels.
fn is_number(datatype: DataType, model: &Model) -> bool {
    is_float(datatype) || (datatype == DataType::Uint8 && model.image.is_some())
}

/// Rows of numbers from 0 to 1, or of pixels, each by its seed.
fn filled(datatype: DataType, shape: &[usize], seeds: &[u64], model: &Model) -> Tensor {
    if !is_number(datatype, model) {
        return Tensor::zeros(datatype, shape);
    }
    let bytes = shape.iter().skip(1).product::<usize>() * datatype.size().unwrap_or(1);
    let rows: Vec<u8> = seeds.iter().flat_map(|seed| chance(datatype, bytes, *seed)).collect();
    TensorView { datatype, shape: shape.to_vec(), data: &rows }.to_tensor()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{
        batch::ModelKey,
        engine::{Flight, Setting, Signature, staging::Memory},
        models::testing::source,
        tasks::testing::{signature, spec},
    };
    use std::time::Duration;

    /// What becomes of rows of two numbers.
    type Network = fn(&mut Vec<[f32; 2]>, u64);

    struct Rows(Signature, Network, u64);

    impl Engine for Rows {
        fn signature(&self) -> &Signature {
            &self.0
        }

        fn start(&mut self, inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            let mut rows: Vec<[f32; 2]> = bytemuck::cast_slice(&inputs[0].data).to_vec();
            self.2 += 1;
            (self.1)(&mut rows, self.2);
            let data = bytemuck::cast_slice(&rows).to_vec().into();
            let all = Tensor { datatype: DataType::Fp32, shape: vec![rows.len(), 2], data };
            Ok(Flight::Landed(vec![all]))
        }
    }

    fn told(network: Network) -> Option<String> {
        let mut signature = signature(&[("y", &[-1, 2])]);
        signature.inputs = vec![spec("x", DataType::Fp32, &[-1, 2])];
        let (source, time) = (source("m", "1", ""), Duration::from_secs(1));
        let model = Model::resolve(ModelKey(1), &source, signature.clone(), time, &Memory::Plain).unwrap();
        mixed(&mut Rows(signature, network, 0), &model, || ()).unwrap()
    }

    #[test]
    fn a_row_that_changes_with_its_company_is_seen_in_either_direction_and_chance_is_not_taken_for_it() {
        assert_eq!(told(|rows, _| rows.iter_mut().for_each(|row| row[0] = row[0].exp())), None);
        assert_eq!(told(|rows, _| rows.fill([0.0; 2])), None);
        let sums = |row: usize| {
            Some(format!(
                "row {row} of 2 of output \"y\" changes with what is in the others, so they are not computed each for itself \
                 (batch.axis = \"items\" says that they are)"
            ))
        };
        assert_eq!(told(|rows, _| rows[1][0] += rows[0][0]), sums(1));
        assert_eq!(told(|rows, _| rows[0][1] += rows[1][1]), sums(0));
        assert_eq!(told(|rows, call| rows[0][0] += call as f32), None, "it is another each time");
        let kept = told(|rows, _| rows.retain(|row| row[0] < 0.5)).unwrap();
        assert!(kept.ends_with("for 2 items, so its first axis does not count them"), "{kept}");
        // As numbers are rounded by the largest of all.
        assert_eq!(told(|rows, _| rows[0][0] += 0.01 * rows[1][0]), None);
    }
}
