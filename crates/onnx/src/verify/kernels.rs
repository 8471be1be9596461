//! Graphs that are sound and that ONNX Runtime does not open all the same, with the graph optimizations that programs use: it has no
//! kernel on CPUs, or makes one of Q/DQ pairs that does not take their scales or types. Measured with 1.31.1.

use super::types::name_of;
use crate::graph::{Index, domain, is, is_standard};
use crate::placement::{FLOAT_WITH_INT8, ONE_SCALE};
use crate::shape;
use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type};
use kvant_quant::finding::Findings;

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let index = Index::new(&model.graph);
    let pairs = Pairs { graph: &model.graph, index: &index };
    pairs.scales(findings);
    pairs.floats(findings);
    brain_floats(model, findings);
}

/// Standard operators that have kernels of bfloat16, because they move values and compute nothing.
const MOVES: &[&str] = &[
    "Cast",
    "Concat",
    "Constant",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Shape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Arithmetic in bfloat16.
fn brain_floats(model: &ModelProto, findings: &mut Findings) {
    let types = shape::infer(model);
    let brain = |name: &String| types.data_type(name) == Some(DataType::BFLOAT16);
    let computes = |node: &&NodeProto| {
        is_standard(node) && !MOVES.contains(&node.op_type()) && node.input.iter().chain(&node.output).any(brain)
    };
    let mut nodes = model.graph.node.iter().filter(computes);
    if let Some(first) = nodes.next() {
        let reason =
            format!("{} nodes compute in bfloat16: ONNX Runtime has no kernels for that on CPUs", 1 + nodes.count());
        findings.warning(name_of(first), reason, "run it on a GPU, or choose FP16_MODEL");
    }
}

/// Q/DQ pairs of a graph.
struct Pairs<'g> {
    graph: &'g GraphProto,
    index: &'g Index,
}

impl<'g> Pairs<'g> {
    /// Activations with several scales around operators whose kernels take one.
    fn scales(&self, findings: &mut Findings) {
        let fused = self.graph.node.iter().filter(|node| is_standard(node) && ONE_SCALE.contains(&node.op_type()));
        for node in fused.filter(|node| self.several(node)) {
            let reason = format!(
                "scales for each channel of an activation: ONNX Runtime makes a kernel of the {} that takes one",
                node.op_type()
            );
            findings.warning(name_of(node), reason, "quantize its tensors with one scale each");
        }
    }

    /// Whether an operator is one that ONNX Runtime makes a kernel of, and one of its activations has several scales.
    fn several(&self, node: &NodeProto) -> bool {
        let before = node.input.iter().filter_map(|name| self.made_by(name, "DequantizeLinear"));
        let before: Vec<&NodeProto> = before.filter(|dequantize| !self.is_stored(dequantize)).collect();
        let behind: Vec<&NodeProto> = node.output.iter().filter_map(|name| self.read_by(name)).collect();
        let all: Vec<&NodeProto> = before.iter().chain(&behind).copied().collect();
        let several = |pair: &&&NodeProto| self.scale_count(pair) > 1;
        let count = all.iter().filter(several).count();
        let grouped = !before.is_empty() && !behind.is_empty();
        match self.common_type(&all) {
            Some(DataType::UINT8) => grouped && count > 0,
            // Codes with one scale become uint8, and no kernel takes both types.
            Some(DataType::INT8) => grouped && count == all.len() && !FLOAT_WITH_INT8.contains(&node.op_type()),
            _ => false,
        }
    }

    fn made_by(&self, name: &str, op: &str) -> Option<&'g NodeProto> {
        self.index.producer(name).map(|at| &self.graph.node[at]).filter(|node| node.op_type() == op)
    }

    /// The QuantizeLinear that reads a tensor.
    fn read_by(&self, name: &str) -> Option<&'g NodeProto> {
        let readers = self.index.consumers(name).iter().map(|&at| &self.graph.node[at]);
        readers.into_iter().find(|node| node.op_type() == "QuantizeLinear")
    }

    fn constant(&self, node: &NodeProto, input: usize) -> Option<&'g TensorProto> {
        self.index.constant(self.graph, node.input.get(input)?)
    }

    /// Whether the codes are a weight's.
    fn is_stored(&self, dequantize: &NodeProto) -> bool {
        self.constant(dequantize, 0).is_some()
    }

    fn scale_count(&self, pair: &NodeProto) -> i64 {
        self.constant(pair, 1).map_or(1, |scale| scale.dims.iter().product())
    }

    /// The type of the codes of all pairs.
    fn common_type(&self, pairs: &[&NodeProto]) -> Option<DataType> {
        let mut types = pairs.iter().map(|pair| self.constant(pair, 2).map_or(DataType::UINT8, data_type));
        let first = types.next()?;
        types.all(|other| other == first).then_some(first)
    }

    /// Codes that are 8-bit floats, of which integer kernels are made.
    fn floats(&self, findings: &mut Findings) {
        use DataType::*;
        let float8 = |tensor: &TensorProto| {
            [FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ].contains(&data_type(tensor))
        };
        let quantizes = |node: &&NodeProto| is(node, "QuantizeLinear") && domain(node).is_empty();
        let mut found =
            self.graph.node.iter().filter(quantizes).filter(|node| self.constant(node, 2).is_some_and(float8));
        if let Some(first) = found.next() {
            let reason =
                "its codes are 8-bit floats: ONNX Runtime's graph optimizations make integer kernels of them, and fail";
            let hint = "open it with graph optimizations switched off (ORT_DISABLE_ALL), or run it on a device with such types";
            findings.warning(name_of(first), reason, hint);
        }
    }
}
