//! Adam's step of one parameter, for the loops that update many. No parameters are kept here.
//!
//! Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, arXiv 1412.6980, with the usual constants.

use rayon::prelude::*;

const FIRST: f32 = 0.9;
const SECOND: f32 = 0.999;
const EPSILON: f32 = 1e-8;

/// The constants of one iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Adam {
    /// The learning rate over the first moment's correction.
    rate: f32,
    /// The inverse of the second moment's correction.
    inverse: f32,
}

/// The moments of parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moments {
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
}

impl Moments {
    /// Those of parameters that were never updated.
    pub fn new(parameters: usize) -> Self {
        Self { first: vec![0.0; parameters], second: vec![0.0; parameters] }
    }

    /// Updates parameters one by one.
    pub fn update(&mut self, adam: Adam, rates: impl Fn(usize) -> f32, parameters: &mut [f32], gradients: &[f32]) {
        let moments = self.first.iter_mut().zip(&mut self.second);
        for (i, ((parameter, gradient), (first, second))) in
            parameters.iter_mut().zip(gradients).zip(moments).enumerate()
        {
            *parameter -= rates(i) * adam.step(*gradient, first, second);
        }
    }
}

/// Parameters that one thread takes at a time.
const BAND: usize = 1 << 14;

impl Moments {
    /// Turns gradients into the steps of their parameters, on all threads.
    pub fn steps(&mut self, adam: Adam, gradients: &mut [f32]) {
        let moments = self.first.par_chunks_mut(BAND).zip(self.second.par_chunks_mut(BAND));
        gradients.par_chunks_mut(BAND).zip(moments).for_each(|(gradients, (first, second))| {
            let moments = first.iter_mut().zip(second);
            for (gradient, (first, second)) in gradients.iter_mut().zip(moments) {
                *gradient = adam.step(*gradient, first, second);
            }
        });
    }
}

impl Adam {
    /// The step of an iteration, counted from 1, where parameters learn at `rate`.
    pub fn new(rate: f32, iteration: u32) -> Self {
        let correction = |decay: f32| 1.0 - f64::from(decay).powf(f64::from(iteration.max(1)));
        let rate = f64::from(rate) / correction(FIRST);
        Self { rate: rate as f32, inverse: (1.0 / correction(SECOND)) as f32 }
    }

    /// The step of a parameter, updating its moments.
    #[inline(always)]
    pub fn step(self, gradient: f32, first: &mut f32, second: &mut f32) -> f32 {
        *first = FIRST * *first + (1.0 - FIRST) * gradient;
        *second = SECOND * *second + (1.0 - SECOND) * gradient * gradient;
        self.rate * *first / ((*second * self.inverse).sqrt() + EPSILON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adam_takes_a_learning_rate_step_and_reaches_the_minimum() {
        let mut moments = Moments::new(2);
        let mut x = [3.0f32, -1.0];
        let gradient = |x: &[f32; 2]| [2.0 * (x[0] - 1.0), 200.0 * (x[1] - 2.0)];
        moments.update(Adam::new(0.1, 1), |_| 1.0, &mut x, &gradient(&[3.0, -1.0]));
        assert!((x[0] - 2.9).abs() < 1e-6 && (x[1] + 0.9).abs() < 1e-6);
        for iteration in 2..2000 {
            let g = gradient(&x);
            moments.update(Adam::new(0.05, iteration), |_| 1.0, &mut x, &g);
        }
        assert!((x[0] - 1.0).abs() < 1e-2 && (x[1] - 2.0).abs() < 1e-2, "{x:?}");
    }
}
