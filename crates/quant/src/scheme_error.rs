//! Errors of a scheme.

use crate::observer::ObserverRef;
use kvant_numeric::format::UnknownDType;

/// A scheme that cannot be read or does not fit. All of these are the input's fault: *invalid*, except where stated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SchemeError {
    /// The first part is not a dtype.
    #[error(transparent)]
    DType(#[from] UnknownDType),
    /// A part is unknown, or given twice.
    #[error("`{part}` in the scheme `{text}` is unknown or given twice")]
    Spelling {
        /// The scheme as written.
        text: String,
        /// The part.
        part: String,
    },
    /// The parts are known and do not go together.
    #[error("the parts of the scheme `{text}` do not go together")]
    Combination {
        /// The scheme as written.
        text: String,
    },
    /// The observer cannot serve such a tensor (*unsupported*).
    #[error("the observer `{observer}` cannot find the range of a weight in `{scheme}`: {reason}")]
    Observer {
        /// The observer.
        observer: ObserverRef,
        /// The scheme.
        scheme: Box<str>,
        /// The reason.
        reason: &'static str,
    },
    /// A group size does not divide the axis.
    #[error("its {length} {axis} channels are not a multiple of the group size {size}")]
    GroupDoesNotDivide {
        /// Length of the axis.
        length: usize,
        /// Elements of a group.
        size: usize,
        /// `input` or `output`.
        axis: &'static str,
    },
    /// The minimum scale is not a valid scale.
    #[error("the least scale must be a finite number that is not negative")]
    MinScale,
}

impl SchemeError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            SchemeError::DType(_) => "`kvant list dtypes` shows all dtypes",
            SchemeError::Spelling { .. } | SchemeError::Combination { .. } => {
                "a scheme is spelled format[:granularity][:scale][:zp][:observer], as in int4:g128, e4m3:channel or e2m1:g32:e8m0; `kvant list schemes` shows those with names"
            }
            SchemeError::Observer { .. } => "`kvant list observers` shows what each observer is for",
            SchemeError::MinScale => "give a small number such as 0.01, or leave it out",
            SchemeError::GroupDoesNotDivide { .. } => {
                "give this layer another scheme with ‹override› (a smaller group, or a scale for each channel as in int4:channel and e4m3:channel), or keep it with ‹exclude›"
            }
        }
    }
}
