//! Nodes, constants and their names, put together to a graph. Knows operators by name only.

use kvant_container::onnx::{
    AttributeProto, AttributeType, Bytes, DataType, Dimension, DimensionValue, GraphProto, NodeProto, TensorShapeProto,
    TensorTypeProto, TypeProto, TypeValue, ValueInfoProto, tensor,
};
use std::collections::HashMap;

/// A tensor of the graph, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value(String);

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Text(&'a str),
}

/// A dimension of an input or output: a number, or a name for what differs from run to run.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShardShape {
    Fixed(usize),
    Named(&'static str),
}

/// A graph as it grows. Nodes stand in the order in which they are made, which is that of the data.
#[derive(Default)]
pub(super) struct Builder {
    graph: GraphProto,
    scope: String,
    made: usize,
    /// Whether activations become fp8.
    pub(super) quantizes_to_fp8: bool,
    /// Small constants, by type, shape and contents: each is stored once.
    constants: HashMap<(i32, Vec<usize>, Vec<u8>), Value>,
}

impl Builder {
    /// The prefix of names of nodes from now on.
    pub(super) fn enter(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    /// A node of the standard domain with one output.
    pub(super) fn node(&mut self, operator: &str, inputs: &[&Value], attributes: &[(&str, Attribute<'_>)]) -> Value {
        let [output] = self.nodes(operator, inputs, attributes);
        output
    }

    /// A node of the standard domain with several outputs.
    pub(super) fn nodes<const OUTPUTS: usize>(
        &mut self,
        operator: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
    ) -> [Value; OUTPUTS] {
        self.node_of("", operator, inputs, attributes)
    }

    /// A node of a domain.
    pub(super) fn node_of<const OUTPUTS: usize>(
        &mut self,
        domain: &str,
        operator: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attribute<'_>)],
    ) -> [Value; OUTPUTS] {
        self.made += 1;
        let name = format!("{}/{operator}_{}", self.scope, self.made);
        let outputs: [Value; OUTPUTS] = std::array::from_fn(|i| match OUTPUTS {
            1 => Value(format!("{name}_output")),
            _ => Value(format!("{name}_output_{i}")),
        });
        self.graph.node.push(NodeProto {
            op_type: Some(operator.to_owned()),
            name: Some(name),
            domain: (!domain.is_empty()).then(|| domain.to_owned()),
            input: inputs.iter().map(|value| value.0.clone()).collect(),
            output: outputs.iter().map(|value| value.0.clone()).collect(),
            attribute: attributes.iter().map(|(name, attribute)| attribute_of(name, *attribute)).collect(),
            ..NodeProto::default()
        });
        outputs
    }

    /// A large constant of its own name.
    pub(super) fn initializer(
        &mut self,
        name: &str,
        data_type: DataType,
        shape: &[usize],
        contents: impl Into<Bytes>,
    ) -> Value {
        self.graph.initializer.push(tensor(name, data_type, shape, contents));
        Value(name.to_owned())
    }

    /// A small constant; those of the same type, shape and contents are one.
    pub(super) fn constant(&mut self, data_type: DataType, shape: &[usize], contents: Vec<u8>) -> Value {
        let key = (data_type as i32, shape.to_vec(), contents);
        if let Some(known) = self.constants.get(&key) {
            return known.clone();
        }
        let value = self.initializer(&format!("constant_{}", self.constants.len()), data_type, shape, key.2.clone());
        self.constants.insert(key, value.clone());
        value
    }

    /// A list of integers.
    pub(super) fn integers(&mut self, values: &[i64]) -> Value {
        self.constant(DataType::INT64, &[values.len()], values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A single integer, without dimensions.
    pub(super) fn integer(&mut self, value: i64) -> Value {
        self.constant(DataType::INT64, &[], value.to_le_bytes().to_vec())
    }

    /// A single number, without dimensions.
    pub(super) fn number(&mut self, value: f32) -> Value {
        self.constant(DataType::FLOAT, &[], value.to_le_bytes().to_vec())
    }

    /// Numbers of a shape.
    pub(super) fn numbers(&mut self, values: &[f32], shape: &[usize]) -> Value {
        self.constant(DataType::FLOAT, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// `a op b`, elementwise.
    pub(super) fn binary(&mut self, operator: &str, a: &Value, b: &Value) -> Value {
        self.node(operator, &[a, b], &[])
    }

    /// `op a`, elementwise.
    pub(super) fn unary(&mut self, operator: &str, a: &Value) -> Value {
        self.node(operator, &[a], &[])
    }

    /// The larger of `a` and 0. Not Relu where what follows is quantized to fp8: onnxruntime takes such a Relu away, as if the codes had
    /// no negative values.
    pub(super) fn relu(&mut self, a: &Value) -> Value {
        if !self.quantizes_to_fp8 {
            return self.unary("Relu", a);
        }
        let zero = self.number(0.0);
        self.binary("Max", a, &zero)
    }

    /// `a * factor`; `a` where the factor is 1.
    pub(super) fn scaled(&mut self, a: &Value, factor: f32) -> Value {
        if factor == 1.0 {
            return a.clone();
        }
        let factor = self.number(factor);
        self.binary("Mul", a, &factor)
    }

    /// `cap tanh(a / cap)`.
    pub(super) fn capped(&mut self, a: &Value, cap: Option<f32>) -> Value {
        let Some(cap) = cap else { return a.clone() };
        let number = self.number(cap);
        let inner = self.binary("Div", a, &number);
        let inner = self.unary("Tanh", &inner);
        self.binary("Mul", &inner, &number)
    }

    /// Another shape; 0 keeps a dimension, -1 is what is left.
    pub(super) fn reshape(&mut self, a: &Value, shape: &[i64]) -> Value {
        let shape = self.integers(shape);
        self.binary("Reshape", a, &shape)
    }

    /// Axes in another order.
    pub(super) fn transpose(&mut self, a: &Value, order: &[i64]) -> Value {
        self.node("Transpose", &[a], &[("perm", Attribute::Ints(order))])
    }

    /// A new axis of length 1.
    pub(super) fn unsqueeze(&mut self, a: &Value, axes: &[i64]) -> Value {
        let axes = self.integers(axes);
        self.binary("Unsqueeze", a, &axes)
    }

    /// Elements `start..end` of an axis, every `step`-th.
    pub(super) fn slice(&mut self, a: &Value, axis: i64, start: usize, end: usize, step: usize) -> Value {
        let [start, end, step] = [start, end, step].map(|number| self.integers(&[number as i64]));
        let axis = self.integers(&[axis]);
        self.node("Slice", &[a, &start, &end, &axis, &step], &[])
    }

    /// Side by side along an axis.
    pub(super) fn concat(&mut self, parts: &[&Value], axis: i64) -> Value {
        self.node("Concat", parts, &[("axis", Attribute::Int(axis))])
    }

    /// Another type.
    pub(super) fn cast(&mut self, a: &Value, to: DataType) -> Value {
        self.node("Cast", &[a], &[("to", Attribute::Int(to as i64))])
    }

    /// The length of an axis, without dimensions.
    pub(super) fn length(&mut self, a: &Value, axis: i64) -> Value {
        let shape = self.unary("Shape", a);
        let axis = self.integer(axis);
        self.node("Gather", &[&shape, &axis], &[("axis", Attribute::Int(0))])
    }

    /// An input of the graph.
    pub(super) fn input(&mut self, name: &str, data_type: DataType, shape: &[ShardShape]) -> Value {
        self.graph.input.push(value_info(name, data_type, shape));
        Value(name.to_owned())
    }

    /// An output of the graph, of this name.
    pub(super) fn output(&mut self, name: &str, value: &Value, data_type: DataType, shape: &[ShardShape]) {
        self.graph.output.push(value_info(name, data_type, shape));
        self.graph.node.push(NodeProto {
            op_type: Some("Identity".to_owned()),
            name: Some(format!("output/{name}")),
            input: vec![value.0.clone()],
            output: vec![name.to_owned()],
            ..NodeProto::default()
        });
    }

    /// The graph.
    pub(super) fn finish(mut self, name: &str) -> GraphProto {
        self.graph.name = Some(name.to_owned());
        self.graph
    }
}

fn attribute_of(name: &str, attribute: Attribute<'_>) -> AttributeProto {
    let mut made = AttributeProto { name: Some(name.to_owned()), ..AttributeProto::default() };
    let kind = match attribute {
        Attribute::Int(value) => {
            made.i = Some(value);
            AttributeType::INT
        }
        Attribute::Ints(values) => {
            made.ints = values.to_vec();
            AttributeType::INTS
        }
        Attribute::Text(value) => {
            made.s = Some(Bytes::copy_from_slice(value.as_bytes()));
            AttributeType::STRING
        }
    };
    made.type_ = Some(kind.into());
    made
}

fn value_info(name: &str, data_type: DataType, shape: &[ShardShape]) -> ValueInfoProto {
    let dimension = |extent: &ShardShape| {
        let value = match extent {
            ShardShape::Fixed(length) => DimensionValue::DimValue(*length as i64),
            ShardShape::Named(name) => DimensionValue::DimParam((*name).to_owned()),
        };
        Dimension { value: Some(value), ..Dimension::default() }
    };
    let shape = TensorShapeProto { dim: shape.iter().map(dimension).collect(), ..TensorShapeProto::default() };
    let tensor =
        TensorTypeProto { elem_type: Some(data_type as i32), shape: Some(shape).into(), ..TensorTypeProto::default() };
    let ty = TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.to_owned()), type_: Some(ty).into(), ..ValueInfoProto::default() }
}
