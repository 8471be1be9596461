//! The loop: batches, steps, an early end, and whether the codes that come out are better than the nearest ones.

use super::ActivationFunction;
use super::ada_quant::Trained;
use super::ada_round::Shares;
use super::adam::{Adam, Moments};
use super::batches::Batches;
use super::module::{Module, Sample, Samples, Shape};
use super::objective::Gradients;
use super::quadratic::Quadratic;
use super::settings::{Method, Settings};
use super::variables::{Variables, Weight};
use crate::hessian::Hessian;

/// Checks of a run that may end early.
const CHECKS: u32 = 20;
/// The share of the error that counts as gain.
const GAIN: f64 = 1e-3;
/// Samples that a check looks at.
const CHECKED: usize = 8;

/// The result for a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconstructed {
    /// The code of each weight less its zero point, `[outputs, features]`.
    pub steps: Vec<i32>,
    /// The bias, where it was trained.
    pub bias: Option<Vec<f32>>,
    /// The loss over all samples with the nearest codes.
    pub before: f64,
    /// The loss over all samples with these codes; not above `before`.
    pub after: f64,
    /// Steps that were taken.
    pub iterations: u32,
}

/// Chooses the codes of a layer's weight. If no codes with a lower loss over all samples are found, they are the nearest.
///
/// All threads of the current rayon pool take part; the result does not depend on their number.
///
/// # Errors
/// Those of the samples.
pub fn reconstruct<S: Samples + ?Sized>(
    module: &Module,
    weight: Weight<'_>,
    samples: &mut S,
    settings: &Settings,
) -> Result<Reconstructed, S::Error> {
    let batch = (settings.batch_size.max(1) as usize).min(samples.count());
    let quadratic = Quadratic::new(module, weight, samples, batch, settings.mix.is_some())?;
    reconstruct_with(module, weight, samples, settings, quadratic)
}

/// The same of a layer without a bias and without an activation function, of which the Hessian, and the input mismatch where
/// it is kept, suffice. `stop` is polled.
///
/// The losses are those of [`Reconstructed`] less what they would be without any rounding.
///
/// # Errors
/// [`Stopped`], where `stop` says so.
pub fn reconstruct_from_hessian(
    shape: Shape,
    weight: Weight<'_>,
    hessian: &Hessian,
    settings: &Settings,
    stop: &dyn Fn() -> bool,
) -> Result<Reconstructed, Stopped> {
    let module = Module { shape, function: ActivationFunction::None };
    let quadratic = Quadratic::of_hessian(shape, weight, hessian);
    reconstruct_with(&module, weight, &mut SumsOnly { stop }, settings, Some(quadratic))
}

/// Somebody asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// No samples: their sums are known.
struct SumsOnly<'a> {
    stop: &'a dyn Fn() -> bool,
}

impl Samples for SumsOnly<'_> {
    type Error = Stopped;

    fn count(&self) -> usize {
        1
    }

    fn sample(&mut self, _: usize) -> Result<Sample<'_>, Stopped> {
        Ok(Sample { patches: &[], targets: &[], positions: 0 })
    }

    fn check_cancelled(&self) -> Result<(), Stopped> {
        if (self.stop)() { Err(Stopped) } else { Ok(()) }
    }
}

fn reconstruct_with<S: Samples + ?Sized>(
    module: &Module,
    weight: Weight<'_>,
    samples: &mut S,
    settings: &Settings,
    quadratic: Option<Quadratic>,
) -> Result<Reconstructed, S::Error> {
    let batch = (settings.batch_size.max(1) as usize).min(samples.count());
    let gradients = Gradients::default();
    let mut run = Run { module, weight, samples, settings, batch, drawn: 0, quadratic, gradients };
    let nearest = weight.nearest();
    let before = run.loss(&nearest, weight.bias, usize::MAX)?;
    let (found, iterations) = run.train()?;
    let after = run.loss(&found.steps, found.bias.as_deref().or(weight.bias), usize::MAX)?;
    let better = after < before;
    let (steps, bias) = if better { (found.steps, found.bias) } else { (nearest, None) };
    let steps = steps.into_iter().map(|step| step as i32).collect();
    Ok(Reconstructed { steps, bias, before, after: if better { after } else { before }, iterations })
}

/// Codes, and a trained bias.
struct Found {
    steps: Vec<f32>,
    bias: Option<Vec<f32>>,
}

struct Run<'a, S: ?Sized> {
    module: &'a Module,
    weight: Weight<'a>,
    samples: &'a mut S,
    settings: &'a Settings,
    batch: usize,
    /// Samples that steps have seen.
    drawn: u64,
    quadratic: Option<Quadratic>,
    gradients: Gradients,
}

impl<S: Samples + ?Sized> Run<'_, S> {
    /// The mean loss over at most so many samples, evenly taken.
    fn loss(&mut self, steps: &[f32], bias: Option<&[f32]>, most: usize) -> Result<f64, S::Error> {
        let weights = self.weight.restored(steps);
        if let Some(quadratic) = &self.quadratic {
            return Ok(quadratic.differentiate(&weights, bias, &mut self.gradients));
        }
        let all = self.samples.count();
        let taken = all.min(most).max(1);
        let mut sum = 0.0;
        for index in 0..taken {
            self.samples.check_cancelled()?;
            let sample = self.samples.sample(index * all / taken)?;
            sum += self.module.loss(&weights, bias, sample, &mut self.gradients);
        }
        Ok(sum / taken as f64)
    }

    fn variables(&self) -> Box<dyn Variables> {
        match self.settings.method {
            Method::AdaRound(settings) => Box::new(Shares::new(self.weight, settings.strength)),
            Method::AdaQuant => Box::new(Trained::new(self.weight)),
        }
    }

    /// Trains, and gives the best codes that were seen where checks were made, else the last, with the number of steps.
    fn train(&mut self) -> Result<(Found, u32), S::Error> {
        let settings = *self.settings;
        let mut variables = self.variables();
        let mut bias = self.bias()?;
        let mut batches = Batches::new(self.samples.count(), settings.seed);
        let mut best = None;
        let every = settings.iterations.div_ceil(CHECKS).max(1);
        // The quadratic form knows the error of all samples as soon as it is asked.
        let checked = settings.early_stop || self.quadratic.is_some();
        let warm = (settings.warm_start() * settings.iterations as f32) as u32;
        for iteration in 0..settings.iterations {
            self.samples.check_cancelled()?;
            let moved = bias.as_ref().map(|bias| bias.values.as_slice()).or(self.weight.bias);
            self.differentiate(variables.weights(), moved, &mut batches)?;
            let adam = Adam::new(settings.learning_rate, iteration + 1);
            let beta = match settings.method {
                Method::AdaRound(settings) => settings.beta(iteration, self.settings.iterations),
                Method::AdaQuant => None,
            };
            variables.step(&self.gradients.weights, adam, beta);
            if let Some(bias) = &mut bias {
                bias.step(adam, &self.gradients.bias);
            }
            let done = iteration + 1;
            if checked && done > warm && done % every == 0 {
                let found = Found { steps: variables.rounded(), bias: bias.as_ref().map(|bias| bias.values.clone()) };
                if self.check(found, &mut best)? && settings.early_stop {
                    return Ok((best.map_or_else(|| self.untouched(), |best: Best| best.found), done));
                }
            }
        }
        let last = Found { steps: variables.rounded(), bias: bias.map(|bias| bias.values) };
        Ok((best.map_or(last, |best| best.found), settings.iterations))
    }

    fn untouched(&self) -> Found {
        Found { steps: self.weight.nearest(), bias: None }
    }

    /// The gradients of the next batch, or of all samples where that costs no more.
    fn differentiate(&mut self, weights: &[f32], bias: Option<&[f32]>, batches: &mut Batches) -> Result<(), S::Error> {
        if let Some(quadratic) = &self.quadratic {
            quadratic.differentiate(weights, bias, &mut self.gradients);
            return Ok(());
        }
        for number in 0..self.batch {
            let index = batches.draw();
            let sample = match self.settings.mix {
                Some(mix) => self.samples.mixed(index, mix, self.drawn)?,
                None => self.samples.sample(index)?,
            };
            self.drawn += 1;
            let place = (number == 0, self.batch);
            self.module.differentiate(weights, bias, sample, place, &mut self.gradients);
        }
        Ok(())
    }

    /// Evaluates the current error and returns whether it has stopped falling.
    fn check(&mut self, found: Found, best: &mut Option<Best>) -> Result<bool, S::Error> {
        let loss = self.loss(&found.steps, found.bias.as_deref().or(self.weight.bias), CHECKED)?;
        let since = match best {
            Some(best) if loss >= best.loss * (1.0 - GAIN * best.loss.signum()) => best.since + 1,
            _ => 0,
        };
        match best {
            Some(best) if loss >= best.loss => best.since = since,
            _ => *best = Some(Best { loss, found, since }),
        }
        Ok(since >= self.patience())
    }

    /// Checks without gain before a run ends. The shares of AdaRound are driven to their ends late, and it is then that the
    /// rounded layer gains.
    fn patience(&self) -> u32 {
        match self.settings.method {
            Method::AdaRound(_) => CHECKS / 2,
            Method::AdaQuant => CHECKS / 5,
        }
    }

    /// The bias to be trained, if there is one.
    fn bias(&mut self) -> Result<Option<TrainedBias>, S::Error> {
        let Some(values) = self.weight.bias.filter(|_| self.settings.update_bias) else { return Ok(None) };
        let rates = match self.settings.method {
            Method::AdaQuant => vec![1.0; values.len()],
            // A bias moves as the weight of an input that is always of the inputs' usual size.
            Method::AdaRound(_) => {
                let size = root_mean_square(self.samples.sample(0)?.patches);
                let of_output = self.weight.steps.len() / values.len().max(1);
                self.weight.steps.iter().step_by(of_output.max(1)).map(|steps| steps.scale * size).collect()
            }
        };
        Ok(Some(TrainedBias { moments: Moments::new(values.len()), values: values.to_vec(), rates }))
    }
}

/// The best codes so far.
struct Best {
    loss: f64,
    found: Found,
    /// Checks since the error fell.
    since: u32,
}

/// A bias under training.
struct TrainedBias {
    values: Vec<f32>,
    /// The factor of the learning rate.
    rates: Vec<f32>,
    moments: Moments,
}

impl TrainedBias {
    fn step(&mut self, adam: Adam, gradients: &[f32]) {
        self.moments.update(adam, |output| self.rates[output], &mut self.values, gradients);
    }
}

fn root_mean_square(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    (sum / values.len().max(1) as f64).sqrt() as f32
}

#[cfg(test)]
mod tests;
