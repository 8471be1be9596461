//! Activations: the parameters of their quantization that are found in advance. Not weights, whose parameters lie beside
//! their codes in a [`QuantTensor`](crate::QuantTensor).

use serde::{Deserialize, Serialize};

/// Scales and zero points of activations, found by calibration and stored in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StaticParameters {
    /// One for the tensor, or one a feature. Where block scales are found anew from every batch
    /// ([`Timing::Local`](crate::scheme::Timing::Local)) the one scale of the tensor, a multiplier.
    pub scales: Vec<f32>,
    /// The codes of zero, as many as scales; none where zero is code 0.
    pub zero_points: Vec<f32>,
}
