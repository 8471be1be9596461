//! Scales of a product's weight and bias, so that the bias has codes. No graphs.

use crate::element::Element;
use crate::quantization::Affine;

/// The maximum factor by which a weight's scale is raised for a bias if the product reads more than 8 bits. Beyond it the bias
/// has its own codes. If a product reads 8 bits there is no limit: the step of the weight stays far below that of the
/// data, and integer kernels take no other bias.
const LARGEST_RAISE: f64 = 4.0;

/// Bias codes beyond this are not representable in int32, with room for the rounding of the scale.
const LARGEST_BIAS_CODE: f64 = 2147483647.0 / 1.0001;

/// The largest magnitudes of a bias that share a scale: of all values where there is one scale, else one per channel. A
/// broadcast bias has fewer values than scales; those that are missing count as 0.
pub fn magnitudes(values: &[f32], scales: usize) -> Vec<f32> {
    match scales {
        1 => vec![values.iter().fold(0f32, |m, v| m.max(v.abs()))],
        _ => (0..scales).map(|channel| values.get(channel).map_or(0.0, |v| v.abs())).collect(),
    }
}

/// The least scales of a weight with which biases of these magnitudes have int32 codes, where the product reads data of the
/// scale `input`.
pub fn least_weight_scales(magnitudes: &[f32], input: f64) -> Vec<f64> {
    magnitudes.iter().map(|&bound| f64::from(bound) / LARGEST_BIAS_CODE / input).collect()
}

/// Raises the scales of a weight that are below the least ones: to these, or to the next powers of two. Returns whether it
/// did. For data of more than 8 bits, scales are not raised by more than a factor of 4.
pub fn raise(weights: &mut [Affine], least: &[f64], reads_bytes: bool, power_of_two: bool) -> bool {
    let most = weights.iter().zip(least).map(|(w, least)| least / f64::from(w.scale)).fold(0.0, f64::max);
    if most <= 1.0 || !reads_bytes && most > LARGEST_RAISE {
        return false;
    }
    for (weight, least) in weights.iter_mut().zip(least) {
        if f64::from(weight.scale) < *least {
            weight.scale = if power_of_two { least.log2().ceil().exp2() as f32 } else { *least as f32 };
        }
    }
    true
}

/// Returns whether int32 cannot hold the codes of a bias under the scales of its product.
pub fn is_wide(weights: &[Affine], least: &[f64]) -> bool {
    // A scale that was raised is a rounded one.
    weights.iter().zip(least).any(|(w, least)| f64::from(w.scale) * 1.00005 < *least)
}

/// Scales under which biases of these magnitudes have codes of an element type: the product's where they are large enough.
pub fn wide_enough(scales: &[f32], magnitudes: &[f32], element: Element) -> Vec<f32> {
    let most = element.full_range().map_or(1.0, |codes| codes.max as f32);
    scales.iter().zip(magnitudes).map(|(scale, bound)| scale.max(bound / most)).collect()
}
