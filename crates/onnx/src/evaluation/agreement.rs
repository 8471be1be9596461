//! The classes that a float model finds likeliest, kept: how often quantized models agree with it, and how often both are right.

use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;

use super::pairs::outputs;
use super::recast::Recast;
use super::{EvaluationError, QUANTIZED, REFERENCE, in_f32, open, refuse_few_labels};
use crate::data::{Array, Samples};
use crate::fake_quantization::{Quantizer, is_native};
use crate::runtime::{self, RuntimeOptions, Session};

/// Shares of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassAgreement {
    /// Those for which both models find the same class likeliest.
    pub agreement: f64,
    /// Those whose label the quantized model finds likeliest; `None` without labels.
    pub top1: Option<f64>,
    /// The same of the float model.
    pub reference_top1: Option<f64>,
    /// The number of rows.
    pub rows: usize,
}

/// The likeliest classes of a float model on samples. They are those of the first output of floats that has rows of classes, `[n, classes]`,
/// else `[n, positions, classes]`, else `[n, classes, height, width]`, where a row is a position.
pub struct TopClasses {
    reference: ModelProto,
    output: String,
    /// Of each sample, of each row; `None` for rows without numbers.
    classes: Vec<Vec<Option<usize>>>,
    labels: Option<Vec<i64>>,
}

impl TopClasses {
    /// Runs the float model on all samples. `labels` are classes, one for each row of the data.
    ///
    /// # Errors
    /// [`EvaluationError::NoClasses`] of models without such an output, or with labels for one that has no rows of the form `[n, classes]`;
    /// the data, the engine, and a `progress` that ends the run.
    pub fn new(
        reference: ModelProto,
        samples: &mut Samples,
        labels: Option<Vec<i64>>,
        options: &RuntimeOptions,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Self, EvaluationError> {
        let failed = |error| EvaluationError::Runtime { which: REFERENCE, error };
        let names: Vec<String> = reference.graph.output.iter().map(|value| value.name().to_owned()).collect();
        let mut session = runtime::open(&reference, &names, options).map_err(failed)?;
        let mut shapes: Vec<Vec<usize>> = vec![Vec::new(); names.len()];
        let run = session.run(&samples.sample(0)?, &names, &mut |name, array| {
            let at = names.iter().position(|known| known == name);
            let is_known = in_f32(array).is_some_and(|floats| Rows::of(floats.shape()).is_some());
            at.filter(|_| is_known).into_iter().for_each(|at| shapes[at] = array.shape().to_vec());
            ControlFlow::Continue(())
        });
        run.map_err(failed)?;
        let best = (0..names.len()).filter(|&at| !shapes[at].is_empty()).min_by_key(|&at| (shapes[at].len(), at));
        let at = best.filter(|&at| labels.is_none() || shapes[at].len() == 2);
        let at = at.ok_or(EvaluationError::NoClasses { labelled: labels.is_some() })?;
        let (output, shape) = (names[at].clone(), &shapes[at]);
        let mut found = Self { reference, output: output.clone(), classes: Vec::new(), labels };
        for number in 0..samples.len() {
            let mut classes = Vec::new();
            let run = session.run(&samples.sample(number)?, std::slice::from_ref(&output), &mut |_, array| {
                classes = in_f32(array).map(|floats| likeliest(&floats)).unwrap_or_default();
                ControlFlow::Continue(())
            });
            run.map_err(failed)?;
            found.classes.push(classes);
            if progress(number + 1).is_break() {
                return Err(EvaluationError::Cancelled);
            }
        }
        let rows = found.rows();
        let classes = shape.last().copied().unwrap_or_default();
        let is_class = |label: &i64| usize::try_from(*label).is_ok_and(|label| label < classes);
        if let Some(label) = found.labels.iter().flatten().take(rows).find(|label| !is_class(label)) {
            return Err(EvaluationError::LabelOutside { label: *label, classes, output });
        }
        refuse_few_labels(found.labels.as_ref().map(Vec::len), rows)?;
        Ok(found)
    }

    /// Rows of all samples.
    pub fn rows(&self) -> usize {
        self.classes.iter().map(Vec::len).sum()
    }

    /// Runs a quantized model on the same samples, as programs run it by default where ONNX Runtime is the engine.
    ///
    /// # Errors
    /// A model without this output, the data, the engine, and a `progress` that ends the run.
    pub fn measure(
        &self,
        quantized: &ModelProto,
        samples: &mut Samples,
        options: &RuntimeOptions,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<ClassAgreement, EvaluationError> {
        let failed = |error| EvaluationError::Runtime { which: QUANTIZED, error };
        let pairs = outputs(&self.reference.graph, &quantized.graph);
        let pair = pairs.into_iter().find(|pair| pair.reference == self.output);
        let output = pair.map(|pair| pair.quantized).ok_or(EvaluationError::NoClasses { labelled: false })?;
        let optimizes =
            quantized.graph.node.iter().any(Quantizer::is) && is_native(quantized, options).unwrap_or(false);
        if optimizes {
            let options = RuntimeOptions { optimize: true, ..options.clone() };
            let session = runtime::open(quantized, std::slice::from_ref(&output), &options).map_err(failed);
            let found = session.and_then(|session| self.compare(session, quantized, &output, samples, progress));
            if !matches!(found, Err(EvaluationError::Runtime { .. })) {
                return found;
            }
        }
        let session = open(quantized, std::slice::from_ref(&output), options).map_err(failed)?;
        self.compare(session, quantized, &output, samples, progress)
    }

    fn compare(
        &self,
        mut session: Box<dyn Session>,
        quantized: &ModelProto,
        output: &String,
        samples: &mut Samples,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<ClassAgreement, EvaluationError> {
        let recast = Recast::of(&self.reference.graph, &quantized.graph);
        let mut counts = Counts::default();
        let mut labels = self.labels.as_ref().map(|labels| labels.iter());
        for (number, expected) in self.classes.iter().enumerate() {
            let sample = samples.sample(number)?;
            let mut classes = Vec::new();
            let run = session.run(&recast.sample(&sample)?, std::slice::from_ref(output), &mut |name, array| {
                let values = recast.codes.dequantized(name, array).and_then(Result::ok);
                let floats = in_f32(values.as_ref().unwrap_or(array));
                classes = floats.map(|floats| likeliest(&floats)).unwrap_or_default();
                ControlFlow::Continue(())
            });
            run.map_err(|error| EvaluationError::Runtime { which: QUANTIZED, error })?;
            for (row, expected) in expected.iter().enumerate() {
                let label = labels.as_mut().and_then(Iterator::next).and_then(|label| usize::try_from(*label).ok());
                counts.add(*expected, classes.get(row).copied().flatten(), label);
            }
            if progress(number + 1).is_break() {
                return Err(EvaluationError::Cancelled);
            }
        }
        Ok(counts.shares(self.labels.is_some()))
    }
}

/// Counts of rows.
#[derive(Default)]
struct Counts {
    rows: usize,
    agree: usize,
    right: usize,
    reference_right: usize,
}

impl Counts {
    /// Adds a row. One without numbers in the float model ranks no classes; in the quantized model it is wrong.
    fn add(&mut self, reference: Option<usize>, quantized: Option<usize>, label: Option<usize>) {
        let Some(reference) = reference else { return };
        self.rows += 1;
        self.agree += usize::from(quantized == Some(reference));
        self.right += usize::from(label.is_some() && quantized == label);
        self.reference_right += usize::from(label == Some(reference));
    }

    fn shares(&self, labelled: bool) -> ClassAgreement {
        let share = |count: usize| count as f64 / self.rows.max(1) as f64;
        let of_labels = |count: usize| labelled.then(|| share(count));
        ClassAgreement {
            agreement: share(self.agree),
            top1: of_labels(self.right),
            reference_top1: of_labels(self.reference_right),
            rows: self.rows,
        }
    }
}

/// How the values of an output are rows of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    classes: usize,
    /// Values between two classes of a row.
    step: usize,
}

impl Rows {
    fn of(shape: &[usize]) -> Option<Self> {
        let (classes, step) = match shape {
            [_, classes] | [_, _, classes] => (*classes, 1),
            [_, classes, height, width] => (*classes, height * width),
            _ => return None,
        };
        (classes > 1 && step > 0).then_some(Self { classes, step })
    }
}

/// The likeliest class of each row, of equal ones the first; `None` for rows with NaN or without finite values.
fn likeliest(array: &Array<'_>) -> Vec<Option<usize>> {
    let (Some(Rows { classes, step }), Some(values)) = (Rows::of(array.shape()), array.f32s()) else {
        return Vec::new();
    };
    let row = |of: &[f32], at: usize| {
        let values = (0..classes).map(|class| of[class * step + at]);
        let is_known = values.clone().any(f32::is_finite) && !values.clone().any(f32::is_nan);
        let best = values.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.filter(|_| is_known).map(|(class, _)| class)
    };
    values.chunks_exact(classes * step).flat_map(|of| (0..step).map(move |at| row(of, at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_on_the_last_axis_or_that_of_channels() {
        let of = |shape: &[usize], values: &[f32]| likeliest(&Array::of(shape.to_vec(), values.to_vec()).unwrap());
        assert_eq!(of(&[2, 3], &[0.0, 2.0, 2.0, f32::NAN, 1.0, 0.0]), [Some(1), None]);
        assert_eq!(of(&[1, 2, 2], &[0.0, 1.0, 1.0, 0.0]), [Some(1), Some(0)]);
        // Two channels of three pixels.
        assert_eq!(of(&[1, 2, 1, 3], &[0.0, 5.0, 1.0, 1.0, 2.0, 1.0]), [Some(1), Some(0), Some(0)]);
        assert!(of(&[4], &[0.0; 4]).is_empty() && of(&[4, 1], &[0.0; 4]).is_empty());
    }

    #[test]
    fn rows_without_numbers_in_the_float_model_do_not_count() {
        let mut counts = Counts::default();
        counts.add(None, Some(1), Some(1));
        counts.add(Some(1), None, Some(1));
        counts.add(Some(1), Some(1), Some(2));
        counts.add(Some(2), Some(0), None);
        let found = counts.shares(true);
        assert_eq!((found.rows, found.agreement), (3, 1.0 / 3.0));
        assert_eq!((found.top1, found.reference_top1), (Some(0.0), Some(1.0 / 3.0)));
        assert_eq!(counts.shares(false).top1, None);
    }
}
