//! Codes that are chosen by an algorithm, from the inputs that a weight meets.

use super::matrix::Matrix;
use super::of_rounding;
use super::quantized::QuantizedMatrix;
use super::scheme::WeightScheme;
use crate::error::{Error, ErrorKind};
use kvant_numeric::linalg::{CrossGram, Gram};
use kvant_quant::algorithm::{self, AnyRow};
use kvant_quant::hessian::Hessian;
use kvant_quant::options;
use kvant_quant::reconstruction::{ActivationFunction, Shape};
use kvant_quant::rounding::{Grid, LayerError, LayerProblem, SharedInputs, TensorContext};
use std::sync::atomic::AtomicBool;

/// The sums over the inputs of a layer that algorithms need: its Hessian `X^T X`, where rows of `X` are tokens, and the mismatch
/// `(X' - X)^T X` to the inputs `X'` of the float model where that is kept.
#[derive(Clone, Debug)]
pub struct InputSums {
    hessian: Hessian,
    has_mismatch: bool,
    features: usize,
}

impl InputSums {
    /// The sums of no tokens.
    pub fn new(features: usize, has_mismatch: bool) -> InputSums {
        let hessian = if has_mismatch { Hessian::with_mismatch(features) } else { Hessian::new(features) };
        InputSums { hessian, has_mismatch, features }
    }

    /// Sums that were computed elsewhere, in f32: the Hessian and, if there is one, the mismatch, both `features x features` and
    /// row-major. Of the Hessian the lower half is read. A factor that both have makes no difference.
    ///
    /// # Errors
    /// *Invalid* for other sizes.
    pub fn of_matrices(features: usize, hessian: &[f32], mismatch: Option<&[f32]>) -> Result<InputSums, Error> {
        let wrong = || {
            Error::new(ErrorKind::Invalid, format!("a Hessian of {features} features has {features} rows and columns"))
        };
        if hessian.len() != features * features {
            return Err(wrong());
        }
        let mut sums = Gram::new(features).sums().clone();
        for (row, values) in sums.rows_mut().into_iter().zip(hessian.chunks(features.max(1))) {
            let length = row.len();
            row.copy_from_slice(&values[..length]);
        }
        let gram = Gram::from_parts(features, 1, sums.elements()).ok_or_else(wrong)?;
        let cross = match mismatch {
            Some(values) => Some(CrossGram::from_parts(features, values.to_vec()).ok_or_else(wrong)?),
            None => None,
        };
        let has_mismatch = cross.is_some();
        Ok(InputSums { hessian: Hessian::from_parts(gram, cross), has_mismatch, features })
    }

    /// Input channels.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Whether the mismatch is kept.
    pub fn has_mismatch(&self) -> bool {
        self.has_mismatch
    }

    /// Adds inputs, a row for each token; `float_inputs` are the same tokens' in the float model.
    ///
    /// # Errors
    /// *Invalid* for other numbers of features or rows, *usage* where the mismatch is kept and float inputs are missing, or the reverse.
    pub fn add(&mut self, inputs: &Matrix<'_>, float_inputs: Option<&Matrix<'_>>) -> Result<(), Error> {
        let shape = inputs.shape();
        if shape.1 != self.features || float_inputs.is_some_and(|float| float.shape() != shape) {
            let message = format!("inputs of {} features were given for a Hessian of {}", shape.1, self.features);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        match (float_inputs, self.has_mismatch) {
            (None, false) => self.hessian.add(&inputs.values()),
            (Some(float), true) => self.hessian.add_with_float(&inputs.values(), &mut float.to_values()),
            (None, true) => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    "sums with the mismatch need the inputs of the float model too",
                ));
            }
            (Some(_), false) => {
                return Err(Error::new(ErrorKind::Usage, "these sums keep no mismatch, which float inputs are for"));
            }
        }
        Ok(())
    }

    /// The Hessian as a whole matrix, row-major.
    pub fn matrix(&self) -> Vec<f32> {
        let n = self.features;
        let mut whole = vec![0.0; n * n];
        for row in 0..n {
            for (column, value) in self.hessian.gram().sums().row(row).iter().enumerate() {
                whole[row * n + column] = *value;
                whole[column * n + row] = *value;
            }
        }
        whole
    }
}

/// A weight whose codes an algorithm chose.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundedMatrix {
    /// The quantized weight.
    pub matrix: QuantizedMatrix,
    /// The squared error of the layer's outputs over all tokens, where the algorithm knows it.
    pub loss: Option<f64>,
    /// The damping added to the Hessian's diagonal, if any.
    pub damping: Option<f64>,
}

/// Chooses the codes of a weight, `[outputs, features]`, with an algorithm of `kvant list algorithms`: `gptq:damping=0.05`.
///
/// # Errors
/// *Usage* for what is no rounding and for wrong options, otherwise as [`QuantizedMatrix::nearest`] and for sums that cannot be used.
/// *Interrupted* once `cancelled` is set.
pub fn round(
    matrix: &Matrix<'_>,
    scheme: &WeightScheme,
    algorithm: &str,
    sums: Option<&InputSums>,
    cancelled: &AtomicBool,
) -> Result<RoundedMatrix, Error> {
    let (name, given) = options::split(algorithm);
    let Some(AnyRow::Rounding(row)) = algorithm::named(name) else {
        let known: Vec<String> = algorithm::roundings().iter().map(|row| row.name.to_string()).collect();
        let error = Error::new(ErrorKind::Usage, format!("`{name}` is no rounding"));
        return Err(error.with_hint(Some(format!("roundings: {}", known.join(", ")))));
    };
    let rounding = row
        .read(&given)
        .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()).with_hint(Some(error.hint())))?;
    let WeightScheme::Layer(layer) = scheme else {
        let error = Error::new(ErrorKind::Unsupported, format!("{name} chooses codes, and {scheme} is a GGUF type"));
        return Err(error.with_hint(Some("use a scheme such as int4:g128".to_owned())));
    };
    let (outputs, features) = matrix.shape();
    let weight = matrix.values();
    let inputs = sums.map(|sums| SharedInputs::new(sums.hessian.clone()));
    let context = TensorContext::new(matrix.dtype().arithmetic());
    let mut problem = LayerProblem {
        layer: "the tensor",
        shape: Shape { groups: 1, outputs, features },
        weight: &weight,
        grid: Grid::Scheme { scheme: layer.weight, context, from: &weight },
        bias: None,
        function: &ActivationFunction::None,
        inputs: inputs.as_ref(),
        samples: None,
        cancelled,
    };
    let rounded = rounding.round(&mut problem).map_err(|error| match error {
        LayerError::Rounding(error) => of_rounding(error),
        LayerError::Cancelled => Error::new(ErrorKind::Interrupted, "interrupted"),
        LayerError::Sample(error) => Error::new(ErrorKind::Invalid, error.to_string()),
        LayerError::Other(message) => Error::new(ErrorKind::Unsupported, message),
    })?;
    let (loss, damping) = (rounded.loss, rounded.damping);
    let matrix = QuantizedMatrix::of_codes(*layer, matrix.dtype(), rounded.tensor);
    Ok(RoundedMatrix { matrix, loss, damping })
}
