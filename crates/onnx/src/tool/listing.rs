//! The nodes of a graph with the types of their tensors, and its quantized tensors with their scales.

use std::collections::HashSet;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, data_type, data_type_name};

use crate::data::{Array, display_axes, type_of};
use crate::graph::{Index, bodies, called, domain, int_attribute, positional_input};
use crate::kernel::linear::constant;
use crate::shape::{Types, infer};
use crate::writing::integer_operators::of_integer;

/// A tensor that a node reads or makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTensor {
    /// Its name; empty where the node leaves it out.
    pub name: String,
    /// Its element type and dimensions, such as `float[1, 3, ?]`, as far as they follow from the graph.
    pub dtype: Option<String>,
    /// Whether it is constant.
    pub is_constant: bool,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNode {
    /// Its name; without one, that of its first output.
    pub name: String,
    /// `OPERATOR` or `DOMAIN:OPERATOR`.
    pub operator: String,
    /// The node in whose body it is, if it is in one.
    pub inside: Option<String>,
    /// The tensors that it reads.
    pub inputs: Vec<ListedTensor>,
    /// The tensors that it makes.
    pub outputs: Vec<ListedTensor>,
}

/// The nodes of a graph in their order, each before those of its bodies.
pub fn nodes(model: &ModelProto) -> Vec<ListedNode> {
    let mut listing = Listing { types: infer(model), constants: HashSet::new(), nodes: Vec::new() };
    listing.graph(&model.graph, None);
    listing.nodes
}

struct Listing<'m> {
    types: Types,
    constants: HashSet<&'m str>,
    nodes: Vec<ListedNode>,
}

impl<'m> Listing<'m> {
    fn graph(&mut self, graph: &'m GraphProto, inside: Option<&str>) {
        let inputs: HashSet<&str> = graph.input.iter().map(|value| value.name()).collect();
        let sparse = graph.sparse_initializer.iter().map(|tensor| tensor.values.name());
        let constants = graph.initializer.iter().map(|tensor| tensor.name()).chain(sparse);
        self.constants.extend(constants.filter(|name| !inputs.contains(name)));
        for node in &graph.node {
            let listed = ListedNode {
                name: called(node).to_owned(),
                operator: operator(node),
                inside: inside.map(str::to_owned),
                inputs: node.input.iter().map(|name| self.tensor(name)).collect(),
                outputs: node.output.iter().map(|name| self.tensor(name)).collect(),
            };
            self.nodes.push(listed);
            bodies(node).for_each(|body| self.graph(body, Some(called(node))));
        }
    }

    fn tensor(&self, name: &str) -> ListedTensor {
        let declared = self.types.get(name).and_then(|known| known.to_proto(name));
        let dtype = declared.map(|value| {
            let (data_type, axes) = type_of(&value);
            format!("{}{}", data_type_name(data_type), axes.map_or("[...]".to_owned(), |axes| display_axes(&axes)))
        });
        ListedTensor { name: name.to_owned(), dtype, is_constant: self.constants.contains(name) }
    }
}

fn operator(node: &NodeProto) -> String {
    match domain(node) {
        "" => node.op_type().to_owned(),
        domain => format!("{domain}:{}", node.op_type()),
    }
}

/// A tensor with codes.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedTensor {
    /// The constant that holds the codes, or the tensor that is quantized.
    pub tensor: String,
    /// The node that states how.
    pub node: String,
    /// Whether its codes are constant.
    pub is_constant: bool,
    /// The element type of its codes, such as `int8` or `uint4`.
    pub dtype: String,
    /// Number of scales; 0 where they are computed.
    pub scales: usize,
    /// The smallest and the largest scale.
    pub scale_range: Option<(f32, f32)>,
    /// The smallest and the largest zero point. None where there are none, which is 0.
    pub zero_point_range: Option<(f32, f32)>,
    /// The axis of the scales, where there are several.
    pub axis: Option<i64>,
    /// Elements of a block along the axis, where scales are of blocks.
    pub block: Option<i64>,
}

/// The tensors of a graph and of bodies inside of it that QuantizeLinear, DequantizeLinear, MatMulNBits and integer operators such as QLinearConv
/// give codes, each once for a node.
/// DequantizeLinear behind QuantizeLinear adds nothing.
pub fn quantized_tensors(model: &ModelProto) -> Vec<QuantizedTensor> {
    let types = infer(model);
    let mut found = Vec::new();
    in_graph(&model.graph, &types, &[], &mut found);
    found
}

fn in_graph<'g>(
    graph: &'g GraphProto,
    types: &Types,
    outer: &[(&'g GraphProto, &Index)],
    found: &mut Vec<QuantizedTensor>,
) {
    let index = Index::new(graph);
    let scopes: Vec<(&GraphProto, &Index)> = outer.iter().copied().chain([(graph, &index)]).collect();
    for node in &graph.node {
        found.extend(quantized(node, types, &scopes));
        found.extend(of_integer_operator(node, types, &scopes));
        bodies(node).for_each(|body| in_graph(body, types, &scopes, found));
    }
}

/// What an integer operator makes, and the constants that it reads.
fn of_integer_operator(node: &NodeProto, types: &Types, scopes: &[(&GraphProto, &Index)]) -> Vec<QuantizedTensor> {
    let inputs = of_integer(node).and_then(|row| row.inputs(node.input.len()));
    let (Some(inputs), Some(output)) = (inputs, node.output.first()) else { return Vec::new() };
    let held = |name: &str| scopes.iter().rev().find_map(|(graph, index)| index.constant(graph, name));
    let tensor = |name: &str, scale: usize, zero_point: usize| {
        let at = |position| positional_input(node, position).and_then(held);
        let scales = at(scale).and_then(constant);
        QuantizedTensor {
            tensor: name.to_owned(),
            node: called(node).to_owned(),
            is_constant: held(name).is_some(),
            dtype: data_type_name(
                held(name)
                    .or_else(|| at(zero_point))
                    .map_or_else(|| types.data_type(name).unwrap_or(DataType::UNDEFINED), data_type),
            ),
            scales: scales.as_ref().map_or(0, Array::len),
            scale_range: scales.as_ref().and_then(range),
            zero_point_range: at(zero_point).and_then(constant).as_ref().and_then(range),
            axis: None,
            block: None,
        }
    };
    let operands = inputs.operands.iter().filter_map(|at| Some((positional_input(node, at.codes)?, at)));
    let constants =
        operands.filter(|(name, _)| held(name).is_some()).map(|(name, at)| tensor(name, at.scale, at.zero_point));
    constants.chain([tensor(output, inputs.scale, inputs.zero_point)]).collect()
}

fn quantized(node: &NodeProto, types: &Types, scopes: &[(&GraphProto, &Index)]) -> Option<QuantizedTensor> {
    let tensor = |position| {
        let name = positional_input(node, position)?;
        scopes.iter().rev().find_map(|(graph, index)| index.constant(graph, name))
    };
    let is_made_by_quantizer = |name: &str| {
        let maker =
            |(graph, index): &(&GraphProto, &Index)| Some(graph.node[index.producer(name)?].op_type().to_owned());
        scopes.iter().rev().find_map(maker).is_some_and(|maker| maker.ends_with("QuantizeLinear"))
    };
    let first = node.input.first()?;
    let is_of_domain = |domains: &[&str]| domains.contains(&domain(node));
    let linear = ["", "com.microsoft", "com.amd.quark", "com.vai.quantize"];
    let of_codes = || data_type_name(types.data_type(first).unwrap_or(DataType::UNDEFINED));
    let (name, dtype) = match node.op_type() {
        "MatMulNBits" if is_of_domain(&["com.microsoft"]) => {
            (node.input.get(1)?, format!("uint{}", int_attribute(node, "bits").unwrap_or(4)))
        }
        op if op.ends_with("DequantizeLinear") && is_of_domain(&linear) => {
            if is_made_by_quantizer(first) {
                return None;
            }
            (first, tensor(0).map_or_else(of_codes, |codes| data_type_name(data_type(codes))))
        }
        op if op.ends_with("QuantizeLinear") && is_of_domain(&linear) => {
            let stated = node.output.first().and_then(|codes| types.data_type(codes));
            let of_zero_point = || tensor(2).map(data_type);
            (first, data_type_name(stated.or_else(of_zero_point).unwrap_or(DataType::UINT8)))
        }
        _ => return None,
    };
    let is_product = node.op_type() == "MatMulNBits";
    let scales = tensor(if is_product { 2 } else { 1 }).and_then(constant);
    let zero_points = if is_product { None } else { tensor(2).and_then(constant) };
    let count = scales.as_ref().map_or(0, Array::len);
    let block = int_attribute(node, "block_size").filter(|&block| block > 0);
    let has_axis = !is_product && (count > 1 || block.is_some());
    let is_constant = scopes.iter().any(|(graph, index)| index.constant(graph, name).is_some());
    Some(QuantizedTensor {
        tensor: name.clone(),
        node: called(node).to_owned(),
        is_constant,
        dtype,
        scales: count,
        scale_range: scales.as_ref().and_then(range),
        zero_point_range: zero_points.as_ref().and_then(range),
        axis: has_axis.then(|| int_attribute(node, "axis").unwrap_or(1)),
        block,
    })
}

fn range(array: &Array<'_>) -> Option<(f32, f32)> {
    let values = array.to_f32s();
    let first = *values.first()?;
    Some(values.iter().fold((first, first), |(least, most), &value| (least.min(value), most.max(value))))
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::{GraphProto, tensor};

    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{branches, floats, model, typed, value};

    #[test]
    fn nodes_have_types_and_say_where_they_are() {
        let body = || GraphProto {
            node: vec![node("Add", "inner", &["h", "w"], &["t"])],
            output: vec![value("t")],
            ..GraphProto::default()
        };
        let other = GraphProto { output: vec![value("h")], ..GraphProto::default() };
        let nodes_of = vec![node("Relu", "r", &["x", ""], &["h"]), branches("c", "y", body(), other)];
        let mut made = model(17, nodes_of, vec![floats("w", &[3], &[1.0; 3])], &["c"], &["y"]);
        made.graph.as_mut().unwrap().input.push(typed("x", &[2, 3]));
        let listed = nodes(&made);
        let names: Vec<_> = listed.iter().map(|n| (n.name.as_str(), n.inside.as_deref())).collect();
        assert_eq!(names, [("r", None), ("if", None), ("inner", Some("if"))]);
        assert_eq!(listed[0].outputs[0].dtype.as_deref(), Some("float[2, 3]"));
        assert_eq!((listed[0].inputs[1].name.as_str(), &listed[0].inputs[1].dtype), ("", &None));
        assert!(listed[2].inputs[1].is_constant && !listed[2].inputs[0].is_constant);
    }

    #[test]
    fn quantized_tensors_have_their_scales() {
        let mut weight = node("DequantizeLinear", "dw", &["w", "sw"], &["wf"]);
        set_attribute(&mut weight, "axis", 0i64);
        let mut product = node("MatMulNBits", "product", &["h", "b", "sb"], &["y"]);
        product.domain = Some("com.microsoft".to_owned());
        for (name, value) in [("K", 16), ("N", 2), ("bits", 4), ("block_size", 16)] {
            set_attribute(&mut product, name, value);
        }
        let nodes_of = vec![
            node("QuantizeLinear", "qx", &["x", "sx", "zx"], &["c"]),
            node("DequantizeLinear", "dx", &["c", "sx", "zx"], &["xf"]),
            weight,
            node("MatMul", "m", &["xf", "wf"], &["h"]),
            product,
        ];
        let constants = vec![
            floats("sx", &[], &[0.5]),
            tensor("zx", DataType::UINT8, &[], vec![7]),
            tensor("w", DataType::INT8, &[2, 2], vec![1, 2, 3, 4]),
            floats("sw", &[2], &[0.25, 0.125]),
            tensor("b", DataType::UINT8, &[2, 1, 8], vec![0; 16]),
            floats("sb", &[2], &[1.0, 2.0]),
        ];
        let found = quantized_tensors(&model(17, nodes_of, constants, &["x"], &["y"]));
        let rows: Vec<_> =
            found.iter().map(|t| (t.tensor.as_str(), t.dtype.as_str(), t.scale_range.unwrap())).collect();
        assert_eq!(rows, [("x", "uint8", (0.5, 0.5)), ("w", "int8", (0.125, 0.25)), ("b", "uint4", (1.0, 2.0))]);
        assert_eq!((found[0].zero_point_range, found[0].axis), (Some((7.0, 7.0)), None));
        assert_eq!((found[1].axis, found[1].is_constant, found[2].block), (Some(0), true, Some(16)));
    }
}
