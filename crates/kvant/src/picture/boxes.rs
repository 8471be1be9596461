//! What the picture of a graph shows: a box for each input, node and output, with text, and the edges between them.

use crate::inspect::GraphListing;
use crate::text::printable;
use kvant_onnx::tool::{ListedNode, ListedTensor, QuantizedTensor};
use kvant_quant::counts::number;
use std::collections::{BTreeMap, HashMap};

/// The most letters of a line; the middle of longer ones is left out.
const LONGEST: usize = 40;
/// The most constants that a box lists.
const MOST_CONSTANTS: usize = 4;

/// What a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An input or output of the graph.
    End,
    /// QuantizeLinear or DequantizeLinear.
    Pair,
    /// An operator that computes with codes.
    Codes,
    /// Another operator.
    Other,
}

/// A box with its text.
#[derive(Clone, Debug)]
pub(super) struct GraphBox {
    pub kind: Kind,
    /// The whole name, which appears where a pointer rests.
    pub name: String,
    pub lines: Vec<String>,
}

/// The boxes of a graph.
#[derive(Clone, Debug)]
pub(super) struct GraphBoxes {
    pub title: String,
    pub boxes: Vec<GraphBox>,
    /// From one box to another.
    pub edges: Vec<(usize, usize)>,
    /// Number of nodes of the main graph.
    pub nodes: usize,
}

impl GraphBoxes {
    /// The boxes of a graph that was listed with its nodes. Those of bodies are counted in the box that holds them.
    pub fn of(listing: &GraphListing) -> GraphBoxes {
        let listed = listing.nodes.as_deref().unwrap_or_default();
        let inside: BTreeMap<&str, usize> =
            listed.iter().filter_map(|node| node.inside.as_deref()).fold(BTreeMap::new(), |mut counts, holder| {
                *counts.entry(holder).or_default() += 1;
                counts
            });
        let file = listing.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut made =
            GraphBoxes { title: printable(&file).to_string(), boxes: Vec::new(), edges: Vec::new(), nodes: 0 };
        let mut makers: HashMap<&str, usize> = HashMap::new();
        for [_, name, dtype, axes] in listing.values.iter().filter(|value| value[0] == "input") {
            makers.insert(name, made.boxes.len());
            made.boxes.push(end(name, dtype, axes));
        }
        let nodes: Vec<&ListedNode> = listed.iter().filter(|node| node.inside.is_none()).collect();
        made.nodes = nodes.len();
        let first = made.boxes.len();
        for node in &nodes {
            let scales: Vec<&QuantizedTensor> = listing.quantized.iter().filter(|of| of.node == node.name).collect();
            let outputs = node.outputs.iter().filter(|tensor| !tensor.name.is_empty());
            makers.extend(outputs.map(|tensor| (tensor.name.as_str(), made.boxes.len())));
            made.boxes.push(operator(node, &scales, inside.get(node.name.as_str()).copied()));
        }
        for (at, node) in nodes.iter().enumerate() {
            let read = node.inputs.iter().filter_map(|tensor| makers.get(tensor.name.as_str()));
            made.edges.extend(read.map(|&from| (from, first + at)));
        }
        for [_, name, dtype, axes] in listing.values.iter().filter(|value| value[0] == "output") {
            made.edges.extend(makers.get(name.as_str()).map(|&from| (from, made.boxes.len())));
            made.boxes.push(end(name, dtype, axes));
        }
        made
    }
}

fn end(name: &str, dtype: &str, axes: &str) -> GraphBox {
    let lines = [short(name), short(&format!("{dtype}{axes}"))];
    GraphBox { kind: Kind::End, name: printable(name).to_string(), lines: lines.into() }
}

fn operator(node: &ListedNode, quantized: &[&QuantizedTensor], inside: Option<usize>) -> GraphBox {
    let plain = node.operator.rsplit(':').next().unwrap_or(&node.operator);
    let mut lines = vec![short(plain), short(&node.name)];
    lines.extend(inside.map(|count| format!("{} inside", number(count, "node"))));
    let is_pair = plain.ends_with("QuantizeLinear") || plain.ends_with("DequantizeLinear");
    let parameters: Vec<&ListedTensor> = node.inputs.iter().filter(|tensor| tensor.is_constant).collect();
    // Scales and zero points are in the lines below.
    let is_parameter = |tensor: &ListedTensor| is_pair && node.inputs[1..].iter().any(|of| of.name == tensor.name);
    let constants: Vec<&&ListedTensor> = parameters
        .iter()
        .filter(|tensor| !is_parameter(tensor) && !quantized.iter().any(|of| of.tensor == tensor.name))
        .filter(|tensor| quantized.is_empty() || is_pair || !is_scale(tensor))
        .collect();
    lines.extend(constants.iter().take(MOST_CONSTANTS).map(|tensor| constant(tensor)));
    if constants.len() > MOST_CONSTANTS {
        lines.push(format!("{} more", number(constants.len() - MOST_CONSTANTS, "constant")));
    }
    lines.extend(quantized.iter().map(|of| scale(of, node)));
    lines.extend(
        node.outputs
            .iter()
            .filter_map(|tensor| tensor.dtype.as_ref())
            .take(2)
            .map(|dtype| short(&format!("→ {dtype}"))),
    );
    let has_codes = |tensor: &ListedTensor| {
        let dtype = tensor.dtype.as_deref().unwrap_or_default();
        ["int8[", "uint8[", "int16[", "uint16["].iter().any(|codes| dtype.starts_with(codes))
    };
    let kind = match plain {
        _ if is_pair => Kind::Pair,
        _ if !quantized.is_empty() || node.outputs.iter().any(has_codes) || plain.ends_with("Integer") => Kind::Codes,
        _ => Kind::Other,
    };
    GraphBox { kind, name: printable(&node.name).to_string(), lines }
}

/// Scales and zero points of integer operators: floats, and bytes along at most one axis.
fn is_scale(tensor: &ListedTensor) -> bool {
    let dtype = tensor.dtype.as_deref().unwrap_or_default();
    let is_byte = dtype.starts_with("int8[") || dtype.starts_with("uint8[");
    dtype.starts_with("float[") || is_byte && !dtype.contains(',')
}

fn constant(tensor: &ListedTensor) -> String {
    match &tensor.dtype {
        Some(dtype) => {
            format!("{} {}", shortened(&tensor.name, LONGEST.saturating_sub(dtype.chars().count() + 1).max(8)), dtype)
        }
        None => short(&tensor.name),
    }
}

/// Type, scales and zero points, and the tensor where it is not the one that the box makes.
fn scale(of: &QuantizedTensor, node: &ListedNode) -> String {
    let number = |value: f32| {
        format!("{value:.4e}").parse::<f32>().map_or_else(|_| value.to_string(), |value| value.to_string())
    };
    let range = |(least, most): (f32, f32)| match least == most {
        true => number(least),
        false => format!("{}..{}", number(least), number(most)),
    };
    let scale = of.scale_range.map_or_else(|| "computed".to_owned(), range);
    let zero = of.zero_point_range.filter(|range| *range != (0.0, 0.0)).map(|zero| format!(", zero {}", range(zero)));
    let axis = of.axis.map(|axis| format!(", axis {axis}"));
    let block = of.block.map(|block| format!(", blocks of {block}"));
    let made = node.outputs.iter().any(|output| output.name == of.tensor);
    let name = if of.is_constant && !made { format!("{} ", shortened(&of.tensor, 16)) } else { String::new() };
    let rest = [zero, axis, block].into_iter().flatten().collect::<String>();
    format!("{name}{} × {scale}{rest}", of.dtype)
}

fn short(text: &str) -> String {
    shortened(text, LONGEST)
}

/// The beginning and the end of a text that is too long.
fn shortened(text: &str, longest: usize) -> String {
    let letters: Vec<char> = printable(text).to_string().chars().collect();
    if letters.len() <= longest {
        return letters.into_iter().collect();
    }
    let half = (longest - 1) / 2;
    letters[..half].iter().chain(['…'].iter()).chain(&letters[letters.len() - half..]).collect()
}
