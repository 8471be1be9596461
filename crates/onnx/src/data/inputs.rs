//! The inputs of a model with their types and shapes, read from its graph.

use kvant_container::onnx::{DataType, DimensionValue, EnumOrUnknown, GraphProto, TypeValue, ValueInfoProto};

/// The size of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axis {
    /// Always this size.
    Fixed(usize),
    /// Of any size; the name, where there is one, says which axes agree.
    Open(Option<String>),
}

/// An input of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub data_type: DataType,
    /// Its axes; `None` where the model does not say.
    pub axes: Option<Vec<Axis>>,
}

/// The inputs of a graph that have no initializer: those that data must be given for, in their order.
pub fn inputs(graph: &GraphProto) -> Vec<Input> {
    let given = |name: &str| graph.initializer.iter().any(|t| t.name() == name);
    graph.input.iter().filter(|value| !given(value.name())).map(input).collect()
}

fn input(value: &ValueInfoProto) -> Input {
    let (data_type, axes) = type_of(value);
    Input { name: value.name().to_owned(), data_type, axes }
}

/// Element type and axes of a value; [`DataType::UNDEFINED`] and `None` where they are not stated.
pub fn type_of(value: &ValueInfoProto) -> (DataType, Option<Vec<Axis>>) {
    let Some(TypeValue::TensorType(tensor)) = value.type_.as_ref().and_then(|t| t.value.as_ref()) else {
        return (DataType::UNDEFINED, None);
    };
    let data_type = EnumOrUnknown::from_i32(tensor.elem_type()).enum_value_or(DataType::UNDEFINED);
    let axes = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(|dim| axis(dim.value.as_ref())).collect());
    (data_type, axes)
}

fn axis(value: Option<&DimensionValue>) -> Axis {
    match value {
        Some(DimensionValue::DimValue(size)) => usize::try_from(*size).map_or(Axis::Open(None), Axis::Fixed),
        Some(DimensionValue::DimParam(name)) if !name.is_empty() => Axis::Open(Some(name.clone())),
        _ => Axis::Open(None),
    }
}

impl Axis {
    /// Returns whether a size fits.
    pub fn fits(&self, size: usize) -> bool {
        match self {
            Axis::Fixed(fixed) => *fixed == size,
            Axis::Open(_) => true,
        }
    }
}

/// The axes as a message shows them: `[batch, 3, ?]`.
pub fn display_axes(axes: &[Axis]) -> String {
    let one = |axis: &Axis| match axis {
        Axis::Fixed(size) => size.to_string(),
        Axis::Open(name) => name.clone().unwrap_or_else(|| "?".to_owned()),
    };
    format!("[{}]", axes.iter().map(one).collect::<Vec<_>>().join(", "))
}
