//! The contents of ONNX graphs in words.

use super::Section;
use crate::inspect::graph::{operators, types, values};
use crate::text::{Align, Table, size};
use kvant_container::onnx::{ModelProto, data_type, data_type_name};
use kvant_onnx::count::nodes;
use kvant_onnx::graph::called;
use kvant_quant::counts::number;

/// The contents of a graph; `all` lists each node and initializer too.
pub fn sections(model: &ModelProto, all: bool) -> Vec<Section> {
    let graph = &model.graph;
    let opsets: Vec<String> = model
        .opset_import
        .iter()
        .map(|o| format!("{} {}", if o.domain().is_empty() { "ai.onnx" } else { o.domain() }, o.version()))
        .collect();
    let maker = format!("{} {}", model.producer_name(), model.producer_version());
    let maker = match maker.trim() {
        "" => String::new(),
        maker => format!(", made by {maker}"),
    };
    let head = format!("ONNX graph of {}{maker}, opset {}", number(nodes(graph), "node"), opsets.join(", "));
    let mut io = Table::new(&["", "name", "type", "axes"].map(|t| (t, Align::Left)));
    values(graph).into_iter().for_each(|row| io.push(row));
    let mut weights = Table::new(&[("type", Align::Left), ("tensors", Align::Right), ("bytes", Align::Right)]);
    types(graph).into_iter().for_each(|(name, (n, bytes))| weights.push([name, n.to_string(), size::bytes(bytes)]));
    let mut by_operator = Table::new(&[("operator", Align::Left), ("nodes", Align::Right)]);
    operators(graph).into_iter().for_each(|(name, n)| by_operator.push([name, n.to_string()]));
    let mut sections =
        vec![Section::Text(head), Section::Table(io), Section::Table(weights), Section::Table(by_operator)];
    if all {
        let mut each = Table::new(&["node", "operator", "outputs"].map(|t| (t, Align::Left)));
        for node in &graph.node {
            each.push([called(node).to_owned(), node.op_type().to_owned(), node.output.join(", ")]);
        }
        sections.push(Section::Table(each));
        let mut tensors = Table::new(&["initializer", "type", "shape"].map(|t| (t, Align::Left)));
        for t in &graph.initializer {
            tensors.push([t.name().to_owned(), data_type_name(data_type(t)), format!("{:?}", t.dims)]);
        }
        sections.push(Section::Table(tensors));
    }
    sections
}
