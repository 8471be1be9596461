//! The nodes and quantized tensors of an ONNX graph in words.

use super::Section;
use crate::inspect::GraphListing;
use crate::text::{Align, Table};
use kvant_onnx::tool::{ListedTensor, QuantizedTensor};
use kvant_quant::counts::number;

impl GraphListing {
    /// The listing in sections.
    pub fn sections(&self) -> Vec<Section> {
        let domain = |name: &str| if name.is_empty() { "ai.onnx".to_owned() } else { name.to_owned() };
        let opsets: Vec<String> =
            self.opsets.iter().map(|(name, version)| format!("{} {version}", domain(name))).collect();
        let head = format!("ONNX graph of {}, opset {}", number(self.node_count, "node"), opsets.join(", "));
        let mut values = Table::new(&["", "name", "type", "axes"].map(|title| (title, Align::Left)));
        self.values.iter().for_each(|row| values.push(row));
        let mut operators = Table::new(&[("operator", Align::Left), ("nodes", Align::Right)]);
        self.operators.iter().for_each(|(name, count)| operators.push([name, &count.to_string()]));
        let mut sections = vec![Section::Text(head), Section::Table(values), Section::Table(operators)];
        sections.extend(self.quantized_table());
        sections.extend(self.node_table());
        sections
    }

    fn quantized_table(&self) -> Option<Section> {
        use Align::{Left, Right};
        let titles = [("quantized", Left), ("type", Left), ("scales", Right), ("scale", Left), ("zero point", Left)];
        let mut table = Table::new(&titles);
        for tensor in &self.quantized {
            let QuantizedTensor { tensor: name, dtype, scales, scale_range, zero_point_range, .. } = tensor;
            let scale = scale_range.map_or_else(|| "computed".to_owned(), range);
            let zero_point = zero_point_range.map_or_else(|| "0".to_owned(), range);
            table.push([name, dtype, &scales.to_string(), &format!("{scale}{}", place(tensor)), &zero_point]);
        }
        (!self.quantized.is_empty()).then_some(Section::Table(table))
    }

    fn node_table(&self) -> Option<Section> {
        let nodes = self.nodes.as_ref().filter(|nodes| !nodes.is_empty())?;
        let mut table = Table::new(&["node", "operator", "inputs", "outputs"].map(|title| (title, Align::Left)));
        let tensors = |tensors: &[ListedTensor]| tensors.iter().map(tensor).collect::<Vec<_>>().join(", ");
        for node in nodes {
            let inside = node.inside.as_ref().map(|holder| format!("{holder} > ")).unwrap_or_default();
            let name = format!("{inside}{}", node.name);
            table.push([&name, &node.operator, &tensors(&node.inputs), &tensors(&node.outputs)]);
        }
        Some(Section::Table(table))
    }
}

/// `0.5`, or `0.25 to 0.5`.
fn range((least, most): (f32, f32)) -> String {
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// Where several scales are.
fn place(tensor: &QuantizedTensor) -> String {
    match (tensor.axis, tensor.block) {
        (Some(axis), Some(block)) => format!(", axis {axis}, blocks of {block}"),
        (Some(axis), None) => format!(", axis {axis}"),
        (None, Some(block)) => format!(", blocks of {block}"),
        (None, None) => String::new(),
    }
}

/// A tensor with its type, as far as it is known.
fn tensor(tensor: &ListedTensor) -> String {
    match &tensor.dtype {
        Some(dtype) => format!("{} {dtype}", tensor.name),
        None if tensor.name.is_empty() => "-".to_owned(),
        None => tensor.name.clone(),
    }
}
