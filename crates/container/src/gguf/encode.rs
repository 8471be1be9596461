//! The bytes of a header. Decides nothing about places.

use super::layout::GgufDeclaration;
use super::value::{Array, Text, Value, ValueType, each_array};
use super::{MAGIC, Metadata, VERSION};

/// A value in a header.
trait Encode {
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! encode_numbers {
    ($($number:ty),*) => {
        $(
            impl Encode for $number {
                fn encode(&self, out: &mut Vec<u8>) {
                    out.extend_from_slice(&self.to_le_bytes());
                }
            }
        )*
    };
}

encode_numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Encode for [u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self);
    }
}

impl Encode for Text {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Encode for ValueType {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id().encode(out);
    }
}

impl Encode for Array {
    fn encode(&self, out: &mut Vec<u8>) {
        self.kind().encode(out);
        (self.len() as u64).encode(out);
        each_array!(self, values => values.iter().for_each(|value| value.encode(out)));
    }
}

impl Encode for Value {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Value::U8(value) => value.encode(out),
            Value::I8(value) => value.encode(out),
            Value::U16(value) => value.encode(out),
            Value::I16(value) => value.encode(out),
            Value::U32(value) => value.encode(out),
            Value::I32(value) => value.encode(out),
            Value::F32(value) => value.encode(out),
            Value::Bool(value) => value.encode(out),
            Value::String(value) => value.encode(out),
            Value::Array(value) => value.encode(out),
            Value::U64(value) => value.encode(out),
            Value::I64(value) => value.encode(out),
            Value::F64(value) => value.encode(out),
        }
    }
}

/// The header up to the padding before the data; `offsets` are those of the tensors, from the start of the data.
pub(super) fn header(metadata: &Metadata, tensors: &[GgufDeclaration], offsets: &[u64]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    VERSION.encode(&mut out);
    (tensors.len() as u64).encode(&mut out);
    (metadata.entries().len() as u64).encode(&mut out);
    for (key, value) in metadata.entries() {
        key.as_bytes().encode(&mut out);
        value.kind().encode(&mut out);
        value.encode(&mut out);
    }
    for (tensor, offset) in tensors.iter().zip(offsets) {
        tensor.name.as_bytes().encode(&mut out);
        (tensor.shape.len() as u32).encode(&mut out);
        tensor.shape.iter().rev().for_each(|dim| (*dim as u64).encode(&mut out));
        tensor.kind.id().encode(&mut out);
        offset.encode(&mut out);
    }
    out
}
