//! The output size and cost of a run, from the plan alone: bytes of the output, arithmetic and memory of calibration. Estimates, since
//! shapes may be open and engines have their own buffers.

use kvant_container::onnx::{GraphProto, NodeProto, TensorProto, data_type_bits, element_count};
use serde::Serialize;

use crate::algorithm::Stage;
use crate::count::{ConstantBytes, constants, for_each_initializer, for_each_other_constant, size};
use crate::element::Element;
use crate::graph::{Index, int_attribute, is, is_standard};
use crate::npu::simulate_hardware;
use crate::placement::Weight;
use crate::quantize::Prepared;
use crate::recipe::Layout;
use crate::shape::Types;
use crate::writing::{Blocks, Dialect, Operators, block_placement, dynamic, float16, read_without};

/// Bytes of a histogram as it usually is: some thousand counts and edges.
const HISTOGRAM: u64 = 64 << 10;

/// The output size and cost of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// Bytes of constants.
    pub constants: ConstantBytes,
    /// Tensors observed while the model runs over data.
    pub observed: usize,
    /// Values of them in one sample; `None` where shapes are open.
    pub observed_values: Option<u64>,
    /// Multiplications, each with an addition, of one sample; `None` where shapes are open.
    pub multiplications: Option<u64>,
    /// Bytes of private memory for calibration; `None` where shapes are open.
    pub memory: Option<u64>,
}

impl Cost {
    /// The cost of a plan with one sample in progress per session.
    pub fn of(prepared: &Prepared, sessions: usize) -> Self {
        let graph = &prepared.model.graph;
        let observed = prepared.observation().tensors();
        let values = sum(observed.iter().map(|name| elements(&prepared.types, name)));
        let all = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
        let largest = all.filter_map(|name| elements(&prepared.types, name)).max().unwrap_or(0);
        let weights = constants(graph, size);
        // Observed tensors live to the end of a run, the others while they are read; kernels keep weights in an order of theirs.
        let session = |values: u64| 4 * (values + 2 * largest) + weights;
        let statistics = HISTOGRAM * observed.len() as u64;
        let multiplications = sum(graph.node.iter().filter_map(|node| multiplications(&prepared.types, node)));
        Self {
            constants: ConstantBytes { source_bytes: prepared.source_bytes, output_bytes: output_bytes(prepared) },
            observed: observed.len(),
            observed_values: values,
            multiplications: multiplications.filter(|_| !observed.is_empty()),
            memory: values
                .map(|values| sessions as u64 * session(values) + statistics)
                .filter(|_| !observed.is_empty()),
        }
    }
}

/// Room on disks that a run needs, as far as it is known before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskCost {
    /// Bytes of a graph that is written, without what it has besides constants.
    pub output: u64,
    /// Bytes beside the outputs while they are made: new weights, and results that are kept for a run that resumes.
    pub beside: u64,
    /// Bytes of activations beyond the budget of memory, in the directory of temporary files.
    pub activations: u64,
}

impl DiskCost {
    /// Of a plan that runs over so many samples with a budget of memory, and is written in so many layouts.
    pub fn of(prepared: &Prepared, samples: usize, budget: u64, layouts: usize) -> Self {
        let graph = &prepared.model.graph;
        let output = output_bytes(prepared);
        let algorithms = &prepared.recipe.algorithms;
        // Algorithms on floats write all weights anew at most; those that choose codes keep one byte of each.
        let floats = if algorithms.iter().any(|a| a.stage() == Stage::Float) { constants(graph, size) } else { 0 };
        let chosen = algorithms.iter().any(|a| a.stage() >= Stage::Rounding && a.needs_data());
        let kept = if chosen { constants(graph, size) / 4 } else { 0 };
        let all = graph.node.iter().flat_map(|node| &node.output).filter_map(|name| elements(&prepared.types, name));
        // What a layer reads and makes, of the float model and of the quantized one.
        let live = if chosen { all.max().unwrap_or(0).saturating_mul(4 * 4 * samples as u64) } else { 0 };
        Self {
            output,
            beside: output.saturating_mul(layouts as u64).saturating_add(floats).saturating_add(kept),
            activations: live.saturating_sub(budget),
        }
    }
}

fn sum(mut numbers: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    numbers.try_fold(0u64, |sum, number| sum.checked_add(number?))
}

fn elements(types: &Types, name: &str) -> Option<u64> {
    types.known_shape(name)?.into_iter().try_fold(1u64, |n, d| n.checked_mul(d as u64))
}

/// Bytes of the constants that a run will write.
fn output_bytes(prepared: &Prepared) -> u64 {
    let Prepared { model, recipe, placement, .. } = prepared;
    match recipe.layout {
        Layout::MatMulNBits { bits, block, accuracy } => {
            block_placement::constant_bytes(&model.graph, placement, Blocks::of(recipe, bits, block, accuracy))
        }
        // It was found to be convertible during placement.
        Layout::Float(to) => float16::constant_bytes(model, to, &recipe.selection).unwrap_or_default(),
        Layout::Dynamic => dynamic::constant_bytes(&model.graph, placement),
        Layout::Qdq | Layout::QOperator if recipe.npu => {
            let mut model = model.clone();
            simulate_hardware(&mut model, &prepared.types, placement);
            pair_bytes(prepared, &model.graph)
        }
        Layout::Qdq | Layout::QOperator => pair_bytes(prepared, &model.graph),
    }
}

/// Bytes of the constants of a graph with Q/DQ pairs: what its own become, and scales and zero points of activations.
fn pair_bytes(prepared: &Prepared, graph: &GraphProto) -> u64 {
    let (dialect, index) = (Dialect::of(&prepared.recipe), Index::new(graph));
    let own = prepared.placement.activations.iter().filter(|(name, activation)| {
        let is_made = index.producer(name).is_some() || index.is_input(name);
        let stored = dialect.operators(activation.scheme.element, false);
        is_made
            && activation.provider.is_none()
            && stored.is_ok_and(|operators| matches!(operators, Operators::Linear(_) | Operators::Extended))
    });
    let scales =
        own.map(|(_, a)| parameters(a.channels.map_or(1, |channels| channels.number as u64), bits(a.scheme.element)));
    // What is inside of nodes gives a weight as it is.
    let weights = &prepared.placement.weights;
    let float = read_without(graph, &mut |node| node.input.retain(|name| !weights.contains_key(name)));
    let mut bytes = scales.sum::<u64>();
    for_each_initializer(graph, &mut |tensor| bytes += after(prepared, &float, tensor));
    for_each_other_constant(graph, &mut |tensor| bytes += size(tensor));
    bytes
}

fn bits(element: Element) -> u64 {
    element.data_type().and_then(data_type_bits).unwrap_or(32)
}

/// Bytes of scales in f32 and of zero points.
fn parameters(count: u64, bits: u64) -> u64 {
    4 * count + (count * bits).div_ceil(8)
}

/// Number of scales that a constant of these dimensions has.
fn scales(weight: &Weight, dims: &[i64]) -> u64 {
    let channels = weight.axis.filter(|_| weight.range.is_none()).and_then(|axis| dims.get(axis));
    channels.map_or(1, |&channels| channels.max(0) as u64)
}

/// Bytes of a constant in the output, with its scales and zero points. A weight that `float` reads is also stored as it is.
fn after(prepared: &Prepared, float: &Index, tensor: &TensorProto) -> u64 {
    let Prepared { recipe, placement, model, .. } = prepared;
    let name = tensor.name();
    let count = element_count(tensor).unwrap_or(0) as u64;
    if let Some(bias) = placement.biases.get(name) {
        let dims = Index::new(&model.graph).constant(&model.graph, &bias.weight).map_or(&[][..], |weight| &weight.dims);
        let scales = placement.weights.get(&bias.weight).map_or(1, |weight| scales(weight, dims));
        // One that is broadcast stays.
        let fits = scales == 1 || scales == count;
        let bits = bits(bias.element);
        return if fits { (count * bits).div_ceil(8) + parameters(scales, bits) } else { size(tensor) };
    }
    let Some(weight) = placement.weights.get(name) else { return size(tensor) };
    let (bits, count_of_scales) = (bits(weight.scheme.element), scales(weight, &tensor.dims));
    let codes = (count * bits).div_ceil(8) + if float.is_read(name) { size(tensor) } else { 0 };
    match Dialect::of(recipe).operators(weight.scheme.element, true) {
        Ok(Operators::Cast) => codes,
        Ok(Operators::Extended) => size(tensor) + parameters(count_of_scales, bits),
        Ok(Operators::Block(_)) => size(tensor),
        _ => codes + parameters(count_of_scales, bits),
    }
}

/// Multiplications of a product; `None` for other nodes, and inside where shapes are open.
fn multiplications(types: &Types, node: &NodeProto) -> Option<Option<u64>> {
    let times = |tensor: Option<&String>, each: Option<u64>| elements(types, tensor?)?.checked_mul(each?);
    match node.op_type() {
        _ if !is_standard(node) => None,
        "Conv" => Some(times(node.output.first(), reduced_by_convolution(types, node))),
        // Every input value meets the weights of its channel, which lie as the summed ones of a convolution do.
        "ConvTranspose" => Some(times(node.input.first(), reduced_by_convolution(types, node))),
        "MatMul" | "Gemm" => Some(times(node.output.first(), reduced_by_product(types, node))),
        _ => None,
    }
}

/// Products that are summed for one output of a convolution.
fn reduced_by_convolution(types: &Types, node: &NodeProto) -> Option<u64> {
    Some(types.known_shape(node.input.get(1)?)?.get(1..)?.iter().map(|&d| d as u64).product())
}

/// Products that are summed for one output of a matrix product.
fn reduced_by_product(types: &Types, node: &NodeProto) -> Option<u64> {
    let shape = types.known_shape(node.input.first()?)?;
    let transposed = is(node, "Gemm") && int_attribute(node, "transA") == Some(1);
    let axis = if transposed { shape.first() } else { shape.last() };
    axis.map(|&d| d as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Observed;
    use crate::graph::{node, set_attribute};
    use crate::preset::Preset;
    use crate::quantization::Range;
    use crate::quantize::prepare;
    use crate::solution::Ranges;
    use crate::test_models::{branches, floats, model, typed};
    use kvant_container::onnx::ModelProto;

    fn cost(preset: &str) -> Cost {
        let nodes = vec![node("MatMul", "m", &["x", "w"], &["h"]), node("Relu", "r", &["h"], &["y"])];
        let mut model = model(17, nodes, vec![floats("w", &[64, 32], &[0.5; 2048])], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[4, 64])];
        let recipe = Preset::find(preset).unwrap().recipe();
        let passes = recipe.passes();
        Cost::of(&prepare(model, recipe, &passes, None).unwrap(), 2)
    }

    #[test]
    fn costs_follow_from_shapes() {
        let int8 = cost("A8W8");
        // A weight and two activations, each with a scale and a zero point.
        assert_eq!(int8.constants, ConstantBytes { source_bytes: 8192, output_bytes: 2048 + 3 * 5 });
        assert_eq!(
            (int8.observed, int8.observed_values, int8.multiplications),
            (2, Some(4 * 64 + 4 * 32), Some(4 * 64 * 32))
        );
        let memory = 2 * (4 * (384 + 2 * 128) + 8192) + 2 * HISTOGRAM;
        assert_eq!(int8.memory, Some(memory));
        let int4 = cost("MATMUL_NBITS");
        // Blocks are whole: 64 inputs take the bytes of 128.
        assert_eq!((int4.constants.output_bytes, int4.observed, int4.memory), (2048 + 32 * 4, 0, None));
        assert_eq!(cost("FP16_MODEL").constants.output_bytes, 4096);
    }

    /// What a plan says of constants, and what the graph has that a run writes of it with all ranges from -1 to 1.
    fn planned_and_written(float: &ModelProto, preset: &str) -> (ConstantBytes, ConstantBytes) {
        let mut recipe = Preset::find(preset).unwrap().recipe();
        recipe.algorithms = recipe.algorithms.without_data();
        let prepared = prepare(float.clone(), recipe.clone(), &recipe.passes(), None).unwrap();
        assert!(!prepared.is_estimate());
        let planned = Cost::of(&prepared, 1).constants;
        let tensors = prepared.observation().tensors();
        let whole = tensors.into_iter().map(|name| (name, Range { min: -1.0, max: 1.0 })).collect();
        let observed = Observed { ranges: Ranges { whole, ..Ranges::default() }, samples: 1, ..Observed::default() };
        let (_, report) = prepared.transformed(None, None).unwrap().finish_with(&observed, None, None).unwrap();
        (planned, report.constants)
    }

    fn assert_exact(nodes: Vec<NodeProto>, outputs: &[&str]) {
        let weight: Vec<f32> = (0..256).map(|at| (at % 17) as f32 / 16.0 - 0.5).collect();
        let mut made = model(21, nodes, vec![floats("w", &[16, 16], &weight)], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        graph.input = vec![typed("x", &[2, 16])];
        graph.output = outputs.iter().map(|name| typed(name, &[if *name == "w" { 16 } else { 2 }, 16])).collect();
        for preset in ["UINT8_DYNAMIC_QUANT", "MATMUL_NBITS", "A8W8", "A8W4", "XINT8", "FP16_MODEL"] {
            let (planned, written) = planned_and_written(&made, preset);
            assert_eq!(planned, written, "{preset}");
        }
    }

    #[test]
    fn weights_that_are_read_in_float_too_are_counted_twice() {
        assert_exact(vec![node("MatMul", "m", &["x", "w"], &["y"])], &["y", "w"]);
        let inside = |name: &str| GraphProto {
            name: Some(name.to_owned()),
            output: vec![typed(name, &[16, 16])],
            ..GraphProto::default()
        };
        let mut made = vec![
            node("MatMul", "m", &["x", "w"], &["h"]),
            node("ReduceMax", "most", &["x"], &["s"]),
            node("IsNaN", "condition", &["s"], &["c"]),
            branches("c", "v", inside("w"), inside("w")),
            node("MatMul", "n", &["h", "v"], &["y"]),
        ];
        set_attribute(&mut made[1], "keepdims", 0i64);
        assert_exact(made, &["y"]);
    }

    #[test]
    fn weights_of_several_products_are_counted_as_they_are_stored() {
        let mut gemm = node("Gemm", "g", &["h", "w"], &["y"]);
        set_attribute(&mut gemm, "transB", 1i64);
        assert_exact(vec![node("MatMul", "m", &["x", "w"], &["h"]), gemm], &["y"]);
        let square = vec![node("MatMul", "s", &["w", "w"], &["v"]), node("MatMul", "m", &["x", "v"], &["y"])];
        let mut made = model(17, square, vec![floats("w", &[16, 16], &[0.5; 256])], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[2, 16])], vec![typed("y", &[2, 16])]);
        let (planned, written) = planned_and_written(&made, "MATMUL_NBITS");
        assert_eq!(planned, written);
    }

    #[test]
    fn tensors_without_values_are_not_planned() {
        let product = vec![node("MatMul", "m", &["x", "w"], &["y"])];
        let mut made = model(17, product, vec![floats("w", &[0, 5], &[])], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[4, 0])], vec![typed("y", &[4, 5])]);
        let recipe = Preset::find("A16W8").unwrap().recipe();
        let prepared = prepare(made, recipe.clone(), &recipe.passes(), None).unwrap();
        assert!(!prepared.placement.activations.contains_key("x"), "{:?}", prepared.placement);
        assert_eq!(prepared.observation().tensors(), ["y"]);
    }
}
