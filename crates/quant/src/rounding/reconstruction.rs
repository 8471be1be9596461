//! AdaRound and AdaQuant as selectable roundings: their settings, and the conversion of a layer to the problem that
//! [`reconstruction`](crate::reconstruction) trains.
//!
//! A layer reads what the quantized model gives it, with all layers before it quantized, and should match its output in
//! the float model. Where there are samples, steps see these; else the Hessian and the input mismatch, which determine
//! the error of a layer without an activation function. A layer whose error does not fall keeps its nearest codes.

use super::algorithm::{Rounding, RoundingRow};
use super::nearest::nearest;
use super::problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer};
use super::rtn::RoundingError;
use crate::hessian::HessianError;
use crate::options::{self, OptionRow, Settings as Shown, Values};
use crate::quant_tensor::QuantTensor;
use crate::reconstruction::{
    CodeSteps, InputMix, Method, Module, Regularization, Settings, Weight, reconstruct, reconstruct_from_hessian,
};
use crate::scheme::{TensorScheme, ZeroPoint};
use serde::{Deserialize, Serialize};

/// The settings that both have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Steps of the optimizer for each layer.
    pub num_iterations: u32,
    /// Adam's learning rate.
    pub learning_rate: f32,
    /// Samples in a step.
    pub batch_size: u32,
    /// Decides the order of the samples.
    pub seed: u32,
    /// Whether to stop when a layer's error has not fallen for a while.
    pub early_stop: bool,
    /// Whether biases are trained as well.
    pub update_bias: bool,
    /// The share of a layer's inputs that a step takes from the quantized model, element by element at random; the rest is
    /// the float model's.
    pub drop_ratio: f32,
    /// Whether a layer keeps what was found only where the outputs of the whole model come nearer to the float model's.
    pub selective_update: bool,
}

impl Training {
    /// As in Quark's presets, where the learning rate is that of AdaRound.
    const DEFAULTS: Training = Training {
        num_iterations: 1000,
        learning_rate: 0.1,
        batch_size: 1,
        seed: 1_705_472_343,
        early_stop: true,
        update_bias: false,
        drop_ratio: 1.0,
        selective_update: false,
    };

    fn with(&self, method: Method) -> Settings {
        Settings {
            method,
            iterations: self.num_iterations,
            learning_rate: self.learning_rate,
            batch_size: self.batch_size,
            seed: self.seed.into(),
            early_stop: self.early_stop,
            update_bias: self.update_bias,
            mix: InputMix::new(self.drop_ratio, self.seed.into()),
        }
    }
}

/// AdaRound: each weight goes up or down to a code, which is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdaRound {
    /// The settings that AdaQuant has too. The learning rate is that of the shares.
    #[serde(flatten)]
    pub training: Training,
    /// The weight of the regularization.
    pub reg_param: f32,
    /// The regularization's power, from the first step with it to the last.
    pub beta_range: Span,
    /// The share of the steps before regularization sets in.
    pub warm_start: f32,
}

/// AdaQuant: the weights are trained through their rounding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdaQuant {
    /// The settings that AdaRound has too. The learning rate is that of the weights.
    #[serde(flatten)]
    pub training: Training,
}

/// A number that changes from a first to a last value: `20..2`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span {
    /// The first value.
    pub first: f32,
    /// The last value.
    pub last: f32,
}

impl From<Span> for String {
    fn from(span: Span) -> String {
        format!("{}..{}", span.first, span.last)
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Span, String> {
        let span = text
            .split_once("..")
            .and_then(|(first, last)| Some(Span { first: first.parse().ok()?, last: last.parse().ok()? }));
        span.ok_or_else(|| format!("`{text}` is not two numbers such as 20..2"))
    }
}

impl AdaRound {
    /// As in Quark's presets.
    pub const DEFAULTS: AdaRound = AdaRound {
        training: Training::DEFAULTS,
        reg_param: Regularization::DEFAULTS.strength,
        beta_range: Span { first: Regularization::DEFAULTS.first_beta, last: Regularization::DEFAULTS.last_beta },
        warm_start: Regularization::DEFAULTS.warm_start,
    };

    fn method(&self) -> Method {
        Method::AdaRound(Regularization {
            strength: self.reg_param,
            first_beta: self.beta_range.first,
            last_beta: self.beta_range.last,
            warm_start: self.warm_start,
        })
    }
}

impl AdaQuant {
    /// As in Quark's presets.
    pub const DEFAULTS: AdaQuant = AdaQuant { training: Training { learning_rate: 1e-5, ..Training::DEFAULTS } };

    fn method(&self) -> Method {
        Method::AdaQuant
    }
}

const fn option(name: &'static str, values: Values, about: &'static str) -> OptionRow {
    OptionRow { name, values, about }
}

const TRAINING_OPTIONS: [OptionRow; 8] = [
    option("num_iterations", Values::COUNT, "steps of the optimizer for each layer"),
    option("learning_rate", Values::RATE, "Adam's learning rate"),
    option("batch_size", Values::COUNT, "samples in a step; checkpoints: steps see all samples"),
    option("seed", Values::SEED, "decides the order of the samples"),
    option("early_stop", Values::SWITCH, "stop a layer whose error no longer falls"),
    option("update_bias", Values::SWITCH, "graphs: train biases as well"),
    option("drop_ratio", Values::SHARE, "graphs: the share of inputs that is the quantized model's"),
    option("selective_update", Values::SWITCH, "graphs: keep what brings the model's outputs nearer"),
];

const POWERS: Values = Values {
    text: "two numbers from 1 to 100, such as 20..2",
    accepts: |text| {
        let is_power = |text: &str| options::is_number(text, 1.0, 100.0);
        text.split_once("..").is_some_and(|(first, last)| is_power(first) && is_power(last))
    },
};

const REGULARIZATION_OPTIONS: [OptionRow; 3] = [
    option("reg_param", Values::RATE, "how much the regularization counts"),
    option("beta_range", POWERS, "the regularization's power, first and last"),
    option("warm_start", Values::SHARE, "the share of the steps without regularization"),
];

/// A row for each.
pub(super) fn rows() -> [RoundingRow; 2] {
    let ada_round = RoundingRow::of(
        AdaRound::DEFAULTS,
        [&TRAINING_OPTIONS[..], &REGULARIZATION_OPTIONS].concat(),
        "trains for each weight whether it is rounded up or down, so that the layer's output stays",
    );
    let ada_quant = RoundingRow::of(
        AdaQuant::DEFAULTS,
        TRAINING_OPTIONS.to_vec(),
        "trains the weights through their rounding, so that the layer's output stays",
    );
    [ada_round.with_paper("arXiv 2004.10568"), ada_quant.with_paper("arXiv 2006.10518")]
}

/// Both differ only in the trained variables.
macro_rules! rounding {
    ($settings:ty, $name:literal) => {
        impl Rounding for $settings {
            fn name(&self) -> &str {
                $name
            }

            fn settings(&self) -> Shown {
                options::shown(self)
            }

            fn needs(&self) -> Needs {
                Needs::Outputs
            }

            fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError> {
                train(problem, &self.training.with(self.method()))
            }

            fn refuses(&self, scheme: &TensorScheme) -> Option<&'static str> {
                refuses(scheme)
            }

            fn needs_graph(&self) -> Option<&'static str> {
                let Training { drop_ratio, selective_update, update_bias, .. } = self.training;
                match (drop_ratio < 1.0, selective_update, update_bias) {
                    (true, _, _) => Some("drop_ratio"),
                    (_, true, _) => Some("selective_update"),
                    (_, _, true) => Some("update_bias"),
                    _ => None,
                }
            }

            fn peak_bytes(&self, features: usize, rows: usize) -> u64 {
                peak_bytes(features, rows)
            }

            fn operations(&self, features: usize, rows: usize) -> f64 {
                2.0 * f64::from(self.training.num_iterations) * rows as f64 * (features as f64).powi(2)
            }

            fn takes_normalizations(&self) -> bool {
                true
            }

            fn mixes_inputs(&self) -> bool {
                self.training.drop_ratio < 1.0
            }

            fn is_selective(&self) -> bool {
                self.training.selective_update
            }

            fn trains_biases(&self) -> bool {
                self.training.update_bias
            }
        }
    };
}

rounding!(AdaRound, "adaround");
rounding!(AdaQuant, "adaquant");

/// Codes of more bits have neighbours closer than f32 can tell.
const MOST_BITS: u32 = 16;

fn refuses(scheme: &TensorScheme) -> Option<&'static str> {
    match scheme {
        TensorScheme::Int(int) if int.zero_point == ZeroPoint::Float => Some("its zero points lie between codes"),
        TensorScheme::Int(int) if int.format.bits() <= MOST_BITS => None,
        _ => Some("it trains integers of at most 16 bits"),
    }
}

/// The matrix of the Hessian, and of the weight its values, what is trained with two moments, gradients and differences.
fn peak_bytes(features: usize, rows: usize) -> u64 {
    let (features, rows) = (features as u64, rows as u64);
    4 * features * features + 40 * features * rows
}

fn train(problem: &mut LayerProblem<'_>, settings: &Settings) -> Result<RoundedLayer, LayerError> {
    problem.check_cancelled()?;
    let tensor = nearest(problem)?;
    let codes = match (problem.grid, tensor.scheme()) {
        (Grid::Fixed { codes, .. }, _) => codes,
        (Grid::Scheme { .. }, TensorScheme::Int(int)) => (int.format.min(), int.format.max()),
        (Grid::Scheme { scheme, .. }, _) => return Err(LayerError::Other(format!("`{scheme}` has no integers"))),
    };
    let Some(steps) = PartSteps::of(&tensor, codes) else { return Ok(RoundedLayer::new(tensor)) };
    if !problem.weight.iter().all(|weight| weight.is_finite()) {
        return Err(RoundingError::NotFinite.into());
    }
    let weight = Weight { values: problem.weight, features: steps.part, steps: &steps.steps, bias: problem.bias };
    let found = match (problem.samples.as_deref_mut(), problem.inputs) {
        (Some(samples), _) => {
            let module = Module { shape: problem.shape, function: problem.function.clone() };
            reconstruct(&module, weight, samples, settings).map_err(LayerError::Sample)?
        }
        (None, Some(inputs)) => {
            let stop = || problem.check_cancelled().is_err();
            let found = reconstruct_from_hessian(problem.shape, weight, &inputs.hessian, settings, &stop);
            found.map_err(|_| LayerError::Cancelled)?
        }
        (None, None) => return Err(RoundingError::from(HessianError::NoData).into()),
    };
    let code = |(step, affine): (&i32, crate::parameters::Affine)| i64::from(*step) + affine.zero_point as i64;
    let codes = found.steps.iter().zip(tensor.affines()).map(code).collect();
    Ok(RoundedLayer { bias: found.bias, ..RoundedLayer::new(tensor.with_integers(codes)) })
}

/// The codes of a weight in parts of its rows that share a scale.
struct PartSteps {
    /// Weights of a part.
    part: usize,
    steps: Vec<CodeSteps>,
}

impl PartSteps {
    /// `None` where a scale is zero or NaN.
    fn of(tensor: &QuantTensor, (lowest, highest): (i64, i64)) -> Option<PartSteps> {
        let (_, columns) = tensor.shape();
        // Where the last tile of a row is narrower, parts are as long as divides both.
        let part = greatest_common_divisor(tensor.tile().1.min(columns.max(1)), columns.max(1));
        let steps = tensor.affines().step_by(part).map(|affine| {
            let bound = |code: i64| (code as f64 - affine.zero_point) as f32;
            let steps = CodeSteps { scale: affine.scale, lowest: bound(lowest), highest: bound(highest) };
            (affine.scale > 0.0 && affine.scale.is_finite()).then_some(steps)
        });
        Some(PartSteps { part, steps: steps.collect::<Option<_>>()? })
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hessian::Hessian;
    use crate::reconstruction::{ActivationFunction, Shape};
    use crate::rounding::{SharedInputs, TensorContext};
    use kvant_numeric::ComputeDType;
    use std::sync::atomic::AtomicBool;

    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut random = crate::random::SplitMix64::new(seed);
        (0..count).map(|_| (random.uniform() - 0.5) as f32).collect()
    }

    /// Inputs that go with each other, and their Hessian with a mismatch.
    fn hessian(tokens: usize, features: usize) -> (Hessian, Vec<f32>, Vec<f32>) {
        let mut inputs = noise(tokens * features, 7);
        for row in inputs.chunks_mut(features) {
            (1..features).for_each(|i| row[i] = 0.8 * row[i - 1] + 0.4 * row[i]);
        }
        let floats: Vec<f32> = inputs.iter().zip(noise(tokens * features, 8)).map(|(x, d)| x + 0.05 * d).collect();
        let mut hessian = Hessian::with_mismatch(features);
        hessian.add_with_float(&inputs, &mut floats.clone());
        (hessian, inputs, floats)
    }

    /// `|Q X - W X'|^2`, by its definition.
    fn error(weight: &[f32], quantized: &[f32], inputs: &[f32], floats: &[f32], features: usize) -> f64 {
        let mut sum = 0.0;
        for (w, q) in weight.chunks(features).zip(quantized.chunks(features)) {
            for (x, f) in inputs.chunks(features).zip(floats.chunks(features)) {
                let made: f64 = q.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let wanted: f64 = w.iter().zip(f).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                sum += (made - wanted).powi(2);
            }
        }
        sum
    }

    #[test]
    fn sums_alone_bring_outputs_nearer_to_the_float_model() {
        let (rows, features) = (6, 40);
        let (hessian, inputs, floats) = hessian(300, features);
        let (weight, shared) = (noise(rows * features, 1), SharedInputs::new(hessian));
        for text in ["int4:channel", "int4:g10", "uint4:g20:zp", "uint2:g20:zp", "int4:b4x16"] {
            let scheme = text.parse().unwrap();
            let grid = Grid::Scheme { scheme, context: TensorContext::new(ComputeDType::F32), from: &weight };
            let mut problem = LayerProblem {
                layer: "fc",
                shape: Shape { groups: 1, outputs: rows, features },
                weight: &weight,
                grid,
                bias: None,
                function: &ActivationFunction::None,
                inputs: Some(&shared),
                samples: None,
                cancelled: &AtomicBool::new(false),
            };
            let plain = nearest(&problem).unwrap();
            let before = error(&weight, &plain.dequantize(), &inputs, &floats, features);
            let training = Training { learning_rate: 1e-3, num_iterations: 300, ..Training::DEFAULTS };
            let ada_quant = AdaQuant { training };
            let training = Training { num_iterations: 400, ..Training::DEFAULTS };
            let ada_round = AdaRound { training, ..AdaRound::DEFAULTS };
            for rounding in [&ada_round as &dyn Rounding, &ada_quant] {
                assert_eq!(rounding.refuses(&scheme), None);
                let made = rounding.round(&mut problem).unwrap().tensor;
                assert_eq!((made.scales(), made.zero_points()), (plain.scales(), plain.zero_points()));
                let after = error(&weight, &made.dequantize(), &inputs, &floats, features);
                // AdaQuant keeps the nearest codes where steps of its size find no better ones.
                let gains = after < before || (rounding.name() == "adaquant" && after == before);
                assert!(gains, "{} {text}: {before} {after}", rounding.name());
                let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                assert_eq!(pool.install(|| rounding.round(&mut problem)).unwrap().tensor, made, "{text}");
            }
        }
        for text in ["uint4:g32:fzp", "e4m3:channel", "mx6"] {
            assert!(AdaRound::DEFAULTS.refuses(&text.parse().unwrap()).is_some(), "{text}");
        }
    }

    #[test]
    fn both_have_the_same_eight_options_in_one_order_and_adaround_three_more() {
        let names = |settings: Shown| settings.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (round, quant) = (names(AdaRound::DEFAULTS.settings()), names(AdaQuant::DEFAULTS.settings()));
        assert_eq!(round[..8], quant);
        assert_eq!(round[8..], ["reg_param", "beta_range", "warm_start"]);
        let value = |settings: Shown| settings[1].1.clone();
        assert_eq!(value(AdaRound::DEFAULTS.settings()), "0.1");
        assert_eq!(value(AdaQuant::DEFAULTS.settings()), "0.00001");
    }

    #[test]
    fn training_stops_when_cancelled() {
        let (hessian, ..) = hessian(30, 8);
        let (weight, shared) = (noise(16, 1), SharedInputs::new(hessian));
        let context = TensorContext::new(ComputeDType::F32);
        let mut problem = LayerProblem {
            layer: "fc",
            shape: Shape { groups: 1, outputs: 2, features: 8 },
            weight: &weight,
            grid: Grid::Scheme { scheme: "int4:channel".parse().unwrap(), context, from: &weight },
            bias: None,
            function: &ActivationFunction::None,
            inputs: Some(&shared),
            samples: None,
            cancelled: &AtomicBool::new(true),
        };
        assert!(matches!(AdaRound::DEFAULTS.round(&mut problem), Err(LayerError::Cancelled)));
    }
}
