//! Gradients against differences of the block's output, and the tape's output against the block's.

use super::super::tensors::Vector;
use super::super::{Decoder, Runner, cpu::Cpu};
use super::{BlockGradient, BlockGradients, Weights};
use crate::forward::{ForwardOptions, WeightOverrides};
use kvant_container::Checkpoint;
use kvant_formats::rotated;
use kvant_quant::rotation::Rotate;
use std::collections::HashMap;
use std::path::Path;

const LENGTH: usize = 9;

/// Numbers that repeat late.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed * 1013) * 7919) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// The sum of the output's elements, each times a fixed number.
fn score(gradient: &BlockGradient<'_, '_>, weights: &Weights, x: &[f32], along: &[f32]) -> f64 {
    let recorded = gradient.forward(Default::default(), weights, x, LENGTH);
    recorded.output().iter().zip(along).map(|(out, along)| f64::from(*out) * f64::from(*along)).sum()
}

fn check(model: &str, rotation: Option<Rotate>) {
    let path = format!("{}/../../tests/models/{model}", env!("CARGO_MANIFEST_DIR"));
    let checkpoint = rotated::open(Checkpoint::open(Path::new(&path)).unwrap(), rotation).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let cpu = Cpu::default();
    let runner = Runner::new(&decoder, &cpu);
    let tokens: Vec<u32> = (0..2 * LENGTH as u32).map(|i| i * 37 % 200).collect();
    let x = runner.embed(Default::default(), &tokens, LENGTH).unwrap();
    let gradient = BlockGradient::new(&runner, 0).unwrap();
    let stored = gradient.weights(&Default::default());
    let mut expected = x.clone();
    let _ = runner.block(Default::default(), 0, LENGTH, &mut expected);
    let recorded = gradient.forward(Default::default(), &stored, &x, LENGTH);
    let largest = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    for (a, b) in recorded.output().iter().zip(&expected) {
        assert!((a - b).abs() < 1e-5 * largest, "{a} {b}");
    }
    let along = noise(expected.len(), 1);
    let norms: Vec<(&Vector, Vec<f32>)> =
        gradient.norms().iter().map(|norm| (&norm.weight[0], decoder.tensors().values(&norm.weight[0]))).collect();
    assert!(norms.len() >= 2, "{model}");
    let mut gradients = BlockGradients {
        weights: stored.iter().map(|(name, values)| (name.clone(), vec![0.0; values.len()])).collect(),
        norms: norms.iter().map(|(vector, values)| ((*vector).clone(), vec![0.0; values.len()])).collect(),
    };
    let zeros = gradients.clone();
    let of_input = recorded.backward(along.clone(), &mut gradients);
    for norms in [zeros.norms.clone(), HashMap::new()] {
        let mut alone = BlockGradients { norms, ..zeros.clone() };
        let recorded = gradient.forward(Default::default(), &stored, &x, LENGTH);
        recorded.backward_of_weights(along.clone(), &mut alone);
        assert!(alone.weights == gradients.weights, "{model}");
        assert!(alone.norms.is_empty() || alone.norms == gradients.norms, "{model}");
    }
    let step = 1e-2;
    let differences = |moved: &dyn Fn(f32) -> f64| (moved(step) - moved(-step)) / f64::from(2.0 * step);
    for (name, values) in &stored {
        let direction: Vec<f32> = noise(values.len(), name.len()).iter().map(|n| n * 0.1).collect();
        let moved = |step: f32| {
            let mut weights = stored.clone();
            let own = values.iter().zip(&direction).map(|(value, along)| value + step * along);
            weights.insert(name.clone(), own.collect());
            score(&gradient, &weights, &x, &along)
        };
        let product: f64 =
            gradients.weights[name].iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
        let difference = differences(&moved);
        // Routers choose other experts, and have no gradient.
        if !name.ends_with("gate") {
            assert!(
                (product - difference).abs() < 2e-2 * difference.abs().max(0.05),
                "{model} {name}: {product} {difference}"
            );
        }
    }
    for (vector, values) in &norms {
        let direction = noise(values.len(), 3);
        let moved = |step: f32| {
            let mut overlay = WeightOverrides::default();
            let own = values.iter().zip(&direction).map(|(value, along)| value + 0.1 * step * along);
            overlay.set_vector(vector, own.collect());
            let options = ForwardOptions { overlay: Some(&overlay), ..ForwardOptions::default() };
            let recorded = gradient.forward(options, &stored, &x, LENGTH);
            recorded.output().iter().zip(&along).map(|(out, along)| f64::from(*out) * f64::from(*along)).sum()
        };
        let along = gradients.norms[*vector].iter().zip(&direction);
        let product: f64 = along.map(|(g, d)| 0.1 * f64::from(*g) * f64::from(*d)).sum();
        let difference = differences(&moved);
        assert!(
            (product - difference).abs() < 2e-2 * difference.abs().max(0.05),
            "{model} {vector:?}: {product} {difference}"
        );
    }
    let direction = noise(x.len(), 5);
    let moved = |step: f32| {
        let x: Vec<f32> = x.iter().zip(&direction).map(|(x, along)| x + 0.1 * step * along).collect();
        score(&gradient, &stored, &x, &along)
    };
    let product: f64 = of_input.iter().zip(&direction).map(|(g, d)| 0.1 * f64::from(*g) * f64::from(*d)).sum();
    let difference = differences(&moved);
    assert!((product - difference).abs() < 2e-2 * difference.abs().max(0.05), "{model} input: {product} {difference}");
}

#[test]
fn gradients_match_differences_of_a_llama() {
    check("nano_llama", None);
}

#[test]
fn gradients_pass_rotated_inputs() {
    let rotate = Rotate { stream: false, heads: false, down: true, size: 32, ..Rotate::DEFAULTS };
    check("nano_llama", Some(rotate));
}
