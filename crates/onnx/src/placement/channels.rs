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

/// Refuses what has one scale for each activation.
pub fn check(recipe: &Recipe, placement: &Placement) -> Result<(), QuantizeError> {
    let asked = recipe.activation.filter(|a| a.per_channel);
    let has_scale = |element: Element| element.is_integer() || element.is_float8();
    let refused = |because: &'static str| Err(QuantizeError::ChannelActivations { because });
    match asked.is_some() || placement.activations.values().any(|a| a.channels.is_some()) {
        true if recipe.layout != Layout::Qdq => refused("the layout is not that of QuantizeLinear/DequantizeLinear"),
        true if recipe.npu => refused("an NPU shifts by one number for each tensor"),
        true if asked.is_some_and(|a| !has_scale(a.element)) => refused("the element type has no scale"),
        _ => Ok(()),
    }
}

/// Finds the channels of the activations that shall have a scale for each. Those without a known number of channels, with one value
/// of each channel in a sample, a given range or values that only move keep one scale. A bias has no scale then: it would be that of its product.
pub fn assign(placement: &mut Placement, graph: &GraphProto, types: &Types) {
    let index = Index::new(graph);
    let providers: BTreeSet<String> = placement.activations.values().filter_map(|a| a.provider.clone()).collect();
    for (name, activation) in placement.activations.iter_mut().filter(|(_, a)| a.scheme.per_channel) {
        let alone = activation.provider.is_none() && activation.range.is_none() && !providers.contains(name);
        activation.channels = if alone { channels(graph, &index, types, name) } else { None };
        activation.scheme.per_channel = activation.channels.is_some();
    }
    let Placement { activations, biases, .. } = placement;
    biases.retain(|_, bias| activations.get(&bias.input).is_none_or(|a| a.channels.is_none()));
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
    fn images_have_channels_second_and_features_are_last() {
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
        assert_eq!([found("x"), found("y"), found("v"), found("z")], [(1, 3), (1, 2), (2, 4), (2, 5)].map(Some));
        assert_eq!([found("p"), found("f"), found("r")], [None; 3]);
        assert!(!placement.activations["p"].scheme.per_channel && placement.biases.is_empty());
    }

    #[test]
    fn layouts_without_such_scales_refuse() {
        let mut integers = recipe("A8W8");
        integers.layout = Layout::QOperator;
        for refused in [integers, recipe("XINT8"), recipe("BF16"), recipe("UINT8_DYNAMIC_QUANT")] {
            assert!(matches!(check(&refused, &Placement::default()), Err(QuantizeError::ChannelActivations { .. })));
        }
        assert!(check(&recipe("A16W8"), &Placement::default()).is_ok());
    }
}
