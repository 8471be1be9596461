//! Graphs that are sound and that ONNX Runtime does not open or run all the same, with the graph optimizations that programs use: it has no
//! kernel on CPUs, or makes one of Q/DQ pairs that does not take their scales or types. Measured with 1.31.1.

use super::types::name_of;
use crate::graph::{Index, domain, is, is_standard, positional_input};
use crate::placement::{FLOAT_WITH_INT8, ONE_SCALE, is_second_operand};
use crate::shape;
use crate::solution::{averaged, fits_kernel};
use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type};
use kvant_quant::finding::Findings;

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let index = Index::new(&model.graph);
    let pairs = Pairs { graph: &model.graph, index: &index };
    pairs.scales(findings);
    pairs.floats(findings);
    pairs.pools(model, findings);
    brain_floats(model, findings);
}

/// Returns whether ONNX Runtime opens a graph and then fails over scales that a kernel does not take.
pub fn fails_in_a_run(model: &ModelProto) -> bool {
    let index = Index::new(&model.graph);
    Pairs { graph: &model.graph, index: &index }.unfit_pool(model).is_some()
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
        let reason = match nodes.count() {
            0 => "1 node computes".to_owned(),
            more => format!("{} nodes compute", 1 + more),
        } + " in bfloat16: ONNX Runtime has no kernels for that on CPUs";
        findings.warning(name_of(first), reason, "run it on a GPU, or choose FP16_MODEL");
    }
}

/// Returns whether a node averages codes.
fn is_linear_pool(node: &NodeProto) -> bool {
    ["QLinearGlobalAveragePool", "QLinearAveragePool"].contains(&node.op_type())
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
            Some(DataType::INT8) if grouped && count == 1 && is(node, "MatMul") => {
                let second = |pair: &NodeProto| pair.output.first().is_some_and(|name| is_second_operand(node, name));
                before.iter().any(|pair| self.scale_count(pair) > 1 && second(pair))
            }
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

    /// Returns whether the codes are a weight's.
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

    /// Average pooling with scales that its kernel refuses when it runs.
    fn pools(&self, model: &ModelProto, findings: &mut Findings) {
        let Some((node, ratio)) = self.unfit_pool(model) else { return };
        let reason = format!(
            "the input scale of {} is {ratio:.1e} times its output scale: ONNX Runtime's kernel refuses that at run time",
            node.op_type()
        );
        let made = node.output.first().map_or("TENSOR", String::as_str);
        let hint = format!("keep its output in float: ‹override› '{made}=keep'");
        findings.warning(name_of(node), reason, &hint);
    }

    /// The first of such poolings, and the ratio of its scales.
    fn unfit_pool(&self, model: &ModelProto) -> Option<(&'g NodeProto, f32)> {
        let types = shape::infer(model);
        self.graph.node.iter().find_map(|node| {
            let (input, output) = self.pool_scales(node)?;
            let values = averaged(node, &types)??;
            (!fits_kernel(input, output, Some(values))).then_some((node, input / output))
        })
    }

    /// The scales of what a pooling reads and makes, where both have codes of 8 bits.
    fn pool_scales(&self, node: &'g NodeProto) -> Option<(f32, f32)> {
        let scale = |name: &str| self.number(self.index.constant(self.graph, name)?);
        if is_linear_pool(node) {
            return Some((scale(positional_input(node, 1)?)?, scale(positional_input(node, 3)?)?));
        }
        if !is_standard(node) || !["GlobalAveragePool", "AveragePool"].contains(&node.op_type()) {
            return None;
        }
        let before = self.made_by(node.input.first()?, "DequantizeLinear")?;
        let mut made = node.output.first()?;
        // A clamp between pooling and codes goes into the codes.
        let reader = self.index.only_consumer(made).map(|at| &self.graph.node[at]);
        if let Some(clamp) = reader.filter(|node| is(node, "Relu") || is(node, "Clip")) {
            made = clamp.output.first()?;
        }
        let behind = self.read_by(made)?;
        let bytes = matches!(self.common_type(&[before, behind])?, DataType::INT8 | DataType::UINT8);
        let one = self.scale_count(before) == 1 && self.scale_count(behind) == 1;
        (bytes && one).then_some((scale(before.input.get(1)?)?, scale(behind.input.get(1)?)?))
    }

    /// The value of a constant with one.
    fn number(&self, tensor: &TensorProto) -> Option<f32> {
        crate::solution::values(tensor).ok()?.first().copied()
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
