//! The quantized model once more, as programs load it by default: by ONNX Runtime with all its graph optimizations. These turn
//! quantized operators into integer kernels, whose sums may saturate (see `verify::saturation`), and some types they do not
//! know. Nothing fails here: what is found is told.

use std::collections::HashMap;
use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;

use super::codes::EndCodes;
use super::is_native;
use super::pairs::Pair;
use super::quantizer::Quantizer;
use super::report::Report;
use super::statistics::Statistics;
use crate::data::{Array, Sample};
use crate::runtime::{self, RuntimeError, RuntimeOptions, Session};

/// The model in such a session, and how far its outputs are from the float model's.
pub(super) struct Optimized {
    session: Result<Box<dyn Session>, RuntimeError>,
    outputs: Vec<Statistics>,
}

impl Optimized {
    /// Opens the session for a model with so many outputs to compare; `None` where ONNX Runtime is not the engine, or
    /// nothing of the model is quantized with operators it has.
    pub fn open(model: &ModelProto, outputs: usize, options: &RuntimeOptions) -> Option<Self> {
        if !model.graph.node.iter().any(Quantizer::is) || !is_native(model, options).ok()? {
            return None;
        }
        let session = runtime::open(model, &[], &RuntimeOptions { optimize: true, ..options.clone() });
        Some(Self { session, outputs: vec![Statistics::default(); outputs] })
    }

    /// Compares some outputs, each with its place among all, with those that were kept of the float model.
    pub fn compare(
        &mut self,
        outputs: &[(usize, &Pair)],
        sample: &Sample<'_>,
        kept: &HashMap<String, Array<'static>>,
        codes: &EndCodes,
    ) {
        let Ok(session) = &mut self.session else { return };
        let wanted: Vec<String> = outputs.iter().map(|(_, pair)| pair.quantized.clone()).collect();
        if wanted.is_empty() {
            return;
        }
        let statistics = &mut self.outputs;
        let run = session.run(sample, &wanted, &mut |name, array| {
            let values = codes.dequantized(name, array).and_then(Result::ok);
            let array = values.as_ref().unwrap_or(array);
            for (at, pair) in outputs.iter().filter(|(_, pair)| pair.quantized == name) {
                let both = (kept.get(&pair.reference).and_then(Array::f32s), array.f32s());
                if let (Some(r), Some(q)) = both
                    && r.len() == q.len()
                {
                    statistics[*at].add(r, q);
                }
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = run {
            self.session = Err(error);
        }
    }

    /// Adds what was found to the report.
    pub fn tell(self, report: &mut Report) {
        report.optimized_fails = self.session.err().map(|error| error.to_string());
        if report.optimized_fails.is_some() {
            return;
        }
        let found = self.outputs.iter().filter(|statistics| statistics.count() > 0);
        for (output, statistics) in report.outputs.iter_mut().zip(found) {
            output.optimized_sqnr_db = Some(statistics.sqnr_db());
        }
    }
}
