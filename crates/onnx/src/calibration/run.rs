//! The float model over all samples, every needed tensor observed as it is made. One sample is in memory at a time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use kvant_container::ErrorKind;
use kvant_container::onnx::ModelProto;

use super::observation::Observation;
use crate::data::{DataError, Samples};
use crate::runtime::{self, RuntimeError, RuntimeOptions};

/// Why calibration did not end.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The data.
    #[error("{0}")]
    Data(#[from] DataError),
    /// The engine or the model.
    #[error("{0}")]
    Runtime(#[from] RuntimeError),
    /// The user asked to stop.
    #[error("stopped while the model ran over calibration data")]
    Cancelled,
}

impl CalibrationError {
    /// Whose fault it is; `None` where the run was stopped.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Data(error) => Some(error.kind()),
            Self::Runtime(error) => Some(error.kind()),
            Self::Cancelled => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Data(error) => error.hint().map(str::to_owned),
            Self::Runtime(error) => error.hint().map(str::to_owned),
            Self::Cancelled => None,
        }
    }
}

/// Runs the model over the samples. Returns the engine's name. `progress` takes the samples done and all there are.
pub fn observe(
    model: &ModelProto,
    observation: &mut Observation,
    samples: &mut Samples,
    options: &RuntimeOptions,
    progress: &mut dyn FnMut(u64, u64),
    cancelled: &AtomicBool,
) -> Result<String, CalibrationError> {
    let wanted = observation.tensors();
    let mut session = runtime::open(model, &wanted, options)?;
    let all = samples.len() as u64;
    progress(0, all);
    for index in 0..samples.len() {
        if cancelled.load(Ordering::Relaxed) {
            return Err(CalibrationError::Cancelled);
        }
        let sample = samples.sample(index)?;
        session.run(&sample, &wanted, &mut |name, array| {
            observation.see(name, &array.to_f32s());
            ControlFlow::Continue(())
        })?;
        observation.end_sample();
        progress(index as u64 + 1, all);
    }
    Ok(session.name())
}
