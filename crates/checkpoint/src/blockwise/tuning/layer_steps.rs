//! Steps on layers as soon as their gradients are known: gradients of so many layers as are being summed are in memory, not of all.

use kvant_forward::forward::Vector;
use kvant_forward::forward::gradient::{Vectors, WeightGradients};
use std::collections::{BTreeMap, HashMap};

/// The layers that learn, and memory for their gradients, which serves all layers and steps.
pub(super) struct GradientBuffers {
    layers: HashMap<String, LearningLayer>,
    /// Gradients that are not complete.
    open: BTreeMap<String, Vec<f32>>,
    /// Empty ones, for reuse.
    free: Vec<Vec<f32>>,
}

struct LearningLayer {
    /// Its place among the layers that learn.
    index: usize,
    /// The elements of its weight.
    length: usize,
}

impl GradientBuffers {
    /// For layers by their modules, each with the elements of its weight.
    pub(super) fn new<'m>(layers: impl Iterator<Item = (&'m str, usize)>) -> GradientBuffers {
        let layers = layers.enumerate();
        let layers = layers.map(|(index, (module, length))| (module.to_owned(), LearningLayer { index, length }));
        GradientBuffers { layers: layers.collect(), open: BTreeMap::new(), free: Vec::new() }
    }
}

/// Gives the gradient of each layer's weight to `step` when it is complete, with the layer's place. A layer that no token of a batch reaches
/// takes no step.
pub(super) struct LayerSteps<'s, F> {
    pub(super) buffers: &'s mut GradientBuffers,
    pub(super) norms: Option<&'s mut Vectors>,
    pub(super) step: F,
}

impl<F: FnMut(usize, &mut [f32])> LayerSteps<'_, F> {
    /// The steps of gradients that were not said to be complete.
    pub(super) fn finish(mut self) {
        while let Some((module, gradient)) = self.buffers.open.pop_first() {
            self.take(&module, gradient);
        }
    }

    fn take(&mut self, module: &str, mut gradient: Vec<f32>) {
        if let Some(layer) = self.buffers.layers.get(module) {
            (self.step)(layer.index, &mut gradient);
        }
        gradient.clear();
        self.buffers.free.push(gradient);
    }
}

impl<F: FnMut(usize, &mut [f32])> WeightGradients for LayerSteps<'_, F> {
    fn weight(&mut self, module: &str) -> Option<&mut [f32]> {
        let GradientBuffers { layers, open, free } = &mut *self.buffers;
        let length = layers.get(module)?.length;
        let gradient = open.entry(module.to_owned()).or_insert_with(|| {
            let mut zeros = free.pop().unwrap_or_default();
            zeros.resize(length, 0.0);
            zeros
        });
        Some(gradient)
    }

    fn complete(&mut self, module: &str) {
        if let Some(gradient) = self.buffers.open.remove(module) {
            self.take(module, gradient);
        }
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
        let mut buffers = GradientBuffers::new([("a", 3), ("b", 2), ("c", 4)].into_iter());
        let mut seen = Vec::new();
        let step = |layer: usize, gradient: &mut [f32]| seen.push((["a", "b", "c"][layer], gradient.to_vec()));
        let mut steps = LayerSteps { buffers: &mut buffers, norms: None, step };
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
        assert_eq!(seen, expected);
        assert_eq!((buffers.open.len(), buffers.free.len()), (0, 2));
        assert!(buffers.free.iter().all(Vec::is_empty));
    }
}
