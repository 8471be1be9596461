//! The element types that weights are read from.

use kvant_container::Dtype;
use kvant_numeric::kernel::FloatDType;

/// The float type of a safetensors dtype; `None` where no kernel reads it as a weight.
pub fn float_dtype(dtype: Dtype) -> Option<FloatDType> {
    match dtype {
        Dtype::F32 => Some(FloatDType::F32),
        Dtype::F16 => Some(FloatDType::F16),
        Dtype::BF16 => Some(FloatDType::Bf16),
        Dtype::F8_E4M3 => Some(FloatDType::E4m3),
        Dtype::F8_E5M2 => Some(FloatDType::E5m2),
        _ => None,
    }
}
