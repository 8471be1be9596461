//! Element types of safetensors files: spelling, alignment and byte lengths. No arithmetic on the elements themselves.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

/// The element types of the safetensors format, spelled as in the file by `Display` (`F8_E4M3`, `BF16`, ...).
///
/// `bitsize()` is the width of an element in bits; `F4`, `F6_E2M3` and `F6_E3M2` are narrower than a byte and packed.
pub use ::safetensors::Dtype;

/// The reason that a tensor has no byte length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The number of bits does not fit 64 bits.
    #[error("its size overflows 64 bits")]
    Overflow,
    /// Packed elements narrower than a byte end inside one.
    #[error("its packed elements do not fill whole bytes")]
    PartialByte,
}

/// Parses the spelling used in safetensors headers, which is case-sensitive. `None` if no such type is known.
pub fn parse_dtype(name: &str) -> Option<Dtype> {
    let deserializer: StrDeserializer<'_, ValueError> = name.into_deserializer();
    Dtype::deserialize(deserializer).ok()
}

/// The alignment, in bytes, that lets the elements be viewed in place: 1, 2, 4 or 8.
pub fn alignment(dtype: Dtype) -> u64 {
    match dtype.bitsize() {
        0..=8 => 1,
        9..=16 => 2,
        17..=32 => 4,
        _ => 8,
    }
}

/// The bytes of a tensor: the product of `shape` (1 for a scalar, `[]`) times the bits of `dtype`, over 8.
pub fn byte_len(dtype: Dtype, shape: &[usize]) -> Result<u64, SizeError> {
    let bits = shape.iter().try_fold(dtype.bitsize() as u64, |bits, &dim| bits.checked_mul(dim as u64));
    match bits.ok_or(SizeError::Overflow)? {
        bits if bits % 8 == 0 => Ok(bits / 8),
        _ => Err(SizeError::PartialByte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_spellings_round_trip() {
        let names =
            "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64";
        for name in names.split(' ') {
            assert_eq!(parse_dtype(name).expect(name).to_string(), name);
        }
    }

    #[test]
    fn unknown_dtype_spellings_are_refused() {
        for name in ["", "f32", "float32", "F32 ", "F7"] {
            assert_eq!(parse_dtype(name), None, "{name}");
        }
    }

    #[test]
    fn alignment_is_the_element_size() {
        let dtypes = [Dtype::F4, Dtype::F6_E3M2, Dtype::F8_E8M0, Dtype::BF16, Dtype::F32, Dtype::I64];
        assert_eq!(dtypes.map(alignment), [1, 1, 1, 2, 4, 8]);
    }

    #[test]
    fn byte_length_of_shapes() {
        assert_eq!(byte_len(Dtype::F32, &[]), Ok(4));
        assert_eq!(byte_len(Dtype::F4, &[3, 2]), Ok(3));
        assert_eq!(byte_len(Dtype::F6_E2M3, &[4]), Ok(3));
        assert_eq!(byte_len(Dtype::U64, &[0, 5]), Ok(0));
        assert_eq!(byte_len(Dtype::F4, &[3]), Err(SizeError::PartialByte));
        assert_eq!(byte_len(Dtype::U8, &[usize::MAX, 2]), Err(SizeError::Overflow));
    }
}
