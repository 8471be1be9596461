//! Integer products whose activations are quantized as they come: no data is needed.
//!
//! `y = x W + b` becomes `q, s, z = DynamicQuantizeLinear(x)` (uint8, min and max of this very `x` with zero among them),
//! `MatMulInteger(q, W_q, z, z_W)` in int32, Cast to f32, times `s * s_W`, plus `b`. Convolutions go through ConvInteger alike.
//! What several products read is quantized once. Weights are int8 or uint8, with one scale or one for each output channel.
//! Embeddings and products of two activations stay in float. Source: ONNX, DynamicQuantizeLinear-11, MatMulInteger-10,
//! ConvInteger-10.

use std::collections::{BTreeMap, HashSet};

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, Spill, TensorProto, keep, shape, tensor};

use super::remaining::constants_without;
use crate::block_map::changes_data;
use crate::calibration_method::weight_codes;
use crate::constant::Value;
use crate::count::size;
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{Index, Names, bodies_mut, cast_node, for_each_node, int_attribute, is, node, positional_input};
use crate::placement::{self, Placement, Skipped, Weight};
use crate::quantization::{Affine, pack};
use crate::recipe::{BiasKind, Recipe};
use crate::solution::{Solution, values};

/// Decides which weights are quantized: those of products that this layout can write.
///
/// Errors: element types that the operators do not have.
pub fn place(
    graph: &GraphProto,
    recipe: &Recipe,
    data_type: &dyn Fn(&str) -> Option<DataType>,
) -> Result<Placement, QuantizeError> {
    check_elements(recipe)?;
    let weights_only = Recipe { activation: None, bias: BiasKind::Float, ..recipe.clone() };
    let mut placement = placement::place(graph, &weights_only, data_type);
    let index = Index::new(graph);
    let mut placed = HashSet::new();
    let mut number = 0;
    let mut products = Vec::new();
    for_each_node(graph, &mut |node| products.extend(product(node).then_some(node)));
    for node in products {
        let Some(weight) = placement.weights.get_mut(&node.input[1]) else { continue };
        suit(weight, node, rank(graph, &index, node));
        match obstacle(graph, &index, node, weight) {
            Some(reason) => placement.skipped.push(Skipped::new(node, reason)),
            None => {
                number += 1;
                placed.insert(node.input[1].clone());
            }
        }
    }
    placement.weights.retain(|name, _| placed.contains(name));
    placement.nodes = number;
    Ok(placement)
}

fn check_elements(recipe: &Recipe) -> Result<(), QuantizeError> {
    let refused = |role, element: Element, only| {
        Err(QuantizeError::NotInLayout { role, element: element.to_string(), layout: "dynamic", only })
    };
    match (recipe.activation.map(|a| a.element), recipe.weight.element) {
        (Some(element), _) if element != Element::UInt8 => refused("activations", element, "uint8"),
        (_, Element::Int8 | Element::UInt8) => Ok(()),
        (_, element) => refused("weights", element, "int8 and uint8"),
    }
}

/// The operators that have an integer form.
fn product(node: &NodeProto) -> bool {
    is(node, "MatMul") || is(node, "Gemm") || is(node, "Conv")
}

/// The reason that a product with a quantized weight must stay in float.
fn obstacle(graph: &GraphProto, index: &Index, node: &NodeProto, weight: &Weight) -> Option<&'static str> {
    let rank = rank(graph, index, node);
    let bias = positional_input(node, 2);
    match node.op_type() {
        _ if weight.axis.is_some_and(|axis| axis != channel_axis(node)) => Some("another node needs other channels"),
        _ if rank < 2 || index.constant(graph, &node.input[0]).is_some() => Some("its operands are not matrices"),
        _ if changes_data(node) => Some("it has factors or reads its data transposed"),
        "Conv" if bias.is_some_and(|name| index.constant(graph, name).is_none()) => Some("its bias is computed"),
        _ => None,
    }
}

/// Dimensions of a product's weight.
fn rank(graph: &GraphProto, index: &Index, node: &NodeProto) -> usize {
    index.constant(graph, &node.input[1]).map_or(0, |t| t.dims.len())
}

/// The axis of a weight of two dimensions, or of a convolution, that its output channels lie on.
fn channel_axis(node: &NodeProto) -> usize {
    let first = is(node, "Conv") || is(node, "Gemm") && int_attribute(node, "transB") == Some(1);
    usize::from(!first)
}

/// What kernels take: ConvInteger one zero point of a weight, MatMulInteger one for each column, but none of stacked matrices.
fn suit(weight: &mut Weight, node: &NodeProto, rank: usize) {
    weight.axis = weight.axis.filter(|_| weight.range.is_none() && (is(node, "Conv") || rank == 2));
    weight.scheme.symmetric |= weight.axis.is_some() && is(node, "Conv");
}

/// The weight of a node that is rewritten.
fn taken<'p>(graph: &GraphProto, index: &Index, placement: &'p Placement, node: &NodeProto) -> Option<&'p Weight> {
    let weight = Some(node).filter(|node| product(node)).and_then(|node| placement.weights.get(&node.input[1]));
    weight.filter(|weight| obstacle(graph, index, node, weight).is_none())
}

/// Returns whether the weight of a product is read transposed.
fn is_transposed(node: &NodeProto) -> bool {
    is(node, "Gemm") && int_attribute(node, "transB") == Some(1)
}

/// Bytes of the constants of a graph whose placed products are written: codes, scales and zero points of each weight, once for either
/// order of its codes, a copy of each bias of a convolution, and what other nodes read still.
pub fn constant_bytes(graph: &GraphProto, placement: &Placement) -> u64 {
    let index = Index::new(graph);
    let (mut stored, mut biases) = (BTreeMap::new(), 0);
    let left = constants_without(graph, &mut |node| {
        let Some(weight) = taken(graph, &index, placement, node) else { return };
        let (name, convolution) = (std::mem::take(&mut node.input[1]), is(node, "Conv"));
        let dims = index.constant_shape(graph, &name).unwrap_or_default();
        let scales = weight.axis.and_then(|axis| dims.get(axis).copied()).unwrap_or(1);
        let zero_points = if convolution { 1 } else { scales };
        let bytes = dims.iter().product::<usize>() + 4 * scales + zero_points;
        stored.entry((name, is_transposed(node))).or_insert(bytes as u64);
        if let Some(bias) = node.input.get_mut(2).filter(|_| convolution).map(std::mem::take) {
            biases += index.constant(graph, &bias).map_or(0, size);
        }
    });
    left + biases + stored.values().sum::<u64>()
}

/// Rewrites every product with a placed weight.
pub fn write(
    model: &mut ModelProto,
    placement: &Placement,
    solution: &Solution,
    spill: Option<&Spill>,
) -> Result<(), QuantizeError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(()) };
    let (index, names) = (Index::new(graph), Names::of(graph));
    let old = std::mem::take(&mut graph.node);
    let writer = DynamicWriter { graph, index, placement, solution, spill, names, made: DynamicWeight::default() };
    let made = writer.run(old)?;
    graph.node = made.nodes;
    graph.initializer.extend(made.initializers);
    let index = Index::new(graph);
    graph.initializer.retain(|t| index.is_read(t.name()) || index.is_input(t.name()));
    Ok(())
}

/// A quantized activation: codes, scale and zero point.
type Quantized = [String; 3];

/// A stored weight.
#[derive(Clone)]
struct StoredWeight {
    codes: String,
    scale: String,
    zero_point: String,
}

#[derive(Default)]
struct DynamicWeight {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    activations: BTreeMap<String, Quantized>,
    /// By weight and whether it was transposed.
    weights: BTreeMap<(String, bool), StoredWeight>,
}

struct DynamicWriter<'a> {
    graph: &'a GraphProto,
    index: Index,
    placement: &'a Placement,
    solution: &'a Solution,
    spill: Option<&'a Spill>,
    names: Names,
    made: DynamicWeight,
}

impl DynamicWriter<'_> {
    fn run(mut self, nodes: Vec<NodeProto>) -> Result<DynamicWeight, QuantizeError> {
        self.nodes(nodes)?;
        Ok(self.made)
    }

    fn nodes(&mut self, nodes: Vec<NodeProto>) -> Result<(), QuantizeError> {
        for mut old in nodes {
            bodies_mut(&mut old).try_for_each(|body| self.body(body))?;
            match taken(self.graph, &self.index, self.placement, &old).is_some() {
                true => self.product(&old)?,
                false => self.made.nodes.push(old),
            }
        }
        Ok(())
    }

    /// The nodes of a graph inside of a node: it sees what was quantized around it, and nothing outside sees what is in it.
    fn body(&mut self, body: &mut GraphProto) -> Result<(), QuantizeError> {
        let outer = (std::mem::take(&mut self.made.nodes), self.made.activations.clone());
        self.nodes(std::mem::take(&mut body.node))?;
        body.node = std::mem::replace(&mut self.made.nodes, outer.0);
        self.made.activations = outer.1;
        Ok(())
    }

    fn product(&mut self, old: &NodeProto) -> Result<(), QuantizeError> {
        let Some(weight) = self.weight(old)? else {
            self.made.nodes.push(old.clone());
            return Ok(());
        };
        let [codes, scale, zero_point] = self.activation(&old.input[0]);
        let label = if old.name().is_empty() { &old.output[0] } else { old.name() };
        let own = |names: &mut Names, suffix: &str| names.fresh(&format!("{label}_{suffix}"));
        let convolution = is(old, "Conv");
        let op_type = if convolution { "ConvInteger" } else { "MatMulInteger" };
        let (sum, cast, factor) =
            (own(&mut self.names, "integer"), own(&mut self.names, "cast"), own(&mut self.names, "scale"));
        let mut integer = node(op_type, &sum, &[&codes, &weight.codes, &zero_point, &weight.zero_point], &[&sum]);
        if convolution {
            integer.attribute.clone_from(&old.attribute);
        }
        let to_float = cast_node(&cast, &sum, &cast, DataType::FLOAT);
        let factors = node("Mul", &factor, &[&scale, &weight.scale], &[&factor]);
        let bias = self.bias(old)?;
        let scaled = if bias.is_some() { own(&mut self.names, "scaled") } else { old.output[0].clone() };
        let scales = node("Mul", &format!("{label}_dequantize"), &[&cast, &factor], &[&scaled]);
        let add = bias.map(|bias| node("Add", &format!("{label}_bias"), &[&scaled, &bias], &[&old.output[0]]));
        self.made.nodes.extend([integer, to_float, factors, scales]);
        self.made.nodes.extend(add);
        Ok(())
    }

    /// The codes of an activation, made before the first product that reads it.
    fn activation(&mut self, name: &str) -> Quantized {
        if let Some(made) = self.made.activations.get(name) {
            return made.clone();
        }
        let made = ["quantized", "scale", "zero_point"].map(|suffix| self.names.fresh(&format!("{name}_{suffix}")));
        let outputs = [made[0].as_str(), &made[1], &made[2]];
        let label = self.names.fresh(&format!("{name}_DynamicQuantizeLinear"));
        self.made.nodes.push(node("DynamicQuantizeLinear", &label, &[name], &outputs));
        self.made.activations.insert(name.to_owned(), made.clone());
        made
    }

    /// The codes of a weight, the sums over its first matrix axis.
    fn weight(&mut self, old: &NodeProto) -> Result<Option<StoredWeight>, QuantizeError> {
        let name = &old.input[1];
        let transposed = is_transposed(old);
        let key = (name.clone(), transposed);
        if let Some(stored) = self.made.weights.get(&key) {
            return Ok(Some(stored.clone()));
        }
        let parts = (self.placement.weights.get(name), self.solution.weights.get(name));
        let (Some(source), (Some(weight), Some(parameters))) = (self.index.constant(self.graph, name), parts) else {
            return Ok(None);
        };
        let shape = shape(source)?;
        let codes = weight_codes(&values(source)?, &shape, weight.axis, parameters, weight.method());
        let data_type = weight.scheme.element.data_type().unwrap_or(DataType::UINT8);
        let Some(codes) = Value::new(data_type, shape, codes) else { return Ok(None) };
        let Some(codes) = (if transposed { codes.transposed(&[1, 0]) } else { Some(codes) }) else { return Ok(None) };
        let made = ["quantized", "scale", "zero_point"].map(|suffix| self.names.fresh(&format!("{name}_{suffix}")));
        let [stored, scale, zero_point] = made;
        let kept = keep(self.spill, codes.bytes().to_vec())?;
        self.made.initializers.push(tensor(&stored, data_type, codes.shape(), kept));
        self.parameters(old, weight, parameters, (&scale, &zero_point));
        let stored = StoredWeight { codes: stored, scale, zero_point };
        self.made.weights.insert(key, stored.clone());
        Ok(Some(stored))
    }

    /// Scale and zero point, in the shape that multiplies the sums and that the kernel takes.
    fn parameters(&mut self, old: &NodeProto, weight: &Weight, parameters: &[Affine], names: (&str, &str)) {
        let convolution = is(old, "Conv");
        let scales: Vec<u8> = parameters.iter().flat_map(|p| p.scale.to_le_bytes()).collect();
        let vector = weight.axis.is_some();
        let shape = match (vector, convolution) {
            (true, true) => per_channel(parameters.len(), rank(self.graph, &self.index, old)),
            (true, false) => vec![parameters.len()],
            (false, _) => vec![],
        };
        self.made.initializers.push(tensor(names.0, DataType::FLOAT, &shape, scales));
        // A convolution's channels are symmetric: they have the same zero point.
        let number = if convolution { 1 } else { parameters.len() };
        let zero_points: Vec<i64> = parameters.iter().take(number).map(|p| p.zero_point).collect();
        let data_type = weight.scheme.element.data_type().unwrap_or(DataType::UINT8);
        let shape = if vector && !convolution { vec![number] } else { vec![] };
        self.made.initializers.push(tensor(names.1, data_type, &shape, pack(&zero_points, weight.scheme.element)));
    }

    /// What is added to the product: a convolution's bias in the shape that is added to each channel.
    fn bias(&mut self, old: &NodeProto) -> Result<Option<String>, QuantizeError> {
        let Some(name) = positional_input(old, 2) else { return Ok(None) };
        if !is(old, "Conv") {
            return Ok(Some(name.to_owned()));
        }
        let Some(source) = self.index.constant(self.graph, name) else { return Ok(None) };
        let values: Vec<u8> = values(source)?.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shaped = self.names.fresh(&format!("{name}_channels"));
        let shape = per_channel(values.len() / 4, rank(self.graph, &self.index, old));
        self.made.initializers.push(tensor(&shaped, DataType::FLOAT, &shape, values));
        Ok(Some(shaped))
    }
}

/// `[channels, 1, 1, ...]`, for the channels of an image whose weight has this rank.
fn per_channel(channels: usize, rank: usize) -> Vec<usize> {
    [channels].into_iter().chain(std::iter::repeat_n(1, rank.saturating_sub(2))).collect()
}

#[cfg(test)]
mod tests;
