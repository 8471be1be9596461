//! Models changed at random: whatever passes the check goes through all passes without a panic and passes the check again.

use kvant_container::onnx::{DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, TypeValue};
use kvant_onnx::graph::{check, set_attribute};
use kvant_onnx::pass::{ALL, Context, Selection, simplify, upgrade_opset};
use kvant_onnx::shape::infer;

use crate::model::{floats, integers, model};

/// Numbers one after the other, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    fn number(&mut self) -> i64 {
        let extremes = [0, 1, -1, 2, 3, 4, 5, -2, 7, 64, 1 << 31, 1 << 40, i64::MAX, i64::MIN, i64::MAX - 1];
        extremes[self.below(extremes.len())]
    }
}

fn change(model: &mut ModelProto, random: &mut Random) {
    let graph = model.graph.as_mut().unwrap();
    let (nodes, tensors) = (graph.node.len(), graph.initializer.len());
    let chosen = random.below(nodes);
    match random.below(9) {
        0 => change_attribute(&mut graph.node[chosen], random),
        1 => change_contents(&mut graph.initializer[random.below(tensors)], random),
        2 => change_input(graph, random),
        3 => graph.node[chosen].op_type = graph.node[random.below(nodes)].op_type.clone(),
        4 => drop(graph.node[chosen].input.pop()),
        5 => {
            let from = graph.node[random.below(nodes)].clone();
            let name = from.input.first().or(from.output.first()).cloned().unwrap_or_default();
            let at = random.below(graph.node[chosen].input.len());
            graph.node[chosen].input.insert(at, name);
        }
        6 => drop(graph.node[chosen].attribute.pop()),
        7 => drop(graph.node[chosen].output.pop()),
        _ => model.opset_import[0].version = Some(7 + random.below(18) as i64),
    }
}

fn change_attribute(node: &mut NodeProto, random: &mut Random) {
    let name = ["axis", "axes", "perm", "pads", "strides", "kernel_shape", "group", "dilations", "to", "keepdims"];
    let name = node.attribute.first().map_or(name[random.below(name.len())], |a| a.name()).to_owned();
    match random.below(3) {
        0 => set_attribute(node, &name, random.number()),
        _ => {
            let values: Vec<i64> = (0..random.below(5)).map(|_| random.number()).collect();
            set_attribute(node, &name, &values[..]);
        }
    }
}

fn change_contents(tensor: &mut TensorProto, random: &mut Random) {
    let count = random.below(6);
    let values: Vec<i64> = (0..count).map(|_| random.number()).collect();
    let name = tensor.name().to_owned();
    *tensor = match random.below(4) {
        0 => floats(&name, &(0..random.below(5)).map(|_| random.below(4)).collect::<Vec<_>>()),
        1 => TensorProto { dims: vec![0, i64::MAX], ..floats(&name, &[0]) },
        _ => integers(&name, &values),
    };
}

fn change_input(graph: &mut GraphProto, random: &mut Random) {
    let Some(TypeValue::TensorType(tensor)) = graph.input[0].type_.as_mut().and_then(|t| t.value.as_mut()) else {
        return;
    };
    let dims = &mut tensor.shape.as_mut().unwrap().dim;
    let chosen = random.below(dims.len());
    dims[chosen].value = match random.below(3) {
        0 => None,
        1 => Some(DimensionValue::DimParam("n".to_owned())),
        _ => Some(DimensionValue::DimValue(random.number())),
    };
}

#[test]
fn mutated_models_are_refused_or_simplified() {
    let rounds = std::env::var("KVANT_HOSTILE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let base = model();
    check(&base).unwrap();
    let mut accepted = 0;
    for seed in 0..rounds {
        let mut random = Random(seed);
        let mut model = base.clone();
        (0..=random.below(4)).for_each(|_| change(&mut model, &mut random));
        infer(&model);
        if check(&model).is_err() {
            continue;
        }
        accepted += 1;
        let mut selection = Selection::default();
        for pass in ALL {
            selection.set(pass.name, random.below(4) != 0).unwrap();
        }
        let mut newer = model.clone();
        if upgrade_opset(&mut newer, 21).is_ok() {
            assert_eq!(check(&newer), Ok(()), "seed {seed}");
        }
        for mut model in [model, newer] {
            let mut one_by_one = model.clone();
            for pass in selection.passes() {
                pass.run(&mut one_by_one, &Context::default()).unwrap();
                assert_eq!(check(&one_by_one), Ok(()), "{} of seed {seed}", pass.name);
            }
            simplify(&mut model, &selection, &Context::default()).unwrap();
            assert_eq!(check(&model), Ok(()), "seed {seed}");
        }
    }
    assert!(accepted > rounds / 4, "{accepted} of {rounds}");
}
