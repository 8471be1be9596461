//! Decides whether a layer's new codes bring the outputs of the whole model nearer to the float model's, which a smaller error of the layer
//! does not guarantee. The rest of the model is run for it, over all samples.

use std::sync::{Mutex, PoisonError};

use kvant_container::onnx::ModelProto;

use super::data::Data;
use super::incremental_executor::IncrementalExecutor;
use crate::data::Array;
use crate::error::AlgorithmError;

/// The outputs of the float model, and how near to them the quantized one has come.
pub(super) struct Selection {
    float: IncrementalExecutor,
    distance: f64,
}

impl Selection {
    /// Runs both models to their ends.
    pub fn new(
        float: ModelProto,
        quantized: &IncrementalExecutor,
        data: &mut Data<'_>,
    ) -> Result<Self, AlgorithmError> {
        let nodes = float.graph.node.len();
        let mut float = IncrementalExecutor::new(float, data)?.keeping_outputs();
        float.advance(nodes, &[], data)?;
        let mut made = Self { float, distance: f64::INFINITY };
        made.distance = made.distance(quantized, &[], data)?;
        Ok(made)
    }

    /// The distance of the quantized model with the accepted constants.
    pub fn distance_so_far(&self) -> f64 {
        self.distance
    }

    /// Goes on from where an interrupted run was.
    pub fn resume_at(&mut self, distance: f64) {
        self.distance = distance;
    }

    /// Returns whether the quantized model is nearer with these constants. If so, the next ones are compared with this.
    pub fn takes(
        &mut self,
        quantized: &IncrementalExecutor,
        constants: &[(&str, &[f32])],
        data: &Data<'_>,
    ) -> Result<bool, AlgorithmError> {
        let distance = self.distance(quantized, constants, data)?;
        let nearer = distance < self.distance;
        if nearer {
            self.distance = distance;
        }
        Ok(nearer)
    }

    /// The mean over samples and outputs of `|float - quantized|`, the root of the sum of squares.
    fn distance(
        &self,
        quantized: &IncrementalExecutor,
        constants: &[(&str, &[f32])],
        data: &Data<'_>,
    ) -> Result<f64, AlgorithmError> {
        let found = Mutex::new(Vec::new());
        let show = |name: &str, sample: usize, array: &Array<'_>| -> Result<(), AlgorithmError> {
            let wanted = self.float.tensor(name, sample)?;
            let norm = norm(&wanted, array);
            found.lock().unwrap_or_else(PoisonError::into_inner).push((sample, name.to_owned(), norm));
            Ok(())
        };
        quantized.ahead(constants, &show, data)?;
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Sums are the same in whichever thread a sample was.
        found.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Ok(found.iter().map(|(.., norm)| norm).sum::<f64>() / found.len().max(1) as f64)
    }
}

fn norm(a: &Array<'_>, b: &Array<'_>) -> f64 {
    let (a, b) = (a.to_f32s(), b.to_f32s());
    a.iter().zip(b.iter()).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::data::{DataOptions, Distribution, SampleSource, inputs};
    use crate::graph::node;
    use crate::runtime::{RuntimeChoice, RuntimeOptions};
    use crate::test_models::{floats, model, typed};

    /// Two outputs, the first of which is made before the weight is read.
    fn net(weight: f32) -> ModelProto {
        let nodes = vec![node("Neg", "n", &["x"], &["a"]), node("Mul", "m", &["a", "w"], &["b"])];
        let mut made = model(17, nodes, vec![floats("w", &[1], &[weight])], &[], &["a", "b"]);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3])];
        made
    }

    #[test]
    fn selection_keeps_only_changes_that_bring_outputs_nearer() {
        let mut samples =
            SampleSource::Random(Distribution::Normal).open(&inputs(&net(1.0).graph), &DataOptions::default()).unwrap();
        for threads in [1, 3] {
            let runtime =
                RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(threads), ..RuntimeOptions::default() };
            let (cancelled, mut progress) = (AtomicBool::new(false), |_: u64, _: u64| ());
            let mut data =
                Data { samples: &mut samples, runtime, cancelled: &cancelled, progress: &mut progress, kept: None };
            let mut quantized = IncrementalExecutor::new(net(1.5), &mut data).unwrap().keeping_outputs();
            let mut selection = Selection::new(net(1.0), &quantized, &mut data).unwrap();
            let first = selection.distance;
            quantized.advance(1, &[], &data).unwrap();
            let mut takes = |weight: f32| selection.takes(&quantized, &[("w", &[weight])], &data).unwrap();
            assert!(!takes(1.6) && takes(1.25) && !takes(1.25) && !takes(0.7) && takes(0.875));
            // Nothing but the factor differs, of which an eighth is left of a half.
            assert!((selection.distance / first - 0.25).abs() < 1e-3, "{} {first}", selection.distance);
        }
    }
}
