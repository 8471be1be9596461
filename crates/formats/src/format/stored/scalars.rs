//! Small tensors that are read when a checkpoint is opened: scales of whole tensors, shapes, groups.

use kvant_container::{Dtype, TensorView};
use kvant_numeric::kernel::{FloatDType, widen};
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;

/// The one number of a tensor; it must be finite.
pub(crate) fn scalar(view: TensorView<'_>) -> Result<f32, ImportError> {
    match floats(view)?.as_slice() {
        [value] => Ok(*value),
        values => Err(ImportError::invalid(view.name(), format!("has {} numbers; one was expected", values.len()))),
    }
}

/// Finite numbers.
pub(crate) fn floats(view: TensorView<'_>) -> Result<Vec<f32>, ImportError> {
    let source = match view.dtype() {
        Dtype::F32 => FloatDType::F32,
        Dtype::F16 => FloatDType::F16,
        Dtype::BF16 => FloatDType::Bf16,
        dtype => return Err(ImportError::invalid(view.name(), format!("is {dtype}; floats were expected"))),
    };
    let mut values = vec![0.0; view.bytes().len() / source.size()];
    widen(Isa::best(), source, view.bytes(), &mut values);
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(ImportError::invalid(view.name(), format!("holds {value}"))),
        None => Ok(values),
    }
}

/// Finite numbers of any type of floats, with all their digits.
pub(crate) fn matrix(view: TensorView<'_>) -> Result<Vec<f64>, ImportError> {
    if view.dtype() != Dtype::F64 {
        return Ok(floats(view)?.into_iter().map(f64::from).collect());
    }
    let values: Vec<f64> = view.bytes().as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).collect();
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(ImportError::invalid(view.name(), format!("holds {value}"))),
        None => Ok(values),
    }
}

/// Integers of any type.
pub(crate) fn integers(view: TensorView<'_>) -> Result<Vec<i64>, ImportError> {
    let bytes = view.bytes();
    match view.dtype() {
        Dtype::I64 => Ok(bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect()),
        Dtype::I32 => Ok(bytes.as_chunks().0.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect()),
        Dtype::I8 => Ok(bytes.iter().map(|byte| i64::from(*byte as i8)).collect()),
        Dtype::U8 => Ok(bytes.iter().map(|byte| i64::from(*byte)).collect()),
        dtype => Err(ImportError::invalid(view.name(), format!("is {dtype}; integers were expected"))),
    }
}
