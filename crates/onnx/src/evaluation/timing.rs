//! How long an inference takes in ONNX Runtime, of a model alone or beside its reference. Programs that run one model are the
//! measure: all graph optimizations, and a pool of threads of the session's own.
//!
//! Both models take turns, an inference each, and the one that goes first changes: what disturbs the machine disturbs both. The
//! number of rounds follows from the time that the first ones take.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kvant_container::onnx::ModelProto;
use serde::Serialize;

use super::recast::Recast;
use super::{EvaluationError, QUANTIZED, REFERENCE};
use crate::data::{Sample, Samples};
use crate::runtime::{self, RuntimeOptions, Session};

/// Rounds that are not counted: the first ones allocate memory and fill caches.
const WARM_UP: usize = 5;
/// The time that rounds are to take in all.
const BUDGET: Duration = Duration::from_secs(4);
/// Rounds that are measured at most.
const MOST: usize = 500;
/// Rounds that quartiles need, unless they take longer than [`PATIENCE`].
const FEW: usize = 20;
/// Rounds that are measured in any case.
const LEAST: usize = 5;
/// The time that [`FEW`] rounds may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Times of inferences of one model, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct InferenceTime {
    /// The median.
    pub median_ms: f64,
    /// The lower quartile.
    pub q1_ms: f64,
    /// The upper quartile.
    pub q3_ms: f64,
}

/// How long an inference takes.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    /// The engine and its version.
    pub engine: String,
    /// Threads of each session.
    pub threads: usize,
    /// Measured inferences of each model.
    pub runs: usize,
    /// Whether inputs are made up.
    pub made_up_inputs: bool,
    /// The model.
    pub model: InferenceTime,
    /// Its reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<InferenceTime>,
    /// The median of the model divided by that of its reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

impl Timing {
    /// Returns whether the model is slower than its reference by more than what measurements vary: its median is above the
    /// reference's upper quartile.
    pub fn is_slower(&self) -> bool {
        self.reference.is_some_and(|reference| self.model.median_ms > reference.q3_ms)
    }
}

/// Measures a model on samples of its reference, or on samples of the model where there is no reference. Samples take turns too. `options` name the library
/// and the threads, one where they name none; the engine is always ONNX Runtime. `progress` is told the rounds done and all that there
/// will be, and may end the measurement.
///
/// # Errors
/// ONNX Runtime is not found or does not run one of the models, the data, and a user who asks to stop.
pub fn time(
    model: &ModelProto,
    reference: Option<&ModelProto>,
    samples: &mut Samples,
    options: &RuntimeOptions,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Timing, EvaluationError> {
    let mut timed = vec![Timed::open(model, reference, QUANTIZED, options)?];
    if let Some(reference) = reference {
        timed.push(Timed::open(reference, None, REFERENCE, options)?);
    }
    let mut rounds = WARM_UP + LEAST;
    let mut round = 0;
    let mut begun = Instant::now();
    while round < rounds {
        if round == 1 {
            // The first round is the slowest.
            begun = Instant::now();
        }
        if round == WARM_UP {
            rounds = WARM_UP + rounds_of(begun.elapsed() / (WARM_UP as u32 - 1));
        }
        let sample = samples.sample(round % samples.len())?;
        let count = timed.len();
        for turn in 0..count {
            timed[(turn + round) % count].run(&sample)?;
        }
        round += 1;
        if progress(round, rounds).is_break() {
            return Err(EvaluationError::Cancelled);
        }
    }
    let mut times = timed.iter().map(Timed::times);
    let (Some(of_model), of_reference) = (times.next(), times.next()) else { return Err(EvaluationError::Cancelled) };
    Ok(Timing {
        engine: timed[0].session.name(),
        threads: options.threads.unwrap_or(1),
        runs: rounds - WARM_UP,
        made_up_inputs: samples.random(),
        model: of_model,
        reference: of_reference,
        ratio: of_reference.map(|reference| of_model.median_ms / reference.median_ms),
    })
}

/// The number of rounds to measure where one takes so long.
fn rounds_of(round: Duration) -> usize {
    let within = |time: Duration| (time.as_secs_f64() / round.as_secs_f64().max(1e-9)) as usize;
    within(BUDGET).min(MOST).max(within(PATIENCE).clamp(LEAST, FEW))
}

/// A model, and how long its inferences took.
struct Timed {
    session: Box<dyn Session>,
    which: &'static str,
    wanted: Vec<String>,
    /// How it takes the samples of its reference.
    recast: Option<Recast>,
    seconds: Vec<f64>,
}

impl Timed {
    fn open(
        model: &ModelProto,
        reference: Option<&ModelProto>,
        which: &'static str,
        options: &RuntimeOptions,
    ) -> Result<Self, EvaluationError> {
        let failed = |error| EvaluationError::Runtime { which, error };
        let session = runtime::open_alone(model, options).map_err(failed)?;
        let recast = reference.map(|reference| Recast::of(&reference.graph, &model.graph));
        let wanted = model.graph.output.iter().map(|value| value.name().to_owned()).collect();
        Ok(Self { session, which, wanted, recast, seconds: Vec::new() })
    }

    fn run(&mut self, sample: &Sample<'_>) -> Result<(), EvaluationError> {
        let own = self.recast.as_ref().map(|recast| recast.sample(sample)).transpose()?;
        let inputs = own.as_ref().unwrap_or(sample);
        let begun = Instant::now();
        let run = self.session.run(inputs, &self.wanted, &mut |_, _| ControlFlow::Break(()));
        self.seconds.push(begun.elapsed().as_secs_f64());
        run.map_err(|error| EvaluationError::Runtime { which: self.which, error })
    }

    fn times(&self) -> InferenceTime {
        let mut sorted = self.seconds[WARM_UP..].to_vec();
        sorted.sort_by(f64::total_cmp);
        let [q1_ms, median_ms, q3_ms] = [0.25, 0.5, 0.75].map(|share| 1e3 * quantile(&sorted, share));
        InferenceTime { median_ms, q1_ms, q3_ms }
    }
}

/// A quantile of sorted numbers, between the two that are next to it.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    at(below) + (at(above) - at(below)) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_fill_the_budget_within_bounds() {
        let rounds = |millis: u64| rounds_of(Duration::from_millis(millis));
        assert_eq!([rounds(1), rounds(40), rounds(1000), rounds(6000), rounds(60_000)], [500, 100, 20, 10, 5]);
        assert_eq!(rounds_of(Duration::ZERO), 500);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let sorted = [1.0, 2.0, 3.0, 5.0];
        assert_eq!([0.25, 0.5, 0.75, 1.0].map(|share| quantile(&sorted, share)), [1.75, 2.5, 3.5, 5.0]);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn models_are_slower_beyond_the_upper_quartile() {
        let of = |median_ms: f64, q3_ms: f64| InferenceTime { median_ms, q1_ms: 1.0, q3_ms };
        let timing = |model: f64, reference: Option<InferenceTime>| Timing {
            engine: String::new(),
            threads: 1,
            runs: 5,
            made_up_inputs: true,
            model: of(model, model),
            reference,
            ratio: None,
        };
        assert!(timing(2.1, Some(of(1.9, 2.0))).is_slower());
        assert!(!timing(1.95, Some(of(1.9, 2.0))).is_slower() && !timing(9.0, None).is_slower());
    }
}
