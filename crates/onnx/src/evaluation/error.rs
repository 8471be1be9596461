//! Errors of comparing a quantized model with its float model.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_quant::counts::number;

use crate::data::DataError;
use crate::runtime::RuntimeError;

/// A problem of an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvaluationError {
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The reference or the quantized model on its engine.
    #[error("{which}: {error}")]
    Runtime {
        /// The reference or the quantized model.
        which: &'static str,
        /// The problem.
        error: RuntimeError,
    },
    /// The models have not one output of the same name.
    #[error("the models have no output in common: the reference gives {reference}, the other {quantized}")]
    NoCommonOutput {
        /// The outputs of the reference.
        reference: String,
        /// The outputs of the quantized model.
        quantized: String,
    },
    /// The reference gives nothing that is measured.
    #[error("the model has no float outputs: there is nothing to measure")]
    NoFloatOutput,
    /// An input takes codes of unknown scale.
    #[error("the quantized model's input `{input}` takes integers, but their constant scale was not found")]
    NoCodes {
        /// The input.
        input: String,
    },
    /// No output has classes.
    #[error("the model has no output of {}: there is no top-1", if *labelled { "[n, classes]" } else { "classes" })]
    NoClasses {
        /// Whether there are labels, one for each row.
        labelled: bool,
    },
    /// There are fewer labels than samples.
    #[error("{} for {}", number(labels, "label"), number(samples, "sample"))]
    Labels {
        /// Number of labels.
        labels: usize,
        /// Number of samples.
        samples: usize,
    },
    /// A label is none of the classes.
    #[error("the label {label} is none of the {classes} classes of `{output}`, which are numbered from 0")]
    LabelOutside {
        /// The label.
        label: i64,
        /// Number of classes.
        classes: usize,
        /// The output.
        output: String,
    },
    /// Outputs that are kept for many comparisons.
    #[error("cannot store outputs in a temporary file: {0}")]
    Store(#[from] std::io::Error),
    /// The user asked to stop.
    #[error("stopped while the models ran over the samples")]
    Cancelled,
}

impl EvaluationError {
    /// Returns whether an engine does not run the float model.
    pub fn is_of_reference(&self) -> bool {
        matches!(self, Self::Runtime { which, .. } if *which == super::REFERENCE)
    }
}

impl Diagnostic for EvaluationError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => error.kind(),
            Self::Runtime { error, .. } => error.kind(),
            Self::Store(_) => ErrorKind::Io,
            Self::Cancelled => ErrorKind::Cancelled,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Data(error) => return error.hint(),
            Self::Runtime { error, .. } => return error.hint(),
            Self::NoFloatOutput => Some("name a model whose outputs are scores, not classes"),
            Self::NoCommonOutput { .. } => Some("‹reference› takes the float model that this one was quantized from"),
            Self::NoCodes { .. } => Some(
                "quantize the model again with ‹io-dtype› pairs and compare that, or insert a QuantizeLinear behind the input",
            ),
            Self::NoClasses { .. } => {
                Some("measure the model with a command, with ‹metric›, or by its SQNR, with ‹min-sqnr›")
            }
            Self::Store(_) => Some("make room in the temporary directory, or give fewer samples"),
            Self::Cancelled => None,
            Self::LabelOutside { .. } => Some("number the classes as the model does"),
            Self::Labels { .. } => Some("labels have one class per sample, in the order of the samples"),
        };
        hint.map(str::to_owned)
    }
}
