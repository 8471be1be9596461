//! Weights that Adam tunes once their codes are chosen: their scales at fixed codes, or latent values and scales through the rounding. Not the
//! gradient, which others compute.

use super::latent::LatentWeight;
use super::rtn::search::StorableScales;
use super::rtn::{RoundingError, TensorContext};
use crate::quant_tensor::QuantTensor;
use crate::reconstruction::{Adam, Moments};
use crate::scheme::{IntScheme, TensorScheme, ZeroPoint};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// What is tuned of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunedParts {
    /// Scales, and zero points that lie between codes. Whole zero points stay: a step of one moves all values by a whole distance of the grid.
    Scales,
    /// Weights and scales. Codes are those of the weights, whose gradient passes the rounding.
    Weights,
}

/// How far one step of Adam moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TuningRates {
    /// Scales, as a share of what they were at the start; zero points by this share of half of the codes.
    pub scales: f32,
    /// Latent values, in distances of the grid.
    pub weights: f32,
}

/// A weight that Adam tunes. Scales are those of the start times a factor, which is kept in f32; the grid has what the scheme stores of the product.
///
/// At fixed codes `q = s (c - z)` is proportional to its scale `s = s_0 f`, so that `dL/df` is `sum q dL/dq / f` over the scale's values, and `dL/dz` is
/// `-s sum dL/dq`.
#[derive(Clone, Debug)]
pub struct TunedWeight {
    parts: Parts,
    /// Of the factors of scales.
    factors: Moments,
    steps: u32,
}

#[derive(Clone, Debug)]
enum Parts {
    Scales(Box<FixedCodes>),
    Weights { latent: Box<LatentWeight>, moments: Moments },
}

impl TunedWeight {
    /// Starts at the codes and scales of a tensor; `weight` is what they were chosen for.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`] for weights that are learned in a scheme without codes.
    pub fn new(
        weight: &[f32],
        tensor: QuantTensor,
        context: TensorContext,
        parts: TunedParts,
    ) -> Result<TunedWeight, RoundingError> {
        let factors = Moments::new(tensor.scales().len());
        let parts = match parts {
            TunedParts::Scales => Parts::Scales(Box::new(FixedCodes::new(tensor, context))),
            TunedParts::Weights => Parts::Weights {
                latent: Box::new(LatentWeight::new(weight, tensor, context)?),
                moments: Moments::new(weight.len()),
            },
        };
        Ok(TunedWeight { parts, factors, steps: 0 })
    }

    /// The weight as it is now, row-major.
    pub fn values(&self) -> Vec<f32> {
        match &self.parts {
            Parts::Scales(fixed) => fixed.values(),
            Parts::Weights { latent, .. } => latent.values(),
        }
    }

    /// Moves down the gradient of [`values`](Self::values), which it overwrites. A rate of 0 leaves what it is for.
    pub fn step(&mut self, gradient: &mut [f32], rates: TuningRates) {
        self.steps += 1;
        let adam = Adam::new(1.0, self.steps);
        match &mut self.parts {
            Parts::Scales(fixed) => {
                let mut slopes = fixed.slopes(gradient);
                self.factors.steps(adam, &mut slopes);
                fixed.descend(gradient, adam, &slopes, rates.scales);
            }
            Parts::Weights { latent, moments } => {
                let mut slopes = latent.pull_back(gradient);
                self.factors.steps(adam, &mut slopes);
                moments.steps(adam, gradient);
                latent.descend(gradient, rates.weights, &slopes, rates.scales);
            }
        }
    }

    /// The tensor as it is now.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`].
    pub fn rounded(&self) -> Result<QuantTensor, RoundingError> {
        match &self.parts {
            Parts::Scales(fixed) => Ok(fixed.tensor.clone()),
            Parts::Weights { latent, .. } => latent.rounded(),
        }
    }
}

/// How far scales may move, as a share of themselves.
const REACH: f32 = 0.5;

/// A tensor whose scales move and whose codes stay.
#[derive(Clone, Debug)]
struct FixedCodes {
    /// As it is now.
    tensor: QuantTensor,
    context: TensorContext,
    /// The scales at the start, as the grid has them, and what each has become of that.
    start: Vec<f32>,
    factors: Vec<f32>,
    /// Zero points that lie between codes, and what Adam knows of them; empty where there are none.
    zero_points: Vec<f32>,
    moments: Moments,
}

impl FixedCodes {
    fn new(tensor: QuantTensor, context: TensorContext) -> FixedCodes {
        let outer = StorableScales::of(&tensor, context).outer();
        let has_floats = matches!(tensor.scheme(), TensorScheme::Int(IntScheme { zero_point: ZeroPoint::Float, .. }));
        let zero_points: Vec<f32> = match has_floats {
            true => tensor.zero_points().iter().map(|point| *point as f32).collect(),
            false => Vec::new(),
        };
        FixedCodes {
            start: tensor.scales().iter().map(|scale| scale * outer).collect(),
            factors: vec![1.0; tensor.scales().len()],
            moments: Moments::new(zero_points.len()),
            zero_points,
            context,
            tensor,
        }
    }

    /// The values of the codes, on all threads.
    fn values(&self) -> Vec<f32> {
        let (rows, columns) = self.tensor.shape();
        let row = |row: usize| {
            let mut values = Vec::with_capacity(columns);
            self.tensor.dequantize_rows(Isa::best(), row..row + 1, 0..columns, &mut values);
            values
        };
        (0..rows).into_par_iter().flat_map_iter(row).collect()
    }

    /// For each scale a sum over its values, of which rows give parts.
    fn sums(&self, of_tile: impl Fn(usize, std::ops::Range<usize>) -> f32 + Sync) -> Vec<f32> {
        let (rows, columns) = self.tensor.shape();
        let ((tile_rows, width), across) = (self.tensor.tile(), self.tensor.scale_shape().1);
        let parts = |row: usize| -> Vec<f32> {
            let tiles = (0..columns).step_by(width.max(1));
            tiles.map(|start| of_tile(row, start..(start + width).min(columns))).collect()
        };
        let parts: Vec<Vec<f32>> = (0..rows).into_par_iter().map(parts).collect();
        let mut sums = vec![0.0; self.start.len()];
        for (row, parts) in parts.iter().enumerate() {
            let own = &mut sums[row / tile_rows * across..];
            own.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        sums
    }

    /// The gradient of factors.
    fn slopes(&self, gradient: &[f32]) -> Vec<f32> {
        let (values, (_, columns)) = (self.values(), self.tensor.shape());
        let mut slopes = self.sums(|row, tile| {
            let gradient = &gradient[row * columns..][tile.clone()];
            gradient.iter().zip(&values[row * columns..][tile]).map(|(gradient, value)| gradient * value).sum()
        });
        slopes.iter_mut().zip(&self.factors).for_each(|(slope, factor)| *slope /= factor);
        slopes
    }

    /// Moves factors by `rate` for each step of 1, and zero points down their gradient.
    fn descend(&mut self, gradient: &[f32], adam: Adam, steps: &[f32], rate: f32) {
        if rate == 0.0 {
            return;
        }
        let slopes = self.zero_point_slopes(gradient);
        let storable = StorableScales::of(&self.tensor, self.context);
        let factors = self.factors.iter_mut().zip(steps).zip(&self.start).zip(&mut self.tensor.scales);
        for (((factor, step), start), scale) in factors {
            *factor = (*factor - rate * step).clamp(1.0 - REACH, 1.0 + REACH);
            *scale = storable.stored(start * *factor);
        }
        let (low, high) = storable.codes();
        let half = (high - low) as f32 / 2.0;
        self.moments.update(adam, |_| rate * half, &mut self.zero_points, &slopes);
        let stored = self.context.arithmetic;
        for (point, tuned) in self.tensor.zero_points.iter_mut().zip(&self.zero_points) {
            *point = f64::from(stored.round(*tuned));
        }
    }

    /// The gradient of zero points that lie between codes.
    fn zero_point_slopes(&self, gradient: &[f32]) -> Vec<f32> {
        if self.zero_points.is_empty() {
            return Vec::new();
        }
        let (_, columns) = self.tensor.shape();
        let mut slopes = self.sums(|row, tile| gradient[row * columns..][tile].iter().sum());
        slopes.iter_mut().zip(&self.tensor.scales).for_each(|(slope, scale)| *slope *= -scale);
        slopes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::Rtn;
    use kvant_numeric::ComputeDType;

    const SCHEMES: [&str; 7] = [
        "int4:g32",
        "uint4:g32:zp",
        "uint4:g32:fzp",
        "int8:channel",
        "e2m1:g16:e4m3:f32",
        "e4m3:tensor",
        "e4m3:b4x32:f32",
    ];

    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 0.9).collect()
    }

    fn tuned(scheme: &str, parts: TunedParts) -> (QuantTensor, TunedWeight) {
        let context = TensorContext::new(ComputeDType::F32);
        let weight = noise(8 * 64);
        let tensor = Rtn::new(scheme.parse().unwrap(), context).unwrap().round(&weight, 8, 64).unwrap();
        let made = TunedWeight::new(&weight, tensor.clone(), context, parts).unwrap();
        (tensor, made)
    }

    /// Half of the squared distance from a target.
    fn distance(values: &[f32], target: &[f32]) -> f64 {
        values.iter().zip(target).map(|(value, target)| 0.5 * f64::from(value - target).powi(2)).sum()
    }

    fn fixed(weight: &TunedWeight) -> FixedCodes {
        match &weight.parts {
            Parts::Scales(fixed) => FixedCodes::clone(fixed),
            Parts::Weights { .. } => panic!("its weights are tuned"),
        }
    }

    #[test]
    fn slopes_of_scales_and_zero_points_match_differences() {
        for scheme in SCHEMES {
            let (tensor, weight) = tuned(scheme, TunedParts::Scales);
            let (start, along) = (fixed(&weight), noise(8 * 64 + 3).split_off(3));
            let score = |tensor: &QuantTensor| -> f64 {
                let products = tensor.dequantize().into_iter().zip(&along);
                products.map(|(value, along)| f64::from(value) * f64::from(*along)).sum()
            };
            let slopes = start.slopes(&along);
            for (index, slope) in slopes.iter().enumerate() {
                let moved = |share: f32| {
                    let mut tensor = tensor.clone();
                    tensor.scales[index] *= 1.0 + share;
                    score(&tensor)
                };
                let difference = (moved(0.01) - moved(-0.01)) / 0.02;
                assert!((f64::from(*slope) - difference).abs() < 1e-3, "{scheme} {index}: {slope} {difference}");
            }
            for (index, slope) in start.zero_point_slopes(&along).iter().enumerate() {
                let moved = |by: f64| {
                    let mut tensor = tensor.clone();
                    tensor.zero_points[index] += by;
                    score(&tensor)
                };
                let difference = (moved(0.01) - moved(-0.01)) / 0.02;
                assert!((f64::from(*slope) - difference).abs() < 1e-3, "{scheme} {index}: {slope} {difference}");
            }
            assert_eq!(start.zero_points.is_empty(), scheme != "uint4:g32:fzp");
        }
    }

    #[test]
    fn tuned_scales_keep_codes_and_come_nearer() {
        for scheme in SCHEMES {
            let (tensor, mut weight) = tuned(scheme, TunedParts::Scales);
            assert_eq!(weight.rounded().unwrap(), tensor, "{scheme}");
            let target: Vec<f32> = tensor.dequantize().iter().map(|value| 1.1 * value).collect();
            let before = distance(&weight.values(), &target);
            for index in 0..40 {
                let mut gradient: Vec<f32> =
                    weight.values().iter().zip(&target).map(|(value, target)| value - target).collect();
                let share = 1.0 - index as f32 / 40.0;
                weight.step(&mut gradient, TuningRates { scales: 0.01 * share, weights: 0.0 });
            }
            let found = weight.rounded().unwrap();
            assert_eq!(found.codes, tensor.codes, "{scheme}");
            assert_eq!(found.dequantize(), weight.values(), "{scheme}");
            let after = distance(&weight.values(), &target);
            // Block scales of NVFP4 have three bits of mantissa.
            assert!(after < 0.5 * before, "{scheme}: {before} {after}");
        }
    }

    #[test]
    fn tuned_weights_change_codes_and_come_nearer() {
        for scheme in ["int4:g32", "e2m1:g16:e4m3:f32"] {
            let (tensor, mut weight) = tuned(scheme, TunedParts::Weights);
            assert_eq!(weight.rounded().unwrap(), tensor, "{scheme}");
            let target: Vec<f32> = tensor.dequantize().iter().map(|value| 0.2 - 0.5 * value).collect();
            let before = distance(&weight.values(), &target);
            for _ in 0..60 {
                let mut gradient: Vec<f32> =
                    weight.values().iter().zip(&target).map(|(value, target)| value - target).collect();
                weight.step(&mut gradient, TuningRates { scales: 0.001, weights: 0.1 });
            }
            let found = weight.rounded().unwrap();
            assert_ne!(found.codes, tensor.codes, "{scheme}");
            assert_eq!(found.dequantize(), weight.values(), "{scheme}");
            let after = distance(&weight.values(), &target);
            // In 60 steps of a tenth, values come six distances of the grid far.
            assert!(after < 0.5 * before, "{scheme}: {before} {after}");
        }
    }

    #[test]
    fn rates_of_zero_leave_scales() {
        let (tensor, mut weight) = tuned("int4:g32", TunedParts::Scales);
        weight.step(&mut noise(8 * 64), TuningRates { scales: 0.0, weights: 0.1 });
        assert_eq!(weight.rounded().unwrap(), tensor);
    }
}
