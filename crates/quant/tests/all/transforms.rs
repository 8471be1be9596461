//! The same searches in amd-quark, whose scales, exponents and limits are in `tests/golden/quark_transforms.json`
//! (`make_transforms.py`), with losses of a plain forward pass.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::input;
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::FloatDType;
use kvant_quant::fake::fake_quantize;
use kvant_quant::rounding::TensorContext;
use kvant_quant::transform::{
    AutoSmoothQuant, Awq, Candidate, ChannelStatistic, Clip, Loss, SmoothQuant, WeightStatistic, best,
};
use serde_json::{Value, json};

const FEATURES: usize = 96;
const HIDDEN: usize = 64;
const TOKENS: usize = 300;

fn flat(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    input::values(&json!({ "rows": rows, "cols": columns, "dtype": "f32", "transform": "flat", "seed": seed }))
}

/// `make_transforms.py`'s inputs.
fn inputs() -> Vec<f32> {
    let mut inputs = flat(TOKENS, FEATURES, 4);
    for row in inputs.chunks_mut(FEATURES) {
        (1..FEATURES).for_each(|c| row[c] = row[c - 1] * 0.75 + row[c] * 0.25);
        row.iter_mut().skip(3).step_by(20).for_each(|x| *x *= 8.0);
        row[7] = row[8] * 0.5;
    }
    inputs
}

/// Weight `seed` of the network: 1 is the gate, 2 up, 3 down.
fn weight(seed: u64) -> Vec<f32> {
    let (rows, columns) = if seed == 3 { (FEATURES, HIDDEN) } else { (HIDDEN, FEATURES) };
    flat(rows, columns, seed).iter().map(|w| w * 0.125).collect()
}

fn statistic() -> ChannelStatistic {
    let mut statistic = ChannelStatistic::new(FEATURES);
    inputs().chunks(100 * FEATURES).for_each(|batch| statistic.update(batch));
    statistic
}

/// `x w^T`.
fn linear(x: &[f32], w: &[f32], columns: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
    x.chunks(columns).flat_map(|x| w.chunks(columns).map(move |w| dot(x, w))).collect()
}

fn quantized(scheme: &str, values: &[f32], columns: usize) -> Vec<f32> {
    let context = TensorContext::new(ComputeDType::F32);
    fake_quantize(scheme.parse().unwrap(), context, FloatDType::F32, values, values.len() / columns, columns).unwrap()
}

/// `Q(W s) / s`.
fn trial(scheme: &str, seed: u64, scales: &[f32]) -> Vec<f32> {
    let times = |values: &[f32], by: fn(f32, f32) -> f32| -> Vec<f32> {
        values.iter().enumerate().map(|(i, w)| by(*w, scales[i % FEATURES])).collect()
    };
    times(&quantized(scheme, &times(&weight(seed), |w, s| w * s), FEATURES), |w, s| w / s)
}

/// The outputs of the network, or of its up projection alone.
fn outputs(place: &str, x: &[f32], gate: &[f32], up: &[f32]) -> Vec<f32> {
    let up = linear(x, up, FEATURES);
    if place == "linear" {
        return up;
    }
    let gate = linear(x, gate, FEATURES);
    let hidden: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    linear(&hidden, &weight(3), HIDDEN)
}

fn records(algorithm: &str) -> Vec<Value> {
    let text = include_str!("../../../../tests/golden/quark_transforms.json");
    let golden: Value = serde_json::from_str(text).unwrap();
    let of = |record: &&Value| record["algorithm"] == algorithm;
    golden["records"].as_array().unwrap().iter().filter(of).cloned().collect()
}

fn assert_near(found: &[f32], expected: &[f32], what: &Value) {
    assert_eq!(found.len(), expected.len());
    for (channel, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found / expected - 1.0).abs() < 1e-5, "{what}: {channel}: {found} {expected}");
    }
}

fn assert_chosen(candidates: &[Candidate], losses: &[f64], record: &Value) {
    let chosen = &candidates[best(losses).unwrap()];
    assert_eq!(f64::from(chosen.ratio), f64::from(record["ratio"].as_f64().unwrap() as f32), "{record}: {losses:?}");
    assert_near(&chosen.scales, &input::floats(&record["scales"]), &record["algorithm"]);
}

#[test]
fn smoothquant_scales_match_quark() {
    let mut weights = WeightStatistic::new(FEATURES, 32);
    [1, 2].into_iter().for_each(|seed| weights.update(&weight(seed)));
    for record in records("smoothquant") {
        let alpha = record["alpha"].as_f64().unwrap() as f32;
        let scales = SmoothQuant { alpha, clamp_min: 1e-3 }.scales(&statistic().abs_max(), &weights.abs_max()).unwrap();
        assert_near(&scales, &input::floats(&record["scales"]), &record["alpha"]);
    }
}

#[test]
fn awq_scales_match_quark() {
    let x = inputs();
    let mean = statistic().abs_mean();
    let candidates: Vec<Candidate> = Awq::DEFAULTS.candidates(&mean, &[]).unwrap().collect();
    for record in records("awq") {
        let (scheme, place) = (record["scheme"].as_str().unwrap(), record["place"].as_str().unwrap());
        let reference = outputs(place, &x, &weight(1), &weight(2));
        let loss = |candidate: &Candidate| {
            let trial = |seed| trial(scheme, seed, &candidate.scales);
            Awq::LOSS.sum(&reference, &outputs(place, &x, &trial(1), &trial(2)))
        };
        assert_chosen(&candidates, &candidates.iter().map(loss).collect::<Vec<f64>>(), &record);
    }
}

#[test]
fn autosmoothquant_scales_match_quark() {
    let x = inputs();
    let reference = linear(&x, &weight(2), FEATURES);
    for record in records("autosmoothquant") {
        let loss = Loss::named(&record["loss"].as_str().unwrap().to_lowercase()).unwrap();
        let settings = AutoSmoothQuant { loss, ..AutoSmoothQuant::DEFAULTS };
        let maxima = statistic().abs_max();
        let candidates: Vec<Candidate> = settings.candidates(&maxima).unwrap().collect();
        let loss_of = |candidate: &Candidate| {
            let scales = &candidate.scales;
            let divided: Vec<f32> = x.iter().enumerate().map(|(i, x)| x / scales[i % FEATURES]).collect();
            let multiplied: Vec<f32> = weight(2).iter().enumerate().map(|(i, w)| w * scales[i % FEATURES]).collect();
            let (x, w) = (quantized("int8:tensor", &divided, FEATURES), quantized("int4:g32", &multiplied, FEATURES));
            loss.sum(&reference, &linear(&x, &w, FEATURES))
        };
        assert_chosen(&candidates, &candidates.iter().map(loss_of).collect::<Vec<f64>>(), &record);
    }
}

#[test]
fn clipping_thresholds_match_quark() {
    for record in records("clip") {
        let scheme = record["scheme"].as_str().unwrap().parse().unwrap();
        let clipping = Clip::DEFAULTS.prepare(&inputs(), FEATURES, scheme).unwrap();
        let limits = clipping.limits(&weight(2), TensorContext::new(ComputeDType::F32)).unwrap();
        let expected = input::floats(&record["limits"]);
        assert_eq!(limits.len(), expected.len());
        let different = limits.iter().zip(&expected).filter(|(a, b)| (*a / *b - 1.0).abs() > 1e-6).count();
        // Near ties may fall either way.
        assert!(different * 100 <= limits.len(), "{}: {different} of {}", record["scheme"], limits.len());
    }
}
