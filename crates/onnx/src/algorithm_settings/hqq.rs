//! HQQ: the zero point of a block that leaves the least error of a kind that outliers hardly weigh in, found without data.
//!
//! With the scale that spans a block, codes `q = round(w / s + z)` and values `s (q - z)`, two steps take turns: the error
//! `e = shrink(w - s (q - z))` with `shrink(x) = sign(x) max(|x| - |x|^(p - 1) / beta, 0)`, then `z = mean(q - (w - e) / s)`; `beta` grows
//! by `kappa`. It ends where the mean error no longer falls.
//! Source: Badri and Shaji, Half-Quadratic Quantization of Large Machine Learning Models, 2023.

use super::option::{AlgorithmOption, COUNT, count, option};

/// The norm of the error.
const P: f32 = 0.7;
/// The weight of the split at the start.
const BETA: f32 = 10.0;
/// By how much it grows in each round.
const KAPPA: f32 = 1.01;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HqqSettings {
    /// Rounds at most.
    pub steps: u32,
}

impl HqqSettings {
    /// Twenty rounds.
    pub const DEFAULTS: Self = Self { steps: 20 };

    /// Scale and zero point of a block whose codes are 0 to `top`.
    pub(crate) fn search(&self, block: &[f32], top: f32) -> (f32, f32) {
        let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        let scale = (high - low) / top;
        if !scale.is_normal() {
            // All weights are one number: its code is 0, or 1 where the number is not zero.
            return if low == 0.0 || !low.is_normal() { (1.0, 0.0) } else { (low, 0.0) };
        }
        let (mut zero, mut beta) = (-low / scale, BETA);
        let mut best = (self.error(block, scale, zero, top), zero);
        for _ in 0..self.steps {
            zero = next(block, scale, zero, top, beta);
            beta *= KAPPA;
            let error = self.error(block, scale, zero, top);
            if error >= best.0 || !zero.is_finite() {
                break;
            }
            best = (error, zero);
        }
        (scale, best.1)
    }

    /// Mean magnitude of what is lost.
    fn error(&self, block: &[f32], scale: f32, zero: f32, top: f32) -> f64 {
        let lost = |&w: &f32| f64::from((w - value(w, scale, zero, top)).abs());
        block.iter().map(lost).sum::<f64>() / block.len().max(1) as f64
    }
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

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] = &[option!(Hqq.steps, "steps", COUNT, "rounds at most", count)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_no_larger_than_that_of_the_range() {
        let block: Vec<f32> = (0..128).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.3).chain([4.0]).collect();
        let settings = HqqSettings::DEFAULTS;
        let (scale, zero) = settings.search(&block, 15.0);
        let plain = 0.3 / scale;
        assert!(settings.error(&block, scale, zero, 15.0) <= settings.error(&block, scale, plain, 15.0));
        assert!(zero != plain);
    }

    #[test]
    fn blocks_of_one_number_are_exact() {
        for number in [0.0, 0.7, -3.0] {
            let (scale, zero) = HqqSettings::DEFAULTS.search(&[number; 8], 15.0);
            assert_eq!(value(number, scale, zero, 15.0), number);
        }
    }
}
