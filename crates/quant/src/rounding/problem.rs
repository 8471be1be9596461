//! The input of a rounding: a layer, the grid of its codes, and calibration statistics. Not how it is
//! done, and not which model the layer is of: decoder blocks and nodes of graphs become the same problem.

use super::rtn::{RoundingError, TensorContext};
use crate::hessian::Hessian;
use crate::quant_tensor::QuantTensor;
use crate::reconstruction::{ActivationFunction, Samples, Shape};
use crate::scheme::TensorScheme;
use std::any::Any;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The input statistics that a rounding needs. Each value includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// Their Hessian.
    Hessian,
    /// Their Hessian and the mismatch between them and the inputs in the float model.
    InputMismatch,
    /// What the layer reads in the quantized model and what it makes in the float one: as [samples](LayerProblem::samples), or,
    /// where there is no activation function, as Hessian and mismatch, which are all sums that a squared error is made of.
    Outputs,
}

/// A layer whose codes are to be chosen.
pub struct LayerProblem<'a> {
    /// Its name, for messages.
    pub layer: &'a str,
    /// Its sizes. Several groups are there only where the rounding needs [outputs](Needs::Outputs); others are asked group
    /// by group.
    pub shape: Shape,
    /// The weight, `[outputs, features]`, row-major: the values that make the layer's float outputs.
    pub weight: &'a [f32],
    /// The grid of the codes.
    pub grid: Grid<'a>,
    /// The bias, one for each output, where the layer has one that may change.
    pub bias: Option<&'a [f32]>,
    /// The function behind the layer.
    pub function: &'a ActivationFunction,
    /// Sums over the inputs, which all layers share that read the same.
    pub inputs: Option<&'a SharedInputs>,
    /// Inputs and float outputs one by one.
    pub samples: Option<&'a mut (dyn Samples<Error = SampleError> + Send)>,
    /// Whether the run was cancelled.
    pub cancelled: &'a AtomicBool,
}

/// The reason that a sample could not be read.
pub type SampleError = Box<dyn Error + Send + Sync>;

/// The grid of a weight's codes.
#[derive(Clone, Copy, Debug)]
pub enum Grid<'a> {
    /// Scales and zero points follow from the scheme.
    Scheme {
        /// The scheme.
        scheme: TensorScheme,
        /// The precision of scales, and the range of the tensor where the scheme needs it.
        context: TensorContext,
        /// The weight that they are found from: that of the problem, clipped where a transform asked for it.
        from: &'a [f32],
    },
    /// Scales and zero points are given.
    Fixed {
        /// A tensor of the weight's shape, whose codes do not count.
        parameters: &'a QuantTensor,
        /// The lowest and the highest code.
        codes: (i64, i64),
    },
}

impl Grid<'_> {
    /// The scheme of the codes.
    pub fn scheme(&self) -> TensorScheme {
        match self {
            Grid::Scheme { scheme, .. } => *scheme,
            Grid::Fixed { parameters, .. } => parameters.scheme(),
        }
    }
}

impl LayerProblem<'_> {
    /// Fails where somebody asked to stop; to be called now and then.
    ///
    /// # Errors
    /// [`LayerError::Cancelled`].
    pub fn check_cancelled(&self) -> Result<(), LayerError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(LayerError::Cancelled) } else { Ok(()) }
    }
}

/// Sums over inputs that several layers share, and values that roundings derived from them.
pub struct SharedInputs {
    /// The Hessian; with the mismatch where that is needed.
    pub hessian: Hessian,
    derived: Mutex<Vec<(String, Arc<dyn Any + Send + Sync>)>>,
}

impl SharedInputs {
    /// Sums without derived values.
    pub fn new(hessian: Hessian) -> SharedInputs {
        SharedInputs { hessian, derived: Mutex::default() }
    }

    /// The value that `make` derives from the Hessian: computed once per key, and shared.
    pub fn derive<T: Any + Send + Sync>(&self, key: &str, make: impl FnOnce(&Hessian) -> T) -> Arc<T> {
        let mut derived = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let known = derived.iter().filter(|(known, _)| known == key);
        if let Some(known) = known.filter_map(|(_, value)| Arc::clone(value).downcast().ok()).next() {
            return known;
        }
        let made = Arc::new(make(&self.hessian));
        derived.push((key.to_owned(), made.clone()));
        made
    }
}

/// A layer whose codes were chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundedLayer {
    /// The quantized weight.
    pub tensor: QuantTensor,
    /// Another bias; `None` leaves the layer's.
    pub bias: Option<Vec<f32>>,
    /// The squared error of the layer's outputs over all tokens of the Hessian, where the rounding knows it.
    pub loss: Option<f64>,
    /// The damping added to the diagonal of the Hessian, if any.
    pub damping: Option<f64>,
    /// Inputs that were zero in all tokens, and whose weights became zero for it.
    pub dead_columns: usize,
}

impl RoundedLayer {
    /// Codes without further data.
    pub fn new(tensor: QuantTensor) -> RoundedLayer {
        RoundedLayer { tensor, bias: None, loss: None, damping: None, dead_columns: 0 }
    }
}

/// Reasons that a layer cannot be rounded.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The weight, its scheme or its Hessian.
    #[error(transparent)]
    Rounding(#[from] RoundingError),
    /// A sample could not be had.
    #[error("{0}")]
    Sample(SampleError),
    /// Somebody asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// The rounding does not support such layers, or failed for its own reason.
    #[error("{0}")]
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_with_shared_inputs_share_derived_hessian_data() {
        let inputs = SharedInputs::new(Hessian::new(3));
        let mut made = 0;
        let mut features = |key: &str| {
            *inputs.derive(key, |hessian| {
                made += 1;
                hessian.features()
            })
        };
        assert_eq!([features("a"), features("a"), features("b")], [3, 3, 3]);
        assert_eq!(made, 2);
    }
}
