//! Errors of transforms.

use crate::rounding::RoundingError;

/// Errors of transforms.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum TransformError {
    /// No token was seen (*invalid*: the calibration did not reach the layer).
    #[error("no calibration token reached it")]
    NoData,
    /// A statistic is NaN or infinite (*invalid*).
    #[error("{what} of input channel {channel} is NaN or infinite")]
    NotFinite {
        /// The statistic.
        what: &'static str,
        /// The first such channel.
        channel: usize,
    },
    /// Statistics of the inputs and of the weights do not belong together (*invalid*).
    #[error("its {columns} columns are not the {channels} channels that were calibrated")]
    Channels {
        /// Columns of the weights.
        columns: usize,
        /// Channels of the inputs.
        channels: usize,
    },
    /// A trial weight could not be quantized.
    #[error(transparent)]
    Rounding(#[from] RoundingError),
}

/// Returns whether all of `values` are numbers.
///
/// # Errors
/// [`TransformError::NotFinite`] with the first that is not finite.
pub(super) fn finite(what: &'static str, values: &[f32]) -> Result<(), TransformError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(channel) => Err(TransformError::NotFinite { what, channel }),
        None => Ok(()),
    }
}

/// Returns whether both have a value for each channel.
///
/// # Errors
/// [`TransformError::Channels`].
pub(super) fn same_channels(inputs: &[f32], weights: &[f32]) -> Result<(), TransformError> {
    let (channels, columns) = (inputs.len(), weights.len());
    if columns == channels { Ok(()) } else { Err(TransformError::Channels { columns, channels }) }
}
