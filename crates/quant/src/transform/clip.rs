//! AWQ's second half: clipping thresholds of weights. Narrower ranges have finer steps, which can outweigh the clipping error.

use super::TransformError;
use super::clip_search::GroupClipping;
use crate::fake::fake_quantize;
use crate::rounding::RoundingError;
use crate::rounding::TensorContext;
use crate::scheme::{Axis, Granularity, SchemeError, TensorScheme};
use kvant_numeric::kernel::{FloatDType, Range, group_ranges};
use kvant_numeric::simd::Isa;

/// The search of limits with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clip {
    /// The number of thresholds tried: `1, 1 - 1/grid, .., 1 - (steps - 1)/grid` times the largest magnitude of a group.
    pub steps: u32,
    /// Steps from the largest magnitude to zero.
    pub grid: u32,
    /// At least so many inputs are sampled, where there are as many.
    pub tokens: usize,
}

impl Clip {
    /// As in AMD Quark: down to somewhat more than half of the largest magnitude.
    pub const DEFAULTS: Clip = Clip { steps: 10, grid: 20, tokens: 512 };

    /// Does what all weights that read the sampled `inputs`, rows of `columns`, and have this scheme have in common.
    ///
    /// # Errors
    /// If inputs are not finite.
    pub fn prepare(&self, inputs: &[f32], columns: usize, scheme: TensorScheme) -> Result<Clipping, TransformError> {
        let groups = self.prepare_groups(inputs, columns, group_width(scheme, columns.max(1)))?;
        Ok(Clipping { scheme, groups })
    }

    /// The same for weights that are rounded in a way of their own, whose rows have limits for each `group` of columns.
    ///
    /// # Errors
    /// If inputs are not finite.
    pub fn prepare_groups(
        &self,
        inputs: &[f32],
        columns: usize,
        group: usize,
    ) -> Result<GroupClipping, TransformError> {
        GroupClipping::new(*self, inputs, columns, group)
    }
}

/// The limits that are found for weights with the same inputs and scheme.
#[derive(Clone, Debug)]
pub struct Clipping {
    scheme: TensorScheme,
    groups: GroupClipping,
}

impl Clipping {
    /// Columns that share a limit: those that share a scale, or all.
    pub fn group(&self) -> usize {
        self.groups.group()
    }

    /// The [limits](GroupClipping::limits) of the row-major `weights`.
    ///
    /// `weights` start and end on tiles of scales. If the scheme needs the range of the whole tensor and `context` does not
    /// have it, these weights are the tensor.
    ///
    /// # Errors
    /// If weights are not finite, or the scheme does not fit their shape.
    pub fn limits(&self, weights: &[f32], context: TensorContext) -> Result<Vec<f32>, TransformError> {
        let columns = self.groups.columns();
        if !weights.len().is_multiple_of(columns) {
            let misfit = SchemeError::Combination { text: self.scheme.to_string() };
            return Err(RoundingError::from(misfit).into());
        }
        let context = self.with_range(weights, context);
        let rounded = |clipped: &[f32]| {
            let rows = clipped.len() / columns;
            Ok(fake_quantize(self.scheme, context, FloatDType::F32, clipped, rows, columns)?)
        };
        self.groups.limits(weights, self.tile_rows(weights.len() / columns), &rounded)
    }

    /// Cuts each group of weights off at its [limit](GroupClipping::clip).
    pub fn clip(&self, weights: &mut [f32], limits: &[f32]) {
        self.groups.clip(weights, limits);
    }

    fn with_range(&self, weights: &[f32], context: TensorContext) -> TensorContext {
        if !self.scheme.needs_tensor_range() || context.range.is_some() || weights.is_empty() {
            return context;
        }
        let mut range = [Range::EMPTY];
        group_ranges(Isa::best(), weights, weights.len(), &mut range);
        TensorContext { range: Some(range[0]), ..context }
    }

    /// Rows of a tile of scales.
    fn tile_rows(&self, rows: usize) -> usize {
        match self.scheme.granularity() {
            None | Some(Granularity::Tensor) => 1,
            Some(granularity) => granularity.tile(rows, self.groups.columns()).0,
        }
    }
}

/// Columns of a row that share a scale.
fn group_width(scheme: TensorScheme, columns: usize) -> usize {
    match scheme.granularity() {
        Some(granularity @ (Granularity::Group { axis: Axis::Columns, .. } | Granularity::Block { .. })) => {
            granularity.tile(1, columns).1.min(columns)
        }
        _ => columns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::ComputeDType;

    fn values(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| (uniform() + uniform() + uniform()).powi(3)).collect()
    }

    fn context() -> TensorContext {
        TensorContext::new(ComputeDType::F32)
    }

    fn limits(text: &str, inputs: &[f32], weights: &[f32], columns: usize) -> (usize, Vec<f32>) {
        let clipping = Clip::DEFAULTS.prepare(inputs, columns, text.parse().unwrap()).unwrap();
        (clipping.group(), clipping.limits(weights, context()).unwrap())
    }

    /// The mean squared errors of the groups' shares of the outputs, by the definition, with one share for all groups.
    fn errors(text: &str, inputs: &[f32], weights: &[f32], (columns, group): (usize, usize), share: f32) -> Vec<f64> {
        let mut clipped = weights.to_vec();
        for group in clipped.chunks_mut(columns).flat_map(|row| row.chunks_mut(group)) {
            let limit = group.iter().fold(0.0f32, |max, w| max.max(w.abs())) * share;
            group.iter_mut().for_each(|w| *w = w.clamp(-limit, limit));
        }
        let rows = weights.len() / columns;
        let quantized =
            fake_quantize(text.parse().unwrap(), context(), FloatDType::F32, &clipped, rows, columns).unwrap();
        let change = |row: usize, j: usize| f64::from(quantized[row * columns + j] - weights[row * columns + j]);
        let part = |row: usize, first: usize, x: &[f32]| -> f64 {
            (first..(first + group).min(columns)).map(|j| change(row, j) * f64::from(x[j])).sum()
        };
        let error = |row: usize, first: usize| inputs.chunks(columns).map(|x| part(row, first, x).powi(2)).sum();
        (0..rows)
            .flat_map(|row| (0..columns).step_by(group).map(move |first| (row, first)))
            .map(|(row, first)| error(row, first))
            .collect()
    }

    #[test]
    fn clipping_thresholds_have_the_least_error_of_those_tried() {
        let (rows, columns) = (70, 96);
        let weights = values(rows * columns, 1);
        for (text, tokens) in
            [("int4:g32", 100), ("int4:g32", 9), ("uint4:g24:zp", 50), ("e2m1:g32:e8m0", 64), ("int4:channel", 40)]
        {
            let inputs = values(tokens * columns, 2);
            let (group, limits) = limits(text, &inputs, &weights, columns);
            let shares: Vec<f32> = (0..10).map(|step| 1.0 - step as f32 / 20.0).collect();
            let tried: Vec<Vec<f64>> =
                shares.iter().map(|share| errors(text, &inputs, &weights, (columns, group), *share)).collect();
            let mut narrower = 0;
            for (index, limit) in limits.iter().enumerate() {
                let (row, first) = (index / (columns / group), index % (columns / group) * group);
                let max = weights[row * columns + first..][..group].iter().fold(0.0f32, |max, w| max.max(w.abs()));
                let chosen = shares.iter().position(|share| max * share == *limit).unwrap();
                let least = tried.iter().map(|errors| errors[index]).fold(f64::INFINITY, f64::min);
                assert!(tried[chosen][index] <= least * 1.0001, "{text}: {} {least}", tried[chosen][index]);
                narrower += usize::from(chosen > 0);
            }
            assert!(narrower > 0, "{text}");
        }
    }

    #[test]
    fn without_inputs_nothing_is_clipped() {
        let weights = values(4 * 64, 1);
        let (group, limits) = limits("int4:g32", &[], &weights, 64);
        let maxima: Vec<f32> = weights.chunks(group).map(|g| g.iter().fold(0.0, |max, w| w.abs().max(max))).collect();
        assert_eq!(limits, maxima);
    }

    #[test]
    fn every_granularity_has_thresholds_independent_of_bands() {
        let (rows, columns) = (200, 64);
        let (weights, inputs) = (values(rows * columns, 1), values(30 * columns, 2));
        for text in [
            "int8:tensor",
            "e2m1:g16:e4m3:f32",
            "e4m3:b100x48",
            "int4:g50@0",
            "int4:channel@1",
            "mx9",
            "bf16",
            "int4:channel:f32/e4m3:tensor:f32",
        ] {
            let (group, all) = limits(text, &inputs, &weights, columns);
            assert_eq!(all.len(), rows * columns.div_ceil(group), "{text}");
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            assert_eq!(pool.install(|| limits(text, &inputs, &weights, columns)).1, all, "{text}");
        }
    }

    #[test]
    fn non_finite_clip_inputs_are_refused() {
        let prepare = |inputs: &[f32]| Clip::DEFAULTS.prepare(inputs, 2, "int4:g2".parse().unwrap());
        assert!(matches!(prepare(&[1.0, f32::NAN]), Err(TransformError::NotFinite { channel: 1, .. })));
        let clipping = prepare(&[1.0, 2.0]).unwrap();
        assert!(matches!(clipping.limits(&[1.0, f32::INFINITY], context()), Err(TransformError::Rounding(_))));
        assert!(matches!(clipping.limits(&[1.0; 3], context()), Err(TransformError::Rounding(_))));
    }
}
