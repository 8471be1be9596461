//! A model as rten wants it: defaults of windows written out, types it does not have narrowed. What it computes stays the same.

use kvant_container::onnx::{
    DataType, GraphProto, ModelProto, NodeProto, TensorProto, TypeValue, ValueInfoProto, data_type, tensor,
    tensor_bytes,
};

use crate::data::from_bytes;
use crate::graph::{Index, int_attribute, ints_attribute, is, set_attribute, string_attribute};
use crate::pass::{Context, Pass};

/// Operators with windows that rten takes only with all of their attributes.
const WINDOWED: &[&str] = &["Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "LpPool"];

/// The part of a model that the wanted tensors depend on: a node behind them that rten does not have is no obstacle, as the
/// Cast of an output to 16 bits while tensors inside are observed.
pub(super) fn needed(model: &ModelProto, wanted: &[String]) -> ModelProto {
    let mut part = model.clone();
    let Some(graph) = part.graph.as_mut().filter(|_| !wanted.is_empty()) else { return part };
    let declared = std::mem::take(&mut graph.output);
    let of = |name: &String| {
        let new = || ValueInfoProto { name: Some(name.clone()), ..ValueInfoProto::default() };
        declared.iter().find(|value| value.name() == name).cloned().unwrap_or_else(new)
    };
    graph.output = wanted.iter().map(of).collect();
    match Pass::named("dead-nodes").and_then(|pass| pass.run(&mut part, &Context::default())) {
        Ok(_) => part,
        Err(_) => model.clone(),
    }
}

/// The model rewritten for rten.
pub(super) fn rewritten(model: &ModelProto) -> ModelProto {
    let mut model = model.clone();
    if let Some(graph) = model.graph.as_mut() {
        rewrite(graph);
    }
    model
}

fn rewrite(graph: &mut GraphProto) {
    // It declares types that no longer hold where they are narrowed.
    graph.value_info.clear();
    graph.input.iter_mut().chain(&mut graph.output).for_each(widen);
    let index = Index::new(graph);
    let kernels: Vec<Option<Vec<i64>>> = graph.node.iter().map(|node| kernel(graph, &index, node)).collect();
    for (node, kernel) in graph.node.iter_mut().zip(kernels) {
        if let Some(kernel) = kernel {
            spell_out(node, &kernel);
        }
        for attribute in &mut node.attribute {
            attribute.t.as_mut().into_iter().for_each(narrow);
            attribute.g.as_mut().into_iter().chain(&mut attribute.graphs).for_each(rewrite);
        }
    }
    graph.initializer.iter_mut().for_each(narrow);
}

/// The window of a node that has one: stated, or that of its constant weight.
fn kernel(graph: &GraphProto, index: &Index, node: &NodeProto) -> Option<Vec<i64>> {
    if !WINDOWED.iter().any(|op| is(node, op)) {
        return None;
    }
    let stated = ints_attribute(node, "kernel_shape").map(<[i64]>::to_vec);
    let of_weight = || Some(index.constant(graph, node.input.get(1)?)?.dims.get(2..)?.to_vec());
    stated.or_else(of_weight)
}

fn spell_out(node: &mut NodeProto, kernel: &[i64]) {
    let pool = node.op_type().ends_with("Pool");
    let axes = kernel.len();
    let mut put = |name: &str, values: Vec<i64>| {
        if ints_attribute(node, name).is_none_or(<[i64]>::is_empty) {
            set_attribute(node, name, &values[..]);
        }
    };
    put("kernel_shape", kernel.to_vec());
    put("strides", vec![1; axes]);
    if !pool {
        put("dilations", vec![1; axes]);
    }
    if string_attribute(node, "auto_pad").is_none_or(|pad| pad == "NOTSET" || pad == "VALID") {
        let pads = ints_attribute(node, "pads").is_none_or(<[i64]>::is_empty);
        if pads {
            set_attribute(node, "pads", &vec![0; 2 * axes][..]);
        }
    }
    if !pool && int_attribute(node, "group").is_none() {
        set_attribute(node, "group", 1);
    }
}

/// An end in bfloat16, which rten does not know, as one in float32: arrays are converted when they are fed.
fn widen(value: &mut ValueInfoProto) {
    let Some(TypeValue::TensorType(tensor)) = value.type_.as_mut().and_then(|t| t.value.as_mut()) else { return };
    if tensor.elem_type == Some(DataType::BFLOAT16 as i32) {
        tensor.elem_type = Some(DataType::FLOAT as i32);
    }
}

/// Types of 16 bits as the ones of 32 that hold their values.
fn narrow(constant: &mut TensorProto) {
    let to = match data_type(constant) {
        DataType::BFLOAT16 => DataType::FLOAT,
        DataType::INT16 | DataType::UINT16 => DataType::INT32,
        _ => return,
    };
    let widened = || {
        let bytes = tensor_bytes(constant).ok()?;
        let values = from_bytes(data_type(constant), &bytes)?;
        let array = crate::data::Array::new(vec![values.len()], values)?.cast(to)?;
        let contents: Vec<u8> = match array.values() {
            crate::data::Values::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            crate::data::Values::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => return None,
        };
        let shape = constant.dims.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<Vec<_>>>()?;
        Some(tensor(constant.name(), to, &shape, contents))
    };
    if let Some(widened) = widened() {
        *constant = widened;
    }
}
