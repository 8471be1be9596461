//! What ONNX Runtime needs to fuse Q/DQ pairs into integer kernels, and what keeps a run from dequantizing whole tables: looked at in
//! the graphs that presets write, without a measurement of time.

use super::super::graph::{Index, node};
use crate::preset::{PRESETS, Preset};
use crate::quantize::prepare;
use crate::recipe::Layout;
use crate::shape::ValueType;
use crate::test_models::{floats, model, typed};
use kvant_container::onnx::{DataType, ModelProto, NodeProto, data_type};

/// Rows of a table that are scaled, moved and multiplied.
fn float() -> ModelProto {
    let nodes = vec![
        node("Gather", "rows", &["table", "ids"], &["e"]),
        node("Mul", "scaled", &["e", "c"], &["s"]),
        node("Add", "moved", &["d", "s"], &["h"]),
        node("MatMul", "product", &["h", "w"], &["y"]),
    ];
    let constants = vec![
        floats("table", &[4, 2], &[0.5, -0.25, 1.0, 0.75, -1.0, 0.1, 0.2, 0.3]),
        floats("c", &[2], &[1.0, 2.0]),
        floats("d", &[2], &[0.5, -0.5]),
        floats("w", &[2, 2], &[1.0, 0.0, 0.5, 2.0]),
    ];
    let mut model = model(17, nodes, constants, &[], &["y"]);
    let graph = model.graph.as_mut().unwrap();
    graph.input = vec![ValueType::any(DataType::INT64).to_proto("ids").unwrap()];
    graph.output = vec![typed("y", &[3, 2])];
    model
}

/// The graph that a preset makes of it.
fn written(preset: &Preset) -> ModelProto {
    let recipe = preset.recipe();
    let prepared = prepare(float(), recipe.clone(), &recipe.passes(), None).unwrap();
    let mut observation = prepared.observation();
    prepared.observation().tensors().iter().for_each(|name| observation.see(name, &[2], &[-1.0, 1.0]));
    prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap().0
}

/// Presets of pairs with 8-bit codes for weights, and for activations if these have codes.
fn presets() -> impl Iterator<Item = &'static Preset> {
    let is_byte = |bits: Option<u32>| bits == Some(8);
    PRESETS.iter().filter(move |preset| {
        let recipe = preset.recipe();
        recipe.layout == Layout::Qdq
            && !recipe.algorithms.need_data()
            && recipe.activation.is_none_or(|activation| is_byte(activation.element.integer_bits()))
            && is_byte(recipe.weight.element.integer_bits())
    })
}

/// The type of codes that a DequantizeLinear reads, which makes a tensor.
fn codes(model: &ModelProto, index: &Index, name: &str) -> Option<DataType> {
    let maker = &model.graph.node[index.producer(name)?];
    let zero = maker.input.get(2).filter(|_| maker.op_type() == "DequantizeLinear")?;
    index.constant(&model.graph, zero).map(data_type)
}

fn operators<'m>(model: &'m ModelProto, operator: &str) -> Vec<&'m NodeProto> {
    model.graph.node.iter().filter(|node| node.op_type() == operator).collect()
}

#[test]
fn constants_of_arithmetic_have_the_codes_of_the_activation_beside_them() {
    let mut coded = 0;
    for preset in presets().filter(|preset| preset.recipe().activation.is_some()) {
        let model = written(preset);
        let index = Index::new(&model.graph);
        for node in operators(&model, "Mul").into_iter().chain(operators(&model, "Add")) {
            let types: Vec<_> = node.input.iter().map(|input| codes(&model, &index, input)).collect();
            // Some presets leave arithmetic in float.
            assert_eq!(types[0], types[1], "{} {}", preset.name, node.name());
            coded += usize::from(types[0].is_some());
        }
    }
    assert!(coded > 10, "{coded}");
}

#[test]
fn tables_are_dequantized_row_by_row() {
    let (mut moved, mut gone) = (0, 0);
    for preset in presets() {
        let model = written(preset);
        let index = Index::new(&model.graph);
        for gather in operators(&model, "Gather") {
            let table = &gather.input[0];
            let Some(scale) = index.producer(table).map(|at| &model.graph.node[at].input[1]) else {
                let stored = index.constant(&model.graph, table).map(data_type);
                assert!(matches!(stored, Some(DataType::INT8 | DataType::UINT8 | DataType::FLOAT)), "{}", preset.name);
                moved += usize::from(stored != Some(DataType::FLOAT));
                continue;
            };
            // ONNX Runtime takes both nodes away where rows get the codes that the table has.
            let readers = index.consumers(&gather.output[0]).iter().map(|&at| &model.graph.node[at]);
            let again = |node: &NodeProto| node.op_type() == "QuantizeLinear" && node.input[1] == *scale;
            assert!(readers.clone().count() > 0 && readers.clone().all(again), "{} dequantizes the table", preset.name);
            gone += 1;
        }
    }
    assert!(moved > 0 && gone > 0, "{moved} {gone}");
}
