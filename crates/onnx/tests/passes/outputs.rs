//! Every pass, alone and with all others, leaves what the model computes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;
use kvant_onnx::data::{Array, Values};
use kvant_onnx::graph::check;
use kvant_onnx::pass::{ALL, Context, Selection, simplify, upgrade_opset};
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions, open};

use crate::model::model;

/// All outputs of a model on one input, by name; integers as floats.
fn outputs(model: &ModelProto) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
    let wanted: Vec<String> = model.graph.output.iter().map(|output| output.name().to_owned()).collect();
    let values: Vec<f32> = (0..2 * 3 * 8 * 8).map(|i| (i as f32 * 0.7).sin()).collect();
    let x = Array::new(vec![2, 3, 8, 8], Values::F32(values.into())).unwrap();
    let mut made = BTreeMap::new();
    let mut keep = |name: &str, array: &Array<'_>| {
        made.insert(name.to_owned(), (array.shape().to_vec(), array.to_f32s().into_owned()));
        ControlFlow::Continue(())
    };
    open(model, &wanted, &options).unwrap().run(&[("x", x)], &wanted, &mut keep).unwrap();
    made
}

fn assert_same(before: &ModelProto, after: &ModelProto, what: &str) {
    assert_eq!(check(after), Ok(()), "{what}");
    let (before, after) = (outputs(before), outputs(after));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{what}");
    for (name, (shape, values)) in &before {
        let (new_shape, new_values) = &after[name];
        assert_eq!(shape, new_shape, "{what}: {name}");
        let scale = values.iter().fold(1e-6f32, |most, v| most.max(v.abs()));
        let near = values.iter().zip(new_values).all(|(a, b)| (a - b).abs() <= 1e-5 * scale);
        assert!(near, "{what}: {name} was {values:?} and is {new_values:?}");
    }
}

/// Passes that change what goes in and comes out, and are tested where they are written.
const OF_THE_ENDS: [&str; 2] = ["nhwc-inputs", "float-ends"];

#[test]
fn each_pass_alone() {
    for pass in ALL.iter().filter(|pass| !OF_THE_ENDS.contains(&pass.name)) {
        let mut changed = model();
        simplify(&mut changed, &Selection::none().with(pass.name).unwrap(), &Context::default()).unwrap();
        assert_same(&model(), &changed, pass.name);
    }
}

#[test]
fn all_passes_and_a_newer_opset() {
    let mut all = Selection::default();
    ALL.iter().for_each(|pass| all.set(pass.name, !OF_THE_ENDS.contains(&pass.name)).unwrap());
    for opset in [17, 21] {
        for selection in [Selection::default(), all.clone()] {
            let mut changed = model();
            upgrade_opset(&mut changed, opset).unwrap();
            assert_same(&model(), &changed, "opset");
            simplify(&mut changed, &selection, &Context::default()).unwrap();
            assert_same(&model(), &changed, &format!("{selection:?} in opset {opset}"));
        }
    }
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
