//! HQQ: finds the zero point of a group that minimises an error robust to outliers, without data.
//!
//! With the scale that spans a group, codes `q = round(w / s + z)` and values `s (q - z)`, two steps take turns: the error
//! `e = shrink(w - s (q - z))` with `shrink(x) = sign(x) max(|x| - |x|^(p - 1) / beta, 0)`, then `z = mean(q - (w - e) / s)`; `beta` grows
//! by `kappa`. It ends where the mean error no longer falls.
//! Source: Badri and Shaji, Half-Quadratic Quantization of Large Machine Learning Models, 2023.

use super::algorithm::{Rounding, RoundingRow};
use super::nearest::nearest;
use super::problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer};
use crate::options::{self, OptionRow, Settings, Values};
use crate::parameters::{Affine, quantize};
use crate::quant_tensor::{Codes, QuantParts, QuantTensor};
use crate::rounding::RoundingError;
use crate::scheme::{IntScheme, TensorScheme, ZeroPoint};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The norm of the error.
const P: f32 = 0.7;
/// The weight of the split at the start.
const BETA: f32 = 10.0;
/// By how much it grows in each round.
const KAPPA: f32 = 1.01;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hqq {
    /// Rounds at most.
    pub steps: u32,
}

impl Hqq {
    /// Twenty rounds.
    pub const DEFAULTS: Hqq = Hqq { steps: 20 };

    /// Scale and zero point of a block whose codes are 0 to `top`, where the zero point may lie between codes.
    pub fn search(&self, block: &[f32], top: f32) -> (f32, f32) {
        let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        let scale = (high - low) / top;
        if !scale.is_normal() {
            // All weights are one number: its code is 0, or 1 where the number is not zero.
            return if low == 0.0 || !low.is_normal() { (1.0, 0.0) } else { (low, 0.0) };
        }
        (scale, self.zero(block, scale, -low / scale, top))
    }

    /// The zero point with a given scale, from one to begin with.
    fn zero(&self, block: &[f32], scale: f32, first: f32, top: f32) -> f32 {
        let (mut zero, mut beta) = (first, BETA);
        let mut best = (error(block, scale, zero, top), zero);
        for _ in 0..self.steps {
            zero = next(block, scale, zero, top, beta);
            beta *= KAPPA;
            let error = error(block, scale, zero, top);
            if error >= best.0 || !zero.is_finite() {
                break;
            }
            best = (error, zero);
        }
        best.1
    }

    /// The zero point of a group of integers, which keeps its scale.
    fn moved(&self, group: &[f32], scheme: IntScheme, affine: Affine) -> f64 {
        let (lowest, top) = (scheme.format.min() as f64, (scheme.format.max() - scheme.format.min()) as f32);
        let found = self.zero(group, affine.scale, (affine.zero_point - lowest) as f32, top);
        if scheme.zero_point == ZeroPoint::Float {
            return f64::from(found) + lowest;
        }
        // A whole number beside it, or the one that there was: that which leaves the least error.
        let known = (affine.zero_point - lowest) as f32;
        let candidates = [known, found.floor(), found.ceil()].map(|zero| zero.clamp(0.0, top));
        let errors = candidates.map(|zero| error(group, affine.scale, zero, top));
        let best = (1..3).fold(0, |best, i| if errors[i] < errors[best] { i } else { best });
        f64::from(candidates[best]) + lowest
    }
}

/// Mean absolute error.
fn error(block: &[f32], scale: f32, zero: f32, top: f32) -> f64 {
    let lost = |&w: &f32| f64::from((w - value(w, scale, zero, top)).abs());
    block.iter().map(lost).sum::<f64>() / block.len().max(1) as f64
}

fn code(w: f32, scale: f32, zero: f32, top: f32) -> f32 {
    (w / scale + zero).round_ties_even().clamp(0.0, top)
}

fn value(w: f32, scale: f32, zero: f32, top: f32) -> f32 {
    scale * (code(w, scale, zero, top) - zero)
}

/// The zero point of the next round.
fn next(block: &[f32], scale: f32, zero: f32, top: f32, beta: f32) -> f32 {
    let one = |&w: &f32| {
        let lost = w - value(w, scale, zero, top);
        let kept = (lost.abs() - lost.abs().max(f32::MIN_POSITIVE).powf(P - 1.0) / beta).max(0.0);
        f64::from(code(w, scale, zero, top) - (w - lost.signum() * kept) / scale)
    };
    (block.iter().map(one).sum::<f64>() / block.len().max(1) as f64) as f32
}

const OPTIONS: &[OptionRow] = &[OptionRow { name: "steps", values: Values::COUNT, about: "rounds at most" }];

/// The row.
pub(super) fn row() -> RoundingRow {
    let about = "zero points searched for each group so that outliers hardly count; needs no data";
    let row = RoundingRow::of(Hqq::DEFAULTS, OPTIONS, about);
    row.with_aliases(&["half-quadratic"]).with_paper("mobiusml.github.io/hqq_blog")
}

impl Rounding for Hqq {
    fn name(&self) -> &str {
        "hqq"
    }

    fn settings(&self) -> Settings {
        options::shown(self)
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn refuses(&self, scheme: &TensorScheme) -> Option<&'static str> {
        match scheme {
            TensorScheme::Int(int) if int.format.bits() > 8 => Some("it is for integers of at most 8 bits"),
            TensorScheme::Int(int) if int.zero_point != ZeroPoint::Zero => None,
            _ => Some("it moves zero points, and the scheme stores none: add `:zp`"),
        }
    }

    fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError> {
        problem.check_cancelled()?;
        let plain = nearest(problem)?;
        if let Some(reason) = self.refuses(&plain.scheme()) {
            return Err(LayerError::Other(reason.to_owned()));
        }
        let Grid::Scheme { scheme: TensorScheme::Int(int), .. } = problem.grid else {
            return Err(LayerError::Other("its zero points are given".to_owned()));
        };
        let groups = Groups::of(&plain);
        let from = if let Grid::Scheme { from, .. } = problem.grid { from } else { problem.weight };
        let affines = groups.affines(&plain);
        let zeros: Vec<f64> = affines
            .par_iter()
            .enumerate()
            .map_init(Vec::new, |values, (place, affine)| {
                groups.read(place, from, values);
                self.moved(values, int, *affine)
            })
            .collect();
        Ok(RoundedLayer::new(groups.rounded(problem.weight, int, &plain, zeros)?))
    }
}

/// The groups of a weight that share a scale: tiles of rows and columns.
struct Groups {
    shape: (usize, usize),
    tile: (usize, usize),
    /// Tiles of a row of tiles.
    width: usize,
}

impl Groups {
    fn of(tensor: &QuantTensor) -> Groups {
        Groups { shape: tensor.shape(), tile: tensor.tile(), width: tensor.scale_shape().1.max(1) }
    }

    fn affines(&self, tensor: &QuantTensor) -> Vec<Affine> {
        let zero = |place: usize| tensor.zero_points().get(place).copied().unwrap_or(0.0);
        tensor.scales().iter().enumerate().map(|(i, scale)| Affine { scale: *scale, zero_point: zero(i) }).collect()
    }

    /// The elements of a group.
    fn read(&self, place: usize, values: &[f32], out: &mut Vec<f32>) {
        let ((rows, columns), (high, wide)) = (self.shape, self.tile);
        let (top, left) = (place / self.width * high, place % self.width * wide);
        out.clear();
        for row in top..(top + high).min(rows) {
            out.extend_from_slice(&values[row * columns + left..row * columns + (left + wide).min(columns)]);
        }
    }

    /// The nearest codes with other zero points.
    fn rounded(
        &self,
        weight: &[f32],
        scheme: IntScheme,
        plain: &QuantTensor,
        zero_points: Vec<f64>,
    ) -> Result<QuantTensor, RoundingError> {
        let ((rows, columns), scales) = (self.shape, plain.scales().to_vec());
        let mut codes = vec![0u8; weight.len()];
        codes.par_chunks_mut(columns.max(1)).zip(weight.par_chunks(columns.max(1))).enumerate().for_each(
            |(row, (codes, weight))| {
                for (column, (code, weight)) in codes.iter_mut().zip(weight).enumerate() {
                    let place = row / self.tile.0 * self.width + column / self.tile.1;
                    *code = quantize(scheme.format, *weight, 1.0 / scales[place], zero_points[place]) as u8;
                }
            },
        );
        let parts = QuantParts { codes: Codes::Bytes(codes), scales, zero_points, global_scale: None };
        Ok(QuantTensor::new(plain.scheme(), rows, columns, parts)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconstruction::{ActivationFunction, Shape};
    use crate::rounding::TensorContext;
    use kvant_numeric::ComputeDType;
    use std::sync::atomic::AtomicBool;

    fn values() -> Vec<f32> {
        (0..128).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.3).chain([4.0]).collect()
    }

    #[test]
    fn hqq_error_is_no_larger_than_the_range_based_error() {
        let block = values();
        let (scale, zero) = Hqq::DEFAULTS.search(&block, 15.0);
        let plain = 0.3 / scale;
        assert!(error(&block, scale, zero, 15.0) <= error(&block, scale, plain, 15.0));
        assert!(zero != plain);
    }

    #[test]
    fn constant_blocks_are_exact() {
        for number in [0.0, 0.7, -3.0] {
            let (scale, zero) = Hqq::DEFAULTS.search(&[number; 8], 15.0);
            assert_eq!(value(number, scale, zero, 15.0), number);
        }
    }

    #[test]
    fn hqq_keeps_scales_and_lowers_the_loss() {
        let weight: Vec<f32> = (0..4).flat_map(|_| values().into_iter().skip(1)).collect();
        for text in ["uint4:g32:zp", "uint2:g64:zp", "int4:g32:zp", "uint4:g32:fzp", "uint4:b2x64:zp"] {
            let scheme: TensorScheme = text.parse().unwrap();
            assert_eq!(Hqq::DEFAULTS.refuses(&scheme), None, "{text}");
            let context = TensorContext::new(ComputeDType::F32);
            let mut problem = LayerProblem {
                layer: "fc",
                shape: Shape { groups: 1, outputs: 4, features: 128 },
                weight: &weight,
                grid: Grid::Scheme { scheme, context, from: &weight },
                bias: None,
                function: &ActivationFunction::None,
                inputs: None,
                samples: None,
                cancelled: &AtomicBool::new(false),
            };
            let plain = nearest(&problem).unwrap();
            let made = Hqq::DEFAULTS.round(&mut problem).unwrap().tensor;
            assert_eq!(made.scales(), plain.scales(), "{text}");
            let lost = |tensor: &QuantTensor| -> f64 {
                tensor.dequantize().iter().zip(&weight).map(|(a, b)| f64::from((a - b).abs())).sum()
            };
            // Integer zero points are often the best ones already.
            let whole = text.ends_with(":zp");
            let gains = lost(&made) < lost(&plain) || (whole && lost(&made) == lost(&plain));
            assert!(gains, "{text}: {} {}", lost(&made), lost(&plain));
            assert!(!whole || made.zero_points().iter().all(|zero| zero.fract() == 0.0), "{text}");
        }
        assert!(Hqq::DEFAULTS.refuses(&"int4:g32".parse().unwrap()).unwrap().contains(":zp"));
    }
}
