//! Round to nearest: every weight to the nearest code under the scale of its group. Needs no data. Which scales and codes
//! integers get is in `integers`, floats in `floats`.

mod extents;
mod floats;
mod gguf;
mod grid;
mod integers;
pub(super) mod search;

use super::tiles::Tiles;
use super::weights::Weights;
use crate::hessian::HessianError;
use crate::observer::ObserverRef;
use crate::parameters::Affine;
use crate::quant_tensor::QuantTensor;
use crate::scheme::{FloatScale, FloatScheme, Granularity, SchemeError, TensorScheme};
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::{AffineStep, Elements, Range, widen_elements};
use kvant_numeric::simd::Isa;
use std::borrow::Cow;

/// Facts about a tensor that are needed before a part of it can be quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorContext {
    /// The precision of the model's scale arithmetic.
    pub arithmetic: ComputeDType,
    /// The range of the whole tensor (of all tensors that share its scale), where the scheme
    /// [needs it](TensorScheme::needs_tensor_range) and more than a whole tensor is rounded.
    pub range: Option<Range>,
}

impl TensorContext {
    /// Nothing but the arithmetic: for whole tensors.
    pub fn new(arithmetic: ComputeDType) -> TensorContext {
        TensorContext { arithmetic, range: None }
    }
}

/// Reasons that weights cannot be rounded.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RoundingError {
    /// The scheme does not fit the shape (*invalid*).
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// The scheme has no codes (*unsupported* here; see [`crate::fake`]).
    #[error("`{0}` has no codes: its values can only be simulated in float")]
    NoCodes(TensorScheme),
    /// A weight is NaN or infinite (*invalid*).
    #[error("it holds NaN or infinite values")]
    NotFinite,
    /// Its values need a scale that the type of its scales does not hold (*unsupported* by the scheme).
    #[error("its values need a scale of {scale:e}, beyond {largest:?}, the largest number of the type of scales")]
    ScaleTooLarge {
        /// The scale.
        scale: f32,
        /// The largest that is stored.
        largest: f32,
    },
    /// The calibration statistics of its inputs cannot be used.
    #[error(transparent)]
    Hessian(#[from] HessianError),
}

/// Round to nearest with one scheme.
#[derive(Clone, Copy, Debug)]
pub struct Rtn {
    scheme: TensorScheme,
    context: TensorContext,
    isa: Isa,
}

/// Buffers of a rounding, to be kept by a thread from one call to the next.
#[derive(Debug, Default)]
pub struct Scratch {
    values: Vec<f32>,
    groups: Groups,
}

/// Statistics of the groups of a strip.
#[derive(Debug, Default)]
struct Groups {
    amaxes: Vec<f32>,
    ranges: Vec<Range>,
    affines: Vec<Affine>,
    steps: Vec<AffineStep>,
    divisors: Vec<f32>,
}

/// Elements that are rounded at a time: few enough to be read twice from the first-level cache, or nearly.
const STRIP: usize = 1 << 13;

/// Some rows of the weights.
#[derive(Clone, Copy)]
struct Strip<'a> {
    elements: Elements<'a>,
    rows: usize,
    columns: usize,
    /// The weight of each column's errors in searches.
    importance: Option<&'a [f32]>,
}

impl<'a> Strip<'a> {
    fn tiles(&self, granularity: Granularity) -> Tiles {
        Tiles::new(granularity, self.rows, self.columns)
    }

    fn values(&self, isa: Isa) -> Cow<'a, [f32]> {
        if let Elements::Values(values) = self.elements {
            return Cow::Borrowed(values);
        }
        let mut values = vec![0.0; self.elements.len()];
        widen_elements(isa, self.elements, &mut values);
        Cow::Owned(values)
    }
}

impl Rtn {
    /// A rounding with the best instruction set of the CPU.
    ///
    /// # Errors
    /// [`RoundingError::NoCodes`] for shared-exponent formats and casts.
    pub fn new(scheme: TensorScheme, context: TensorContext) -> Result<Rtn, RoundingError> {
        if matches!(scheme, TensorScheme::Block(_) | TensorScheme::Cast(_)) {
            return Err(RoundingError::NoCodes(scheme));
        }
        Ok(Rtn { scheme, context, isa: Isa::best() })
    }

    /// The same with a given instruction set.
    pub fn on(self, isa: Isa) -> Rtn {
        Rtn { isa, ..self }
    }

    /// Rounds a row-major `rows x columns` matrix, which starts and ends on tiles of scales.
    ///
    /// # Errors
    /// If the scheme does not fit the shape or a weight is not finite.
    pub fn round(&self, values: &[f32], rows: usize, columns: usize) -> Result<QuantTensor, RoundingError> {
        let mut out = self.empty(columns);
        self.round_strips(Weights::new(Elements::Values(values), columns), rows, &mut Scratch::default(), &mut out)?;
        Ok(out)
    }

    /// A tensor without rows, for [`round_onto`](Self::round_onto).
    pub fn empty(&self, columns: usize) -> QuantTensor {
        QuantTensor::empty(self.scheme, columns)
    }

    /// Rounds weights, which start and end on tiles of scales, and appends their rows to `out`, which has this scheme and
    /// as many columns. What `scratch` and `out` have allocated is used again: the fastest way to round part after part is
    /// to keep both, and to [`clear`](QuantTensor::clear) `out` before each.
    ///
    /// # Errors
    /// As [`round`](Self::round), and where `out` is of another kind. After an error `out` is of no use until cleared.
    pub fn round_onto(
        &self,
        weights: Weights<'_>,
        scratch: &mut Scratch,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let (rows, columns) = weights.shape();
        if (out.scheme, out.columns) != (self.scheme, columns) {
            return Err(SchemeError::Combination { text: format!("{} and {}", out.scheme, self.scheme) }.into());
        }
        self.round_strips(weights, rows, scratch, out)
    }

    fn round_strips(
        &self,
        weights: Weights<'_>,
        rows: usize,
        scratch: &mut Scratch,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let (_, columns) = weights.shape();
        let known = out.scales.len();
        out.grow(rows)?;
        let step = self.strip_rows(rows, columns);
        for start in (0..rows).step_by(step) {
            let end = (start + step).min(rows);
            let elements = weights.elements(self.isa, start..end, &mut scratch.values);
            let strip = Strip { elements, rows: end - start, columns, importance: weights.importance() };
            self.append(strip, &mut scratch.groups, out)?;
        }
        self.check_scales(out.scales.get(known..).unwrap_or_default())
    }

    /// Refuses scales that change when stored: codes would have other values.
    fn check_scales(&self, scales: &[f32]) -> Result<(), RoundingError> {
        let largest = match self.scheme {
            TensorScheme::Int(scheme) | TensorScheme::Progressive { second: scheme, .. } => scheme.scale.largest(),
            TensorScheme::Float(FloatScheme { scale: FloatScale::Plain(scale), .. }) => scale.largest(),
            _ => f32::MAX,
        };
        match scales.iter().find(|scale| scale.abs() > largest || scale.is_nan()) {
            Some(scale) => Err(RoundingError::ScaleTooLarge { scale: *scale, largest }),
            None => Ok(()),
        }
    }

    /// Rows that can be rounded on their own: whole tiles, all of them where something of the whole must be found.
    fn strip_rows(&self, rows: usize, columns: usize) -> usize {
        let progressive = matches!(self.scheme, TensorScheme::Progressive { .. });
        if self.scheme.needs_tensor_range() && self.context.range.is_none() {
            return rows.max(1);
        }
        let unit = match self.scheme.granularity() {
            Some(Granularity::Tensor) if !progressive && !self.is_searched() => 1,
            Some(granularity) => granularity.tile(rows, columns).0.max(1),
            None => rows.max(1),
        };
        (STRIP / columns.max(1) / unit).max(1) * unit
    }

    fn is_searched(&self) -> bool {
        self.scheme.observer() != ObserverRef::MIN_MAX
    }

    fn append(&self, strip: Strip<'_>, groups: &mut Groups, out: &mut QuantTensor) -> Result<(), RoundingError> {
        match self.scheme {
            TensorScheme::Int(scheme) => self.append_int(scheme, strip, groups, out),
            TensorScheme::Float(scheme) => self.append_float(scheme, strip, groups, out),
            TensorScheme::Progressive { first, second } => self.append_progressive(first, second, strip, groups, out),
            TensorScheme::Gguf(blocks) => self.append_blocks(blocks, strip, out),
            TensorScheme::Block(_) | TensorScheme::Cast(_) => Err(RoundingError::NoCodes(self.scheme)),
        }
    }
}

/// The new elements at the end of a vector that grows by `count`.
fn grown<T: Clone + Default>(vector: &mut Vec<T>, count: usize) -> &mut [T] {
    let start = vector.len();
    vector.resize(start + count, T::default());
    &mut vector[start..]
}

#[cfg(test)]
mod tests;
