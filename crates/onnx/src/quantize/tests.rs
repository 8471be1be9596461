//! Preparing, solving and writing of small models.

use super::*;
use crate::graph::{node, set_attribute};
use crate::preset::{PRESETS, Preset};
use crate::shape::{Dim, ValueType};
use crate::solution::Ranges;
use crate::test_models::{floats, integers, model, typed};
use crate::verify::verify;
use kvant_container::onnx::{Bytes, parse};

/// A graph quantized by a preset without its algorithms, every range from -1 to 1.
fn quantized(float: ModelProto, preset: &Preset) -> ModelProto {
    let mut recipe = preset.recipe();
    recipe.algorithms = recipe.algorithms.without_data();
    let prepared = prepare(float, recipe.clone(), &recipe.passes(), None).unwrap();
    let tensors = prepared.observation().tensors();
    let whole = tensors.into_iter().map(|name| (name, Range { min: -1.0, max: 1.0 })).collect();
    let observed = Observed { ranges: Ranges { whole, ..Ranges::default() }, samples: 1, ..Observed::default() };
    prepared.transformed(None, None).unwrap().finish_with(&observed, None, None).unwrap().0
}

fn names_of(model: &ModelProto) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let graph = &model.graph;
    let made = graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
    let constants = graph.initializer.iter().map(|tensor| tensor.name());
    (graph.node.iter().map(|node| node.name()).collect(), made.chain(constants).collect())
}

#[test]
fn names_of_a_graph_may_be_those_that_quantization_adds() {
    let file = format!("{}/tests/data/tinytransformer.float.onnx", env!("CARGO_MANIFEST_DIR"));
    let float = parse(&Bytes::from(std::fs::read(file).unwrap())).unwrap();
    for preset in PRESETS {
        let first = quantized(float.clone(), preset);
        let ((old_nodes, old_tensors), (nodes, tensors)) = (names_of(&float), names_of(&first));
        let mut taken = float.clone();
        let graph = taken.graph.as_mut().unwrap();
        let mut last = graph.input[0].name().to_owned();
        for (at, name) in nodes.difference(&old_nodes).enumerate() {
            let output = format!("node {at}");
            graph.node.push(node("Sin", name, &[&last], &[&output]));
            last = output;
        }
        for (at, name) in tensors.difference(&old_tensors).enumerate() {
            graph.node.push(node("Sin", &format!("tensor {at}"), &[&last], &[name]));
            last = (*name).to_owned();
        }
        graph.output.push(typed(&last, &[1]));
        let second = quantized(taken, preset);
        let wrong = verify(&second).into_iter().find(|finding| ["graph", "names"].contains(&finding.check));
        assert!(wrong.is_none(), "{}: {wrong:?}", preset.name);
        let kept = |name: &&str| second.graph.node.iter().any(|node| is(node, "Sin") && node.name() == *name);
        assert!(nodes.difference(&old_nodes).all(kept), "{}: {:?}", preset.name, names_of(&second).0);
    }
}

/// A decoder with a cache in one tensor of keys and values, whose keys are ten times as large.
fn decoder(past: &str, present: &str) -> ModelProto {
    let gather = |name: &str, at: &str, output: &str| node("Gather", name, &[past, at], &[output]);
    let concat = |name: &str, inputs: &[&str], axis: i64, output: &str| {
        let mut made = node("Concat", name, inputs, &[output]);
        set_attribute(&mut made, "axis", axis);
        made
    };
    let nodes = vec![
        gather("past keys", "zero", "k"),
        gather("past values", "one", "v"),
        node("Mul", "keys", &["x", "ten"], &["new k"]),
        concat("join keys", &["k", "new k"], 1, "keys"),
        concat("join values", &["v", "x"], 1, "values"),
        node("Unsqueeze", "k4", &["keys", "axis"], &["k5"]),
        node("Unsqueeze", "v4", &["values", "axis"], &["v5"]),
        concat("cache", &["k5", "v5"], 0, present),
        node("Mul", "product", &["keys", "values"], &["y"]),
    ];
    let scalar = |name: &str, value: i64| {
        kvant_container::onnx::tensor(name, DataType::INT64, &[], value.to_le_bytes().to_vec())
    };
    let constants = vec![scalar("zero", 0), scalar("one", 1), integers("axis", &[0]), floats("ten", &[1], &[10.0])];
    let mut made = model(17, nodes, constants, &[], &[]);
    let open = |name: &str, dims: &[Dim]| ValueType::new(DataType::FLOAT, dims.into()).to_proto(name).unwrap();
    let graph = made.graph.as_mut().unwrap();
    let (length, all) = (Dim::Symbol("past".into()), Dim::Symbol("all".into()));
    graph.input = vec![typed("x", &[1, 2, 4]), open(past, &[Dim::Known(2), Dim::Known(1), length, Dim::Known(4)])];
    graph.output = vec![
        open("y", &[Dim::Known(1), all.clone(), Dim::Known(4)]),
        open(present, &[Dim::Known(2), Dim::Known(1), all, Dim::Known(4)]),
    ];
    made
}

/// The scales of tensors after a run whose cache is empty.
fn scales(float: ModelProto, preset: &str, tensors: &[&str]) -> Vec<Option<f32>> {
    let recipe = Preset::find(preset).unwrap().recipe();
    let prepared = prepare(float, recipe.clone(), &recipe.passes(), None).unwrap();
    let mut observation = prepared.observation();
    for tensor in observation.tensors() {
        let high = match tensor.as_str() {
            "new k" | "keys" | "k5" | "present_0" | "y" => 10.0,
            _ => 1.0,
        };
        let is_cached = ["past_0", "past_in", "k", "v"].contains(&tensor.as_str());
        let values = if is_cached { vec![] } else { vec![-high, high] };
        observation.see(&tensor, &[values.len()], &values);
    }
    observation.end_sample();
    let (_, report) = prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap();
    let scale = |name: &&str| report.tensors.iter().find(|t| t.name == **name).and_then(|t| t.scale);
    let found: Vec<Option<f32>> = tensors.iter().map(scale).collect();
    let is_left = report.left_in_float.iter().any(|(_, reason)| reason.contains("no values"));
    assert_eq!(is_left, found.contains(&None));
    found
}

#[test]
fn cached_values_have_the_scale_of_those_that_join_them() {
    for preset in ["A8W8", "A16W8", "U8S8_AAWS", "XINT8"] {
        let found = scales(decoder("past_0", "present_0"), preset, &["past_0", "present_0", "k", "keys"]);
        assert!(found[0].is_some() && found[0] == found[1] && found[2] == found[3], "{preset}: {found:?}");
        // Of another name, nothing says that its values are those of the output.
        assert_eq!(scales(decoder("past_in", "out"), preset, &["past_in", "k", "v"]), [None; 3], "{preset}");
    }
}

#[test]
fn inputs_whose_default_becomes_a_constant_are_noted() {
    let notices = |version: i64| {
        let nodes = vec![node("Add", "a", &["x", "w"], &["y"])];
        let mut model = model(13, nodes, vec![floats("w", &[1], &[1.0])], &["x", "w"], &["y"]);
        model.ir_version = Some(version);
        let recipe = Preset::find("A8W8").unwrap().recipe();
        prepare(model, recipe, &pass::Selection::default(), None).unwrap().notices().join("\n")
    };
    assert!(
        notices(8).contains("`w`, which had a default among the constants, is no input any longer"),
        "{}",
        notices(8)
    );
    assert!(!notices(3).contains("no input"), "older files list every constant");
}
