//! Dividing a norm by scales, in the type that its values are stored in.

use kvant_numeric::ComputeDType;

/// A norm's new weight, and the scales that it was divided by in effect.
pub(super) struct Divided {
    pub(super) weight: Vec<f32>,
    pub(super) scales: Vec<f32>,
}

/// Divides what a norm multiplies by, `offset + w`: the new weight is rounded to the type of the old one, and the scales are
/// the quotients of the old and the new values, so that consumers of the norm compensate for its rounding. Channels
/// that are zero, or would become zero, keep their weight.
pub(super) fn divide(weight: &[f32], scales: &[f32], offset: f32, stored: ComputeDType) -> Divided {
    let (weight, scales) = weight.iter().zip(scales).map(|(w, s)| divided(*w, *s, offset, stored)).unzip();
    Divided { weight, scales }
}

fn divided(weight: f32, scale: f32, offset: f32, stored: ComputeDType) -> (f32, f32) {
    let before = offset + weight;
    let divided = stored.round(before / scale - offset);
    let effective = before / (offset + divided);
    // An infinite weight is for the caller to find.
    let usable = effective > 0.0 && effective.is_normal() && effective.recip().is_normal();
    if usable || divided.is_infinite() { (divided, effective) } else { (weight, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_norm_times_scale_is_the_old_weight() {
        let weight = [1.0, -0.75, 0.3125, 0.0, 2.5e-3, -1.0];
        let scales = [3.0, 0.7, 1.9, 5.0, 250.0, 0.01];
        for (offset, stored) in
            [(0.0, ComputeDType::Bf16), (1.0, ComputeDType::Bf16), (0.0, ComputeDType::F32), (1.0, ComputeDType::F16)]
        {
            let Divided { weight: new, scales: effective } = divide(&weight, &scales, offset, stored);
            for j in 0..weight.len() {
                assert_eq!(new[j], stored.round(new[j]));
                let (before, after) = (offset + weight[j], (offset + new[j]) * effective[j]);
                assert!((before - after).abs() <= before.abs() * 1e-6, "{before} {after}");
            }
        }
    }

    #[test]
    fn zero_norm_weights_stay_unscaled() {
        let Divided { weight, scales } = divide(&[0.0, 1e-7], &[4.0, 1e4], 0.0, ComputeDType::F16);
        assert_eq!((weight, scales), (vec![0.0, 1e-7], vec![1.0, 1.0]));
        let Divided { weight, scales } = divide(&[-1.0, 0.0], &[4.0, 1e6], 1.0, ComputeDType::Bf16);
        assert_eq!((weight, scales), (vec![-1.0, 0.0], vec![1.0, 1.0]));
    }
}
