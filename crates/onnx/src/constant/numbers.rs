//! The elements of a constant as numbers to compute with, and back with one rounding.
//!
//! Floats are computed in 64 bits and rounded to their type after each operator. For +, -, *, / and the square root of
//! 32-bit and shorter floats that is the correctly rounded result.

use half::{bf16, f16};
use kvant_container::onnx::DataType;

use super::Value;

/// Most elements that are computed with at once.
const MOST: usize = 1 << 24;

/// The elements of a tensor. Truth values are integers 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Elements of a float type.
    Floats(Vec<f64>),
    /// Elements of an integer type, or truth values.
    Integers(Vec<i64>),
}

impl Numbers {
    /// Reads a value; `None` for types that are not computed with here, and for tensors too large to be worth it.
    pub fn of(value: &Value) -> Option<Self> {
        if value.elements() > MOST {
            return None;
        }
        let bytes = &value.bytes()[..];
        Some(match value.data_type() {
            DataType::FLOAT => Self::Floats(read(bytes, |b| f32::from_le_bytes(b).into())),
            DataType::DOUBLE => Self::Floats(read(bytes, f64::from_le_bytes)),
            DataType::FLOAT16 => Self::Floats(read(bytes, |b| f16::from_le_bytes(b).to_f64())),
            DataType::BFLOAT16 => Self::Floats(read(bytes, |b| bf16::from_le_bytes(b).to_f64())),
            DataType::INT64 => Self::Integers(read(bytes, i64::from_le_bytes)),
            DataType::INT32 => Self::Integers(read(bytes, |b| i32::from_le_bytes(b).into())),
            DataType::UINT32 => Self::Integers(read(bytes, |b| u32::from_le_bytes(b).into())),
            DataType::INT16 => Self::Integers(read(bytes, |b| i16::from_le_bytes(b).into())),
            DataType::UINT16 => Self::Integers(read(bytes, |b| u16::from_le_bytes(b).into())),
            DataType::INT8 => Self::Integers(read(bytes, |b| i8::from_le_bytes(b).into())),
            DataType::UINT8 => Self::Integers(read(bytes, |[b]| b.into())),
            DataType::BOOL => Self::Integers(read(bytes, |[b]| (b != 0).into())),
            _ => return None,
        })
    }

    /// Writes the elements as a tensor of a type of their kind; integers wrap as they do in hardware.
    pub fn into_value(self, data_type: DataType, shape: &[usize]) -> Option<Value> {
        let bytes = match (&self, data_type) {
            (Self::Floats(v), DataType::FLOAT) => write(v, |v| (v as f32).to_le_bytes()),
            (Self::Floats(v), DataType::DOUBLE) => write(v, f64::to_le_bytes),
            (Self::Floats(v), DataType::FLOAT16) => write(v, |v| f16::from_f64(v).to_le_bytes()),
            (Self::Floats(v), DataType::BFLOAT16) => write(v, |v| bf16::from_f64(v).to_le_bytes()),
            (Self::Integers(v), DataType::INT64) => write(v, i64::to_le_bytes),
            (Self::Integers(v), DataType::INT32) => write(v, |v| (v as i32).to_le_bytes()),
            (Self::Integers(v), DataType::UINT32) => write(v, |v| (v as u32).to_le_bytes()),
            (Self::Integers(v), DataType::INT16 | DataType::UINT16) => write(v, |v| (v as u16).to_le_bytes()),
            (Self::Integers(v), DataType::INT8 | DataType::UINT8) => write(v, |v| [v as u8]),
            (Self::Integers(v), DataType::BOOL) => write(v, |v| [u8::from(v != 0)]),
            _ => return None,
        };
        Value::new(data_type, shape.to_vec(), bytes)
    }

    /// Converts to the kind of numbers a type holds; `None` where the result is not defined: floats that no integer of the
    /// type equals after truncation.
    pub fn cast(self, to: DataType) -> Option<Self> {
        match (self, to) {
            (Self::Floats(v), DataType::FLOAT | DataType::DOUBLE | DataType::FLOAT16 | DataType::BFLOAT16) => {
                Some(Self::Floats(v))
            }
            (Self::Integers(v), DataType::DOUBLE | DataType::FLOAT16 | DataType::BFLOAT16) => {
                Some(Self::Floats(v.into_iter().map(|v| v as f64).collect()))
            }
            // Straight to 32 bits: by way of 64 a large integer would be rounded twice.
            (Self::Integers(v), DataType::FLOAT) => {
                Some(Self::Floats(v.into_iter().map(|v| (v as f32).into()).collect()))
            }
            (Self::Floats(v), DataType::BOOL) => {
                Some(Self::Integers(v.into_iter().map(|v| (v != 0.0).into()).collect()))
            }
            (Self::Floats(v), _) => {
                let (least, greatest) = limits(to)?;
                let inside = |v: f64| {
                    (v.trunc() >= least as f64 && v.trunc() <= greatest as f64 && v < 9.2e18).then_some(v as i64)
                };
                v.into_iter().map(inside).collect::<Option<_>>().map(Self::Integers)
            }
            (Self::Integers(v), DataType::BOOL) => {
                Some(Self::Integers(v.into_iter().map(|v| (v != 0).into()).collect()))
            }
            (Self::Integers(v), _) => limits(to).map(|_| Self::Integers(v)),
        }
    }
}

fn limits(integer: DataType) -> Option<(i64, i64)> {
    Some(match integer {
        DataType::INT64 => (i64::MIN, i64::MAX),
        DataType::INT32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::UINT32 => (0, u32::MAX.into()),
        DataType::INT16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::UINT16 => (0, u16::MAX.into()),
        DataType::INT8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::UINT8 => (0, u8::MAX.into()),
        _ => return None,
    })
}

fn read<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| element(chunk)).collect()
}

fn write<const N: usize, T: Copy>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| bytes(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_in_their_own_type() {
        for data_type in [DataType::FLOAT, DataType::DOUBLE, DataType::FLOAT16, DataType::BFLOAT16] {
            let numbers = Numbers::Floats(vec![-1.5, 0.0, 2.0]);
            let value = numbers.clone().into_value(data_type, &[3]).unwrap();
            assert_eq!(Numbers::of(&value), Some(numbers));
        }
        for data_type in [DataType::INT64, DataType::INT8, DataType::INT32, DataType::INT16] {
            let numbers = Numbers::Integers(vec![-3, 0, 7]);
            let value = numbers.clone().into_value(data_type, &[3]).unwrap();
            assert_eq!(Numbers::of(&value), Some(numbers));
        }
    }

    #[test]
    fn casts_truncate_and_refuse_undefined_values() {
        let floats = Numbers::Floats(vec![-1.9, 2.7]);
        assert_eq!(floats.clone().cast(DataType::INT8), Some(Numbers::Integers(vec![-1, 2])));
        assert_eq!(floats.cast(DataType::UINT8), None);
        assert_eq!(Numbers::Floats(vec![f64::NAN]).cast(DataType::INT64), None);
        assert_eq!(Numbers::Floats(vec![1e30]).cast(DataType::INT64), None);
        assert_eq!(Numbers::Floats(vec![0.5]).cast(DataType::BOOL), Some(Numbers::Integers(vec![1])));
    }
}
