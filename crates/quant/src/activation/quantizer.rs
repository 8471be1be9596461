//! Fake quantization of activations, in place: what a deployed model computes between its layers. Not the finding of static
//! parameters, which is [`ActivationStatistic`](super::ActivationStatistic)'s.

use super::apply::Casts;
use super::spread::{Spread, has_global_scale};
use super::task::Task;
use super::{ActivationError, StaticParameters};
use crate::fake::fake_blocks;
use crate::scheme::{ActivationScheme, TensorScheme, Timing, ZeroPoint};
use kvant_numeric::ComputeDType;
use kvant_numeric::simd::{Isa, dispatch};

/// Quantizes and dequantizes activations with one scheme.
///
/// Values are those of AMD Quark's fake quantizers, in the model's precision: quotients and products are rounded to it, in
/// groups to f32 alone. NaN stays NaN. An infinity saturates under stored scales; under scales computed at run time, which it
/// would make infinite, all values that share the scale become NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationQuantizer {
    scheme: ActivationScheme,
    spread: Spread,
    parameters: StaticParameters,
}

impl ActivationQuantizer {
    /// A quantizer; `parameters` are for schemes with static scales.
    ///
    /// # Errors
    /// [`ActivationError::Scheme`] for combinations that make no sense for activations, [`ActivationError::Count`] where the
    /// parameters are not those of the scheme, [`ActivationError::Value`] for invalid scales.
    pub fn new(
        scheme: ActivationScheme,
        parameters: Option<StaticParameters>,
    ) -> Result<ActivationQuantizer, ActivationError> {
        let spread = Spread::of(scheme)?;
        let parameters = parameters.unwrap_or_default();
        check_count(scheme, spread, &parameters)?;
        check_values(scheme.scheme, &parameters)?;
        Ok(ActivationQuantizer { scheme, spread, parameters })
    }

    /// The scheme.
    pub fn scheme(&self) -> ActivationScheme {
        self.scheme
    }

    /// The static parameters; none where scales are computed at run time.
    pub fn parameters(&self) -> &StaticParameters {
        &self.parameters
    }

    /// Returns whether the rows of a tensor may be quantized apart from one another.
    pub fn is_row_wise(&self) -> bool {
        let whole = self.spread == Spread::Whole || has_global_scale(self.scheme.scheme);
        self.scheme.timing != Timing::Dynamic || !whole || matches!(self.scheme.scheme, TensorScheme::Cast(_))
    }

    /// Quantizes and dequantizes the rows of one tensor, `columns` features each, in place. `arithmetic` is the precision of
    /// the model, to which the values have been rounded.
    pub fn apply(&self, isa: Isa, arithmetic: ComputeDType, rows: &mut [f32], columns: usize) {
        if rows.is_empty() || columns == 0 {
            return;
        }
        let ActivationQuantizer { scheme, spread, ref parameters } = *self;
        let task = Task { scheme, spread, parameters, isa, arithmetic, columns };
        match self.scheme.scheme {
            TensorScheme::Int(scheme) => task.ints(scheme, rows),
            TensorScheme::Float(scheme) => task.floats(scheme, rows),
            TensorScheme::Block(format) => {
                fake_blocks(format, smallest_normal(arithmetic), rows, columns);
                dispatch(isa, Casts { values: rows, through: arithmetic, arithmetic });
            }
            TensorScheme::Cast(cast) => dispatch(isa, Casts { values: rows, through: cast.arithmetic(), arithmetic }),
            // Refused when the quantizer was made.
            TensorScheme::Progressive { .. } | TensorScheme::Gguf(_) => {}
        }
    }
}

/// The least normal number of the precision.
fn smallest_normal(arithmetic: ComputeDType) -> f32 {
    if arithmetic == ComputeDType::F16 { 6.103_515_6e-5 } else { f32::MIN_POSITIVE }
}

fn check_count(scheme: ActivationScheme, spread: Spread, parameters: &StaticParameters) -> Result<(), ActivationError> {
    let (found, zero_points) = (parameters.scales.len(), parameters.zero_points.len());
    let asymmetric = matches!(scheme.scheme, TensorScheme::Int(int) if int.has_zero_points());
    let (expected, fits) = match (scheme.timing, spread) {
        (Timing::Dynamic, _) => ("no parameters", found == 0),
        (Timing::Static, Spread::Features) => ("a scale a feature", found > 0),
        _ => ("one scale", found == 1),
    };
    // Symmetric integers may have zero points of 0, as files do.
    let fits = fits && (zero_points == found || (zero_points == 0 && !asymmetric));
    if fits { Ok(()) } else { Err(ActivationError::Count { scheme: scheme.to_string(), expected, found, zero_points }) }
}

fn check_values(scheme: TensorScheme, parameters: &StaticParameters) -> Result<(), ActivationError> {
    if let Some(scale) = parameters.scales.iter().find(|scale| !(**scale > 0.0 && scale.is_finite())) {
        return Err(ActivationError::Value(*scale, "scale"));
    }
    let is_code = |point: f32| match scheme {
        TensorScheme::Int(int) if int.zero_point == ZeroPoint::Float => point.is_finite(),
        TensorScheme::Int(int) => {
            point.fract() == 0.0 && (int.format.min() as f32..=int.format.max() as f32).contains(&point)
        }
        _ => point == 0.0,
    };
    let wrong = parameters.zero_points.iter().find(|point| !is_code(**point));
    wrong.map_or(Ok(()), |point| Err(ActivationError::Value(*point, "zero point")))
}
