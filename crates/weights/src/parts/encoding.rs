//! Numbers as scales are stored. Not which numbers.

use super::part::ScaleEncoding;
use kvant_numeric::format::{MiniFloat, e8m0_encode};
use kvant_numeric::kernel::{narrow_to_bf16, narrow_to_f16};
use kvant_numeric::simd::Isa;

/// Numbers in a type of the file.
pub fn encode(encoding: ScaleEncoding, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_onto(Isa::best(), encoding, values, &mut bytes);
    bytes
}

/// The same, over what `bytes` held before.
pub(crate) fn encode_onto(isa: Isa, encoding: ScaleEncoding, values: &[f32], bytes: &mut Vec<u8>) {
    bytes.resize(values.len() * encoding.size(), 0);
    let mut each =
        |encode: fn(f32) -> u8| bytes.iter_mut().zip(values).for_each(|(byte, value)| *byte = encode(*value));
    match encoding {
        ScaleEncoding::E4m3 => each(|value| MiniFloat::E4M3.encode(value)),
        ScaleEncoding::E5m3 => each(|value| MiniFloat::E5M3.encode(value)),
        ScaleEncoding::E8m0 => each(e8m0_encode),
        ScaleEncoding::F16 => narrow_to_f16(isa, values, bytes.as_chunks_mut().0),
        ScaleEncoding::Bf16 => narrow_to_bf16(isa, values, bytes.as_chunks_mut().0),
        ScaleEncoding::F32 => {
            let words = bytes.as_chunks_mut().0.iter_mut();
            words.zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
        }
    }
}
