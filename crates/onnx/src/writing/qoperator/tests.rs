use super::*;
use crate::graph::check;
use crate::placement::Placement;
use crate::preset::Preset;
use crate::quantize::prepare;
use crate::recipe::{Layout, Recipe};
use crate::test_models::{floats, integers, model, typed};

fn quantized(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>, change: fn(&mut Recipe)) -> ModelProto {
    let mut model = model(17, nodes, initializers, &[], &["y"]);
    model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 2, 2, 2])];
    let mut recipe = Recipe { layout: Layout::QOperator, ..Preset::find("A8W8").unwrap().recipe() };
    change(&mut recipe);
    let passes = recipe.passes();
    let prepared = prepare(model, recipe, &passes, None).unwrap();
    assert_ne!(prepared.placement.activations, Placement::default().activations);
    let mut observation = prepared.observation();
    prepared.observation().tensors().iter().for_each(|name| observation.see(name, &[2], &[-1.0, 1.0]));
    let made = prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap().0;
    assert_eq!(check(&made), Ok(()));
    made
}

fn operators(model: &ModelProto) -> Vec<&str> {
    model.graph.node.iter().map(|n| n.op_type()).collect()
}

#[test]
fn convolution_with_bias_and_relu_becomes_integer() {
    let constants = vec![floats("w", &[2, 2, 1, 1], &[1.0, 0.5, -0.5, 0.2]), floats("b", &[2], &[0.1, 0.2])];
    let nodes = vec![node("Conv", "c", &["x", "w", "b"], &["h"]), node("Relu", "r", &["h"], &["y"])];
    let made = quantized(nodes, constants, |_| {});
    assert_eq!(operators(&made), ["QuantizeLinear", "QLinearConv", "Clip", "DequantizeLinear"]);
    assert_eq!(made.graph.node[1].input.len(), 9);
    assert_eq!(made.graph.node[3].output, ["y"]);
}

#[test]
fn codes_pass_through_where_scales_are_shared() {
    let nodes = vec![
        node("Add", "a", &["x", "x"], &["h"]),
        node("Reshape", "s", &["h", "shape"], &["f"]),
        node("Sigmoid", "g", &["f"], &["y"]),
    ];
    let made = quantized(nodes, vec![integers("shape", &[1, 8])], |_| {});
    let expected = ["QuantizeLinear", "QLinearAdd", "Reshape", "QLinearSigmoid", "DequantizeLinear"];
    assert_eq!(operators(&made), expected);
    let domains: Vec<&str> = made.opset_import.iter().map(|set| set.domain()).collect();
    assert_eq!(domains, ["", MICROSOFT]);
}

#[test]
fn removed_relu_leaves_the_bias_with_its_convolution() {
    let weight = |name: &str| floats(name, &[2, 2, 1, 1], &[1.0, 0.5, -0.5, 0.2]);
    let bias = |name: &str| floats(name, &[2], &[0.1, 0.2]);
    let nodes = vec![
        node("Conv", "c", &["x", "w", "b"], &["h"]),
        node("Relu", "r", &["h"], &["f"]),
        node("Conv", "d", &["f", "v", "a"], &["y"]),
    ];
    let constants = vec![weight("w"), weight("v"), bias("a"), bias("b")];
    let made = quantized(nodes, constants, |recipe| *recipe = unsigned());
    assert_eq!(operators(&made), ["QuantizeLinear", "QLinearConv", "QLinearConv", "DequantizeLinear"]);
}

fn unsigned() -> Recipe {
    Recipe { layout: Layout::QOperator, ..Preset::find("U8S8_AAWS").unwrap().recipe() }
}

#[test]
fn operators_without_integer_kernels_keep_their_pairs() {
    let nodes = || vec![node("MatMul", "m", &["x", "w"], &["h"]), node("Softplus", "p", &["h"], &["y"])];
    let weight = || vec![floats("w", &[2, 2], &[1.0, 0.5, -0.5, 0.2])];
    let unsigned = quantized(nodes(), weight(), |recipe| recipe.weight.element = Element::UInt8);
    assert!(operators(&unsigned).contains(&"MatMul"));
    let signed = quantized(nodes(), weight(), |_| {});
    assert_eq!(operators(&signed), ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear", "Softplus"]);
}
