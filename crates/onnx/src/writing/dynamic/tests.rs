use super::*;
use crate::graph::set_attribute;
use crate::preset::Preset;
use crate::quantize::prepare;
use crate::test_models::{floats, model, typed};

fn quantized(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>, change: fn(&mut Recipe)) -> ModelProto {
    let mut model = model(17, nodes, initializers, &[], &["y"]);
    model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 2, 2, 2])];
    let mut recipe = Preset::find("UINT8_DYNAMIC_QUANT").unwrap().recipe();
    change(&mut recipe);
    let passes = recipe.passes();
    let prepared = prepare(model, recipe, &passes, None).unwrap();
    assert!(!prepared.needs_data());
    let observation = prepared.observation();
    prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap().0
}

fn operators(model: &ModelProto) -> Vec<&str> {
    model.graph.node.iter().map(|n| n.op_type()).collect()
}

fn find<'a>(model: &'a ModelProto, name: &str) -> &'a TensorProto {
    model.graph.initializer.iter().find(|t| t.name() == name).unwrap()
}

#[test]
fn products_of_one_activation_share_its_codes() {
    let weight = |name: &str| floats(name, &[2, 2], &[-1.0, 0.5, 0.0, 1.55]);
    let nodes = vec![
        node("MatMul", "m", &["x", "w"], &["a"]),
        node("MatMul", "n", &["x", "v"], &["b"]),
        node("Add", "s", &["a", "b"], &["y"]),
    ];
    let made = quantized(nodes, vec![weight("w"), weight("v")], |_| {});
    let product = ["MatMulInteger", "Cast", "Mul", "Mul"];
    let expected: Vec<&str> =
        ["DynamicQuantizeLinear"].into_iter().chain(product).chain(product).chain(["Add"]).collect();
    assert_eq!(operators(&made), expected);
    assert_eq!(find(&made, "w_quantized").raw_data.as_deref(), Some(&[0, 150, 100, 255][..]));
    assert_eq!(find(&made, "w_zero_point").raw_data.as_deref(), Some(&[100][..]));
    assert!(made.graph.initializer.iter().all(|t| t.name() != "w"));
}

#[test]
fn gemm_is_transposed_and_its_bias_added() {
    let mut gemm = node("Gemm", "g", &["x", "w", "b"], &["y"]);
    set_attribute(&mut gemm, "transB", 1i64);
    let weight = floats("w", &[3, 2], &[0.0, 1.0, 2.55, 0.5, 0.25, 0.0]);
    let made = quantized(vec![gemm], vec![weight, floats("b", &[3], &[1.0, 2.0, 3.0])], |_| {});
    assert_eq!(operators(&made), ["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul", "Add"]);
    assert_eq!(find(&made, "w_quantized").dims, [2, 3]);
    assert_eq!(find(&made, "w_quantized").raw_data.as_deref(), Some(&[0, 255, 25, 100, 50, 0][..]));
}

#[test]
fn convolution_has_channel_scales_and_one_zero_point() {
    let weight = floats("w", &[2, 2, 1, 1], &[1.27, -1.0, 2.54, 1.0]);
    let nodes = vec![node("Conv", "c", &["x", "w", "b"], &["y"])];
    let made = quantized(nodes, vec![weight, floats("b", &[2], &[1.0, 2.0])], |recipe| {
        recipe.weight.per_channel = true;
        recipe.weight.element = Element::Int8;
    });
    assert_eq!(operators(&made), ["DynamicQuantizeLinear", "ConvInteger", "Cast", "Mul", "Mul", "Add"]);
    assert_eq!(find(&made, "w_scale").dims, [2, 1, 1]);
    assert_eq!(find(&made, "b_channels").dims, [2, 1, 1]);
    assert_eq!(find(&made, "w_zero_point").raw_data.as_deref(), Some(&[0][..]));
    assert_eq!(find(&made, "w_quantized").raw_data.as_deref(), Some(&[127, 156, 127, 50][..]));
}

#[test]
fn unsupported_dynamic_weight_dtypes_are_refused() {
    let mut recipe = Preset::find("UINT8_DYNAMIC_QUANT").unwrap().recipe();
    recipe.weight.element = Element::Int4;
    let error = place(&GraphProto::default(), &recipe, &|_| None).unwrap_err();
    assert_eq!(error.to_string(), "the dynamic layout has no int4 weights, only int8 and uint8");
}
