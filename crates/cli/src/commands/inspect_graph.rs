//! `kvant inspect model.onnx`.

use crate::table::{Align, Table};
use kvant::inspect::graph::{operators, types, values};
use kvant::text::{printable, size};
use kvant_container::onnx::{ModelProto, data_type, data_type_name};

/// What a graph holds; `all` lists every initializer.
pub fn text(model: &ModelProto, all: bool, width: usize) -> String {
    let graph = &model.graph;
    let opsets: Vec<String> = model
        .opset_import
        .iter()
        .map(|o| format!("{} {}", if o.domain().is_empty() { "ai.onnx" } else { o.domain() }, o.version()))
        .collect();
    let head = format!(
        "ONNX graph of {} nodes, made by {} {}, opset {}",
        graph.node.len(),
        printable(model.producer_name()),
        printable(model.producer_version()),
        opsets.join(", ")
    );
    let mut io = Table::new(&["", "name", "type", "axes"].map(|t| (t, Align::Left)));
    values(graph).into_iter().for_each(|row| io.push(row.map(|cell| printable(&cell).to_string())));
    let mut weights = Table::new(&[("type", Align::Left), ("tensors", Align::Right), ("bytes", Align::Right)]);
    types(graph).into_iter().for_each(|(name, (n, bytes))| weights.push([name, n.to_string(), size::bytes(bytes)]));
    let mut nodes = Table::new(&[("operator", Align::Left), ("nodes", Align::Right)]);
    operators(graph).into_iter().for_each(|(name, n)| nodes.push([printable(&name).to_string(), n.to_string()]));
    let mut parts = vec![head, io.render(width), weights.render(width), nodes.render(width)];
    if all {
        let mut tensors = Table::new(&["initializer", "type", "shape"].map(|t| (t, Align::Left)));
        for t in &graph.initializer {
            tensors.push([printable(t.name()).to_string(), data_type_name(data_type(t)), format!("{:?}", t.dims)]);
        }
        parts.push(tensors.render(width));
    }
    parts.join("\n\n")
}
