//! Biases of 16 and 32 bits.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{
    DataType, GraphProto, ModelProto, NodeProto, Spill, TensorProto, data_type, keep, shape, tensor, tensor_bytes,
};

use super::unreadable;
use crate::element::Element;
use crate::graph::{Index, Names, STANDARD_DOMAIN, called, for_each_node, is, opset, positional_input};
use crate::pass::upgrade_opset;
use crate::tool::ToolError;
use crate::writing::integer_operators::of_integer;
use crate::writing::lift_constants;

/// The opset from which on DequantizeLinear takes codes of 16 bits.
const OF_16_BITS: i64 = 21;

/// Gives the codes of biases a type. Returns how many have another one now.
///
/// # Errors
/// [`ToolError::NotRetyped`] for codes that the type does not hold, and for biases of integer operators, which have 32 bits.
pub(super) fn retype(model: &mut ModelProto, to: Element, spill: Option<&Spill>) -> Result<usize, ToolError> {
    let from = if to == Element::Int16 { DataType::INT32 } else { DataType::INT16 };
    if to == Element::Int16 {
        refuse_integer_operators(&model.graph)?;
    }
    let found = biases(&model.graph, from);
    if found.is_empty() {
        return Ok(0);
    }
    let is_standard = found.iter().any(|&at| is(&model.graph.node[at], "DequantizeLinear"));
    let is_old = opset(model, STANDARD_DOMAIN).is_some_and(|version| version < OF_16_BITS);
    let found = match to == Element::Int16 && is_standard && is_old {
        true => {
            upgrade_opset(model, OF_16_BITS)?;
            lift_constants(model);
            biases(&model.graph, from)
        }
        false => found,
    };
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    change(graph, &found, to, spill)?;
    Ok(found.len())
}

/// Their bias is int32 codes.
fn refuse_integer_operators(graph: &GraphProto) -> Result<(), ToolError> {
    let bias = |node: &NodeProto| of_integer(node)?.inputs(node.input.len())?.bias;
    let has_bias = |node: &&NodeProto| bias(node).is_some_and(|at| positional_input(node, at).is_some());
    graph.node.iter().find(has_bias).map_or(Ok(()), |node| {
        let reason =
            format!("{} takes biases in int32; `kvant graph to-qdq` makes them constants of their own", node.op_type());
        Err(ToolError::NotRetyped { name: called(node).to_owned(), reason })
    })
}

/// Positions of DequantizeLinear nodes of biases whose codes have a type: what products add, and constants of 32 bits.
fn biases(graph: &GraphProto, from: DataType) -> Vec<usize> {
    let index = Index::new(graph);
    let is_added =
        |floats: &String| index.consumers(floats).iter().any(|&at| graph.node[at].input.get(2) == Some(floats));
    let is_bias = |node: &NodeProto| {
        let codes = node.input.first().and_then(|codes| index.constant(graph, codes)).map(data_type);
        let is_known = from == DataType::INT32 || node.output.first().is_some_and(is_added);
        node.op_type() == "DequantizeLinear" && codes == Some(from) && is_known
    };
    (0..graph.node.len()).filter(|&at| is_bias(&graph.node[at])).collect()
}

/// Changes the codes and zero points that some nodes read. A constant that others read as well stays beside its copy.
fn change(graph: &mut GraphProto, nodes: &[usize], to: Element, spill: Option<&Spill>) -> Result<(), ToolError> {
    let index = Index::new(graph);
    let mut names = Names::of(graph);
    let mut reads: HashMap<String, usize> = HashMap::new();
    for_each_node(graph, &mut |node| node.input.iter().for_each(|name| *reads.entry(name.clone()).or_default() += 1));
    let mut changed: HashMap<String, String> = HashMap::new();
    let of_biases: Vec<String> = nodes
        .iter()
        .flat_map(|&at| [0, 2].map(|input| positional_input(&graph.node[at], input).map(str::to_owned)))
        .flatten()
        .collect();
    for name in of_biases.iter().collect::<HashSet<_>>() {
        let Some(at) = index.initializer(name) else { continue };
        let own = of_biases.iter().filter(|other| *other == name).count();
        let is_whole = reads.get(name) == Some(&own) && !index.is_output(name);
        let wanted = if is_whole { name.clone() } else { names.fresh(name) };
        let made = converted(&graph.initializer[at], &wanted, to, spill)?;
        if is_whole {
            graph.initializer[at] = made;
        } else {
            graph.initializer.push(made);
        }
        changed.insert(name.clone(), wanted);
    }
    for &at in nodes {
        for input in [0, 2] {
            let Some(name) = graph.node[at].input.get_mut(input) else { continue };
            if let Some(wanted) = changed.get(name) {
                name.clone_from(wanted);
            }
        }
    }
    Ok(())
}

/// The same numbers in another width.
fn converted(codes: &TensorProto, name: &str, to: Element, spill: Option<&Spill>) -> Result<TensorProto, ToolError> {
    let bytes = tensor_bytes(codes).map_err(|_| unreadable(codes))?;
    let sizes = shape(codes).map_err(|_| unreadable(codes))?;
    let number = |chunk: &[u8]| match *chunk {
        [a, b] => i32::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]),
        _ => 0,
    };
    let width = if data_type(codes) == DataType::INT16 { 2 } else { 4 };
    let numbers: Vec<i32> = bytes.chunks_exact(width).map(number).collect();
    let contents = match to {
        Element::Int16 => {
            let wide = numbers.iter().filter(|&&code| i16::try_from(code).is_err()).count();
            if wide > 0 {
                let largest = numbers.iter().copied().max_by_key(|code| code.unsigned_abs()).unwrap_or(0);
                let reason = format!(
                    "int16 does not hold {wide} of its {} codes, the largest of which is {largest}",
                    numbers.len()
                );
                return Err(ToolError::NotRetyped { name: codes.name().to_owned(), reason });
            }
            numbers.iter().flat_map(|&code| (code as i16).to_le_bytes()).collect()
        }
        _ => numbers.iter().flat_map(|code| code.to_le_bytes()).collect(),
    };
    let data_type = to.data_type().unwrap_or(DataType::INT32);
    Ok(tensor(name, data_type, &sizes, keep(spill, contents)?))
}
