//! Statistics of the inputs of products on the calibration data: sums, and sampled rows. No scales, no thresholds.

use std::collections::BTreeMap;

use kvant_container::onnx::ModelProto;
use kvant_quant::hessian::Hessian;
use kvant_quant::random::mix;
use kvant_quant::transform::{ChannelStatistic, Clip, Loss, Needs, Transform};

use crate::algorithm::data::Data;
use crate::algorithm::input_scaling::SharedInputGroup;
use crate::calibration::{Watch, watch};
use crate::data::Array;
use crate::error::AlgorithmError;
use crate::recipe::Recipe;

/// Rows, about, on which scales are tried.
const TRIAL_ROWS: usize = 512;

/// What is observed of a tensor besides the magnitudes of its channels.
#[derive(Clone, Copy)]
pub(super) struct Observation {
    /// Whether the products of its rows are added up.
    hessian: bool,
    /// Rows that are sampled, at least.
    rows: usize,
}

impl Observation {
    /// What a transform, and the search of limits that follows, need.
    pub fn of(transform: &dyn Transform, recipe: &Recipe, clip: Option<Clip>) -> Self {
        let (needs, measure) = (transform.needs(), transform.measure());
        let rounds_inputs = measure.with_inputs && (recipe.activation.is_some() || recipe.products.is_some());
        // The squared error of rounded weights follows from the sum of the products of the inputs.
        let hessian = needs == Needs::MeansRunsAndSamples && measure.loss == Loss::Mse && !rounds_inputs;
        let tries = !hessian && (needs != Needs::Maxima || transform.trials() > 0);
        let rows = clip.map_or(0, |clip| clip.tokens).max(if tries { TRIAL_ROWS } else { 0 });
        Self { hessian, rows }
    }

    /// Bytes of the observation of so many channels.
    fn bytes(self, channels: usize) -> u64 {
        let hessian = if self.hessian { Hessian::bytes(channels, false) } else { 0 };
        // Sampled rows are thinned out at twice the wanted number.
        hessian.saturating_add((8 * self.rows as u64).saturating_mul(channels as u64))
    }
}

/// As many readers at a time as fit in memory, at least one.
pub(super) fn batches(
    readers: &[SharedInputGroup],
    wanted: Observation,
    budget: u64,
) -> impl Iterator<Item = &[SharedInputGroup]> {
    let mut rest = readers;
    std::iter::from_fn(move || {
        let mut bytes = 0u64;
        let fits = |readers: &&SharedInputGroup| {
            bytes = bytes.saturating_add(wanted.bytes(readers.channels));
            bytes <= budget
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (batch, more) = rest.split_at(count);
        rest = more;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Statistics of a tensor.
pub(super) struct Inputs {
    pub statistic: ChannelStatistic,
    /// The sum of the products of its rows, if that was wanted.
    pub hessian: Option<Hessian>,
    sampled: SampledRows,
}

impl Inputs {
    fn new(channels: usize, wanted: Observation) -> Self {
        Self {
            statistic: ChannelStatistic::new(channels),
            hessian: wanted.hessian.then(|| Hessian::new(channels)),
            sampled: SampledRows::new(channels, wanted.rows),
        }
    }

    /// The sampled rows.
    pub fn sampled_rows(&self) -> &[f32] {
        &self.sampled.rows
    }

    /// The sampled rows, each channel divided by its scale.
    pub fn rows(self, scales: Option<&[f32]>) -> Vec<f32> {
        let mut rows = self.sampled.rows;
        if let Some(scales) = scales {
            rows.iter_mut().zip(scales.iter().cycle()).for_each(|(value, scale)| *value /= scale);
        }
        rows
    }
}

/// Statistics by tensor.
pub(super) struct SampledInputs(BTreeMap<String, Inputs>);

impl SampledInputs {
    pub fn observed(
        model: &ModelProto,
        readers: &[SharedInputGroup],
        wanted: Observation,
        data: &mut Data<'_>,
    ) -> Result<Self, AlgorithmError> {
        let mut seen = Self(readers.iter().map(|r| (r.tensor.clone(), Inputs::new(r.channels, wanted))).collect());
        let tensors: Vec<String> = seen.0.keys().cloned().collect();
        if !tensors.is_empty() {
            watch(model, &tensors, &mut seen, data.samples, &data.runtime, &mut |_, _| {}, data.cancelled)?;
        }
        Ok(seen)
    }

    /// Takes the statistics of a tensor; `None` if nothing was observed.
    pub fn take(&mut self, readers: &SharedInputGroup) -> Option<Inputs> {
        self.0.remove(&readers.tensor).filter(|inputs| inputs.statistic.tokens() > 0)
    }
}

impl Watch for SampledInputs {
    fn see(&mut self, tensor: &str, array: &Array<'_>) {
        let Some(inputs) = self.0.get_mut(tensor) else { return };
        if array.shape().last() == Some(&inputs.statistic.channels()) {
            let rows = array.to_f32s();
            inputs.statistic.update(&rows);
            if let Some(hessian) = &mut inputs.hessian {
                hessian.add(&rows);
            }
            inputs.sampled.add(&rows);
        }
    }
}

/// Rows sampled evenly from a stream of unknown length: one random row of each `step` rows, so that no position of a sequence is
/// left out because sequences are as long as a step. At least as many as are wanted, where there are, and at most twice as many.
struct SampledRows {
    columns: usize,
    wanted: usize,
    seen: usize,
    step: usize,
    rows: Vec<f32>,
}

impl SampledRows {
    fn new(columns: usize, wanted: usize) -> Self {
        Self { columns: columns.max(1), wanted, seen: 0, step: 1, rows: Vec::new() }
    }

    fn add(&mut self, rows: &[f32]) {
        if self.wanted == 0 {
            return;
        }
        for row in rows.chunks_exact(self.columns) {
            let place = self.seen % self.step;
            if place == 0 && self.rows.len() / self.columns >= 2 * self.wanted {
                self.thin();
            }
            if self.seen % self.step == self.drawn(self.seen / self.step, self.step) {
                self.rows.extend_from_slice(row);
            }
            self.seen += 1;
        }
    }

    /// A number below `bound` for a step of this size.
    fn drawn(&self, number: usize, bound: usize) -> usize {
        (mix(self.step as u64, [number as u64, 0, 0]) % bound as u64) as usize
    }

    /// Makes one step of two, of whose rows one is kept.
    fn thin(&mut self) {
        self.step *= 2;
        let pairs = self.rows.chunks_exact(2 * self.columns).enumerate();
        let kept = pairs.flat_map(|(number, pair)| {
            let first = self.drawn(number, 2) * self.columns;
            &pair[first..first + self.columns]
        });
        self.rows = kept.copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(count: usize, wanted: usize, part: usize) -> (usize, Vec<usize>) {
        let rows: Vec<f32> = (0..count).flat_map(|i| [i as f32, -1.0]).collect();
        let mut made = SampledRows::new(2, wanted);
        rows.chunks(2 * part).for_each(|part| made.add(part));
        (made.step, made.rows.chunks(2).map(|row| row[0] as usize).collect())
    }

    #[test]
    fn one_row_per_step_is_sampled_regardless_of_chunks() {
        for count in [1usize, 3, 4, 7, 8, 9, 17, 100] {
            let (step, found) = sampled(count, 4, count);
            assert_eq!((step, found.clone()), sampled(count, 4, 3));
            assert!(found.len() >= count.min(4) && found.len() <= 8, "{count}: {found:?}");
            assert!(found.iter().enumerate().all(|(i, row)| row / step == i), "{count}: {found:?}");
        }
        assert!(sampled(9, 0, 9).1.is_empty());
    }

    #[test]
    fn sampling_covers_all_positions_of_step_length_sequences() {
        let (step, found) = sampled(16 * 64, 128, 16);
        assert_eq!(step, 4);
        let mut places: Vec<usize> = found.iter().map(|row| row % 16).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 16);
    }
}
