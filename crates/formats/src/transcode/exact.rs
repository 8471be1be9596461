//! Whether the scales of stored codes are exact in the type of another layout. Not codes, which always are.

use kvant_numeric::format::MiniFloat;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::StaticParameters;
use kvant_weights::parts::{Content, ParameterContent, ParameterPart, Part, ScaleEncoding};
use kvant_weights::weight::{PackedMatrix, rounded_scales};

/// The loss of re-encoding scales.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// In words.
    pub reason: String,
    /// The largest relative error of a scale.
    pub relative: f32,
}

/// Numbers that are encoded at a time.
const CHUNK: usize = 1 << 16;

/// The loss of a matrix's scales in the target's parts; `None` if they lose nothing.
pub fn loss_of_scales(isa: Isa, matrix: &PackedMatrix<'_>, parts: &[Part]) -> Option<Loss> {
    let losses = parts.iter().filter_map(|part| match part.content {
        Content::Scales { encoding, .. } => loss_of_matrix(isa, matrix, encoding),
        Content::GlobalScale => loss_of_tensor_scale(matrix),
        Content::GlobalScaleReciprocal if matrix.divisor().is_none() => matrix.global_scale().and_then(loss_of_divisor),
        _ => None,
    });
    let losses = losses.chain(loss_of_zeros(isa, matrix, parts));
    losses.max_by(|a, b| a.relative.total_cmp(&b.relative))
}

/// What a factor on the scales of a matrix loses where the source has a divisor.
pub fn loss_of_tensor_scale(matrix: &PackedMatrix<'_>) -> Option<Loss> {
    matrix.divisor().and_then(loss_of_multiplier)
}

fn loss_of_matrix(isa: Isa, matrix: &PackedMatrix<'_>, target: ScaleEncoding) -> Option<Loss> {
    let stored = matrix.scale_encoding();
    // Every number of these is one of f32.
    if stored == target || target == ScaleEncoding::F32 {
        return None;
    }
    let scales = matrix.scales(isa);
    let worst = |worst: Option<(f32, f32)>, scale: f32, back: f32| {
        let error = relative_error(scale, back);
        if error > worst.map_or(0.0, |(_, error)| error) { Some((scale, error)) } else { worst }
    };
    let mut found = None;
    for chunk in scales.chunks(CHUNK) {
        let back = rounded_scales(isa, target, chunk);
        found = chunk.iter().zip(back).fold(found, |found, (scale, back)| worst(found, *scale, back));
    }
    let name = target.dtype();
    found.map(|(scale, relative)| Loss { reason: format!("the scale {scale:e} is not exact in {name}"), relative })
}

/// What is lost of the values of zero's codes, which are stored as biases or as integers: biases are rounded.
fn loss_of_zeros(isa: Isa, matrix: &PackedMatrix<'_>, parts: &[Part]) -> Option<Loss> {
    let target = parts.iter().find_map(|part| match part.content {
        Content::Biases { encoding } => Some(encoding),
        _ => None,
    });
    let stored = matrix.biases(isa);
    if stored.is_none() && target.is_none() || !matrix.is_integer() {
        return None;
    }
    let both = matrix.scales(isa).into_iter().zip(matrix.lowest_to_zero(isa));
    let exact: Vec<f32> = both.map(|(scale, zero)| 0.0 - scale * f32::from(zero)).collect();
    let made = target.map_or_else(|| exact.clone(), |encoding| rounded_scales(isa, encoding, &exact));
    let pairs = stored.as_ref().unwrap_or(&exact).iter().zip(&made);
    let errors = pairs.map(|(stored, made)| (*stored, relative_error(*stored, *made)));
    let (bias, relative) = errors.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, error)| *error > 0.0)?;
    Some(Loss { reason: format!("the bias {bias:e}, minus a scale times its zero point, is rounded"), relative })
}

fn relative_error(scale: f32, back: f32) -> f32 {
    if scale == back {
        return 0.0;
    }
    let error = ((back - scale) / scale).abs();
    if error.is_nan() { f32::INFINITY } else { error }
}

/// What multiplying by the reciprocal of a divisor loses: nothing where all block scales come out the same.
fn loss_of_multiplier(divisor: f32) -> Option<Loss> {
    block_scales_differ(|scale| scale / divisor, |scale| scale * (1.0 / divisor)).then(|| reciprocal(divisor))
}

/// The same of dividing by the reciprocal of a multiplier.
fn loss_of_divisor(multiplier: f32) -> Option<Loss> {
    let divisor = 1.0 / multiplier;
    block_scales_differ(|scale| scale * multiplier, |scale| scale / divisor).then(|| reciprocal(multiplier))
}

fn reciprocal(scale: f32) -> Loss {
    let reason = format!("the target stores the reciprocal of the tensor's scale {scale:e}, which is not exact");
    Loss { reason, relative: f32::EPSILON }
}

fn block_scales_differ(one: impl Fn(f32) -> f32, other: impl Fn(f32) -> f32) -> bool {
    let formats = [MiniFloat::E4M3, MiniFloat::E5M3];
    let scales = formats.into_iter().flat_map(|format| (0..=u8::MAX).map(move |code| format.decode(code)));
    scales.filter(|scale| scale.is_finite()).any(|scale| one(scale).to_bits() != other(scale).to_bits())
}

/// The loss of activation parameters in a tensor; `None` if nothing is lost.
pub fn loss_of_parameter(part: &ParameterPart, parameters: &StaticParameters) -> Option<Loss> {
    let back = |scale: f32| match part.content {
        ParameterContent::Scales(encoding) => rounded_scales(Isa::best(), encoding, &[scale])[0],
        ParameterContent::Reciprocals => 1.0 / (1.0 / scale),
        ParameterContent::ZeroPoints => scale,
    };
    let errors = parameters.scales.iter().map(|scale| (*scale, relative_error(*scale, back(*scale))));
    let worst = errors.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, error)| *error > 0.0);
    worst.map(|(scale, relative)| Loss {
        reason: format!("the scale {scale:e} of activations is not exact in the target"),
        relative,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reciprocals_are_exact_only_for_powers_of_two() {
        assert_eq!((loss_of_divisor(0.25), loss_of_multiplier(64.0)), (None, None));
        assert!(loss_of_divisor(0.1).is_some() && loss_of_multiplier(3.0).is_some());
    }

    #[test]
    fn relative_error_of_lost_values_is_one_or_infinite() {
        assert_eq!(relative_error(1e-30, 0.0), 1.0);
        assert_eq!(relative_error(1e30, f32::INFINITY), f32::INFINITY);
        assert_eq!(relative_error(f32::NAN, f32::NAN), f32::INFINITY);
    }
}
