//! The environment of algorithms: samples, an engine, and progress. No results.

use std::sync::atomic::{AtomicBool, Ordering};

use kvant_container::unfinished::KeptResults;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data::Samples;
use crate::error::AlgorithmError;
use crate::runtime::RuntimeOptions;

/// Calibration data for algorithms.
pub struct Data<'a> {
    /// The samples.
    pub samples: &'a mut Samples,
    /// The engine. Its budget limits the activations kept in memory; more are kept in a temporary file.
    pub runtime: RuntimeOptions,
    /// Whether to stop.
    pub cancelled: &'a AtomicBool,
    /// Told how many layers are done, and how many there are.
    pub progress: &'a mut (dyn FnMut(u64, u64) + Send),
    /// The store of results for resuming; `None` if an interrupted run starts over.
    pub kept: Option<&'a KeptResults>,
}

impl Data<'_> {
    /// A result of an interrupted run, and the bytes that were kept with it.
    pub(super) fn kept<T: DeserializeOwned>(&self, name: &str) -> Option<(T, Vec<u8>)> {
        self.kept?.get(name)
    }

    /// Keeps a result for a run that resumes.
    pub(super) fn keep(&self, name: &str, value: &impl Serialize, codes: &[u8]) -> Result<(), AlgorithmError> {
        self.kept.map_or(Ok(()), |kept| kept.put(name, value, codes)).map_err(AlgorithmError::Keep)
    }

    /// Fails where the user asked to stop.
    pub fn check_cancelled(&self) -> Result<(), AlgorithmError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(AlgorithmError::Cancelled) } else { Ok(()) }
    }
}
