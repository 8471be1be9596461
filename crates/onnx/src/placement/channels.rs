//! Where activations have a scale for each channel: which axis that is, and how many there are. Only standard Q/DQ pairs can express
//! it: an integer product sums over channels, and their scales cannot be taken out of the sum.

use std::collections::BTreeSet;

use kvant_container::onnx::{GraphProto, NodeProto};

use super::placed::{Channels, Placement};
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{Index, int_attribute, is, is_standard};
use crate::recipe::{Layout, Recipe};
use crate::shape::{Dim, Types};

/// Operators whose data have channels behind the batch.
const CHANNELS_FIRST: &[&str] = &[
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "GlobalAveragePool",
    "InstanceNormalization",
    "MaxPool",
];

/// Operators whose data have channels last.
const CHANNELS_LAST: &[&str] = &["Gemm", "LayerNormalization", "MatMul", "RMSNormalization"];

/// Operators of which ONNX Runtime makes kernels for codes that take one scale for each activation, and that it puts in place of
/// Q/DQ pairs with several without a look: it does not open the graph then, does not run it, or computes something else (Concat,
/// Where). Tried with 1.31.1, all operators that are ever quantized, each with scales for each channel before it, behind it, and
/// on both sides; int8 and uint8 are alike but for [`FLOAT_WITH_INT8`].
pub const ONE_SCALE: &[&str] = &[
    "Add",
    "AveragePool",
    "Concat",
    "Conv",
    "GlobalAveragePool",
    "LeakyRelu",
    "MatMul",
    "Mul",
    "Sigmoid",
    "Softmax",
    "Where",
];

/// Those of them that stay in float where activations are int8; but for [the second operand of a product](is_second_operand).
pub const FLOAT_WITH_INT8: &[&str] = &["Conv", "MatMul", "Where"];

/// Whether a tensor takes the place of the weight in a MatMul. ONNX Runtime makes an integer kernel where it alone has several
/// scales, with int8 codes too, and then refuses them.
pub fn is_second_operand(node: &NodeProto, name: &str) -> bool {
    is(node, "MatMul") && node.input.get(1).is_some_and(|second| second == name)
}

/// Refuses what has one scale for each activation.
pub fn check(recipe: &Recipe, placement: &Placement) -> Result<(), QuantizeError> {
    let asked = recipe.activation.filter(|a| a.per_channel);
    let has_scale = |element: Element| element.is_integer() || element.is_float8();
    let refused = |because: &'static str| Err(QuantizeError::ChannelActivations { because });
    match asked.is_some() || placement.activations.values().any(|a| a.channels.is_some()) {
        true if recipe.layout != Layout::Qdq => refused("the layout is not that of QuantizeLinear/DequantizeLinear"),
        true if recipe.npu => refused("an NPU shifts by one number for each tensor"),
        true if asked.is_some_and(|a| !has_scale(a.element)) => refused("the element type has no scale"),
        true if placement.activations.values().any(|a| a.channels.is_some() && a.scheme.element == Element::UInt8) => {
            refused("ONNX Runtime's kernels for uint8 activations take one scale; those of int8 and int16 are float")
        }
        _ => Ok(()),
    }
}

/// Refuses scales for each channel that no activation gets.
pub fn refuse_idle(recipe: &Recipe, placement: &Placement) -> Result<(), QuantizeError> {
    let is_asked = recipe.activation.is_some_and(|a| a.per_channel);
    match is_asked && placement.activations.values().all(|a| a.channels.is_none()) {
        true => Err(QuantizeError::IdleChannels),
        false => Ok(()),
    }
}

/// Finds the channels of the activations that shall have a scale for each. Those without a known number of channels, with one value
/// of each channel in a sample, a given range or values that only move keep one scale. A bias has no scale then: it would be that of its product.
pub fn assign(placement: &mut Placement, graph: &GraphProto, types: &Types) {
    let index = Index::new(graph);
    let providers: BTreeSet<String> = placement.activations.values().filter_map(|a| a.provider.clone()).collect();
    for (name, activation) in placement.activations.iter_mut().filter(|(_, a)| a.scheme.per_channel) {
        let alone = activation.provider.is_none() && activation.range.is_none() && !providers.contains(name);
        let alone = alone && !needs_one_scale(graph, &index, name, activation.scheme.element);
        activation.channels = if alone { channels(graph, &index, types, name) } else { None };
        activation.scheme.per_channel = activation.channels.is_some();
    }
    let Placement { activations, biases, .. } = placement;
    biases.retain(|_, bias| activations.get(&bias.input).is_none_or(|a| a.channels.is_none()));
}

/// Returns whether an operator that reads or makes a tensor takes one scale for it.
fn needs_one_scale(graph: &GraphProto, index: &Index, name: &str, element: Element) -> bool {
    let nodes = index.consumers(name).iter().copied().chain(index.producer(name)).map(|at| &graph.node[at]);
    // There are no such kernels of 16-bit codes.
    let narrow = matches!(element, Element::Int8 | Element::UInt8);
    let takes_one = |op: &str| ONE_SCALE.contains(&op) && !FLOAT_WITH_INT8.contains(&op);
    let mut nodes = nodes.filter(|node| is_standard(node));
    narrow && nodes.any(|node| takes_one(node.op_type()) || is_second_operand(node, name))
}

fn channels(graph: &GraphProto, index: &Index, types: &Types, name: &str) -> Option<Channels> {
    let maker = index.producer(name).map(|at| &graph.node[at]);
    let shape = types.get(name)?.shape.as_ref()?;
    let readers = index.consumers(name).iter().map(|&at| &graph.node[at]);
    let found = readers.chain(maker).find_map(|node| axis_at(node, name, shape.len()));
    // Images have four axes and more; sequences and vectors have features last.
    let axis = found.unwrap_or(if shape.len() > 3 { 1 } else { shape.len().checked_sub(1)? });
    // One value of a channel in each sample is too little to tell its range: what lies beyond it elsewhere would be cut.
    let several = shape.iter().enumerate().skip(1).any(|(at, dim)| at != axis && dim.known() != Some(1));
    let number = shape.get(axis).filter(|_| several).and_then(Dim::known).filter(|&number| number > 1)?;
    // All of a Softmax's range is used, whatever the data were.
    (!maker.is_some_and(|node| is(node, "Softmax"))).then_some(Channels { axis, number })
}

/// The axis of the channels of a tensor that a node reads or makes.
fn axis_at(node: &NodeProto, tensor: &str, rank: usize) -> Option<usize> {
    let op_type = node.op_type();
    if !is_standard(node) || rank == 0 {
        return None;
    }
    if CHANNELS_FIRST.contains(&op_type) {
        return (rank > 1).then_some(1);
    }
    let turned = is(node, "Gemm")
        && int_attribute(node, "transA") == Some(1)
        && node.input.first().is_some_and(|name| name == tensor);
    CHANNELS_LAST.contains(&op_type).then(|| if turned { 0 } else { rank - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::recipe::TensorScheme;
    use crate::test_models::{floats, model, typed};

    fn recipe(preset: &str) -> Recipe {
        let mut recipe = Preset::find(preset).unwrap().recipe();
        recipe.activation = recipe.activation.map(|a| TensorScheme { per_channel: true, ..a });
        recipe
    }

    #[test]
    fn channel_axis_is_second_for_images_and_last_for_features() {
        let nodes = vec![
            node("Conv", "c", &["x", "w", "b"], &["y"]),
            node("MatMul", "m", &["v", "u"], &["z"]),
            node("Softmax", "s", &["z"], &["p"]),
            node("MatMul", "features", &["f", "u"], &["r"]),
        ];
        let weights =
            vec![floats("w", &[2, 3, 1, 1], &[0.5; 6]), floats("b", &[2], &[0.1; 2]), floats("u", &[4, 5], &[0.5; 20])];
        let mut model = model(17, nodes, weights, &[], &["y", "p", "r"]);
        let inputs = vec![typed("x", &[1, 3, 8, 8]), typed("v", &[1, 7, 4]), typed("f", &[1, 4])];
        model.graph.as_mut().unwrap().input = inputs;
        let recipe = recipe("A8W8");
        let passes = recipe.passes();
        let placement = prepare(model, recipe, &passes, None).unwrap().placement;
        let found = |name: &str| placement.activations[name].channels.map(|c| (c.axis, c.number));
        assert_eq!([found("x"), found("y"), found("v")], [(1, 3), (1, 2), (2, 4)].map(Some));
        assert_eq!([found("p"), found("f"), found("r"), found("z")], [None; 4], "a Softmax reads z");
        assert!(!placement.activations["p"].scheme.per_channel && placement.biases.is_empty());
    }

    #[test]
    fn single_scale_is_kept_where_kernels_require_it() {
        let nodes = vec![
            node("Conv", "c", &["x", "w"], &["a"]),
            node("Sigmoid", "s", &["a"], &["b"]),
            node("Conv", "d", &["b", "w"], &["y"]),
        ];
        let mut model = model(17, nodes, vec![floats("w", &[3, 3, 1, 1], &[0.5; 9])], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 3, 8, 8])];
        let placed = |preset: &str| {
            let recipe = recipe(preset);
            prepare(model.clone(), recipe.clone(), &recipe.passes(), None)
                .map(|prepared| prepared.placement.activations)
        };
        let several = |preset: &str| {
            let placed = placed(preset).unwrap();
            placed.iter().filter(|(_, a)| a.channels.is_some()).map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(several("A8W8"), ["x", "y"]);
        assert_eq!(several("A16W8"), ["a", "b", "x", "y"]);
        assert!(matches!(placed("U8S8_AAWS"), Err(QuantizeError::ChannelActivations { .. })));
    }

    #[test]
    fn concat_and_second_operands_keep_one_scale() {
        let mut concat = node("Concat", "k", &["a", "b"], &["c"]);
        crate::graph::set_attribute(&mut concat, "axis", 1);
        let nodes = vec![
            node("Conv", "d", &["x", "w"], &["a"]),
            node("Conv", "e", &["x", "u"], &["b"]),
            concat,
            node("Conv", "f", &["c", "v"], &["y"]),
            node("MatMul", "m", &["y", "r"], &["z"]),
        ];
        let square = |name: &str, value: f32| floats(name, &[3, 3, 1, 1], &[value; 9]);
        let weights = vec![square("w", 0.5), square("u", 0.25), floats("v", &[3, 6, 1, 1], &[0.5; 18])];
        let mut model = model(17, nodes, weights, &[], &["z"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 3, 8, 8]), typed("r", &[1, 3, 8, 8])];
        let several = |preset: &str| {
            let recipe = recipe(preset);
            let placed = prepare(model.clone(), recipe.clone(), &recipe.passes(), None).unwrap().placement.activations;
            placed.into_iter().filter(|(_, a)| a.channels.is_some()).map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(several("A8W8"), ["x", "y", "z"]);
        assert_eq!(several("A16W16"), ["a", "b", "c", "r", "x", "y", "z"]);
    }

    #[test]
    fn layouts_without_channel_scales_refuse_them() {
        let mut integers = recipe("A8W8");
        integers.layout = Layout::QOperator;
        for refused in [integers, recipe("XINT8"), recipe("BF16"), recipe("UINT8_DYNAMIC_QUANT")] {
            assert!(matches!(check(&refused, &Placement::default()), Err(QuantizeError::ChannelActivations { .. })));
        }
        assert!(check(&recipe("A16W8"), &Placement::default()).is_ok());
    }
}
