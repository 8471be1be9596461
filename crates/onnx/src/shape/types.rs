//! Types of tensors, and what is known of those of a model.

use std::collections::HashMap;

use kvant_container::onnx::{
    DataType, EnumOrUnknown, MessageField, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue,
    ValueInfoProto, data_type,
};

use super::Dim;
use crate::constant::Value;

/// The element type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ValueType {
    /// The element type; [`DataType::UNDEFINED`] if it is not known.
    pub data_type: DataType,
    /// The dimensions, outermost first; `None` if not even their number is known.
    pub shape: Option<Vec<Dim>>,
}

impl ValueType {
    /// A type whose rank is known.
    pub fn new(data_type: DataType, shape: Vec<Dim>) -> Self {
        Self { data_type, shape: Some(shape) }
    }

    /// A type of any shape.
    pub fn any(data_type: DataType) -> Self {
        Self { data_type, shape: None }
    }

    /// The type of a tensor with contents.
    pub(super) fn of_tensor(tensor: &TensorProto) -> Self {
        let dim = |&d: &i64| usize::try_from(d).map_or(Dim::Unknown, Dim::Known);
        Self::new(data_type(tensor), tensor.dims.iter().map(dim).collect())
    }

    /// The type a file declares; `None` for what is no tensor.
    pub(crate) fn declared(value: &ValueInfoProto) -> Option<Self> {
        let Some(TypeValue::TensorType(tensor)) = &value.type_.value else { return None };
        let data_type = EnumOrUnknown::from_i32(tensor.elem_type()).enum_value_or(DataType::UNDEFINED);
        let shape = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(Dim::of).collect());
        Some(Self { data_type, shape })
    }

    /// As it is written to a file; `None` without an element type.
    pub fn to_proto(&self, name: &str) -> Option<ValueInfoProto> {
        if self.data_type == DataType::UNDEFINED {
            return None;
        }
        let shape = self.shape.as_ref().map(|dims| TensorShapeProto {
            dim: dims.iter().map(Dim::to_proto).collect(),
            ..TensorShapeProto::default()
        });
        let tensor = TensorTypeProto {
            elem_type: Some(self.data_type as i32),
            shape: shape.map_or(MessageField::none(), MessageField::some),
            ..TensorTypeProto::default()
        };
        let type_ = TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() };
        Some(ValueInfoProto {
            name: Some(name.to_owned()),
            type_: MessageField::some(type_),
            ..ValueInfoProto::default()
        })
    }

    /// The dimensions, if all are numbers.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::known).collect()
    }

    /// What both say of the same tensor. Where they contradict, `self` holds.
    pub(super) fn refined(&self, other: &Self) -> Self {
        let data_type = if self.data_type == DataType::UNDEFINED { other.data_type } else { self.data_type };
        let shape = match (&self.shape, &other.shape) {
            (Some(own), Some(others)) if own.len() == others.len() => {
                Some(own.iter().zip(others).map(|(a, b)| a.refined(b)).collect())
            }
            (own, others) => own.clone().or_else(|| others.clone()),
        };
        Self { data_type, shape }
    }

    /// What is true of a tensor that has one type or the other.
    pub(super) fn either(&self, other: &Self) -> Self {
        let data_type = if self.data_type == other.data_type { self.data_type } else { DataType::UNDEFINED };
        let shape = match (&self.shape, &other.shape) {
            (Some(a), Some(b)) if a.len() == b.len() => Some(a.iter().zip(b).map(|(a, b)| a.either(b)).collect()),
            _ => None,
        };
        Self { data_type, shape }
    }
}

/// The known facts about the tensors of a model, including those of subgraphs.
#[derive(Debug, Clone, Default)]
pub struct Types {
    types: HashMap<String, ValueType>,
    constants: HashMap<String, Value>,
}

impl Types {
    /// The type of a tensor; `None` if nothing is known of it.
    pub fn get(&self, tensor: &str) -> Option<&ValueType> {
        self.types.get(tensor)
    }

    /// The shape of a tensor, if all of its dimensions are known.
    pub fn known_shape(&self, tensor: &str) -> Option<Vec<usize>> {
        self.get(tensor)?.known_shape()
    }

    /// The number of dimensions of a tensor.
    pub fn rank(&self, tensor: &str) -> Option<usize> {
        Some(self.get(tensor)?.shape.as_ref()?.len())
    }

    /// The element type of a tensor.
    pub fn data_type(&self, tensor: &str) -> Option<DataType> {
        self.get(tensor).map(|t| t.data_type).filter(|&t| t != DataType::UNDEFINED)
    }

    /// The contents of a tensor, if it is small and follows from constants and shapes.
    pub fn constant(&self, tensor: &str) -> Option<&Value> {
        self.constants.get(tensor)
    }

    pub(super) fn set_constant(&mut self, tensor: &str, value: Value) {
        self.constants.insert(tensor.to_owned(), value);
    }

    /// Adds what is known of a tensor to what was known before; the new holds where they contradict.
    pub(super) fn add(&mut self, tensor: &str, new: ValueType) {
        let merged = match self.types.get(tensor) {
            Some(old) => new.refined(old),
            None => new,
        };
        self.types.insert(tensor.to_owned(), merged);
    }
}
