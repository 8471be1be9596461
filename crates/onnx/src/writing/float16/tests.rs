use kvant_container::onnx::MessageField;
use kvant_quant::glob::Glob;

use super::*;
use crate::graph::check;
use crate::graph::node;
use crate::recipe::{NodeRule, Subgraph};
use crate::test_models::{floats, integers, model, typed};

fn converted(
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    opset: i64,
    to: FloatType,
) -> (ModelProto, Converted) {
    let mut model = model(opset, nodes, initializers, &[], &[]);
    let graph = model.graph.as_mut().unwrap();
    graph.input = vec![typed("x", &[1, 2, 2, 2])];
    graph.output = vec![typed("y", &[1, 2, 2, 2])];
    let done = write(&mut model, to, &Selection::default(), None).unwrap();
    assert_eq!(check(&model), Ok(()));
    (model, done)
}

fn operators(graph: &GraphProto) -> Vec<&str> {
    graph.node.iter().map(|n| n.op_type()).collect()
}

fn type_of(graph: &GraphProto, name: &str) -> DataType {
    data_type(graph.initializer.iter().find(|t| t.name() == name).unwrap())
}

#[test]
fn nodes_that_are_left_out_compute_in_float32_with_their_constants() {
    let nodes = || {
        let product = |name: &str, data: &str, made: &str| node("MatMul", name, &[data, "w"], &[made]);
        vec![product("first", "x", "h"), product("second", "h", "i"), product("third", "i", "y")]
    };
    let exclude = |name: &str| Selection {
        node_rules: vec![NodeRule { nodes: Glob::new(name), excluded: true }],
        ..Selection::default()
    };
    let between = Subgraph { from: vec!["second".to_owned()], to: vec!["second".to_owned()] };
    let parts = Selection { excluded_subgraphs: vec![between], ..Selection::default() };
    let named = |name: &str| Selection { nodes: vec![Glob::new(name)], ..Selection::default() };
    for (selection, narrow) in [(exclude("second"), 2), (parts, 2), (named("t*"), 1), (exclude("*"), 0)] {
        let large: Vec<f32> = (0..64 * 64).map(|i| 1.0 + i as f32 * 1e-6).collect();
        let mut made = model(17, nodes(), vec![floats("w", &[64, 64], &large)], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[1, 64])], vec![typed("y", &[1, 64])]);
        let done = write(&mut made, FloatType::Float16, &selection, None).unwrap();
        assert_eq!((done.nodes, done.left.len(), check(&made)), (narrow, 3 - narrow, Ok(())), "{selection:?}");
        let kept = made.graph.initializer.iter().find(|tensor| data_type(tensor) == DataType::FLOAT).unwrap();
        assert_eq!(crate::solution::values(kept).unwrap(), large);
        assert_eq!(made.graph.initializer.len(), if narrow == 0 { 1 } else { 2 });
    }
}

#[test]
fn graph_ends_are_cast_and_constants_narrowed() {
    let nodes = vec![node("Add", "a", &["x", "w"], &["h"]), node("Relu", "r", &["h"], &["y"])];
    let (model, done) = converted(nodes, vec![floats("w", &[1], &[1e6])], 17, FloatType::Float16);
    assert_eq!(operators(&model.graph), ["Cast", "Add", "Relu", "Cast"]);
    assert_eq!(type_of(&model.graph, "w"), DataType::FLOAT16);
    assert_eq!((done.nodes, done.limited), (2, BTreeMap::from([("w".to_owned(), 1)])));
    assert_eq!(model.graph.node[3].output, ["y"]);
}

#[test]
fn power_to_root_stays_in_float32() {
    let mut mean = node("ReduceMean", "m", &["p"], &["v"]);
    set_attribute(&mut mean, "axes", &[-1i64][..]);
    let nodes = vec![
        node("Pow", "p", &["x", "two"], &["p"]),
        mean,
        node("Add", "e", &["v", "eps"], &["s"]),
        node("Sqrt", "s", &["s"], &["d"]),
        node("Div", "d", &["x", "d"], &["y"]),
    ];
    let constants = vec![floats("two", &[], &[2.0]), floats("eps", &[], &[1e-12])];
    let (model, done) = converted(nodes, constants, 17, FloatType::Float16);
    assert_eq!(operators(&model.graph), ["Cast", "Pow", "ReduceMean", "Add", "Sqrt", "Cast", "Div", "Cast"]);
    assert_eq!(model.graph.node[1].input[0], "x");
    assert_eq!(type_of(&model.graph, "eps_float32"), DataType::FLOAT);
    assert_eq!((done.nodes, done.left.len()), (1, 4));
}

#[test]
fn resize_scales_stay_float32_but_not_its_data() {
    let nodes = vec![node("Resize", "r", &["x", "", "scales"], &["y"])];
    let (model, _) = converted(nodes, vec![floats("scales", &[4], &[1.0; 4])], 13, FloatType::Float16);
    assert_eq!(operators(&model.graph), ["Cast", "Resize", "Cast"]);
    assert_eq!(type_of(&model.graph, &model.graph.node[1].input[2]), DataType::FLOAT);
}

#[test]
fn bfloat16_convolutions_raise_the_opset() {
    let weight = || floats("w", &[2, 2, 33, 33], &[0.5; 4 * 33 * 33]);
    let nodes = || vec![node("Conv", "c", &["x", "w"], &["y"])];
    let (old, _) = converted(nodes(), vec![weight()], 17, FloatType::BFloat16);
    assert_eq!(operators(&old.graph), ["Cast", "Conv"]);
    assert_eq!((old.graph.node[0].input[0].as_str(), old.graph.node[1].output[0].as_str()), ("w", "y"));
    let (new, _) = converted(nodes(), vec![weight()], 22, FloatType::BFloat16);
    assert_eq!(operators(&new.graph), ["Cast", "Conv", "Cast"]);
    assert_eq!(type_of(&new.graph, "w"), DataType::BFLOAT16);
}

#[test]
fn position_angles_stay_float32() {
    let mut float = node("Cast", "f", &["positions"], &["p"]);
    set_attribute(&mut float, "to", DataType::FLOAT as i64);
    let nodes = vec![
        node("Size", "z", &["x"], &["positions"]),
        float,
        node("Mul", "m", &["p", "frequency"], &["angle"]),
        node("Sin", "s", &["angle"], &["sine"]),
        node("Mul", "y", &["x", "sine"], &["y"]),
    ];
    let (model, done) = converted(nodes, vec![floats("frequency", &[1], &[0.01])], 17, FloatType::Float16);
    assert_eq!(operators(&model.graph), ["Cast", "Size", "Cast", "Mul", "Sin", "Cast", "Mul", "Cast"]);
    assert_eq!(done.left.iter().map(|left| &left.node[..]).collect::<Vec<_>>(), ["m", "s"]);
}

#[test]
fn subgraphs_are_converted() {
    let branch = |value: f32| {
        let constant = {
            let mut made = node("Constant", "c", &[], &[&format!("c{value}")]);
            set_attribute(&mut made, "value_float", value);
            made
        };
        let output = format!("o{value}");
        GraphProto {
            node: vec![constant, node("Add", "a", &["x", &format!("c{value}")], &[&output])],
            output: vec![typed(&output, &[1, 2, 2, 2])],
            ..GraphProto::default()
        }
    };
    let mut decide = node("If", "i", &["b"], &["y"]);
    for (name, value) in [("then_branch", 1.0), ("else_branch", 2.0)] {
        let g = MessageField::some(branch(value));
        let type_ = Some(kvant_container::onnx::AttributeType::GRAPH.into());
        decide.attribute.push(AttributeProto { name: Some(name.to_owned()), g, type_, ..AttributeProto::default() });
    }
    let condition = tensor("b", DataType::BOOL, &[], vec![1]);
    let (model, _) = converted(vec![decide], vec![condition, integers("unused", &[1])], 17, FloatType::Float16);
    assert_eq!(operators(&model.graph), ["Cast", "If", "Cast"]);
    let inside = model.graph.node[1].attribute[0].g.as_ref().unwrap();
    assert_eq!(data_type(inside.node[0].attribute[0].t.as_ref().unwrap()), DataType::FLOAT16);
    assert_eq!(inside.node[1].input[0], model.graph.node[0].output[0]);
}

#[test]
fn already_16_bit_model_is_unchanged() {
    let weight = tensor("w", DataType::FLOAT16, &[1], vec![0, 60]);
    let mut model = model(17, vec![node("Relu", "r", &["w"], &["y"])], vec![weight], &[], &["y"]);
    let before = model.clone();
    let done = write(&mut model, FloatType::Float16, &Selection::default(), None).unwrap();
    assert_eq!((model, done.nodes), (before, 0));
}

#[test]
fn casts_at_graph_ends_are_not_doubled() {
    let nodes = vec![node("Relu", "r", &["x"], &["h"]), node("Relu", "s", &["h"], &["y"])];
    let (mut model, _) = converted(nodes, vec![], 17, FloatType::Float16);
    assert_eq!(operators(&model.graph), ["Cast", "Relu", "Relu", "Cast"]);
    let done = write(&mut model, FloatType::Float16, &Selection::default(), None).unwrap();
    assert_eq!(operators(&model.graph), ["Cast", "Relu", "Relu", "Cast"]);
    assert_eq!((done.nodes, done.left), (0, vec![]));
}

/// `x w` in a type, prepared for a conversion to another.
fn prepared(from: DataType, to: &str) -> Result<crate::quantize::Prepared, QuantizeError> {
    let value = |name: &str| {
        let shape = [1, 2].map(crate::shape::Dim::Known).to_vec();
        crate::shape::ValueType::new(from, shape).to_proto(name).unwrap()
    };
    let bytes = data_type_bits(from).unwrap() as usize / 8;
    let weight = tensor("w", from, &[2, 2], vec![0u8; 4 * bytes]);
    let mut source = model(17, vec![node("MatMul", "m", &["x", "w"], &["y"])], vec![weight], &[], &[]);
    let graph = source.graph.as_mut().unwrap();
    (graph.input, graph.output) = (vec![value("x")], vec![value("y")]);
    let recipe = crate::preset::Preset::find(to).unwrap().recipe();
    let passes = recipe.passes();
    crate::quantize::prepare(source, recipe, &passes, None)
}

#[test]
fn other_float_dtypes_are_converted_and_the_same_dtype_refused() {
    let (half, brain, double) = (DataType::FLOAT16, DataType::BFLOAT16, DataType::DOUBLE);
    for (from, to, made) in [
        (double, "FP16_MODEL", half),
        (brain, "FP16_MODEL", half),
        (half, "BF16_MODEL", brain),
        (double, "BF16_MODEL", brain),
    ] {
        let prepared = prepared(from, to).unwrap();
        let foreseen = crate::cost::Cost::of(&prepared, 1).constants.output_bytes;
        let observation = prepared.observation();
        let (model, report) = prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap();
        assert_eq!(type_of(&model.graph, "w"), made, "{from:?} {to}");
        assert_eq!(foreseen, report.constants.output_bytes, "{from:?} {to}");
        let ends = model.graph.input.iter().chain(&model.graph.output).map(|end| crate::data::type_of(end).0);
        assert_eq!(ends.collect::<Vec<_>>(), [from; 2], "{to}");
    }
    for (from, to) in [(half, "FP16_MODEL"), (brain, "BF16_MODEL")] {
        assert!(matches!(prepared(from, to), Err(QuantizeError::NothingToConvert { .. })), "{to}");
    }
}

#[test]
fn sequences_are_refused_by_name() {
    let nodes = vec![node("Relu", "r", &["x"], &["h"]), node("SplitToSequence", "split", &["h"], &["s"])];
    let mut made = model(17, nodes, vec![], &[], &["s"]);
    made.graph.as_mut().unwrap().input = vec![typed("x", &[4, 2])];
    let refused = write(&mut made, FloatType::Float16, &Selection::default(), None).unwrap_err();
    assert!(matches!(&refused, QuantizeError::Sequence { node, .. } if node == "split"), "{refused}");
}
