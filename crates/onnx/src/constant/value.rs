//! One constant tensor: a type, a shape and its bytes.

use kvant_container::onnx::{
    Bytes, DataType, GraphProto, TensorProto, byte_len, data_type, data_type_bits, shape, tensor, tensor_bytes,
};

use crate::graph::Index;

/// A tensor whose contents are known. Its elements are whole bytes: strings and types below a byte cannot be one.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    data_type: DataType,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Value {
    /// A value of a type and shape; `None` where the bytes do not have that size, or the elements are no whole bytes.
    pub fn new(data_type: DataType, shape: Vec<usize>, bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        let elements = super::movement::product(&shape)?;
        let whole = data_type_bits(data_type)?.is_multiple_of(8);
        (whole && byte_len(data_type, elements as u64)? == bytes.len()).then_some(Self { data_type, shape, bytes })
    }

    /// The contents of a tensor, not copied where they are raw bytes already; `None` where they are not of its size.
    pub fn of_tensor(tensor: &TensorProto) -> Option<Self> {
        let bytes = match &tensor.raw_data {
            Some(raw) => raw.clone(),
            None => tensor_bytes(tensor).ok()?.into_owned().into(),
        };
        Self::new(data_type(tensor), shape(tensor).ok()?, bytes)
    }

    /// A tensor of 64-bit integers.
    pub fn integers(shape: &[usize], values: &[i64]) -> Option<Self> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(DataType::INT64, shape.to_vec(), bytes)
    }

    /// The same elements in another shape; `None` if it has not as many.
    pub fn reshaped(&self, shape: Vec<usize>) -> Option<Self> {
        Self::new(self.data_type, shape, self.bytes.clone())
    }

    /// The same contents held elsewhere: `keep` gives back the bytes that it gets.
    pub(crate) fn kept<E>(self, keep: impl FnOnce(Vec<u8>) -> Result<Bytes, E>) -> Result<Self, E> {
        let Self { data_type, shape, bytes } = self;
        Ok(Self { data_type, shape, bytes: keep(bytes.into())? })
    }

    /// As a tensor of a name.
    pub fn into_tensor(self, name: &str) -> TensorProto {
        tensor(name, self.data_type, &self.shape, self.bytes)
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one element.
    pub fn element_size(&self) -> usize {
        data_type_bits(self.data_type).unwrap_or(8) as usize / 8
    }

    /// The elements as little-endian bytes, row by row.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The elements, if they are integers.
    pub fn as_integers(&self) -> Option<Vec<i64>> {
        match super::Numbers::of(self)? {
            super::Numbers::Integers(values) => Some(values),
            super::Numbers::Floats(_) => None,
        }
    }

    /// The elements, if they are floats.
    pub fn as_floats(&self) -> Option<Vec<f64>> {
        match super::Numbers::of(self)? {
            super::Numbers::Floats(values) => Some(values),
            super::Numbers::Integers(_) => None,
        }
    }

    /// The element of a float tensor that has one.
    pub fn as_float(&self) -> Option<f64> {
        match (self.elements() == 1).then(|| self.as_floats())??[..] {
            [one] => Some(one),
            _ => None,
        }
    }
}

impl Index {
    /// The values of a constant of integers.
    pub fn integers(&self, graph: &GraphProto, tensor: &str) -> Option<Vec<i64>> {
        Value::of_tensor(self.constant(graph, tensor)?)?.as_integers()
    }
}
