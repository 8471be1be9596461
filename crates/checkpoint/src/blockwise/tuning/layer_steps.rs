//! Steps on layers as soon as their gradients are known: gradients of so many layers as are being summed are in memory, not of all.

use kvant_forward::forward::Vector;
use kvant_forward::forward::gradient::{Vectors, WeightGradients};
use std::collections::HashMap;

/// Gives the gradient of each layer's weight to `step` when it is complete. A layer that no token of a batch reaches takes no step.
pub(super) struct LayerSteps<'s, F> {
    /// The elements of each layer's weight.
    lengths: &'s HashMap<String, usize>,
    step: F,
    buffers: &'s mut GradientBuffers,
    norms: Option<&'s mut Vectors>,
}

/// Memory for gradients, which serves all layers and steps.
#[derive(Default)]
pub(super) struct GradientBuffers {
    /// Gradients that are not complete.
    open: HashMap<String, Vec<f32>>,
    /// Empty ones, for reuse.
    free: Vec<Vec<f32>>,
}

impl<'s, F: FnMut(&str, &mut [f32])> LayerSteps<'s, F> {
    pub(super) fn new(
        lengths: &'s HashMap<String, usize>,
        buffers: &'s mut GradientBuffers,
        norms: Option<&'s mut Vectors>,
        step: F,
    ) -> LayerSteps<'s, F> {
        LayerSteps { lengths, step, buffers, norms }
    }

    /// The steps of gradients that were not said to be complete.
    pub(super) fn finish(mut self) {
        let mut open: Vec<String> = self.buffers.open.keys().cloned().collect();
        open.sort_unstable();
        open.iter().for_each(|module| self.complete(module));
    }
}

impl<F: FnMut(&str, &mut [f32])> WeightGradients for LayerSteps<'_, F> {
    fn weight(&mut self, module: &str) -> Option<&mut [f32]> {
        let length = *self.lengths.get(module)?;
        let GradientBuffers { open, free } = &mut *self.buffers;
        if !open.contains_key(module) {
            let mut zeros = free.pop().unwrap_or_default();
            zeros.resize(length, 0.0);
            open.insert(module.to_owned(), zeros);
        }
        open.get_mut(module).map(Vec::as_mut_slice)
    }

    fn complete(&mut self, module: &str) {
        let Some(mut gradient) = self.buffers.open.remove(module) else { return };
        (self.step)(module, &mut gradient);
        gradient.clear();
        self.buffers.free.push(gradient);
    }

    fn norm(&mut self, weight: &Vector) -> Option<&mut [f32]> {
        self.norms.as_mut()?.get_mut(weight).map(Vec::as_mut_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_step_when_their_gradients_are_complete_and_share_memory() {
        let lengths = [("a", 3), ("b", 2), ("c", 4)].map(|(name, length)| (name.to_owned(), length)).into();
        let (mut buffers, mut seen) = (GradientBuffers::default(), Vec::new());
        let mut steps = LayerSteps::new(&lengths, &mut buffers, None, |module, gradient| {
            seen.push((module.to_owned(), gradient.to_vec()));
        });
        assert!(steps.weight("other").is_none());
        steps.weight("a").unwrap().copy_from_slice(&[1.0, 2.0, 3.0]);
        steps.complete("a");
        steps.weight("b").unwrap()[1] += 5.0;
        steps.weight("c").unwrap()[3] += 1.0;
        steps.weight("b").unwrap()[1] += 1.0;
        steps.complete("b");
        steps.complete("never seen");
        steps.finish();
        let expected = [("a", vec![1.0, 2.0, 3.0]), ("b", vec![0.0, 6.0]), ("c", vec![0.0, 0.0, 0.0, 1.0])];
        assert_eq!(seen, expected.map(|(name, values)| (name.to_owned(), values)));
        assert_eq!((buffers.open.len(), buffers.free.len()), (0, 2));
        assert!(buffers.free.iter().all(Vec::is_empty));
    }
}
