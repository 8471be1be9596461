//! Compares a quantized model with its float model on the same data: the distance of outputs and inner tensors.
//!
//! [`evaluate`] runs both, a sample at a time; [`open`] makes a session of a quantized model, whose values need no engine that
//! knows its operators. No quantization happens here.

mod agreement;
mod classes;
mod codes;
mod concern;
mod error;
mod kept;
mod optimized;
mod pairs;
mod recast;
mod remedy;
mod report;
mod scaled;
mod shown;
mod statistics;
mod timing;
mod turned;
mod widened;

use std::collections::HashMap;
use std::ops::ControlFlow;

use kvant_container::onnx::{DataType, GraphProto, ModelProto};

pub use crate::fake_quantization::open;
pub use agreement::{ClassAgreement, TopClasses};
pub use concern::{Concern, Kernels, LOW_SQNR_DB};
pub use error::EvaluationError;
pub use kept::{KeptOutputs, Quality};
pub use remedy::{Loss, Remedy, remedies};
pub use report::{Report, TensorReport};
pub use scaled::{note_scaled, scaled_tensors};
pub use shown::{OutputHistogram, ShownImage, TopClass};
pub use timing::{InferenceTime, Timing, time};
pub use widened::widened;

use crate::data::{Array, Sample, Samples};
use crate::fake_quantization::Quantizer;
use crate::runtime::{self, RuntimeOptions, Session};
use classes::Classes;
use optimized::Optimized;
use pairs::{Pair, outputs, pairs};
use recast::Recast;
use statistics::Statistics;

/// What is compared and kept of two models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compared {
    /// Tensors inside that both graphs have, beside the outputs. Outputs alone are much cheaper: engines keep what they fuse.
    pub inside: bool,
    /// The distributions of outputs, which [`Report::show`] makes histograms of.
    pub distributions: bool,
}

/// Runs both models on all samples and compares outputs and, where they are asked for, the tensors they have in common.
///
/// `labels` are classes, one per row of the data, for outputs of shape `[rows, classes]`. `progress` is told the number of
/// samples done, and may end it. In memory are the compared tensors of one sample, up to the budget of the options.
pub fn evaluate(
    reference: &ModelProto,
    quantized: &ModelProto,
    samples: &mut Samples,
    compared: Compared,
    labels: Option<&[i64]>,
    options: &RuntimeOptions,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Report, EvaluationError> {
    run(Comparison::new(reference, quantized, compared, options)?, samples, labels, progress)
}

fn run(
    mut comparison: Comparison,
    samples: &mut Samples,
    labels: Option<&[i64]>,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Report, EvaluationError> {
    for number in 0..samples.len() {
        comparison.sample(samples.sample(number)?, labels)?;
        if progress(number + 1).is_break() {
            return Err(EvaluationError::Cancelled);
        }
    }
    comparison.report(samples.len(), labels)
}

/// Both models and the results so far.
struct Comparison {
    reference: Box<dyn Session>,
    quantized: Box<dyn Session>,
    /// The quantized model as programs load it, where ONNX Runtime is the engine and the other model is one of floats.
    optimized: Option<Optimized>,
    /// How the quantized model takes the samples of the reference.
    recast: Recast,
    /// Tensors in common whose channels were scaled.
    scaled: usize,
    /// The outputs, then the tensors in common.
    pairs: Vec<(Pair, Statistics)>,
    outputs: usize,
    /// Bytes of the reference's tensors, once seen.
    sizes: HashMap<String, u64>,
    budget: u64,
    classes: Classes,
    rows: usize,
}

impl Comparison {
    fn new(
        reference: &ModelProto,
        quantized: &ModelProto,
        compared: Compared,
        options: &RuntimeOptions,
    ) -> Result<Self, EvaluationError> {
        let outputs = outputs(&reference.graph, &quantized.graph);
        if outputs.is_empty() {
            let (reference, quantized) = (output_names(&reference.graph), output_names(&quantized.graph));
            return Err(EvaluationError::NoCommonOutput { reference, quantized });
        }
        let (count, recast) = (outputs.len(), Recast::of(&reference.graph, &quantized.graph));
        let inside = if compared.inside { pairs(&reference.graph, &quantized.graph) } else { Vec::new() };
        let scaled = scaled::noted(quantized);
        let inside = inside.into_iter().filter(|pair| !recast.turned.contains(&pair.reference));
        let (left, inside): (Vec<Pair>, Vec<Pair>) = inside.partition(|pair| scaled.contains(pair.reference.as_str()));
        let both: Vec<Pair> = outputs.into_iter().chain(inside).collect();
        let shown = if compared.distributions { count } else { 0 };
        // The tensors of a group are in memory twice: kept of the reference, and in the engine's.
        let options = RuntimeOptions { budget: options.budget / 2, ..options.clone() };
        let names = |of: fn(&Pair) -> &String| -> Vec<String> { distinct(both.iter().map(of)) };
        // One that is quantized itself runs as the other does: optimized kernels of some processors saturate.
        let is_quantized = reference.graph.node.iter().any(Quantizer::is);
        let open_reference = if is_quantized { open } else { runtime::open };
        let first = open_reference(reference, &names(|pair| &pair.reference), &options);
        let second = open(quantized, &names(|pair| &pair.quantized), &options);
        Ok(Self {
            reference: first.map_err(|error| EvaluationError::Runtime { which: REFERENCE, error })?,
            quantized: second.map_err(|error| EvaluationError::Runtime { which: QUANTIZED, error })?,
            optimized: if is_quantized { None } else { Optimized::open(quantized, count, &options) },
            recast,
            scaled: left.len(),
            pairs: both.into_iter().enumerate().map(|(at, pair)| (pair, Statistics::of(at, shown))).collect(),
            outputs: count,
            sizes: HashMap::new(),
            budget: options.budget,
            classes: Classes::default(),
            rows: 0,
        })
    }

    /// Compares one sample, a group of tensors after the other.
    fn sample(&mut self, sample: Sample<'_>, labels: Option<&[i64]>) -> Result<(), EvaluationError> {
        let recast = self.recast.sample(&sample)?;
        let mut start = 0;
        while start < self.pairs.len() {
            let end = self.group(start);
            self.compare(start..end, &sample, &recast, labels)?;
            start = end;
        }
        Ok(())
    }

    /// Where the group of pairs that fits the budget ends.
    fn group(&self, start: usize) -> usize {
        let unknown = self.budget / 64;
        let mut sum = 0u64;
        let sizes =
            self.pairs[start..].iter().map(|(pair, _)| self.sizes.get(&pair.reference).copied().unwrap_or(unknown));
        let fitting = sizes.take_while(|size| {
            sum = sum.saturating_add(*size);
            sum <= self.budget
        });
        start + fitting.count().max(1)
    }

    fn compare(
        &mut self,
        group: std::ops::Range<usize>,
        sample: &Sample<'_>,
        inputs: &Sample<'_>,
        labels: Option<&[i64]>,
    ) -> Result<(), EvaluationError> {
        let Self {
            reference,
            quantized,
            optimized,
            recast: Recast { codes, .. },
            pairs,
            sizes,
            classes,
            rows,
            outputs,
            ..
        } = self;
        let wanted = distinct(pairs[group.clone()].iter().map(|(pair, _)| &pair.reference));
        let mut kept: HashMap<String, Array<'static>> = HashMap::new();
        let run = reference.run(sample, &wanted, &mut |name, array| {
            sizes.insert(name.to_owned(), array.len() as u64 * 4);
            kept.extend(in_f32(array).map(|floats| (name.to_owned(), floats.into_owned())));
            ControlFlow::Continue(())
        });
        run.map_err(|error| EvaluationError::Runtime { which: REFERENCE, error })?;
        let wanted = distinct(pairs[group.clone()].iter().map(|(pair, _)| &pair.quantized));
        let first = group.start;
        let class_output =
            pairs[..*outputs].iter().position(|(pair, _)| kept.get(&pair.reference).is_some_and(of_classes));
        let run = quantized.run(inputs, &wanted, &mut |name, array| {
            let values = codes.dequantized(name, array).and_then(Result::ok);
            let array = values.as_ref().unwrap_or(array);
            for (at, (pair, statistics)) in pairs[group.clone()].iter_mut().enumerate() {
                let Some(of_reference) = kept.get(&pair.reference).filter(|_| pair.quantized == name) else { continue };
                let Some(array) = in_f32(array) else { continue };
                let (Some(r), Some(q)) = (of_reference.f32s(), array.f32s()) else { continue };
                if r.len() != q.len() {
                    continue;
                }
                statistics.add(r, q);
                if class_output == Some(first + at) {
                    let labels = labels.map(|labels| labels.get(*rows..).unwrap_or_default());
                    let count = of_reference.shape().last().copied().unwrap_or(1);
                    classes.add(count, r, q, labels);
                    *rows += r.len() / count;
                }
            }
            ControlFlow::Continue(())
        });
        run.map_err(|error| EvaluationError::Runtime { which: QUANTIZED, error })?;
        if let Some(optimized) = optimized {
            let of_group = pairs[..*outputs].iter().enumerate().skip(group.start).take(group.len());
            let outputs = &of_group.map(|(at, (pair, _))| (at, pair)).collect::<Vec<_>>();
            optimized
                .compare(inputs, &optimized::Compared { outputs, classes: class_output, kept: &kept, codes, labels });
        }
        Ok(())
    }

    fn report(mut self, samples: usize, labels: Option<&[i64]>) -> Result<Report, EvaluationError> {
        refuse_few_labels(labels.map(<[i64]>::len), self.rows)?;
        let tensors = self.pairs.split_off(self.outputs);
        let engines = (self.reference.name(), self.quantized.name());
        let optimized = self.optimized.map(Optimized::finish).transpose();
        let (optimized, fails) = match optimized {
            Ok(found) => (found, None),
            Err(problem) => (None, Some(problem)),
        };
        let mut report = Report::new(engines, samples, self.pairs, tensors, &self.classes, optimized.as_ref());
        report.scaled_tensors = self.scaled;
        report.optimized_fails = fails;
        Ok(report)
    }
}

const REFERENCE: &str = "the float model";
const QUANTIZED: &str = "the quantized model";

fn is_float(data_type: DataType) -> bool {
    use DataType::*;
    matches!(data_type, FLOAT | DOUBLE | FLOAT16 | BFLOAT16 | UNDEFINED)
}

/// An array of floats of any width in single precision; `None` of integers.
fn in_f32<'a>(array: &'a Array<'_>) -> Option<Array<'a>> {
    let float = array.data_type() != DataType::UNDEFINED && is_float(array.data_type());
    float.then(|| array.view().cast(DataType::FLOAT)).flatten()
}

/// Refuses fewer labels than rows, if there are labels.
fn refuse_few_labels(labels: Option<usize>, rows: usize) -> Result<(), EvaluationError> {
    match labels.filter(|&labels| labels < rows) {
        Some(labels) => Err(EvaluationError::Labels { labels, samples: rows }),
        None => Ok(()),
    }
}

/// Returns whether an output has rows of classes.
fn of_classes(array: &Array<'_>) -> bool {
    matches!(array.shape(), [_, classes] if *classes > 1)
}

/// Names, each once, in order.
fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names.filter(|name| seen.insert(*name)).cloned().collect()
}

fn output_names(graph: &GraphProto) -> String {
    graph.output.iter().map(|value| format!("`{}`", value.name())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
