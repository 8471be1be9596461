//! Clipping on a graph: it lowers the error of quantized weights, and changes nothing else.

use std::sync::atomic::AtomicBool;

use kvant_container::onnx::ModelProto;
use kvant_container::unfinished::KeptResults;
use kvant_quant::glob::Glob;
use kvant_quant::random::SplitMix64;
use kvant_quant::transform::{Awq, Loss, Measure, PairProblem, PairScales};

use super::row_rounding::RowRounding;
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
    assert!(plain.changes.limited_weights.is_empty() && plain.changes.unlimited.is_empty());
    let [told] = &limited.changes.limited_weights[..] else { panic!("{:?}", limited.changes.limited_weights) };
    assert_eq!((told.weight.as_str(), told.groups), ("w", OUTPUTS * INPUTS / 16));
    assert!(told.cut > 0 && told.cut <= told.groups);
    assert_ne!(before, after);
    let [with, without] = [&after, &before].map(|weight| error(&before, &stored(&plain, weight)));
    assert!(with < 0.97 * without, "{with} {without}");
    assert_eq!(weight(&plain, "v"), weight(&limited, "v"));
    // Algorithms compare with the original weight.
    assert_eq!(limited.changes.unlimited["w"][..], *bytemuck::cast_slice::<f32, u8>(&before));
}

#[test]
fn awq_does_not_depend_on_the_number_of_threads() {
    let [one, three] = [1, 3].map(|threads| transformed("awq:tokens=40", threads));
    assert_eq!(weight(&one, "w"), weight(&three, "w"));
    assert_eq!(one.changes.limited_weights, three.changes.limited_weights);
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
        assert_eq!(
            (&resumed.changes.limited_weights, &resumed.changes.unlimited),
            (&first.changes.limited_weights, &first.changes.unlimited)
        );
        assert_eq!(resumed.changes.scaled_inputs, first.changes.scaled_inputs);
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
        run(&Awq::DEFAULTS, Awq::DEFAULTS.clip, &mut net(), &subject, &mut data, None).unwrap().limited_weights.len()
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

/// A transform of a user of the library: what it needs, how it judges, and how it finds scales.
#[derive(Debug, Clone, Copy)]
struct Registered {
    needs: Needs,
    measure: Measure,
    find: fn(&mut dyn PairProblem, Measure) -> Result<PairScales, PairError>,
}

impl Transform for Registered {
    fn name(&self) -> &str {
        "registered"
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn measure(&self) -> Measure {
        self.measure
    }

    fn find(&self, pair: &mut dyn PairProblem) -> Result<PairScales, PairError> {
        (self.find)(pair, self.measure)
    }
}

const WEIGHTS_ALONE: Measure = Measure { loss: Loss::Mse, with_inputs: false };

fn registered_on(transform: Registered, preset: &str, kept: Option<&KeptResults>) -> (ModelProto, TransformedByData) {
    let recipe = Preset::find(preset).unwrap().recipe();
    let (mut model, types) = (net(), crate::shape::infer(&net()));
    let placement = prepare(net(), recipe.clone(), &recipe.passes(), None).unwrap().placement;
    let subject = Subject { recipe: &recipe, types: &types, placement: &placement };
    let (mut samples, cancelled, mut progress) = (samples(), AtomicBool::new(false), |_: u64, _: u64| ());
    let runtime = RuntimeOptions { choice: RuntimeChoice::Rten, ..RuntimeOptions::default() };
    let mut data = Data { samples: &mut samples, runtime, cancelled: &cancelled, progress: &mut progress, kept };
    let done = run(&transform, None, &mut model, &subject, &mut data, None).unwrap();
    (model, done)
}

#[test]
fn a_registered_transform_scales_the_products_of_a_graph() {
    let find = |pair: &mut dyn PairProblem, _| {
        assert_eq!(pair.weights()?.abs_max().len(), INPUTS);
        Ok(PairScales::new(vec![2.0; pair.inputs().channels()]))
    };
    let transform = Registered { needs: Needs::Maxima, measure: WEIGHTS_ALONE, find };
    let (model, done) = registered_on(transform, "A8W8", None);
    assert_eq!(done.scaled_inputs.iter().map(|input| (&*input.tensor, input.products)).collect::<Vec<_>>(), [("x", 2)]);
    let of = |model: &ModelProto| values(Index::new(&model.graph).constant(&model.graph, "w").unwrap()).unwrap();
    assert_eq!(of(&model), of(&net()).iter().map(|value| value * 2.0).collect::<Vec<_>>());
}

/// The losses that a transform gets for scales of one and for uneven scales.
fn losses(needs: Needs, measure: Measure, preset: &str) -> Vec<f64> {
    let find = |pair: &mut dyn PairProblem, measure| {
        let uneven: Vec<f32> = (0..INPUTS).map(|channel| 1.0 + (channel % 7) as f32).collect();
        let [ones, uneven] = [vec![1.0; INPUTS], uneven].map(|scales| pair.loss(&scales, measure));
        Err(PairError::Unscaled(format!("{:e} {:e}", ones?, uneven?)))
    };
    let (_, done) = registered_on(Registered { needs, measure, find }, preset, None);
    done.not_scaled[0].reason.split(' ').map(|loss| loss.parse().unwrap()).collect()
}

#[test]
fn trials_on_samples_agree_with_sums_of_products_and_see_rounded_inputs() {
    let of_sums = losses(Needs::MeansRunsAndSamples, WEIGHTS_ALONE, "A8W8");
    let of_samples = losses(Needs::MaximaAndRuns, WEIGHTS_ALONE, "A8W8");
    for (sums, samples) in of_sums.iter().zip(&of_samples) {
        assert!(*sums > 0.0 && (sums / samples - 1.0).abs() < 1e-2, "{of_sums:?} {of_samples:?}");
    }
    assert_ne!(of_sums[0], of_sums[1]);
    let with_inputs = losses(Needs::MaximaAndRuns, Measure::DEFAULT, "A8W8");
    assert!(with_inputs[0] > 1.2 * of_samples[0], "{with_inputs:?} {of_samples:?}");
    // Weights alone are quantized there: inputs stay as they are.
    let weights_only =
        [WEIGHTS_ALONE, Measure::DEFAULT].map(|measure| losses(Needs::MaximaAndRuns, measure, "MATMUL_NBITS"));
    assert_eq!(weights_only[0], weights_only[1]);
}

#[test]
fn what_a_transform_leaves_is_noted_with_its_reason_also_when_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let kept = KeptResults::new(dir.path(), "plan");
    let left = |find| {
        let transform = Registered { needs: Needs::Maxima, measure: WEIGHTS_ALONE, find };
        let (model, done) = registered_on(transform, "A8W8", Some(&kept));
        assert!(done.scaled_inputs.is_empty() && model == net());
        done.not_scaled
    };
    let first = left(|_, _| Err(PairError::Unscaled("not today".to_owned())));
    assert_eq!((&*first[0].tensor, &*first[0].algorithm, &*first[0].reason), ("x", "registered", "not today"));
    assert_eq!(left(|_, _| Ok(PairScales::new(vec![2.0; INPUTS]))), first, "what was found before is kept");
}

#[test]
fn scales_that_cannot_be_applied_and_trials_without_samples_leave_the_tensor() {
    let reason = |find| {
        let transform = Registered { needs: Needs::Maxima, measure: WEIGHTS_ALONE, find };
        let (_, done) = registered_on(transform, "A8W8", None);
        done.not_scaled[0].reason.clone()
    };
    let refused = "scales are not 64 positive numbers";
    assert_eq!(reason(|_, _| Ok(PairScales::new(vec![0.0; INPUTS]))), refused);
    assert_eq!(reason(|_, _| Ok(PairScales::new(vec![1.0; 3]))), refused);
    let untold = "the transform does not say that it needs trials";
    assert_eq!(reason(|pair, measure| pair.loss(&[1.0; INPUTS], measure).map(|_| PairScales::new(Vec::new()))), untold);
}
