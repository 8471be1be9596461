//! What a transform is asked to do: a smoothing pair, what is known of it, and trials of scales. Not which layers are paired, and not
//! how a trial is run: that depends on the kind of model.

use super::{Candidate, ChannelStatistic, Loss, TransformError, WeightStatistic, best};

/// A smoothing pair whose scales are to be chosen: layers that read the same, whose weights' columns are multiplied by a scale for
/// each channel, and what feeds them, which is divided by it.
pub trait PairProblem {
    /// What is known of the inputs of the layers.
    fn inputs(&self) -> &ChannelStatistic;

    /// What is known of the weights of all the layers together.
    ///
    /// # Errors
    /// [`PairError::Stopped`] where a weight cannot be read.
    fn weights(&mut self) -> Result<WeightStatistic, PairError>;

    /// The same scales, raised where a row of what is divided would become larger than the others can bear: rows whose codes share
    /// one scale lose what is small beside the largest.
    ///
    /// # Errors
    /// [`PairError::Stopped`] where a weight cannot be read.
    fn within_rows(&mut self, scales: Vec<f32>) -> Result<Vec<f32>, PairError>;

    /// Tries scales: how far the outputs of the layers, or of the branch that they are part of, are from those of the float model.
    ///
    /// # Errors
    /// [`PairError::Unscaled`] for scales that cannot be applied, [`PairError::Stopped`] where the trial fails or somebody asked to
    /// stop.
    fn loss(&mut self, scales: &[f32], measure: Measure) -> Result<f64, PairError>;
}

/// How scales are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// The distance of outputs from those of the float model.
    pub loss: Loss,
    /// Whether inputs are quantized too, as the layers' schemes say.
    pub with_inputs: bool,
}

impl Measure {
    /// The squared error of outputs, everything quantized that the schemes ask for.
    pub const DEFAULT: Measure = Measure { loss: Loss::Mse, with_inputs: true };
}

/// Scales that were chosen for a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct PairScales {
    /// One for each channel.
    pub scales: Vec<f32>,
    /// The exponent they come from, if one was chosen.
    pub ratio: Option<f32>,
    /// The loss without scales, where they were tried.
    pub loss_before: Option<f64>,
    /// The loss with them.
    pub loss_after: Option<f64>,
}

impl PairScales {
    /// Scales of which nothing else is known.
    pub fn new(scales: Vec<f32>) -> PairScales {
        PairScales { scales, ratio: None, loss_before: None, loss_after: None }
    }
}

/// What keeps a pair from being scaled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The pair stays as it is, which is noted with this reason.
    #[error("{0}")]
    Unscaled(String),
    /// The run ends; those who run it know why.
    #[error("the run was stopped")]
    Stopped,
}

impl From<TransformError> for PairError {
    fn from(problem: TransformError) -> PairError {
        PairError::Unscaled(problem.to_string())
    }
}

/// The candidate whose trial is nearest to the float model, the first of equal ones. The first candidate is that without scales.
///
/// # Errors
/// Those of the trials, and [`PairError::Unscaled`] where no loss is a number.
pub fn search(
    pair: &mut dyn PairProblem,
    candidates: impl IntoIterator<Item = Candidate>,
    measure: Measure,
) -> Result<PairScales, PairError> {
    let (mut losses, mut tried) = (Vec::new(), Vec::new());
    for candidate in candidates {
        losses.push(pair.loss(&candidate.scales, measure)?);
        tried.push(candidate);
    }
    let Some(index) = best(&losses) else {
        return Err(PairError::Unscaled("no scales give outputs that are numbers".to_owned()));
    };
    let Candidate { ratio, scales } = tried.swap_remove(index);
    Ok(PairScales { scales, ratio: Some(ratio), loss_before: losses.first().copied(), loss_after: Some(losses[index]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::{AutoSmoothQuant, Awq, SmoothQuant, Transform};

    /// A pair whose loss is the distance of its first scale from one that is wanted.
    struct Wanted {
        inputs: ChannelStatistic,
        scale: f64,
        measures: Vec<Measure>,
        floor: f32,
    }

    impl Wanted {
        fn new(scale: f64, floor: f32) -> Wanted {
            let mut inputs = ChannelStatistic::new(2);
            inputs.update(&[4.0, 0.25]);
            Wanted { inputs, scale, measures: Vec::new(), floor }
        }
    }

    impl PairProblem for Wanted {
        fn inputs(&self) -> &ChannelStatistic {
            &self.inputs
        }

        fn weights(&mut self) -> Result<WeightStatistic, PairError> {
            let mut weights = WeightStatistic::new(2, 2);
            weights.update(&[1.0, 1.0]);
            Ok(weights)
        }

        fn within_rows(&mut self, scales: Vec<f32>) -> Result<Vec<f32>, PairError> {
            Ok(scales.into_iter().map(|scale| scale.max(self.floor)).collect())
        }

        fn loss(&mut self, scales: &[f32], measure: Measure) -> Result<f64, PairError> {
            self.measures.push(measure);
            Ok((f64::from(scales[0]) - self.scale).abs())
        }
    }

    #[test]
    fn smoothquant_follows_its_formula_and_tries_nothing() {
        let mut pair = Wanted::new(1.0, 0.75);
        let found = SmoothQuant::DEFAULTS.find(&mut pair).unwrap();
        assert_eq!((found.scales, found.ratio, found.loss_after), (vec![2.0, 0.75], Some(0.5), None));
        assert!(pair.measures.is_empty());
    }

    #[test]
    fn searches_try_what_they_say_and_choose_the_least_loss() {
        let mut pair = Wanted::new(2.0, 0.0);
        let found = AutoSmoothQuant::DEFAULTS.find(&mut pair).unwrap();
        assert_eq!((found.ratio, found.loss_before, found.loss_after), (Some(0.5), Some(1.0), Some(0.0)));
        assert_eq!(pair.measures, vec![Measure { loss: Loss::Mse, with_inputs: true }; 10]);

        let mut pair = Wanted::new(2.0, 1.5);
        let found = Awq::DEFAULTS.find(&mut pair).unwrap();
        assert_eq!((found.ratio, found.scales.as_slice()), (Some(0.5), [2.0, 0.5].as_slice()), "awq limits no rows");
        assert_eq!(pair.measures, vec![Measure { loss: Loss::Mse, with_inputs: false }; 20]);
        assert_eq!(pair.measures.len(), Awq::DEFAULTS.trials() as usize);
    }

    #[test]
    fn a_pair_without_a_loss_that_is_a_number_stays_as_it_is() {
        let found = AutoSmoothQuant::DEFAULTS.find(&mut Wanted::new(f64::NAN, 0.0));
        assert_eq!(found, Err(PairError::Unscaled("no scales give outputs that are numbers".to_owned())));
    }
}
