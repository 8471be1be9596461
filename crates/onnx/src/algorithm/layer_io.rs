//! Inputs and outputs of a layer on the calibration samples, for algorithms that choose its codes. Computes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::incremental_executor::IncrementalExecutor;
use crate::data::Array;
use crate::error::AlgorithmError;
use crate::runtime::RuntimeOptions;

/// One sample.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The layer's data input in the quantized model, quantized and dequantized. Shaped as the node reads it.
    pub input: Arc<Array<'static>>,
    /// The layer's output in the float model, before the activation function.
    pub output: Arc<Array<'static>>,
}

/// All samples of a layer: in memory up to the budget, and in a temporary file beyond it.
pub struct LayerIo<'a> {
    pub(super) quantized: &'a IncrementalExecutor,
    pub(super) float: &'a IncrementalExecutor,
    pub(super) input: &'a str,
    /// The layer's input in the float model, if requested.
    pub(super) float_input: Option<&'a str>,
    pub(super) output: &'a str,
    pub(super) cancelled: &'a AtomicBool,
    pub(super) runtime: &'a RuntimeOptions,
}

impl LayerIo<'_> {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.float.samples()
    }

    /// Returns whether there are none: always false, as data without samples are refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pair of a sample, read again each time if it is in a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn pair(&self, sample: usize) -> Result<Pair, AlgorithmError> {
        let input = self.quantized.tensor(self.input, sample)?;
        let output = self.float.tensor(self.output, sample)?;
        Ok(Pair { input, output })
    }

    /// The layer's data input in the float model; `None` if not requested.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn float_input(&self, sample: usize) -> Result<Option<Arc<Array<'static>>>, AlgorithmError> {
        self.float_input.map(|name| self.float.tensor(name, sample)).transpose()
    }

    /// Fails where the user asked to stop.
    ///
    /// # Errors
    /// [`AlgorithmError::Cancelled`].
    pub fn check_cancelled(&self) -> Result<(), AlgorithmError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(AlgorithmError::Cancelled) } else { Ok(()) }
    }

    /// The engine, the number of its threads, the budget of memory.
    pub fn runtime(&self) -> &RuntimeOptions {
        self.runtime
    }
}
