//! The schemes under which stored codes can be written: signed or unsigned, with or without zero points, under scales of
//! another type. All stand for the same values, if the scales are exact in the type.

use kvant_quant::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, TensorScheme, ZeroPoint};
use kvant_weights::weight::integers;

/// Types of plain scales.
const SCALES: [ScaleType; 3] = [ScaleType::F16, ScaleType::Bf16, ScaleType::F32];

/// The forms of a stored scheme, the most usual first. The scheme itself, whose integers are signed, is among them.
pub fn forms(stored: TensorScheme) -> Vec<TensorScheme> {
    match stored {
        TensorScheme::Int(int) => {
            let scaled =
                |int: IntScheme| scales(int.scale).map(move |scale| TensorScheme::Int(IntScheme { scale, ..int }));
            int_forms(int).into_iter().flat_map(scaled).collect()
        }
        TensorScheme::Float(float) => {
            float_scales(float).into_iter().map(|scale| TensorScheme::Float(FloatScheme { scale, ..float })).collect()
        }
        other => vec![other],
    }
}

/// Symmetric codes are usually signed, others unsigned.
fn int_forms(int: IntScheme) -> Vec<IntScheme> {
    let unsigned = integers(int.format.bits()).and_then(|(_, unsigned)| unsigned);
    let unsigned = unsigned.map(|format| IntScheme { format, zero_point: ZeroPoint::Integer, ..int });
    let signed = IntScheme { zero_point: ZeroPoint::Integer, ..int };
    match int.zero_point {
        ZeroPoint::Zero => [Some(int), unsigned].into_iter().flatten().collect(),
        _ => [unsigned, Some(signed)].into_iter().flatten().collect(),
    }
}

/// Its own type first, so that nothing is encoded anew without need.
fn scales(own: ScaleType) -> impl Iterator<Item = ScaleType> {
    std::iter::once(own).chain(SCALES.into_iter().filter(move |scale| *scale != own))
}

/// Powers of two are also plain floats.
fn float_scales(float: FloatScheme) -> Vec<FloatScale> {
    match float.scale {
        FloatScale::Plain(own) => scales(own).map(FloatScale::Plain).collect(),
        FloatScale::E8m0(rule) => {
            std::iter::once(FloatScale::E8m0(rule)).chain(SCALES.map(FloatScale::Plain)).collect()
        }
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(text: &str) -> Vec<String> {
        forms(text.parse().unwrap()).iter().map(TensorScheme::to_string).collect()
    }

    #[test]
    fn equivalent_scheme_forms_are_listed() {
        assert_eq!(
            spelled("int4:g128:f16"),
            [
                "int4:g128:f16",
                "int4:g128:bf16",
                "int4:g128:f32",
                "uint4:g128:f16:zp",
                "uint4:g128:bf16:zp",
                "uint4:g128:f32:zp"
            ]
        );
        assert_eq!(spelled("int4:g32:bf16:zp")[..2], ["uint4:g32:bf16:zp", "uint4:g32:f16:zp"]);
        assert_eq!(spelled("int3:g32:f16:zp")[0], "int3:g32:f16:zp");
        assert_eq!(spelled("e2m1:g32:e8m0")[0], "e2m1:g32:e8m0");
        assert_eq!(spelled("e2m1:g16:e4m3:f32"), ["e2m1:g16:e4m3:f32"]);
    }
}
