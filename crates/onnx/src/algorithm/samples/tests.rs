//! The matrices of a layer make what an engine makes of its node.

use std::convert::Infallible;
use std::ops::ControlFlow;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, tensor};
use kvant_quant::reconstruction::{CodeSteps, Method, Module, Settings, Weight, reconstruct};

use super::*;
use crate::algorithm::ActivationFunction;
use crate::algorithm::layer::Grid;
use crate::algorithm::target::bias_factor;
use crate::element::Element;
use crate::fake_quantization::declared;
use crate::graph::{node, set_attribute};
use crate::quantization::Affine;
use crate::runtime::{RuntimeChoice, RuntimeOptions, open};

/// Whole numbers, so that sums are exact in any order.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 11) % 9) as f32 - 4.0).collect()
}

fn layer(made: NodeProto, shape: &[usize]) -> Layer {
    let weight = numbers(shape.iter().product(), 2);
    let codes = Element::Int16.range(true).unwrap();
    let grid = Grid::new(Element::Int16, codes, shape, None, vec![Affine { scale: 0.25, zero_point: 0 }]);
    let function = ActivationFunction::None;
    Layer { node: made, shape: shape.to_vec(), weight, grid, bias: None, function }
}

/// The embedded engine's treatment of the layer's node.
fn engine(layer: &Layer, input: &Array<'static>) -> Array<'static> {
    let bytes: Vec<u8> = layer.weight.iter().flat_map(|w| w.to_le_bytes()).collect();
    let zeros = tensor("b", DataType::FLOAT, &layer.shape, vec![0u8; bytes.len()]);
    let graph = GraphProto {
        name: Some("layer".to_owned()),
        node: vec![layer.node.clone()],
        initializer: vec![tensor("w", DataType::FLOAT, &layer.shape, bytes), zeros],
        input: vec![declared("x", Some(input))],
        output: vec![ValueInfoProto { name: Some("y".to_owned()), ..ValueInfoProto::default() }],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { version: Some(17), ..OperatorSetIdProto::default() };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: Some(graph).into(),
        ..ModelProto::default()
    };
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
    let mut session = open(&model, &["y".to_owned()], &options).unwrap();
    let mut output = None;
    let mut keep = |_: &str, array: &Array<'_>| {
        output = Some(array.clone().into_owned());
        ControlFlow::Break(())
    };
    session.run(&[("x", input.view())], &["y".to_owned()], &mut keep).unwrap();
    output.unwrap()
}

struct One(Patched);

impl Samples for One {
    type Error = Infallible;

    fn count(&self) -> usize {
        1
    }

    fn sample(&mut self, _: usize) -> Result<Sample<'_>, Infallible> {
        let Patched { patches, targets, positions } = &self.0;
        Ok(Sample { patches: patches.slice(), targets: targets.slice(), positions: *positions })
    }

    fn check_cancelled(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The loss of the layer's own weights, with targets that an engine made, moved by `shift`.
fn loss(layer: &Layer, input: &Array<'static>, shift: f32) -> f64 {
    let form = Form::of(layer).unwrap();
    let output = engine(layer, input);
    let moved: Vec<f32> = output.f32s().unwrap().iter().map(|y| y + shift).collect();
    let output = Array::of(output.shape().to_vec(), moved).unwrap();
    let patched = patched(&form, Arc::new(input.clone()), Arc::new(output));
    let values = form.rows(&layer.weight);
    let steps = vec![CodeSteps { scale: 0.25, lowest: -100.0, highest: 100.0 }; form.shape.outputs];
    let weight = Weight { values: &values, features: form.shape.features, steps: &steps, bias: None };
    let settings = Settings {
        method: Method::AdaQuant,
        iterations: 0,
        learning_rate: 0.0,
        batch_size: 1,
        seed: 0,
        early_stop: false,
        update_bias: false,
        mix: None,
    };
    let module = Module { shape: form.shape, function: ActivationFunction::None };
    let Ok(found) = reconstruct(&module, weight, &mut One(patched.unwrap()), &settings);
    let codes: Vec<i32> = layer.weight.iter().map(|w| (w * 4.0) as i32).collect();
    let places = (0..form.shape.weights()).map(|i| form.place(i / form.shape.features, i % form.shape.features));
    let found_codes = places.zip(&found.steps).all(|(place, step)| codes[place] == *step);
    assert!(found_codes, "weights come back to their places");
    found.before
}

fn check(made: NodeProto, weight: &[usize], input: &[usize]) {
    let layer = layer(made, weight);
    let input = Array::of(input.to_vec(), numbers(input.iter().product(), 1)).unwrap();
    assert!(loss(&layer, &input, 0.0) < 1e-9, "{:?}", layer.node);
    assert!(loss(&layer, &input, 0.5) > 0.2, "{:?}", layer.node);
}

fn conv(kind: &str, attributes: &[(&str, &[i64])], group: i64, pad: &str) -> NodeProto {
    let mut made = node(kind, "layer", &["x", "w"], &["y"]);
    attributes.iter().for_each(|(name, values)| set_attribute(&mut made, name, *values));
    set_attribute(&mut made, "group", group);
    if !pad.is_empty() {
        set_attribute(&mut made, "auto_pad", pad);
    }
    made
}

#[test]
fn convolutions_equal_im2col_products() {
    check(conv("Conv", &[], 1, ""), &[5, 3, 1, 1], &[1, 3, 6, 7]);
    check(conv("Conv", &[("pads", &[1, 0, 2, 1]), ("strides", &[2, 1])], 1, ""), &[4, 3, 3, 2], &[2, 3, 7, 6]);
    check(conv("Conv", &[("pads", &[1, 1, 1, 1])], 6, ""), &[6, 1, 3, 3], &[3, 6, 5, 5]);
    check(conv("Conv", &[("dilations", &[2, 2])], 2, ""), &[4, 3, 3, 3], &[1, 6, 8, 9]);
    check(conv("Conv", &[("strides", &[2, 2])], 1, "SAME_UPPER"), &[2, 3, 3, 3], &[1, 3, 8, 7]);
    check(conv("Conv", &[], 1, "VALID"), &[2, 3, 2, 2], &[1, 3, 4, 4]);
    check(conv("Conv", &[("pads", &[2, 1]), ("strides", &[3])], 1, ""), &[4, 2, 5], &[2, 2, 16]);
}

#[test]
fn transposed_convolutions_equal_im2col_products() {
    check(conv("ConvTranspose", &[("strides", &[2, 2])], 1, ""), &[3, 4, 2, 2], &[1, 3, 4, 5]);
    let attributes: &[(&str, &[i64])] = &[("strides", &[2, 2]), ("pads", &[1, 1, 1, 1]), ("output_padding", &[1, 1])];
    check(conv("ConvTranspose", attributes, 1, ""), &[3, 4, 3, 3], &[2, 3, 4, 5]);
    check(conv("ConvTranspose", &[("strides", &[3])], 1, ""), &[2, 3, 4], &[1, 2, 6]);
}

#[test]
fn matrix_products_equal_im2col_products() {
    check(node("MatMul", "layer", &["x", "w"], &["y"]), &[5, 3], &[2, 4, 5]);
    for (transposed_a, transposed_b) in [(0i64, 0i64), (1, 0), (0, 1), (1, 1)] {
        let mut gemm = node("Gemm", "layer", &["x", "w"], &["y"]);
        set_attribute(&mut gemm, "transA", transposed_a);
        set_attribute(&mut gemm, "transB", transposed_b);
        set_attribute(&mut gemm, "alpha", 0.5f32);
        let weight = if transposed_b == 1 { [3, 5] } else { [5, 3] };
        check(gemm, &weight, if transposed_a == 1 { &[5, 4] } else { &[4, 5] });
    }
}

#[test]
fn norm_gains_are_per_channel_weights() {
    let made = |kind: &str| node(kind, "layer", &["x", "w", "b"], &["y"]);
    check(made("LayerNormalization"), &[6], &[2, 5, 6]);
    let mut last = made("LayerNormalization");
    set_attribute(&mut last, "axis", 2i64);
    set_attribute(&mut last, "epsilon", 0.5f32);
    check(last.clone(), &[6], &[2, 5, 6]);
    check(made("InstanceNormalization"), &[3], &[2, 3, 4, 5]);
    check(made("InstanceNormalization"), &[3], &[1, 3, 7]);
    set_attribute(&mut last, "axis", 1i64);
    assert!(Form::of(&layer(last.clone(), &[5, 6])).is_none(), "a gain of two axes");
    last.output.push("mean".to_owned());
    assert!(Form::of(&layer(last, &[6])).is_none(), "the mean is an output");
}

#[test]
fn layers_without_a_single_matrix_have_no_im2col_form() {
    assert!(Form::of(&layer(node("MatMul", "layer", &["x", "w"], &["y"]), &[2, 5, 3])).is_none());
    assert!(Form::of(&layer(conv("Conv", &[("strides", &[0, 1])], 1, ""), &[2, 3, 3, 3])).is_none());
    assert!(Form::of(&layer(conv("Conv", &[("strides", &[1])], 1, ""), &[2, 3, 3, 3])).is_none());
    assert!(Form::of(&layer(conv("Conv", &[], 0, ""), &[2, 3, 3, 3])).is_none());
    assert!(Form::of(&layer(conv("ConvTranspose", &[], 2, ""), &[3, 3, 3, 3])).is_none());
}

#[test]
fn odd_padding_of_a_transposed_convolution_is_refused() {
    let made = conv("ConvTranspose", &[("strides", &[2])], 1, "SAME_UPPER");
    let form = Form::of(&layer(made, &[2, 3, 3])).unwrap();
    let Kind::Convolution(convolution) = &form.kind else { panic!("a convolution") };
    assert!(convolution.patches(&[4], &[8]).is_none());
    assert!(convolution.patches(&[4], &[9]).is_some());
}

/// A list of floats of a golden case.
fn floats(case: &serde_json::Value, name: &str) -> Vec<f32> {
    case[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn sizes(case: &serde_json::Value, name: &str) -> Vec<usize> {
    case[name].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

fn golden_node(case: &serde_json::Value) -> NodeProto {
    let mut made = node(case["op"].as_str().unwrap(), "layer", &["x", "w"], &["y"]);
    for (name, value) in case["attributes"].as_object().unwrap() {
        match value {
            serde_json::Value::Array(list) => {
                let list: Vec<i64> = list.iter().map(|v| v.as_i64().unwrap()).collect();
                set_attribute(&mut made, name, &list[..]);
            }
            _ if value.is_i64() => set_attribute(&mut made, name, value.as_i64().unwrap()),
            _ => set_attribute(&mut made, name, value.as_f64().unwrap() as f32),
        }
    }
    made
}

fn golden_function(case: &serde_json::Value) -> ActivationFunction {
    match case["function"].as_str().unwrap() {
        "Relu" => ActivationFunction::Relu,
        "LeakyRelu" => ActivationFunction::LeakyRelu { alpha: 0.1 },
        "PRelu" => ActivationFunction::PRelu { slopes: floats(case, "slopes") },
        "Clip" => ActivationFunction::Clip { low: -0.5, high: 1.5 },
        "Sigmoid" => ActivationFunction::Sigmoid,
        "HardSigmoid" => ActivationFunction::HardSigmoid { alpha: 0.2, beta: 0.5 },
        "HardSwish" => ActivationFunction::HardSwish,
        "Tanh" => ActivationFunction::Tanh,
        "Gelu" => ActivationFunction::Gelu,
        "GeluTanh" => ActivationFunction::GeluTanh,
        _ => ActivationFunction::None,
    }
}

fn close(found: &[f32], expected: &[f32]) -> bool {
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 2e-5 * largest.max(0.1))
}

#[test]
fn layer_gradients_match_torch() {
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../../../tests/data/layer_gradients.json")).unwrap();
    assert!(cases.len() > 20);
    for case in &cases {
        let weight = floats(case, "weight");
        let layer = Layer { weight, ..layer(golden_node(case), &sizes(case, "weight_shape")) };
        let form = Form::of(&layer).unwrap();
        let input = Array::of(sizes(case, "input_shape"), floats(case, "input")).unwrap();
        let target = Array::of(sizes(case, "target_shape"), floats(case, "target")).unwrap();
        let patched = patched(&form, Arc::new(input), Arc::new(target));
        let mut sample = One(patched.unwrap());
        let Ok(sample) = sample.sample(0);
        let factor = bias_factor(&layer.node);
        let bias: Option<Vec<f32>> =
            case.get("bias").map(|_| floats(case, "bias").iter().map(|b| b * factor).collect());
        let module = Module { shape: form.shape, function: golden_function(case) };
        let (loss, gradients) = module.gradients(&form.rows(&layer.weight), bias.as_deref(), sample);
        let text = format!("{} {} {}", case["op"], case["attributes"], case["function"]);
        let expected = case["loss"].as_f64().unwrap();
        assert!((loss - expected).abs() < 1e-5 * expected, "{text}: {loss} {expected}");
        assert!(close(&gradients.weights, &form.rows(&floats(case, "weight_gradient"))), "{text}");
        if bias.is_some() {
            let of_bias: Vec<f32> = gradients.bias.iter().map(|g| g * factor).collect();
            assert!(close(&of_bias, &floats(case, "bias_gradient")), "{text}");
        }
    }
}
