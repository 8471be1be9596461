//! The layers of a graph whose codes or biases algorithms choose, and their constants. No values.

use kvant_container::onnx::{DataType, GraphProto, NodeProto, data_type, shape};
use kvant_quant::reconstruction::ActivationFunction;

use crate::graph::{Index, float_attribute, int_attribute, is, is_standard, positional_input, string_attribute};
use crate::placement::{Placement, clip_bounds};
use crate::solution::values;

/// A layer of a graph, by its node.
#[derive(Debug, Clone)]
pub(super) struct LayerRef {
    /// The position of its node.
    pub position: usize,
    /// The constant it alone reads.
    pub weight: String,
    /// The bias that it alone reads, with an element for each output channel.
    pub bias: Option<String>,
    /// The constant that an Add after a MatMul adds to each output channel, which nothing else reads.
    pub added: Option<String>,
    /// The activation function between the layer and its quantizer.
    pub function: ActivationFunction,
}

/// The layers with an integer weight, in the order of the graph; with `normalizations` those whose gain is one too.
pub(super) fn targets(graph: &GraphProto, placement: &Placement, normalizations: bool) -> Vec<LayerRef> {
    let index = Index::new(graph);
    let coded = |name: &str| placement.weights.get(name).is_some_and(|w| w.scheme.element.is_integer());
    let target = |position: usize| {
        let node = &graph.node[position];
        let gain = gain_of(node).filter(|_| normalizations);
        let weight = weight_of(node).or(gain).filter(|name| coded(name) && index.only_consumer(name).is_some())?;
        let function = function(graph, &index, node);
        let bias = bias_of(graph, &index, node);
        // Other added tensors cannot be run apart from the graph.
        if positional_input(node, 2).is_some() != bias.is_some() {
            return None;
        }
        let bias = bias.map(str::to_owned);
        Some(LayerRef { position, weight: weight.to_owned(), bias, added: added(graph, &index, node), function })
    };
    (0..graph.node.len()).filter_map(target).collect()
}

/// The name of a layer's weight, if the node is a layer.
pub(super) fn weight_of(node: &NodeProto) -> Option<&str> {
    const LAYERS: &[&str] = &["Conv", "ConvTranspose", "Gemm", "MatMul"];
    let layer = is_standard(node) && LAYERS.contains(&node.op_type());
    positional_input(node, 1).filter(|_| layer)
}

/// The name of the gain of each channel, if the node is a normalization that multiplies by one.
fn gain_of(node: &NodeProto) -> Option<&str> {
    const NORMALIZATIONS: &[&str] = &["LayerNormalization", "InstanceNormalization"];
    let normalization = is_standard(node) && NORMALIZATIONS.contains(&node.op_type());
    positional_input(node, 1).filter(|_| normalization)
}

/// Output channels of a layer, from the shape of its weight.
pub(super) fn channels(node: &NodeProto, weight: &[usize]) -> Option<usize> {
    let group = usize::try_from(int_attribute(node, "group").unwrap_or(1)).ok()?;
    match node.op_type() {
        "Conv" => weight.first().copied(),
        "ConvTranspose" => weight.get(1)?.checked_mul(group),
        "Gemm" if int_attribute(node, "transB") == Some(1) => weight.first().copied(),
        _ => weight.last().copied(),
    }
}

fn bias_of<'g>(graph: &'g GraphProto, index: &Index, node: &'g NodeProto) -> Option<&'g str> {
    let name = positional_input(node, 2).filter(|_| node.op_type() != "MatMul")?;
    let constant = |name: &str| index.constant(graph, name).filter(|t| data_type(t) == DataType::FLOAT);
    let elements: usize = shape(constant(name)?).ok()?.iter().product();
    let weight = weight_of(node).or_else(|| gain_of(node))?;
    let channels = channels(node, &shape(constant(weight)?).ok()?)?;
    (elements == channels && index.only_consumer(name).is_some()).then_some(name)
}

/// The constant that is added to each output channel of a MatMul: its bias, which the operator has no place for.
fn added(graph: &GraphProto, index: &Index, node: &NodeProto) -> Option<String> {
    let output = node.output.first().filter(|_| is(node, "MatMul"))?;
    let add = index.only_consumer(output).map(|i| &graph.node[i]).filter(|next| is(next, "Add"))?;
    let name = add.input.iter().find(|name| *name != output)?;
    let dims = shape(index.own_floats(graph, name)?).ok()?;
    let channels = channels(node, &index.constant_shape(graph, weight_of(node)?)?)?;
    let is_vector = dims.last() == Some(&channels) && dims.iter().product::<usize>() == channels;
    is_vector.then(|| name.clone())
}

/// The activation function behind a node that nothing else reads.
fn function(graph: &GraphProto, index: &Index, node: &NodeProto) -> ActivationFunction {
    let output = node.output.first();
    let next = output.and_then(|name| index.only_consumer(name)).map(|i| &graph.node[i]);
    let next = next.filter(|next| is_standard(next) && next.input.first() == output);
    next.and_then(|next| known_function(graph, index, node, next)).unwrap_or(ActivationFunction::None)
}

fn known_function(
    graph: &GraphProto,
    index: &Index,
    layer: &NodeProto,
    node: &NodeProto,
) -> Option<ActivationFunction> {
    let float = |name: &str, default: f32| float_attribute(node, name).unwrap_or(default);
    Some(match node.op_type() {
        "Relu" => ActivationFunction::Relu,
        "LeakyRelu" => ActivationFunction::LeakyRelu { alpha: float("alpha", 0.01) },
        "PRelu" => ActivationFunction::PRelu { slopes: slopes(graph, index, layer, node)? },
        "Clip" => {
            let (low, high) = clip_bounds(graph, index, node)?;
            ActivationFunction::Clip { low, high }
        }
        "Sigmoid" => ActivationFunction::Sigmoid,
        "HardSigmoid" => ActivationFunction::HardSigmoid { alpha: float("alpha", 0.2), beta: float("beta", 0.5) },
        "HardSwish" => ActivationFunction::HardSwish,
        "Tanh" => ActivationFunction::Tanh,
        "Gelu" => match string_attribute(node, "approximate") {
            Some("tanh") => ActivationFunction::GeluTanh,
            _ => ActivationFunction::Gelu,
        },
        _ => return None,
    })
}

/// The slopes of a PRelu: one for all, or one for each output channel of the layer before it.
fn slopes(graph: &GraphProto, index: &Index, layer: &NodeProto, node: &NodeProto) -> Option<Vec<f32>> {
    let tensor = |name: &str| index.constant(graph, name).filter(|t| data_type(t) == DataType::FLOAT);
    let slopes = tensor(positional_input(node, 1)?)?;
    let (slope, weight) = (shape(slopes).ok()?, shape(tensor(weight_of(layer)?)?).ok()?);
    let channels = channels(layer, &weight)?;
    // The channels of a convolution stand before its spatial axes, those of a product last.
    let behind = if layer.op_type().starts_with("Conv") { weight.len().checked_sub(2)? } else { 0 };
    let spread = slope.len() > behind && slope[slope.len() - 1 - behind] == channels;
    let fits = slope.iter().product::<usize>() == channels && spread;
    (fits || slope.iter().all(|&d| d == 1)).then(|| values(slopes).ok()).flatten()
}

/// The factors of a layer's product and bias.
pub(super) fn bias_factor(node: &NodeProto) -> f32 {
    if is(node, "Gemm") { float_attribute(node, "beta").unwrap_or(1.0) } else { 1.0 }
}
