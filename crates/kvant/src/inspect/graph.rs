//! The contents of an ONNX graph.

use crate::json::path as path_json;
use kvant_container::onnx::{GraphProto, ModelProto, data_type, data_type_name};
use kvant_onnx::count::{for_each_constant, nodes, size};
use kvant_onnx::data::{display_axes, inputs, type_of};
use kvant_onnx::graph::for_each_node;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The nodes of each operator, those inside of others included.
pub fn operators(graph: &GraphProto) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for_each_node(graph, &mut |node| {
        let prefix = if node.domain().is_empty() { String::new() } else { format!("{}:", node.domain()) };
        *counts.entry(format!("{prefix}{}", node.op_type())).or_insert(0) += 1;
    });
    counts
}

/// Number and bytes of the constants by element type, those inside of nodes included.
pub fn types(graph: &GraphProto) -> BTreeMap<String, (usize, u64)> {
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for_each_constant(graph, &mut |tensor| {
        let entry = types.entry(data_type_name(data_type(tensor))).or_default();
        *entry = (entry.0 + 1, entry.1 + size(tensor));
    });
    types
}

/// Name, type and axes of inputs and outputs.
pub fn values(graph: &GraphProto) -> Vec<[String; 4]> {
    let row = |role: &str, name: &str, data_type, axes: Option<&[_]>| {
        let axes = axes.map_or_else(|| "?".to_owned(), display_axes);
        [role.to_owned(), name.to_owned(), data_type_name(data_type), axes]
    };
    let inputs = inputs(graph);
    let inputs = inputs.iter().map(|i| row("input", &i.name, i.data_type, i.axes.as_deref()));
    let outputs = graph.output.iter().map(|v| {
        let (data_type, axes) = type_of(v);
        row("output", v.name(), data_type, axes.as_deref())
    });
    inputs.chain(outputs).collect()
}

pub(crate) fn to_json(path: &Path, model: &ModelProto) -> Value {
    let graph = &model.graph;
    let opsets: BTreeMap<&str, i64> = model.opset_import.iter().map(|o| (o.domain(), o.version())).collect();
    let values = values(graph)
        .into_iter()
        .map(|[role, name, element, axes]| json!({"role": role, "name": name, "dtype": element, "axes": axes}));
    let types =
        types(graph).into_iter().map(|(name, (tensors, bytes))| (name, json!({"tensors": tensors, "bytes": bytes})));
    json!({
        "model": path_json(path),
        "producer": model.producer_name(),
        "ir_version": model.ir_version(),
        "opsets": opsets,
        "nodes": nodes(graph),
        "operators": operators(graph),
        "values": values.collect::<Vec<_>>(),
        "types": types.collect::<BTreeMap<_, _>>(),
    })
}
