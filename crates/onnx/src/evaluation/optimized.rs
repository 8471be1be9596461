//! The quantized model once more, as programs load it by default: by ONNX Runtime with all its graph optimizations. These turn
//! quantized operators into integer kernels, whose sums may saturate (see `verify::saturation`), and some types they do not
//! know. Nothing fails here: results are reported.

use std::collections::HashMap;
use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;

use super::classes::Classes;
use super::codes::EndCodes;
use super::in_f32;
use super::pairs::Pair;
use super::statistics::Statistics;
use crate::data::{Array, Sample};
use crate::fake_quantization::{Quantizer, is_native};
use crate::runtime::{self, RuntimeError, RuntimeOptions, Session};

/// The model in such a session, and how far its outputs are from the float model's.
pub(super) struct Optimized {
    session: Result<Box<dyn Session>, RuntimeError>,
    found: Found,
}

/// What is known of outputs.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Of each output.
    pub outputs: Vec<Statistics>,
    /// Of the first output with rows of classes.
    pub classes: Classes,
    /// Rows seen.
    pub rows: usize,
}

impl Found {
    /// Adds an output of a sample, with a label for each row of the data where there are labels.
    pub fn add(&mut self, at: usize, reference: &Array<'_>, values: &[f32], classes: bool, labels: Option<&[i64]>) {
        let Some(expected) = reference.f32s().filter(|expected| expected.len() == values.len()) else { return };
        let Some(statistics) = self.outputs.get_mut(at) else { return };
        statistics.add(expected, values);
        if classes {
            let labels = labels.map(|labels| labels.get(self.rows..).unwrap_or_default());
            let count = reference.shape().last().copied().unwrap_or(1);
            self.classes.add(count, expected, values, labels);
            self.rows += expected.len() / count;
        }
    }
}

/// The compared tensors of a sample.
pub(super) struct Compared<'a> {
    /// Outputs, each with its place among all.
    pub outputs: &'a [(usize, &'a Pair)],
    /// The place of the output that has rows of classes.
    pub classes: Option<usize>,
    /// The float model's.
    pub kept: &'a HashMap<String, Array<'static>>,
    /// The codes that the quantized model returns instead of floats.
    pub codes: &'a EndCodes,
    /// A class for each row of the data.
    pub labels: Option<&'a [i64]>,
}

impl Optimized {
    /// Opens the session for a model with so many outputs to compare; `None` where ONNX Runtime is not the engine, or
    /// nothing of the model is quantized with operators it has.
    pub fn open(model: &ModelProto, outputs: usize, options: &RuntimeOptions) -> Option<Self> {
        if !model.graph.node.iter().any(Quantizer::is) || !is_native(model, options).ok()? {
            return None;
        }
        let session = runtime::open(model, &[], &RuntimeOptions { optimize: true, ..options.clone() });
        let outputs = (0..outputs).map(|at| Statistics::of(at, outputs)).collect();
        Some(Self { session, found: Found { outputs, ..Found::default() } })
    }

    /// Compares some outputs with those that were kept of the float model.
    pub fn compare(&mut self, sample: &Sample<'_>, compared: &Compared<'_>) {
        let Ok(session) = &mut self.session else { return };
        let wanted: Vec<String> = compared.outputs.iter().map(|(_, pair)| pair.quantized.clone()).collect();
        if wanted.is_empty() {
            return;
        }
        let found = &mut self.found;
        let run = session.run(sample, &wanted, &mut |name, array| {
            let values = compared.codes.dequantized(name, array).and_then(Result::ok);
            let array = values.as_ref().unwrap_or(array);
            let Some(floats) = in_f32(array) else { return ControlFlow::Continue(()) };
            for &(at, pair) in compared.outputs.iter().filter(|(_, pair)| pair.quantized == name) {
                if let (Some(reference), Some(values)) = (compared.kept.get(&pair.reference), floats.f32s()) {
                    found.add(at, reference, values, compared.classes == Some(at), compared.labels);
                }
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = run {
            self.session = Err(error);
        }
    }

    /// The results.
    ///
    /// # Errors
    /// The reason that the session does not run.
    pub fn finish(self) -> Result<Found, String> {
        self.session.map(|_| self.found).map_err(|error| error.to_string())
    }
}
