//! Clipping on a graph: it lowers the error of quantized weights, and changes nothing else.

use std::sync::atomic::AtomicBool;

use kvant_container::onnx::ModelProto;
use kvant_container::unfinished::KeptResults;
use kvant_quant::glob::Glob;
use kvant_quant::random::SplitMix64;

use super::*;
use crate::data::{DataOptions, SampleSource, Samples, inputs};
use crate::graph::{Index, node};
use crate::preset::Preset;
use crate::quantize::{Prepared, TransformedModel, prepare};
use crate::recipe::{Layout, NodeRule};
use crate::runtime::{RuntimeChoice, RuntimeOptions};
use crate::solution::values;
use crate::test_models::{floats, model, typed};

const TOKENS: usize = 24;
const INPUTS: usize = 64;
const OUTPUTS: usize = 8;

/// Two products that read the input, one of which nothing quantizes.
fn net() -> ModelProto {
    let mut random = SplitMix64::new(3);
    let mut weight = |name: &str| {
        let drawn = |_| (2.0 * random.uniform() - 1.0).powi(5) as f32;
        floats(name, &[INPUTS, OUTPUTS], &(0..INPUTS * OUTPUTS).map(drawn).collect::<Vec<_>>())
    };
    let constants = vec![weight("w"), weight("v")];
    let nodes = vec![
        node("MatMul", "taken", &["x", "w"], &["a"]),
        node("MatMul", "left", &["x", "v"], &["b"]),
        node("Add", "sum", &["a", "b"], &["y"]),
    ];
    let mut made = model(17, nodes, constants, &[], &["y"]);
    made.graph.as_mut().unwrap().input = vec![typed("x", &[1, TOKENS, INPUTS])];
    made
}

fn samples() -> Samples {
    samples_of(DataOptions::default().seed)
}

fn samples_of(seed: u64) -> Samples {
    let options = DataOptions { seed, ..DataOptions::default() };
    SampleSource::Random(crate::data::Distribution::Normal).open(&inputs(&net().graph), &options).unwrap()
}

fn transformed(algorithm: &str, threads: usize) -> TransformedModel {
    transformed_on(samples(), algorithm, threads, None)
}

fn transformed_on(
    mut samples: Samples,
    algorithm: &str,
    threads: usize,
    kept: Option<&KeptResults>,
) -> TransformedModel {
    let mut recipe = Preset::find("MATMUL_NBITS").unwrap().recipe();
    recipe.layout = Layout::MatMulNBits { bits: 4, block: 16, accuracy: 0 };
    recipe.algorithms = algorithm.parse().unwrap();
    recipe.selection.node_rules.push(NodeRule { nodes: Glob::literal("left"), excluded: true });
    let passes = recipe.passes();
    let prepared = prepare(net(), recipe, &passes, None).unwrap();
    let runtime = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(threads), ..RuntimeOptions::default() };
    let (cancelled, mut progress) = (AtomicBool::new(false), |_: u64, _: u64| ());
    let mut data = Data { samples: &mut samples, runtime, cancelled: &cancelled, progress: &mut progress, kept };
    prepared.transformed(Some(&mut data), None).unwrap()
}

fn weight(prepared: &Prepared, name: &str) -> Vec<f32> {
    let index = Index::new(&prepared.model.graph);
    values(index.constant(&prepared.model.graph, name).unwrap()).unwrap()
}

/// The squared error of what a product makes of the samples with rounded weights.
fn error(float: &[f32], rounded: &[f32]) -> f64 {
    let (mut samples, mut sum) = (samples(), 0.0);
    for index in 0..samples.len() {
        let (_, x) = samples.sample(index).unwrap().remove(0);
        for row in x.to_f32s().chunks(INPUTS) {
            for output in 0..OUTPUTS {
                let part = |input: usize| {
                    let at = input * OUTPUTS + output;
                    f64::from(row[input]) * (f64::from(rounded[at]) - f64::from(float[at]))
                };
                sum += (0..INPUTS).map(part).sum::<f64>().powi(2);
            }
        }
    }
    sum
}

/// The stored parts of a weight of `[inputs, outputs]`.
fn stored(prepared: &Prepared, weight: &[f32]) -> Vec<f32> {
    let rows: Vec<f32> = (0..INPUTS * OUTPUTS).map(|i| weight[i % INPUTS * OUTPUTS + i / INPUTS]).collect();
    let rounded = RowRounding::of(&prepared.recipe, INPUTS).nearest(&rows);
    (0..INPUTS * OUTPUTS).map(|i| rounded[i % OUTPUTS * INPUTS + i / OUTPUTS]).collect()
}

#[test]
fn clipping_lowers_the_error_of_quantized_weights_only() {
    let (plain, limited) = (transformed("awq:ratios=1:clip=off", 1), transformed("awq:ratios=1", 1));
    let [before, after] = [&plain, &limited].map(|prepared| weight(prepared, "w"));
    assert!(plain.limited_weights.is_empty() && plain.unlimited.is_empty());
    let [told] = &limited.limited_weights[..] else { panic!("{:?}", limited.limited_weights) };
    assert_eq!((told.weight.as_str(), told.groups), ("w", OUTPUTS * INPUTS / 16));
    assert!(told.cut > 0 && told.cut <= told.groups);
    assert_ne!(before, after);
    let [with, without] = [&after, &before].map(|weight| error(&before, &stored(&plain, weight)));
    assert!(with < 0.97 * without, "{with} {without}");
    assert_eq!(weight(&plain, "v"), weight(&limited, "v"));
    // Algorithms compare with the original weight.
    assert_eq!(limited.unlimited["w"][..], *bytemuck::cast_slice::<f32, u8>(&before));
}

#[test]
fn awq_does_not_depend_on_the_number_of_threads() {
    let [one, three] = [1, 3].map(|threads| transformed("awq:tokens=40", threads));
    assert_eq!(weight(&one, "w"), weight(&three, "w"));
    assert_eq!(one.limited_weights, three.limited_weights);
}

/// Other samples would give other scales and limits, if they were looked at.
#[test]
fn kept_search_results_are_reused() {
    for algorithm in ["awq:ratios=4", "smoothquant"] {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptResults::new(dir.path(), "plan");
        let weights = |prepared: &Prepared| [weight(prepared, "w"), weight(prepared, "v")];
        let first = transformed_on(samples(), algorithm, 1, Some(&kept));
        let resumed = transformed_on(samples_of(77), algorithm, 1, Some(&kept));
        let other = transformed_on(samples_of(77), algorithm, 1, Some(&KeptResults::new(dir.path(), "other plan")));
        assert_eq!(weights(&resumed), weights(&first), "{algorithm}");
        assert_eq!((&resumed.limited_weights, &resumed.unlimited), (&first.limited_weights, &first.unlimited));
        assert_eq!(resumed.scaled_inputs, first.scaled_inputs);
        assert_ne!(weights(&other), weights(&first), "{algorithm}");
    }
}

#[test]
fn per_tensor_scales_have_no_thresholds() {
    let mut recipe = Preset::find("A8W8").unwrap().recipe();
    let made = |recipe: &Recipe| {
        let (types, placement) = (crate::shape::infer(&net()), prepare(net(), recipe.clone(), &recipe.passes(), None));
        let subject = Subject { recipe, types: &types, placement: &placement.unwrap().placement };
        let (mut samples, cancelled, mut progress) = (samples(), AtomicBool::new(false), |_: u64, _: u64| ());
        let runtime = RuntimeOptions { choice: RuntimeChoice::Rten, ..RuntimeOptions::default() };
        let mut data =
            Data { samples: &mut samples, runtime, cancelled: &cancelled, progress: &mut progress, kept: None };
        run(Awq::DEFAULTS, &mut net(), &subject, &mut data, None).unwrap().limited.len()
    };
    assert_eq!(made(&recipe), 0);
    recipe.weight.per_channel = true;
    assert_eq!(made(&recipe), 2);
}

#[test]
fn duo_divides_weights_by_their_own_sizes() {
    let [plain, duo] = ["awq:clip=off", "awq:clip=off:duo=on"].map(|text| weight(&transformed(text, 1), "w"));
    assert_ne!(plain, duo);
}
