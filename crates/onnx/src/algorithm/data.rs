//! What algorithms run models with: the samples, an engine, and somebody who watches. No results.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::data::Samples;
use crate::error::AlgorithmError;
use crate::runtime::RuntimeOptions;

/// Calibration data for algorithms.
pub struct Data<'a> {
    /// The samples.
    pub samples: &'a mut Samples,
    /// The engine. Its budget is that of the activations kept in memory; what is more is kept in a temporary file.
    pub runtime: RuntimeOptions,
    /// Whether to stop.
    pub cancelled: &'a AtomicBool,
    /// Told how many layers are done, and how many there are.
    pub progress: &'a mut (dyn FnMut(u64, u64) + Send),
}

impl Data<'_> {
    /// Fails where the user asked to stop.
    pub fn go_on(&self) -> Result<(), AlgorithmError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(AlgorithmError::Cancelled) } else { Ok(()) }
    }
}
