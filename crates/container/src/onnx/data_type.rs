//! The element types of ONNX tensors: their sizes and names. The numbers are those of the specification.

pub use super::proto::DataType;

/// Bits of one element; `None` for strings and for no type.
pub fn data_type_bits(data_type: DataType) -> Option<u64> {
    use DataType::*;
    Some(match data_type {
        UNDEFINED | STRING => return None,
        UINT2 | INT2 => 2,
        UINT4 | INT4 | FLOAT4E2M1 => 4,
        UINT8 | INT8 | BOOL | FLOAT8E4M3FN | FLOAT8E4M3FNUZ | FLOAT8E5M2 | FLOAT8E5M2FNUZ | FLOAT8E8M0 => 8,
        UINT16 | INT16 | FLOAT16 | BFLOAT16 => 16,
        FLOAT | INT32 | UINT32 => 32,
        INT64 | DOUBLE | UINT64 | COMPLEX64 => 64,
        COMPLEX128 => 128,
    })
}

/// Bytes of `elements` elements as raw data: types of less than a byte are packed over the whole tensor, the last byte
/// padded. `None` for strings and for sizes beyond memory.
pub fn byte_len(data_type: DataType, elements: u64) -> Option<usize> {
    let bits = elements.checked_mul(data_type_bits(data_type)?)?;
    usize::try_from(bits.div_ceil(8)).ok()
}

/// The name as the ONNX documents spell it, in lower case: `float`, `int8`, `bfloat16`.
pub fn data_type_name(data_type: DataType) -> String {
    format!("{data_type:?}").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_sizes_round_up() {
        assert_eq!(byte_len(DataType::INT4, 3), Some(2));
        assert_eq!(byte_len(DataType::UINT2, 5), Some(2));
        assert_eq!(byte_len(DataType::BFLOAT16, 3), Some(6));
        assert_eq!(byte_len(DataType::STRING, 3), None);
        assert_eq!(byte_len(DataType::DOUBLE, u64::MAX), None);
    }

    #[test]
    fn data_type_names_match_the_onnx_documentation() {
        assert_eq!(data_type_name(DataType::FLOAT8E4M3FN), "float8e4m3fn");
        assert_eq!(data_type_name(DataType::FLOAT), "float");
    }
}
