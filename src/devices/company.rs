//! Whether a network computes each row independently, tested by numbers: a row is run beside different other rows (its *company*), and
//! has to come out the same.
//!
//! Shapes do not reveal a network that mixes its rows and keeps their number: a sum along the first axis, attention over it, a
//! convolution that takes it for a side of the picture. Served in batches, such a network would answer each caller with something of the
//! others.

use super::{
    bounded::{RUN_MAX, bounded},
    warm::warm_shapes,
};
use crate::{
    engine::{DataType, Engine, EngineError, Flight, Tensor, TensorView},
    models::{Model, chance},
};

/// Numbers that differ by more than this part of the largest of their row count as different. All companies have the same size and run by
/// the same kernels, so little is left to rounding, except in networks that are quantized as they run: there the scale is that of all
/// rows.
const TOLERANCE: f32 = 0.1;

/// How an author who knows better can say so.
const SAID: &str = "(batch.axis = \"items\" says that they are)";

/// What is beside the kept row, whose own numbers are from 0 to 1 (or pixels).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    /// Rows like it.
    Alike,
    /// Rows with numbers outside the kept row's range, on both sides, so that anything computed over all rows (a maximum, a mean, a
    /// branch) changes. The larger ones are negative in `Below` and positive in `Above`: what is cut off on one side shows in the other.
    Below,
    Above,
}

/// What inputs of integers contain, beside inputs of fractions: they may be counts or indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Integers {
    /// Random zeros and ones: indices that are all the same would connect no rows.
    Chance,
    /// The values that are least often refused.
    Zeros,
}

/// Why rows are not known to be independent; `None` if none was seen to depend on its company. The reason is how the dependence showed,
/// or that it cannot be tested: the outputs differ each time, or are not finite. Networks without inputs of fractions, and those that
/// refuse the test inputs, cannot be asked: `None`.
///
/// # Errors
/// Those of the device.
pub(super) fn mixed<Busy>(
    engine: &mut dyn Engine,
    model: &Model,
    ending: &(dyn Fn() -> bool + Sync),
    busy: impl Fn() -> Busy,
) -> Result<Option<String>, EngineError> {
    let Some(rows) = model.rules.sizes.iter().copied().find(|size| *size > 1) else { return Ok(None) };
    let shapes = warm_shapes(model, rows);
    let given = |(datatype, _): &(DataType, Vec<usize>)| is_number(*datatype, model);
    if model.rules.whole || model.fit.is_some() || !shapes.iter().any(given) {
        return Ok(None);
    }
    for integers in [Integers::Chance, Integers::Zeros] {
        let run = |kept: Option<usize>, company| {
            let inputs = shapes.iter().map(|(datatype, shape)| {
                let row = |row| filled(*datatype, shape, integers, seat(row, rows, kept, company), model);
                let data: Vec<u8> = (0..rows).flat_map(row).collect();
                TensorView { datatype: *datatype, shape: shape.clone(), data: &data }.to_tensor()
            });
            let inputs: Vec<Tensor> = inputs.collect();
            let _busy = busy();
            let pass = |engine: &mut dyn Engine| engine.start(inputs, None).and_then(Flight::land);
            match bounded(engine, RUN_MAX, ending, pass) {
                Ok(outputs) => Ok(Some(outputs)),
                Err(EngineError::Input(_)) => Ok(None),
                // Such numbers may make it allocate more than others do.
                Err(EngineError::OutOfMemory(_)) if company != Company::Alike => Ok(None),
                Err(error) => Err(error),
            }
        };
        if let Some(told) = compared(model, rows, run)? {
            return Ok(told);
        }
        if shapes.iter().all(given) {
            break;
        }
    }
    Ok(None)
}

/// Compares runs with different kept rows and companies. The result is that of [`mixed`], or an outer `None` where the network refuses
/// rows that are alike.
fn compared(
    model: &Model,
    rows: usize,
    mut run: impl FnMut(Option<usize>, Company) -> Result<Option<Vec<Tensor>>, EngineError>,
) -> Result<Option<Option<String>>, EngineError> {
    let Some(before) = run(None, Company::Alike)? else { return Ok(None) };
    let name = |output: usize| &model.signature.outputs[output].name;
    // First and last row, since sums may run in one direction.
    for (row, unlike) in [(0, Company::Below), (rows - 1, Company::Above)] {
        for company in [Company::Alike, unlike] {
            if company == unlike && model.quantizes {
                continue;
            }
            let after = match run(Some(row), company)? {
                Some(after) => after,
                None if company == Company::Alike => return Ok(None),
                // Not every network takes any number.
                None => continue,
            };
            // The forward passes with zeros may have had one row each by chance.
            if let Some(why) = miscounted(&before, model, rows).or_else(|| miscounted(&after, model, rows)) {
                return Ok(Some(Some(why)));
            }
            let Some(output) = differs(&before, &after, row) else { continue };
            let Some(again) = run(None, Company::Alike)? else { return Ok(None) };
            if let Some(why) = miscounted(&again, model, rows) {
                return Ok(Some(Some(why)));
            }
            let why = match differs(&before, &again, row) {
                Some(output) => format!(
                    "output {:?} has other numbers each time, so that nobody can see whether its rows are computed each for itself {SAID}",
                    name(output)
                ),
                None => format!(
                    "row {row} of {rows} of output {:?} changes with what is in the others, so they are not computed each for itself {SAID}",
                    name(output)
                ),
            };
            return Ok(Some(Some(why)));
        }
        if is_blank(&before, row) {
            return Ok(Some(Some(format!(
                "no output has a finite number for a row of chance numbers, so that nobody can see whether rows are computed each for \
                 itself {SAID}"
            ))));
        }
    }
    Ok(Some(None))
}

/// How it shows that the first axis of an output does not count so many items; `None` if it does.
fn miscounted(outputs: &[Tensor], model: &Model, items: usize) -> Option<String> {
    let mut both = model.signature.outputs.iter().zip(outputs);
    let (spec, Tensor { shape, .. }) = both.find(|(_, output)| output.shape.first() != Some(&items))?;
    let name = &spec.name;
    Some(format!(
        "output {name:?} has shape {shape:?} for {items} items, so its first axis does not count them"
    ))
}

/// The first output in which this row differs.
fn differs(before: &[Tensor], after: &[Tensor], row: usize) -> Option<usize> {
    before.iter().zip(after).position(|(before, after)| {
        let (before, after) = (of_row(before, row), of_row(after, row));
        match fractions(&before).zip(fractions(&after)) {
            Some((before, after)) => {
                let pairs = || before.iter().zip(&after);
                let finite = || pairs().filter(|(a, b)| a.is_finite() && b.is_finite());
                let largest = finite().flat_map(|(a, b)| [a.abs(), b.abs()]).fold(0.0, f32::max);
                before.len() != after.len()
                    || pairs().any(|(a, b)| a.is_finite() != b.is_finite())
                    || finite().any(|(a, b)| (a - b).abs() > TOLERANCE * largest)
            }
            None => before.data != after.data,
        }
    })
}

/// Whether this row has numbers in which a difference could show, but none of them is finite.
fn is_blank(outputs: &[Tensor], row: usize) -> bool {
    let numbers: Vec<f32> =
        outputs.iter().filter_map(|output| fractions(&of_row(output, row))).flatten().collect();
    !numbers.is_empty() && !numbers.iter().any(|number| number.is_finite())
}

/// One row of an output that has at least one.
fn of_row(output: &Tensor, row: usize) -> Tensor {
    let rows = output.shape.first().copied().unwrap_or(1).max(1);
    let bytes = output.data.len() / rows;
    Tensor {
        datatype: output.datatype,
        shape: output.shape.get(1..).unwrap_or_default().to_vec(),
        data: output.data.slice(row * bytes..(row + 1) * bytes),
    }
}

/// A tensor's numbers, if its type has fractions.
fn fractions(tensor: &Tensor) -> Option<Vec<f32>> {
    is_float(tensor.datatype).then(|| tensor.to_f32()).flatten()
}

fn is_float(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp32 | DataType::Fp64 | DataType::Fp16 | DataType::Bf16)
}

/// Whether an input of this type accepts any number; so do pixels.
fn is_number(datatype: DataType, model: &Model) -> bool {
    is_float(datatype) || (datatype == DataType::Uint8 && model.image.is_some())
}

/// The seed and the kind of a row. The kept row has the same ones in any company.
fn seat(row: usize, rows: usize, kept: Option<usize>, company: Company) -> (u64, Company) {
    let turn = match company {
        _ if kept.is_none_or(|kept| kept == row) => return (row as u64, Company::Alike),
        Company::Alike => 1,
        Company::Below | Company::Above => 2,
    };
    ((row + turn * rows) as u64, company)
}

/// A row of an input, generated from its seed.
fn filled(
    datatype: DataType,
    shape: &[usize],
    integers: Integers,
    (seed, company): (u64, Company),
    model: &Model,
) -> Vec<u8> {
    let elements = shape.iter().skip(1).product::<usize>();
    let Some(size) = datatype.size() else { return Tensor::zeros(datatype, &[elements]).data.to_vec() };
    let numbers = chance(datatype, elements * size, seed);
    match (is_number(datatype, model), integers, company) {
        (false, Integers::Zeros, _) => vec![0; numbers.len()],
        // Random integers are of one byte here.
        (false, Integers::Chance, _) => numbers.into_iter().map(|byte| byte & 1).collect(),
        (true, _, Company::Alike) => numbers,
        (true, _, company) => unlike(datatype, numbers, company == Company::Above),
    }
}

/// Turns numbers from 0 to 1 alternately into numbers from 5 to 37 and numbers from 3 to 11 of the other sign; pixels become black or
/// white. Each number's sign is the opposite one in the other company. Half precision holds their squares.
fn unlike(datatype: DataType, numbers: Vec<u8>, above: bool) -> Vec<u8> {
    if datatype == DataType::Uint8 {
        // Random pixels are less than 128.
        let white_from = if above { 32 } else { 96 };
        return numbers.into_iter().map(|pixel| if pixel < white_from { 0 } else { u8::MAX }).collect();
    }
    let elements = numbers.len() / datatype.size().unwrap_or(1);
    let alike = TensorView { datatype, shape: vec![elements], data: &numbers }.to_tensor();
    let sign = if above { 1.0 } else { -1.0 };
    let moved = alike.to_f32().unwrap_or_default().into_iter().enumerate();
    let moved = moved.map(|(index, unit)| match index % 2 {
        0 => sign * (5.0 + 32.0 * unit),
        _ => -sign * (3.0 + 8.0 * unit),
    });
    match datatype {
        DataType::Fp16 => moved.flat_map(|number| half::f16::from_f32(number).to_le_bytes()).collect(),
        DataType::Bf16 => moved.flat_map(|number| half::bf16::from_f32(number).to_le_bytes()).collect(),
        DataType::Fp64 => moved.flat_map(|number| f64::from(number).to_le_bytes()).collect(),
        _ => moved.flat_map(f32::to_le_bytes).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{
        engine::{Setting, Signature},
        models::testing::{model_of, source},
        tasks::testing::{signature, spec},
    };

    /// A batch of rows of two numbers, each with an integer beside it.
    struct Batch {
        rows: Vec<[f32; 2]>,
        beside: Vec<i64>,
        /// Which run this is, from 1.
        call: u64,
        refused: bool,
    }

    /// What becomes of a batch.
    type Network = fn(&mut Batch);

    struct Rows(Signature, Network, u64);

    impl Engine for Rows {
        fn signature(&self) -> &Signature {
            &self.0
        }

        fn start(&mut self, inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
            self.2 += 1;
            let mut batch = Batch {
                rows: bytemuck::pod_collect_to_vec(&inputs[0].data),
                beside: bytemuck::pod_collect_to_vec(&inputs[1].data),
                call: self.2,
                refused: false,
            };
            (self.1)(&mut batch);
            if batch.refused {
                return Err(EngineError::Input("no such numbers".to_owned()));
            }
            let data = bytemuck::cast_slice(&batch.rows).to_vec().into();
            let all = Tensor { datatype: DataType::Fp32, shape: vec![batch.rows.len(), 2], data };
            Ok(Flight::Landed(vec![all]))
        }
    }

    fn asked(network: Network, quantizes: bool) -> (Option<String>, u64) {
        let mut signature = signature(&[("y", &[-1, 2])]);
        signature.inputs = vec![spec("x", DataType::Fp32, &[-1, 2]), spec("beside", DataType::Int64, &[-1])];
        let source = source("m", "1", "");
        let mut model = model_of(&source, signature.clone()).unwrap();
        model.quantizes = quantizes;
        let mut engine = Rows(signature, network, 0);
        (mixed(&mut engine, &model, &|| false, || ()).unwrap(), engine.2)
    }

    fn told(network: Network) -> Option<String> {
        asked(network, false).0
    }

    fn changes(row: usize) -> Option<String> {
        Some(format!(
            "row {row} of 2 of output \"y\" changes with what is in the others, so they are not computed each for itself \
             (batch.axis = \"items\" says that they are)"
        ))
    }

    /// The largest number of all, and the mean.
    fn over_all(batch: &Batch) -> (f32, f32) {
        let numbers = batch.rows.as_flattened();
        (numbers.iter().copied().fold(f32::MIN, f32::max), numbers.iter().sum::<f32>() / numbers.len() as f32)
    }

    fn each(batch: &mut Batch, change: impl Fn(f32) -> f32) {
        batch.rows.as_flattened_mut().iter_mut().for_each(|number| *number = change(*number));
    }

    #[test]
    fn a_row_that_changes_with_its_company_is_seen_in_either_direction() {
        assert_eq!(asked(|batch| each(batch, f32::exp), false), (None, 5), "a few passes are all it takes");
        assert_eq!(told(|batch| batch.rows.fill([0.0; 2])), None);
        assert_eq!(told(|batch| batch.rows[1][0] += batch.rows[0][0]), changes(1));
        assert_eq!(told(|batch| batch.rows[0][1] += batch.rows[1][1]), changes(0));
        let kept = told(|batch| batch.rows.retain(|row| row[0] < 0.5)).unwrap();
        assert!(kept.ends_with("for 2 items, so its first axis does not count them"), "{kept}");
    }

    #[test]
    fn what_is_taken_over_all_rows_is_seen_though_it_is_nearly_the_same_in_rows_that_are_alike() {
        let networks: [(&str, Network); 6] = [
            ("largest", |batch| {
                let (largest, _) = over_all(batch);
                each(batch, |x| x / largest);
            }),
            ("mean", |batch| {
                let (_, mean) = over_all(batch);
                each(batch, |x| x - mean);
            }),
            ("branch", |batch| {
                let scale = if over_all(batch).0 > 1.0 { 255.0 } else { 1.0 };
                each(batch, |x| x / scale);
            }),
            ("what is below zero", |batch| {
                let below: f32 = batch.rows.as_flattened().iter().map(|x| (-x).max(0.0)).sum();
                each(batch, |x| x + below);
            }),
            ("loop until all are small", |batch| {
                while over_all(batch).0 > 1.0 {
                    each(batch, |x| x / 2.0);
                }
            }),
            ("a sum that is cut off", |batch| {
                let most = batch.rows.as_flattened().iter().sum::<f32>().clamp(0.0, 0.1);
                each(batch, |x| x * most);
            }),
        ];
        for (what, network) in networks {
            assert!(
                told(network).is_some_and(|why| why.contains("changes with what is in the others")),
                "{what}"
            );
        }
    }

    #[test]
    fn rows_unlike_the_kept_one_are_no_trial_of_what_quantizes_as_it_runs_or_refuses_them() {
        // As numbers are rounded by the largest of all.
        let rounded: Network = |batch| batch.rows[0][0] += 0.01 * batch.rows[1][0];
        assert_eq!(asked(rounded, true), (None, 3));
        assert_eq!(told(rounded), changes(0));
        let refusing: Network = |batch| batch.refused = over_all(batch).0 > 1.0;
        assert_eq!(told(refusing), None);
        let mixing: Network = |batch| {
            batch.refused = over_all(batch).0 > 1.0;
            batch.rows[1][0] += batch.rows[0][0];
        };
        assert_eq!(told(mixing), changes(1));
    }

    #[test]
    fn rows_unlike_the_kept_one_are_outside_of_it_on_both_sides_in_every_type_and_pixels_are_black_and_white()
    {
        let made = |datatype: DataType, above| {
            let numbers = chance(datatype, 200 * datatype.size().unwrap(), 7);
            let data = unlike(datatype, numbers, above);
            TensorView { datatype, shape: vec![200], data: &data }.to_tensor().to_f32().unwrap()
        };
        for datatype in [DataType::Fp16, DataType::Bf16, DataType::Fp32, DataType::Fp64] {
            let (below, above) = (made(datatype, false), made(datatype, true));
            let outside = |number: &f32| (3.0..=37.0).contains(&number.abs());
            assert!(below.len() == 200 && below.iter().chain(&above).all(outside), "{datatype:?}");
            assert!(below.iter().zip(&above).all(|(below, above)| below * above < 0.0), "{datatype:?}");
            assert!(below.iter().sum::<f32>() < 0.0 && below.iter().any(|number| *number > 0.0));
        }
        let (dark, bright) = (made(DataType::Uint8, false), made(DataType::Uint8, true));
        assert!(dark.iter().chain(&bright).all(|pixel| [0.0, 255.0].contains(pixel)));
        assert!(dark.iter().sum::<f32>() < bright.iter().sum());
    }

    #[test]
    fn a_number_that_is_finite_in_one_company_alone_is_another() {
        assert_eq!(told(|batch| batch.rows[1][1] += (batch.rows[0][0] - 1.0).sqrt() * 1e-9), changes(1));
        assert_eq!(told(|batch| batch.rows[0][1] += batch.rows[1][0].sqrt() * 1e-9), changes(0));
    }

    #[test]
    fn whole_numbers_beside_others_are_zero_and_one_by_chance_or_zero_where_that_is_refused() {
        // An edge of a graph: one row is sent to another, which zeros do not do.
        let edges: Network = |batch| {
            let sent = batch.rows[batch.beside[0] as usize][0];
            batch.rows[batch.beside[1] as usize][0] += sent;
        };
        assert!(told(edges).is_some());
        assert!(told(|batch| batch.refused = batch.beside.iter().any(|x| !(0..=1).contains(x))).is_none());
        let sums_by_zeros: Network = |batch| {
            batch.refused = batch.beside != [0, 0];
            batch.rows[0][0] += batch.rows[1][0];
        };
        assert_eq!(told(sums_by_zeros), changes(0));
    }

    #[test]
    fn what_is_another_each_time_or_nowhere_finite_is_not_known_to_be_unmixed() {
        let chance = told(|batch| batch.rows[0][0] += batch.call as f32).unwrap();
        assert!(
            chance.starts_with("output \"y\" has other numbers each time")
                && chance.ends_with("(batch.axis = \"items\" says that they are)"),
            "{chance}"
        );
        // A running sum of logarithms of what is mostly above 5.
        let blank = told(|batch| {
            each(batch, |x| (x - 5.0).ln());
            batch.rows[1][0] += batch.rows[0][0];
        });
        assert!(blank.unwrap().starts_with("no output has a finite number for a row of chance numbers"));
        assert_eq!(
            told(|batch| batch.rows.iter_mut().for_each(|row| row[1] = f32::NAN)),
            None,
            "one is finite"
        );
    }
}
