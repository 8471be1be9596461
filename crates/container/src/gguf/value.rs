//! Values of metadata: thirteen types, arrays of each included. Not their place in a file.

use std::borrow::Cow;
use std::fmt;

/// A string as stored in a file: bytes that should be UTF-8, and are kept if they are not.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Text(Vec<u8>);

impl Text {
    /// The text of some bytes.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Text {
        Text(bytes.into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The value as a string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The value as a string, with replacement characters for invalid UTF-8.
    pub fn to_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl<T: Into<String>> From<T> for Text {
    fn from(text: T) -> Text {
        Text(text.into().into_bytes())
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// An unsigned byte.
    U8,
    /// A signed byte.
    I8,
    /// An unsigned 16-bit integer.
    U16,
    /// A signed 16-bit integer.
    I16,
    /// An unsigned 32-bit integer.
    U32,
    /// A signed 32-bit integer.
    I32,
    /// IEEE binary32.
    F32,
    /// A byte that is 0 or 1.
    Bool,
    /// A string.
    String,
    /// An array.
    Array,
    /// An unsigned 64-bit integer.
    U64,
    /// A signed 64-bit integer.
    I64,
    /// IEEE binary64.
    F64,
}

impl ValueType {
    /// Every type; the position is its number in files.
    pub const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// Its number in files.
    pub fn id(self) -> u32 {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or_default() as u32
    }

    /// The type of a number.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::ALL.get(id as usize).copied()
    }

    /// The fewest bytes that a value takes in a file.
    pub(super) fn least_bytes(self) -> usize {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::String | ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::Array => 12,
        }
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned byte.
    U8(u8),
    /// A signed byte.
    I8(i8),
    /// An unsigned 16-bit integer.
    U16(u16),
    /// A signed 16-bit integer.
    I16(i16),
    /// An unsigned 32-bit integer.
    U32(u32),
    /// A signed 32-bit integer.
    I32(i32),
    /// IEEE binary32.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(Text),
    /// An array.
    Array(Array),
    /// An unsigned 64-bit integer.
    U64(u64),
    /// A signed 64-bit integer.
    I64(i64),
    /// IEEE binary64.
    F64(f64),
}

/// An array; all elements have one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned bytes.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Signed 16-bit integers.
    I16(Vec<i16>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// IEEE binary32.
    F32(Vec<f32>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Strings.
    String(Vec<Text>),
    /// Arrays, which may differ in type.
    Array(Vec<Array>),
    /// Unsigned 64-bit integers.
    U64(Vec<u64>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
    /// IEEE binary64.
    F64(Vec<f64>),
}

impl Value {
    /// Its type.
    pub fn kind(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value as a non-negative integer of any integer type.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::U64(n) => Some(n),
            Value::I8(n) => n.try_into().ok(),
            Value::I16(n) => n.try_into().ok(),
            Value::I32(n) => n.try_into().ok(),
            Value::I64(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a floating-point number of any numeric type; f32 as its shortest decimal representation.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(x) => x.to_string().parse().ok(),
            Value::F64(x) => Some(x),
            Value::I8(n) => Some(n.into()),
            Value::I16(n) => Some(n.into()),
            Value::I32(n) => Some(n.into()),
            _ => self.as_u64().map(|n| n as f64),
        }
    }

    /// It as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(flag) => Some(flag),
            _ => None,
        }
    }

    /// It as a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => text.as_str(),
            _ => None,
        }
    }

    /// It as an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// Applies a macro-like expression to the elements of any array.
macro_rules! each_array {
    ($array:expr, $values:ident => $result:expr) => {
        match $array {
            Array::U8($values) => $result,
            Array::I8($values) => $result,
            Array::U16($values) => $result,
            Array::I16($values) => $result,
            Array::U32($values) => $result,
            Array::I32($values) => $result,
            Array::F32($values) => $result,
            Array::Bool($values) => $result,
            Array::String($values) => $result,
            Array::Array($values) => $result,
            Array::U64($values) => $result,
            Array::I64($values) => $result,
            Array::F64($values) => $result,
        }
    };
}
pub(super) use each_array;

impl Array {
    /// The type of its elements.
    pub fn kind(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::Array(_) => ValueType::Array,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        each_array!(self, values => values.len())
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its flags.
    pub fn booleans(&self) -> Option<&[bool]> {
        match self {
            Array::Bool(flags) => Some(flags),
            _ => None,
        }
    }

    /// Its strings.
    pub fn strings(&self) -> Option<&[Text]> {
        match self {
            Array::String(texts) => Some(texts),
            _ => None,
        }
    }
}

macro_rules! from_types {
    ($($plain:ty => $variant:ident),*) => {
        $(
            impl From<$plain> for Value {
                fn from(value: $plain) -> Value {
                    Value::$variant(value)
                }
            }

            impl From<Vec<$plain>> for Value {
                fn from(values: Vec<$plain>) -> Value {
                    Value::Array(Array::$variant(values))
                }
            }
        )*
    };
}

from_types! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, Text => String,
    u64 => U64, i64 => I64, f64 => F64
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_lossy())
    }
}
