//! The element types of arrays: their ONNX types, their bytes, conversion between them.

use std::borrow::Cow;

use bytemuck::Pod;
use half::{bf16, f16};
use kvant_container::onnx::DataType;

use super::Values;

/// A type arrays can be of.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type's number in ONNX.
    const DATA_TYPE: DataType;
    /// Whether the type is a float.
    const FLOAT: bool;

    /// The values of an array of this type.
    fn values(values: Cow<'_, [Self]>) -> Values<'_>;

    /// The nearest float.
    fn to_float(self) -> f64;

    /// The integer, if this is one; 0 and 1 for `bool`.
    fn to_integer(self) -> Option<i128>;

    /// The nearest value of this type to a float; `None` for integers.
    fn from_float(value: f64) -> Option<Self>;

    /// The value of this type that an integer is; `None` out of range.
    fn from_integer(value: i128) -> Option<Self>;
}

macro_rules! integer {
    ($($type:ty, $variant:ident, $data_type:ident;)*) => { $(
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
            const FLOAT: bool = false;

            fn values(values: Cow<'_, [Self]>) -> Values<'_> {
                Values::$variant(values)
            }

            fn to_float(self) -> f64 {
                self as f64
            }

            fn to_integer(self) -> Option<i128> {
                Some(self.into())
            }

            fn from_float(_: f64) -> Option<Self> {
                None
            }

            fn from_integer(value: i128) -> Option<Self> {
                value.try_into().ok()
            }
        }
    )* };
}

macro_rules! float {
    ($($type:ty, $variant:ident, $data_type:ident, $from:expr, $to:expr;)*) => { $(
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
            const FLOAT: bool = true;

            fn values(values: Cow<'_, [Self]>) -> Values<'_> {
                Values::$variant(values)
            }

            fn to_float(self) -> f64 {
                $to(self)
            }

            fn to_integer(self) -> Option<i128> {
                None
            }

            fn from_float(value: f64) -> Option<Self> {
                Some($from(value))
            }

            fn from_integer(value: i128) -> Option<Self> {
                Some($from(value as f64))
            }
        }
    )* };
}

integer! {
    i64, I64, INT64;
    i32, I32, INT32;
    i16, I16, INT16;
    i8, I8, INT8;
    u64, U64, UINT64;
    u32, U32, UINT32;
    u16, U16, UINT16;
    u8, U8, UINT8;
}

float! {
    f64, F64, DOUBLE, |v: f64| v, |v: f64| v;
    f32, F32, FLOAT, |v: f64| v as f32, f64::from;
    f16, F16, FLOAT16, f16::from_f64, f16::to_f64;
    bf16, Bf16, BFLOAT16, bf16::from_f64, bf16::to_f64;
}

impl Element for bool {
    const DATA_TYPE: DataType = DataType::BOOL;
    const FLOAT: bool = false;

    fn values(values: Cow<'_, [Self]>) -> Values<'_> {
        Values::Bool(values)
    }

    fn to_float(self) -> f64 {
        f64::from(u8::from(self))
    }

    fn to_integer(self) -> Option<i128> {
        Some(self.into())
    }

    fn from_float(_: f64) -> Option<Self> {
        None
    }

    fn from_integer(value: i128) -> Option<Self> {
        match value {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// Values as another type; `None` where it cannot hold one of them, or is no type of arrays.
pub(crate) fn cast<T: Element>(values: &[T], to: DataType) -> Option<Values<'static>> {
    Some(match to {
        DataType::FLOAT => Values::F32(converted(values)?),
        DataType::DOUBLE => Values::F64(converted(values)?),
        DataType::FLOAT16 => Values::F16(converted(values)?),
        DataType::BFLOAT16 => Values::Bf16(converted(values)?),
        DataType::INT64 => Values::I64(converted(values)?),
        DataType::INT32 => Values::I32(converted(values)?),
        DataType::INT16 => Values::I16(converted(values)?),
        DataType::INT8 => Values::I8(converted(values)?),
        DataType::UINT64 => Values::U64(converted(values)?),
        DataType::UINT32 => Values::U32(converted(values)?),
        DataType::UINT16 => Values::U16(converted(values)?),
        DataType::UINT8 => Values::U8(converted(values)?),
        DataType::BOOL => Values::Bool(converted(values)?),
        _ => return None,
    })
}

fn converted<T: Element, U: Element>(values: &[T]) -> Option<Cow<'static, [U]>> {
    let one = |&value: &T| match (T::FLOAT, U::FLOAT) {
        (_, true) => U::from_float(value.to_float()),
        _ => U::from_integer(value.to_integer()?),
    };
    values.iter().map(one).collect::<Option<Vec<U>>>().map(Cow::Owned)
}

/// Little-endian bytes as values of a type: lent where the bytes are aligned, else copied. `None` for types that arrays do
/// not have, or where the bytes are no whole number of values.
pub fn from_bytes(data_type: DataType, bytes: &[u8]) -> Option<Values<'_>> {
    Some(match data_type {
        DataType::FLOAT => Values::F32(plain(bytes)?),
        DataType::DOUBLE => Values::F64(plain(bytes)?),
        DataType::FLOAT16 => Values::F16(plain(bytes)?),
        DataType::BFLOAT16 => Values::Bf16(plain(bytes)?),
        DataType::INT64 => Values::I64(plain(bytes)?),
        DataType::INT32 => Values::I32(plain(bytes)?),
        DataType::INT16 => Values::I16(plain(bytes)?),
        DataType::INT8 => Values::I8(plain(bytes)?),
        DataType::UINT64 => Values::U64(plain(bytes)?),
        DataType::UINT32 => Values::U32(plain(bytes)?),
        DataType::UINT16 => Values::U16(plain(bytes)?),
        DataType::UINT8 => Values::U8(plain(bytes)?),
        DataType::BOOL => Values::Bool(bytes.iter().map(|&byte| byte != 0).collect()),
        _ => return None,
    })
}

fn plain<T: Pod>(bytes: &[u8]) -> Option<Cow<'_, [T]>> {
    if !bytes.len().is_multiple_of(size_of::<T>()) {
        return None;
    }
    Some(match bytemuck::try_cast_slice(bytes) {
        Ok(values) => Cow::Borrowed(values),
        Err(_) => bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
    })
}
