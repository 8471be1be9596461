//! Models changed at random: whatever passes the check goes through all passes without a panic and passes the check again.

use kvant_container::onnx::{
    DataType, DimensionValue, GraphProto, MessageField, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TypeValue, tensor,
};
use kvant_onnx::graph::{check, node, set_attribute};
use kvant_onnx::pass::{ALL, Context, Selection, simplify, upgrade_opset};
use kvant_onnx::shape::{Dim, ValueType, infer};

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

fn integers(name: &str, values: &[i64]) -> TensorProto {
    tensor(name, DataType::INT64, &[values.len()], values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

fn floats(name: &str, shape: &[usize]) -> TensorProto {
    let count: usize = shape.iter().product();
    tensor(name, DataType::FLOAT, shape, (0..count).flat_map(|i| (1.0 + i as f32).to_le_bytes()).collect::<Vec<_>>())
}

fn with(mut node: NodeProto, lists: &[(&str, &[i64])], numbers: &[(&str, i64)]) -> NodeProto {
    lists.iter().for_each(|(name, values)| set_attribute(&mut node, name, *values));
    numbers.iter().for_each(|(name, value)| set_attribute(&mut node, name, *value));
    node
}

/// A graph in which every pass has something to look at.
fn model() -> ModelProto {
    let nodes = vec![
        with(
            node("Conv", "conv", &["x", "w", "b"], &["c"]),
            &[("pads", &[1, 1, 1, 1]), ("kernel_shape", &[3, 3])],
            &[],
        ),
        node("BatchNormalization", "bn", &["c", "s", "b", "m", "v"], &["n"]),
        node("Add", "bias", &["n", "k"], &["a"]),
        node("Clip", "clip", &["a", "zero"], &["r"]),
        with(node("MaxPool", "pool", &["r"], &["p"]), &[("kernel_shape", &[2, 2]), ("strides", &[2, 2])], &[]),
        with(node("Split", "split", &["p", "lengths"], &["left", "right"]), &[], &[("axis", 1)]),
        with(node("Concat", "concat", &["right", "left"], &["j"]), &[], &[("axis", 1)]),
        with(node("Pad", "pad", &["j", "pads"], &["e"]), &[], &[]),
        node("Slice", "slice", &["e", "starts", "ends", "axes"], &["f"]),
        with(node("ReduceMean", "mean", &["f"], &["g"]), &[("axes", &[2, 3])], &[]),
        node("Shape", "shape", &["g"], &["sh"]),
        node("Gather", "gather", &["sh", "first"], &["batch"]),
        with(node("Concat", "cat", &["batch", "rest"], &["target"]), &[], &[("axis", 0)]),
        node("Reshape", "reshape", &["g", "target"], &["flat"]),
        node("MatMul", "mm", &["flat", "q"], &["h"]),
        node("Add", "mmb", &["h", "b"], &["i"]),
        with(node("Transpose", "tr", &["i"], &["t"]), &[("perm", &[1, 0])], &[]),
        node("Expand", "ex", &["t", "grow"], &["u"]),
        node("Tile", "tile", &["u", "times"], &["o"]),
        with(node("Unsqueeze", "un", &["o", "first"], &["l"]), &[], &[]),
        with(node("Softmax", "soft", &["l"], &["y"]), &[], &[("axis", -1)]),
        with(node("ConvTranspose", "up", &["p", "d"], &["z"]), &[("strides", &[2, 2])], &[]),
        node("GlobalAveragePool", "gap", &["z"], &["w2"]),
        node("Range", "range", &["from", "to", "by"], &["ra"]),
        node("ConstantOfShape", "cos", &["grow"], &["co"]),
    ];
    let vector = |name: &str| floats(name, &[4]);
    let initializers = vec![
        floats("w", &[4, 3, 3, 3]),
        vector("b"),
        vector("s"),
        vector("m"),
        vector("v"),
        floats("k", &[1, 4, 1, 1]),
        floats("zero", &[]),
        integers("lengths", &[1, 3]),
        integers("pads", &[0, 0, 0, 0, 0, 0, 0, 0]),
        integers("starts", &[0]),
        integers("ends", &[100]),
        integers("axes", &[2]),
        integers("first", &[0]),
        integers("rest", &[-1]),
        floats("q", &[4, 4]),
        integers("grow", &[4, 2]),
        integers("times", &[1, 2]),
        floats("d", &[4, 2, 2, 2]),
        integers("from", &[0]),
        integers("to", &[5]),
        integers("by", &[1]),
    ];
    let input = ValueType::new(DataType::FLOAT, [2, 3, 8, 8].map(Dim::Known).to_vec()).to_proto("x").unwrap();
    let output = |name: &str| ValueType::any(DataType::FLOAT).to_proto(name).unwrap();
    let graph = GraphProto {
        node: nodes,
        initializer: initializers,
        input: vec![input],
        output: ["y", "w2", "ra", "co"].map(output).to_vec(),
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(17), ..Default::default() };
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: MessageField::some(graph),
        ..ModelProto::default()
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
fn changed_models_are_refused_or_simplified() {
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

#[test]
fn every_pass_finds_something_or_leaves_the_model_alone() {
    let mut all = Selection::default();
    ALL.iter().for_each(|pass| all.set(pass.name, true).unwrap());
    let mut simplified = model();
    let counts = simplify(&mut simplified, &all, &Context::default()).unwrap();
    let found: Vec<_> = counts.iter().filter(|(_, n)| *n > 0).map(|(name, _)| *name).collect();
    for name in ["constant-folding", "identity", "batch-norm-folding", "bias-fusion", "split-to-slice", "dead-nodes"] {
        assert!(found.contains(&name), "{name} found nothing: {found:?}");
    }
    let again = simplify(&mut simplified.clone(), &all, &Context::default()).unwrap();
    assert!(again.iter().all(|(_, n)| *n == 0), "{again:?}");
}
