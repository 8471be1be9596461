//! Reasons that activations cannot be quantized.

use crate::observer::ObserverRef;

/// A scheme, or parameters, that activations cannot be quantized with.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ActivationError {
    /// The parts of the scheme do not go together for activations (*unsupported*).
    #[error("activations cannot be quantized as `{scheme}`: {reason}")]
    Scheme {
        /// The scheme.
        scheme: String,
        /// The reason.
        reason: &'static str,
    },
    /// The observer of the scheme cannot serve such activations (*unsupported*).
    #[error("the observer `{observer}` cannot find the range of `{scheme}`: {reason}")]
    Observer {
        /// The observer.
        observer: ObserverRef,
        /// The scheme.
        scheme: String,
        /// The reason.
        reason: &'static str,
    },
    /// Parameters are missing, or are not as many as the scheme wants (*invalid*).
    #[error("`{scheme}` wants {expected}, and {found} scales and {zero_points} zero points are given")]
    Count {
        /// The scheme.
        scheme: String,
        /// The expected number.
        expected: &'static str,
        /// Scales that are given.
        found: usize,
        /// Zero points that are given.
        zero_points: usize,
    },
    /// A scale is not positive and finite, or a zero point is not a code (*invalid*).
    #[error("{0} is no {1}")]
    Value(f32, &'static str),
}

impl ActivationError {
    /// Returns whether the request is valid but unsupported.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, ActivationError::Scheme { .. } | ActivationError::Observer { .. })
    }

    /// The remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            ActivationError::Scheme { .. } => {
                "static activations have one scale (`tensor`) or one a feature (`channel@1`), dynamic ones also one a token \
                 (`channel`) or a group (`g128`)"
            }
            ActivationError::Observer { .. } => "`kvant list observers` shows what each observer is for",
            ActivationError::Count { .. } | ActivationError::Value(..) => {
                "the checkpoint's scales are damaged or missing: quantize again"
            }
        }
    }
}
