//! f32 contents as 16-bit floats: to nearest, ties to even, with subnormals. What is too large becomes the largest finite value
//! (infinities stay), and what is not zero stays so, as the smallest subnormal: an epsilon of 1e-12 keeps a root from zero.

use half::{bf16, f16};
use kvant_container::onnx::{DataType, Spill, TensorProto, keep, shape, tensor};
use rayon::prelude::*;

use crate::error::QuantizeError;
use crate::masks::HUGE;
use crate::recipe::FloatType;
use crate::solution::values;

/// Elements per piece of parallel work.
const PIECE: usize = 1 << 14;

/// A constant in 16 bits.
pub struct Narrowed {
    /// The constant.
    pub tensor: TensorProto,
    /// Values that were limited. Attention masks, which work as before, are not counted; a weight of a product holds none.
    pub limited: usize,
    /// Values that became the smallest of the type because they are smaller, where these are most of several; else 0.
    pub raised: usize,
}

/// Converts a constant.
pub fn narrow(
    source: &TensorProto,
    to: FloatType,
    spill: Option<&Spill>,
    is_weight: bool,
) -> Result<Narrowed, QuantizeError> {
    let values = values(source)?;
    let pieces = values.par_chunks(PIECE).map(|piece| {
        let is_mask = |v: f32| v.abs() >= HUGE && !(is_weight && v.is_finite());
        let limited = piece.iter().filter(|v| v.abs() > largest(to) && !is_mask(**v)).count();
        let raised = piece.iter().filter(|v| **v != 0.0 && v.abs() < smallest(to) / 2.0).count();
        let bytes = piece.iter().flat_map(|&v| bits(v, to).to_le_bytes()).collect::<Vec<u8>>();
        (bytes, (limited, raised))
    });
    let (bytes, counts): (Vec<Vec<u8>>, Vec<(usize, usize)>) = pieces.unzip();
    let made = tensor(source.name(), data_type(to), &shape(source)?, keep(spill, bytes.concat())?);
    let tensor = TensorProto { doc_string: source.doc_string.clone(), ..made };
    let raised: usize = counts.iter().map(|(_, raised)| raised).sum();
    // An epsilon works as before, and so do tiny values among others.
    let are_most = values.len() > 1 && raised * 2 > values.iter().filter(|value| **value != 0.0).count();
    Ok(Narrowed {
        tensor,
        limited: counts.iter().map(|(limited, _)| limited).sum(),
        raised: if are_most { raised } else { 0 },
    })
}

/// The type of stored elements.
pub fn data_type(to: FloatType) -> DataType {
    match to {
        FloatType::Float16 => DataType::FLOAT16,
        FloatType::BFloat16 => DataType::BFLOAT16,
    }
}

fn largest(to: FloatType) -> f32 {
    match to {
        FloatType::Float16 => f16::MAX.to_f32(),
        FloatType::BFloat16 => bf16::MAX.to_f32(),
    }
}

fn smallest(to: FloatType) -> f32 {
    match to {
        FloatType::Float16 => f16::from_bits(1).to_f32(),
        FloatType::BFloat16 => bf16::from_bits(1).to_f32(),
    }
}

/// The bits of a value.
fn bits(value: f32, to: FloatType) -> u16 {
    let limited = if value.is_finite() { value.clamp(-largest(to), largest(to)) } else { value };
    let bits = match to {
        FloatType::Float16 => f16::from_f32(limited).to_bits(),
        FloatType::BFloat16 => bf16::from_f32(limited).to_bits(),
    };
    let vanished = bits & 0x7fff == 0 && value != 0.0;
    bits | u16::from(vanished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::floats;

    #[test]
    fn large_values_are_clamped_and_tiny_ones_do_not_vanish() {
        let source = floats("w", &[7], &[1.0, 1e6, -3.4e38, 1e-12, -1e-12, f32::INFINITY, 5.96e-8]);
        let Narrowed { tensor, limited, raised } = narrow(&source, FloatType::Float16, None, false).unwrap();
        let found: Vec<u16> =
            tensor.raw_data.unwrap().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(found, [0x3c00, 0x7bff, 0xfbff, 0x0001, 0x8001, 0x7c00, 0x0001]);
        assert_eq!((limited, raised), (1, 0));
        assert_eq!(narrow(&source, FloatType::Float16, None, true).unwrap().limited, 2);
        let tiny = floats("w", &[3], &[1e-9, -2e-9, 0.0]);
        let raised = |source: &TensorProto, to| narrow(source, to, None, false).unwrap().raised;
        assert_eq!((raised(&tiny, FloatType::Float16), raised(&tiny, FloatType::BFloat16)), (2, 0));
        assert_eq!(raised(&floats("epsilon", &[], &[1e-12]), FloatType::Float16), 0);
    }

    #[test]
    fn bfloat16_covers_the_range_of_f32() {
        assert_eq!(bits(f32::MAX, FloatType::BFloat16), 0x7f7f);
        assert_eq!(bits(1e30, FloatType::BFloat16), bf16::from_f32(1e30).to_bits());
        assert!(f32::from(bf16::from_bits(bits(f32::NAN, FloatType::BFloat16))).is_nan());
    }
}
