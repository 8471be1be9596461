use std::convert::Infallible;

use super::super::{ActivationFunction, CodeSteps, InputMix, Regularization, Sample, Shape};
use super::*;

/// Inputs that go with each other, as those of real layers do: it is what rounding by reconstruction makes use of.
struct MadeSamples {
    patches: Vec<Vec<f32>>,
    targets: Vec<Vec<f32>>,
    positions: usize,
}

impl Samples for MadeSamples {
    type Error = Infallible;

    fn count(&self) -> usize {
        self.patches.len()
    }

    fn sample(&mut self, index: usize) -> Result<Sample<'_>, Infallible> {
        Ok(Sample { patches: &self.patches[index], targets: &self.targets[index], positions: self.positions })
    }

    fn check_cancelled(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Numbers without order in -1..1.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    let at = |i: usize| ((i + 1) * (2 * seed + 7919) % 100_003) as f64 * 12.9898;
    (0..count).map(|i| (at(i).sin() * 43758.547).fract() as f32).collect()
}

struct Case {
    module: Module,
    weights: Vec<f32>,
    bias: Vec<f32>,
    steps: Vec<CodeSteps>,
    samples: MadeSamples,
}

/// Layers of 4-bit weights; `offset` makes inputs that are not centred.
fn case(groups: usize, outputs: usize, features: usize, function: ActivationFunction) -> Case {
    let shape = Shape { groups, outputs, features };
    let (positions, count) = (48, 6);
    let weights: Vec<f32> = noise(shape.weights(), 1).iter().map(|w| w * 0.3).collect();
    let bias = noise(outputs, 2);
    let steps = weights.chunks(features).map(|row| {
        let largest = row.iter().fold(0f32, |m, w| m.max(w.abs()));
        CodeSteps { scale: largest / 7.0, lowest: -7.0, highest: 7.0 }
    });
    let patches: Vec<Vec<f32>> = (0..count).map(|i| correlated(groups * features, positions, 10 + i)).collect();
    let module = Module { shape, function };
    let target = |patches: &Vec<f32>| {
        let mut out = vec![0.0; outputs * positions];
        shape.products(&weights, Sample { patches, targets: &[], positions }, &mut out);
        out.chunks_mut(positions).zip(&bias).for_each(|(row, b)| row.iter_mut().for_each(|y| *y += b));
        out
    };
    let targets = patches.iter().map(target).collect();
    let samples = MadeSamples { targets, patches, positions };
    Case { module, steps: steps.collect(), weights, bias, samples }
}

fn correlated(rows: usize, positions: usize, seed: usize) -> Vec<f32> {
    let common = noise(positions * 3, seed);
    let own = noise(rows * positions, seed + 100);
    let value = |(i, own): (usize, &f32)| {
        let (row, p) = (i / positions, i % positions);
        0.5 + common[row % 3 * positions + p] + 0.3 * own
    };
    own.iter().enumerate().map(value).collect()
}

fn settings(method: Method) -> Settings {
    let learning_rate = if method == Method::AdaQuant { 5e-4 } else { 0.1 };
    let (iterations, batch_size, seed) = (400, 2, 3);
    Settings { method, iterations, learning_rate, batch_size, seed, early_stop: false, update_bias: false, mix: None }
}

fn run(case: &mut Case, settings: &Settings) -> Reconstructed {
    let features = case.module.shape.features;
    let weight = Weight { values: &case.weights, features, steps: &case.steps, bias: Some(&case.bias) };
    let Ok(found) = reconstruct(&case.module, weight, &mut case.samples, settings);
    found
}

const METHODS: [Method; 2] = [Method::AdaRound(Regularization::DEFAULTS), Method::AdaQuant];

#[test]
fn losses_fall_for_all_layer_kinds_and_functions() {
    let functions = super::super::activation_function::tests::all();
    for (function, method) in functions.into_iter().flat_map(|f| METHODS.map(|m| (f.clone(), m))) {
        for (groups, outputs, features) in [(1, 6, 20), (6, 6, 9), (2, 6, 12)] {
            let mut case = case(groups, outputs, features, function.clone());
            // AdaQuant's last step is no better than those before: the best is taken where the run is watched.
            let settings = Settings { early_stop: method == Method::AdaQuant, ..settings(method) };
            let found = run(&mut case, &settings);
            let least = if method == Method::AdaQuant { 0.95 } else { 0.75 };
            let text = format!("{:?} {method:?}: {} -> {}", case.module, found.before, found.after);
            assert!(found.after < least * found.before, "{text}");
            assert!(found.steps.iter().all(|step| (-7..=7).contains(step)), "{text}");
        }
    }
}

/// The quadratic form and the samples one by one are the same loss and the same gradients.
#[test]
fn quadratic_form_equals_the_loss_over_all_samples() {
    for (groups, outputs, features) in [(1, 6, 20), (6, 6, 9), (2, 6, 12)] {
        let mut case = case(groups, outputs, features, ActivationFunction::None);
        // Targets that the float layer does not reach.
        case.samples.targets.iter_mut().flatten().for_each(|t| *t += 0.05);
        let weight = Weight { values: &case.weights, features, steps: &case.steps, bias: Some(&case.bias) };
        let Ok(quadratic) = Quadratic::new(&case.module, weight, &mut case.samples, 2, false);
        let (mut whole, mut each) = (Gradients::default(), Gradients::default());
        let rounded = weight.restored(&weight.nearest());
        let bias: Vec<f32> = case.bias.iter().map(|b| b + 0.03).collect();
        let loss = quadratic.unwrap().differentiate(&rounded, Some(&bias), &mut whole);
        let count = case.samples.count();
        let mut sum = 0.0;
        for index in 0..count {
            let Ok(sample) = case.samples.sample(index);
            sum += case.module.differentiate(&rounded, Some(&bias), sample, (index == 0, count), &mut each);
        }
        assert!((loss - sum).abs() < 1e-4 * sum, "{loss} {sum}");
        let alike = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4 * b.abs().max(0.1));
        assert!(alike(&whole.weights, &each.weights) && alike(&whole.bias, &each.bias));
    }
}

#[test]
fn exact_weights_keep_their_nearest_codes() {
    for method in METHODS {
        let mut case = case(1, 4, 9, ActivationFunction::Relu);
        // Weights that have codes: their error is zero.
        let exact =
            |(i, _): (usize, &f32)| ((i * 5) % 15) as f32 * case.steps[i / 9].scale - 7.0 * case.steps[i / 9].scale;
        let weights: Vec<f32> = case.weights.iter().enumerate().map(exact).collect();
        case.weights = weights;
        let found = run(&mut case, &Settings { iterations: 0, ..settings(method) });
        assert_eq!((found.before, found.bias.clone()), (found.after, None));
        let expected: Vec<i32> = (0..36).map(|i| (i * 5) % 15 - 7).collect();
        assert_eq!(found.steps, expected);
    }
}

#[test]
fn trained_bias_lowers_the_loss_and_early_stop_stops_early() {
    for method in METHODS {
        let mut case = case(1, 6, 20, ActivationFunction::Relu);
        case.samples.targets.iter_mut().flatten().for_each(|t| *t += 0.2);
        let learning_rate = if method == Method::AdaQuant { 2e-3 } else { 0.1 };
        let plain = run(&mut case, &Settings { learning_rate, ..settings(method) });
        let biased = run(&mut case, &Settings { learning_rate, update_bias: true, ..settings(method) });
        assert!(biased.after < 0.8 * plain.after && biased.bias.is_some(), "{plain:?} {biased:?}");
        let early = run(&mut case, &Settings { early_stop: true, iterations: 4000, ..settings(method) });
        assert!(early.iterations < 4000 && early.after < early.before, "{} of 4000", early.iterations);
    }
}

#[test]
fn training_does_not_depend_on_the_number_of_threads() {
    for (method, function) in
        METHODS.into_iter().flat_map(|m| [ActivationFunction::None, ActivationFunction::Relu].map(|f| (m, f)))
    {
        let found = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut case = case(1, 40, 500, function.clone());
            pool.install(|| run(&mut case, &Settings { iterations: 20, update_bias: true, ..settings(method) }))
        });
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{method:?} {function:?}");
    }
}

/// Steps see what is drawn for them, and everything else the samples.
struct Drawn {
    made: MadeSamples,
    draws: Vec<u64>,
}

impl Samples for Drawn {
    type Error = Infallible;

    fn count(&self) -> usize {
        self.made.count()
    }

    fn sample(&mut self, index: usize) -> Result<Sample<'_>, Infallible> {
        self.made.sample(index)
    }

    fn mixed(&mut self, index: usize, _: InputMix, draw: u64) -> Result<Sample<'_>, Infallible> {
        self.draws.push(draw);
        self.made.sample(index)
    }

    fn check_cancelled(&self) -> Result<(), Infallible> {
        Ok(())
    }
}

#[test]
fn mixed_samples_are_drawn_at_every_step() {
    // A layer without a function, whose samples are summed up where they are always the same.
    for mixed in [false, true] {
        let case = case(1, 4, 9, ActivationFunction::None);
        let weight = Weight { values: &case.weights, features: 9, steps: &case.steps, bias: Some(&case.bias) };
        let mut samples = Drawn { made: case.samples, draws: Vec::new() };
        let mix = mixed.then_some(InputMix { ratio: 0.5, seed: 1 });
        let settings = Settings { iterations: 10, mix, ..settings(METHODS[0]) };
        let Ok(_) = reconstruct(&case.module, weight, &mut samples, &settings);
        let expected: Vec<u64> = if mixed { (0..20).collect() } else { Vec::new() };
        assert_eq!(samples.draws, expected);
    }
}
