//! A matrix of floats as a caller has it in memory.

use crate::error::{Error, ErrorKind};
use kvant_container::parse_dtype;
use kvant_numeric::kernel::{Elements, FloatDType, widen, widen_elements};
use kvant_numeric::simd::Isa;
use kvant_weights::float_dtype::float_dtype;
use std::borrow::Cow;

/// A row-major matrix of f32, f16, bf16 or fp8 numbers.
#[derive(Clone, Debug)]
pub struct Matrix<'a> {
    dtype: FloatDType,
    bytes: &'a [u8],
    /// fp8 numbers, which kernels read as f32.
    widened: Option<Vec<f32>>,
    rows: usize,
    columns: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix over little-endian bytes, which need no alignment. `dtype` is a name as in safetensors files: `F32`, `F16`, `BF16`,
    /// `F8_E4M3` or `F8_E5M2`.
    ///
    /// # Errors
    /// *Unsupported* for another type, *invalid* where there are more or fewer bytes than elements.
    pub fn new(dtype: &str, bytes: &'a [u8], rows: usize, columns: usize) -> Result<Matrix<'a>, Error> {
        let Some(dtype) = parse_dtype(dtype).and_then(float_dtype) else {
            let hint = "convert it to float32, float16 or bfloat16 first";
            let error = Error::new(ErrorKind::Unsupported, format!("numbers of type {dtype} are not quantized"));
            return Err(error.with_hint(Some(hint.to_owned())));
        };
        let expected = rows.checked_mul(columns).and_then(|count| count.checked_mul(dtype.size()));
        if expected != Some(bytes.len()) {
            let message = format!("{} bytes are not a matrix of {rows} x {columns} numbers", bytes.len());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let widened = match dtype {
            FloatDType::E4m3 | FloatDType::E5m2 => {
                let mut values = vec![0.0; bytes.len()];
                widen(Isa::best(), dtype, bytes, &mut values);
                Some(values)
            }
            _ => None,
        };
        Ok(Matrix { dtype, bytes, widened, rows, columns })
    }

    /// The type of its numbers.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Its numbers, as kernels read them.
    pub(super) fn elements(&self) -> Elements<'_> {
        match &self.widened {
            Some(values) => Elements::Values(values),
            None => Elements::stored(self.dtype, self.bytes).unwrap_or(Elements::Values(&[])),
        }
    }

    /// Its numbers in f32.
    pub(super) fn values(&self) -> Cow<'_, [f32]> {
        match &self.widened {
            Some(values) => Cow::Borrowed(values),
            None => Cow::Owned(self.to_values()),
        }
    }

    /// A copy of its numbers in f32.
    pub(super) fn to_values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        widen_elements(Isa::best(), self.elements(), &mut values);
        values
    }
}
