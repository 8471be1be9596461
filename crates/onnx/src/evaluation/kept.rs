//! The outputs of a float model, kept: many quantized models are measured against them, and the float model runs once.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;

use super::classes::Classes;
use super::statistics::Statistics;
use super::{EvaluationError, QUANTIZED, REFERENCE, in_f32, of_classes, open, refuse_few_labels};
use crate::data::{Array, Samples};
use crate::fake_quantization::{Quantizer, is_native};
use crate::runtime::{self, RuntimeOptions, Session};
use crate::tensor_store::TensorStore;

/// The quality of a quantized model's outputs relative to its float model.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Quality {
    /// `10 log10(sum r^2 / sum (r - q)^2)` of the worst output; negative infinity where one is no number.
    pub sqnr_db: f64,
    /// Share of samples whose label is the likeliest class; `None` without labels or classes.
    pub top1: Option<f64>,
    /// The same of the float model.
    pub reference_top1: Option<f64>,
}

impl Quality {
    /// By how many percentage points of top-1 accuracy the float model is better.
    pub fn drop(&self) -> Option<f64> {
        Some((self.reference_top1? - self.top1?) * 100.0)
    }
}

/// The outputs of a float model on samples: in memory up to the budget of its run, in a temporary file beyond it.
pub struct KeptOutputs {
    names: Vec<String>,
    store: TensorStore,
    samples: usize,
    /// The first output of floats with rows of classes, if there is one.
    classes: Option<String>,
    labels: Option<Vec<i64>>,
}

impl KeptOutputs {
    /// Runs the float model on all samples. `labels` are classes, one for each row of the data.
    pub fn new(
        model: &ModelProto,
        samples: &mut Samples,
        labels: Option<Vec<i64>>,
        options: &RuntimeOptions,
    ) -> Result<Self, EvaluationError> {
        let failed = |error| EvaluationError::Runtime { which: REFERENCE, error };
        let names: Vec<String> = model.graph.output.iter().map(|value| value.name().to_owned()).collect();
        let mut session = runtime::open(model, &names, options).map_err(failed)?;
        let store = TensorStore::new(options.budget, options.scratch.clone().unwrap_or_else(std::env::temp_dir));
        let mut classes = BTreeSet::new();
        for number in 0..samples.len() {
            let (mut kept, mut stored) = (0, Ok(()));
            let run = session.run(&samples.sample(number)?, &names, &mut |name, array| {
                let Some(floats) = in_f32(array) else { return ControlFlow::Continue(()) };
                kept += 1;
                if of_classes(&floats) {
                    classes.insert(name.to_owned());
                }
                stored = store.put(name, number, floats.into_owned());
                if stored.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            run.map_err(failed)?;
            stored?;
            if kept == 0 {
                return Err(EvaluationError::NoFloatOutput);
            }
        }
        let classes = names.iter().find(|name| classes.contains(*name)).cloned();
        Ok(Self { names, store, samples: samples.len(), classes, labels })
    }

    /// Runs a quantized model with the same inputs on the same samples.
    pub fn measure(
        &self,
        quantized: &ModelProto,
        samples: &mut Samples,
        options: &RuntimeOptions,
    ) -> Result<Quality, EvaluationError> {
        // As programs run it by default, where ONNX Runtime does; else without its optimizations.
        let optimizes =
            quantized.graph.node.iter().any(Quantizer::is) && is_native(quantized, options).unwrap_or(false);
        let failed = |error| EvaluationError::Runtime { which: QUANTIZED, error };
        let optimized = optimizes.then(|| {
            let session = runtime::open(quantized, &self.names, &RuntimeOptions { optimize: true, ..options.clone() });
            self.compare(session.map_err(failed)?, samples)
        });
        let found = match optimized {
            Some(Ok(found)) => found,
            _ => {
                let session = open(quantized, &self.names, options).map_err(failed)?;
                self.compare(session, samples)?
            }
        };
        found.quality(self.labels.as_ref().map(Vec::len))
    }

    fn compare(
        &self,
        mut session: Box<dyn Session>,
        samples: &mut Samples,
    ) -> Result<KeptMeasurement, EvaluationError> {
        let failed = |error| EvaluationError::Runtime { which: QUANTIZED, error };
        let mut found = KeptMeasurement { statistics: HashMap::new(), classes: Classes::default(), rows: 0 };
        for number in 0..self.samples {
            let mut stored = Ok(());
            let run = session.run(&samples.sample(number)?, &self.names, &mut |name, array| {
                match self.store.get(name, number) {
                    Ok(Some(reference)) => {
                        let of_classes = self.classes.as_deref() == Some(name);
                        found.add(name, &reference, &array.to_f32s(), of_classes, self.labels.as_deref());
                    }
                    Ok(None) => {}
                    Err(error) => stored = Err(error),
                }
                if stored.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            run.map_err(failed)?;
            stored?;
        }
        Ok(found)
    }
}

/// Results of a quantized model so far.
struct KeptMeasurement {
    statistics: HashMap<String, Statistics>,
    classes: Classes,
    rows: usize,
}

impl KeptMeasurement {
    fn add(&mut self, name: &str, reference: &Array<'_>, values: &[f32], classes: bool, labels: Option<&[i64]>) {
        let Some(expected) = reference.f32s().filter(|expected| expected.len() == values.len()) else { return };
        self.statistics.entry(name.to_owned()).or_default().add(expected, values);
        if classes {
            let labels = labels.map(|labels| labels.get(self.rows..).unwrap_or_default());
            let count = reference.shape().last().copied().unwrap_or(1);
            self.classes.add(count, expected, values, labels);
            self.rows += expected.len() / count;
        }
    }

    fn quality(&self, labels: Option<usize>) -> Result<Quality, EvaluationError> {
        refuse_few_labels(labels, self.rows)?;
        let known = |sqnr: f64| if sqnr.is_nan() { f64::NEG_INFINITY } else { sqnr };
        let each = self.statistics.values().map(|statistics| known(statistics.sqnr_db()));
        let sqnr_db = each.fold(f64::INFINITY, f64::min);
        let (top1, reference_top1) = (self.classes.accuracy().0, self.classes.reference_accuracy().0);
        Ok(Quality { sqnr_db, top1, reference_top1 })
    }
}
