//! Fake quantization of activations, in place: what a deployed model computes between its layers. Not the finding of static
//! parameters, which is [`ActivationStatistic`](super::ActivationStatistic)'s.

use super::apply::{BlockScales, Casts, FloatFeatures, FloatTiles, IntFeatures, IntTiles};
use super::spread::{Spread, has_tensor_scale};
use super::{ActivationError, StaticParameters};
use crate::fake::fake_blocks;
use crate::parameters::{Affine, EPSILON, dequantize, quantize};
use crate::rounding::batch::{Affines, Scales};
use crate::scheme::{ActivationScheme, FloatScale, FloatScheme, IntScheme, TensorScheme, Timing, ZeroPoint};
use kvant_numeric::Arithmetic;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::{Range, group_abs_max, group_ranges};
use kvant_numeric::simd::{Isa, dispatch};

/// Elements that are quantized at a time, so that they are still in the cache when their scales are known.
const STRIP: usize = 1 << 14;

/// Quantizes and dequantizes activations with one scheme.
///
/// Values are those of AMD Quark's fake quantizers, in the model's precision: quotients and products are rounded to it, in
/// groups to f32 alone. NaN stays NaN. An infinity saturates under stored scales; under scales found anew, which it would
/// make infinite, all that share the scale become NaN.
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
    /// parameters are not those of the scheme, [`ActivationError::Value`] for scales that are none.
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

    /// The static parameters; none where scales are found anew.
    pub fn parameters(&self) -> &StaticParameters {
        &self.parameters
    }

    /// Whether the rows of a tensor may be quantized apart from one another.
    pub fn is_row_wise(&self) -> bool {
        let whole = self.spread == Spread::Whole || has_tensor_scale(self.scheme.scheme);
        self.scheme.timing != Timing::Dynamic || !whole || matches!(self.scheme.scheme, TensorScheme::Cast(_))
    }

    /// Quantizes and dequantizes the rows of one tensor, `columns` features each, in place. `arithmetic` is the precision of
    /// the model, to which the values have been rounded.
    pub fn apply(&self, isa: Isa, arithmetic: Arithmetic, rows: &mut [f32], columns: usize) {
        if rows.is_empty() || columns == 0 {
            return;
        }
        let task = Task { quantizer: self, isa, arithmetic, columns };
        match self.scheme.scheme {
            TensorScheme::Int(scheme) => task.ints(scheme, rows),
            TensorScheme::Float(scheme) => task.floats(scheme, rows),
            TensorScheme::Block(format) => {
                fake_blocks(format, smallest_normal(arithmetic), rows, columns);
                dispatch(isa, Casts { values: rows, through: arithmetic, arithmetic });
            }
            TensorScheme::Cast(cast) => dispatch(isa, Casts { values: rows, through: cast.arithmetic(), arithmetic }),
            // Refused when the quantizer was made.
            TensorScheme::Progressive { .. } => {}
        }
    }
}

/// The least normal number of the precision.
fn smallest_normal(arithmetic: Arithmetic) -> f32 {
    if arithmetic == Arithmetic::F16 { 6.103_515_6e-5 } else { f32::MIN_POSITIVE }
}

fn check_count(scheme: ActivationScheme, spread: Spread, parameters: &StaticParameters) -> Result<(), ActivationError> {
    let (found, zero_points) = (parameters.scales.len(), parameters.zero_points.len());
    let asymmetric = matches!(scheme.scheme, TensorScheme::Int(int) if crate::quant_tensor::has_zero_points(int));
    let (expected, fits) = match (scheme.timing, spread) {
        (Timing::Dynamic, _) => ("no parameters", found == 0),
        (Timing::Static, Spread::Features) => ("a scale a feature", found > 0),
        _ => ("one scale", found == 1),
    };
    // Symmetric integers may have zero points of 0, as files do.
    let fits = fits && (zero_points == found || (zero_points == 0 && !asymmetric));
    if fits { Ok(()) } else { Err(ActivationError::Count { scheme, expected, found, zero_points }) }
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

/// One call of a quantizer.
struct Task<'a> {
    quantizer: &'a ActivationQuantizer,
    isa: Isa,
    arithmetic: Arithmetic,
    columns: usize,
}

impl Task<'_> {
    fn is_stored(&self) -> bool {
        self.quantizer.scheme.timing == Timing::Static
    }

    /// Elements that share a scale within a row.
    fn group(&self) -> usize {
        match self.quantizer.spread {
            Spread::Groups(size) => size.min(self.columns),
            _ => self.columns,
        }
    }

    /// Some whole rows at a time.
    fn strips<'r>(&self, rows: &'r mut [f32]) -> impl Iterator<Item = &'r mut [f32]> {
        rows.chunks_mut((STRIP / self.columns).max(1) * self.columns)
    }

    /// Runs a kernel that gives one result a group on all groups of the rows: at once where rows end where groups do.
    fn by_group<T: Clone>(&self, rows: &[f32], empty: T, kernel: impl Fn(&[f32], usize, &mut [T])) -> Vec<T> {
        let group = self.group();
        let across = self.columns.div_ceil(group);
        let mut results = vec![empty; rows.len().div_ceil(self.columns) * across];
        if self.columns.is_multiple_of(group) {
            kernel(rows, group, &mut results);
        } else {
            rows.chunks(self.columns).zip(results.chunks_mut(across)).for_each(|(row, out)| kernel(row, group, out));
        }
        results
    }

    fn ints(&self, scheme: IntScheme, rows: &mut [f32]) {
        let stored = &self.quantizer.parameters;
        let zero_point = |i: usize| stored.zero_points.get(i).map_or(0.0, |point| f64::from(*point));
        let affine = |i: usize| Affine { scale: stored.scales[i], zero_point: zero_point(i) };
        match self.quantizer.spread {
            Spread::Whole if self.is_stored() => self.int_tiles(scheme, rows, rows_len(rows), &[affine(0)]),
            Spread::Whole => {
                let mut range = [Range::EMPTY];
                group_ranges(self.isa, rows, rows.len(), &mut range);
                let affines = self.affines(scheme, &range);
                self.int_tiles(scheme, rows, rows_len(rows), &affines);
            }
            Spread::Features => {
                let affines: Vec<Affine> = (0..stored.scales.len()).map(affine).collect();
                self.int_features(scheme, rows, &affines);
            }
            Spread::Tokens | Spread::Groups(_) => {
                for strip in self.strips(rows) {
                    let ranges =
                        self.by_group(strip, Range::EMPTY, |v, group, out| group_ranges(self.isa, v, group, out));
                    let affines = self.affines(scheme, &ranges);
                    self.int_tiles(scheme, strip, self.columns, &affines);
                }
            }
        }
    }

    /// The parameters of ranges; NaN where a range is of more than numbers.
    fn affines(&self, scheme: IntScheme, ranges: &[Range]) -> Vec<Affine> {
        let mut affines = vec![Affine { scale: 1.0, zero_point: 0.0 }; ranges.len()];
        dispatch(self.isa, Affines { scheme, arithmetic: self.arithmetic, ranges, affines: &mut affines });
        for (affine, range) in affines.iter_mut().zip(ranges) {
            if !(range.min.is_finite() && range.max.is_finite()) {
                affine.scale = f32::NAN;
            }
        }
        affines
    }

    fn int_tiles(&self, scheme: IntScheme, values: &mut [f32], width: usize, affines: &[Affine]) {
        let group = if affines.len() == 1 { width } else { self.group() };
        if is_plain(scheme) {
            let body = IntTiles { format: scheme.format, arithmetic: self.arithmetic, values, width, group, affines };
            return dispatch(self.isa, body);
        }
        let across = width.div_ceil(group);
        for (row, affines) in values.chunks_mut(width).zip(affines.chunks(across)) {
            for (tile, affine) in row.chunks_mut(group).zip(affines) {
                tile.iter_mut().for_each(|value| *value = self.plain_int(scheme, *value, *affine));
            }
        }
    }

    fn int_features(&self, scheme: IntScheme, rows: &mut [f32], affines: &[Affine]) {
        if is_plain(scheme) {
            let body = IntFeatures {
                format: scheme.format,
                arithmetic: self.arithmetic,
                rows,
                columns: self.columns,
                affines,
            };
            return dispatch(self.isa, body);
        }
        for row in rows.chunks_mut(self.columns) {
            row.iter_mut().zip(affines).for_each(|(value, affine)| *value = self.plain_int(scheme, *value, *affine));
        }
    }

    /// The specification, for formats and zero points that the loops do not take.
    fn plain_int(&self, scheme: IntScheme, value: f32, affine: Affine) -> f32 {
        if value.is_nan() || affine.scale.is_nan() {
            return f32::NAN;
        }
        let code = quantize(scheme.format, value, 1.0 / affine.scale, affine.zero_point);
        self.arithmetic.round(dequantize(code, affine))
    }

    fn floats(&self, scheme: FloatScheme, rows: &mut [f32]) {
        let stored = &self.quantizer.parameters;
        match self.quantizer.spread {
            Spread::Whole if self.is_stored() => self.float_tiles(scheme, rows, rows_len(rows), &stored.scales),
            Spread::Whole => {
                let amax = self.amax(rows);
                let scales = self.scales(scheme, &[amax]);
                self.float_tiles(scheme, rows, rows_len(rows), &scales);
            }
            Spread::Features => {
                let scales: Vec<f32> = stored.scales.iter().map(|scale| self.arithmetic.round(*scale)).collect();
                let (format, arithmetic, columns) = (scheme.format, self.arithmetic, self.columns);
                dispatch(self.isa, FloatFeatures { format, arithmetic, rows, columns, scales: &scales });
            }
            Spread::Tokens | Spread::Groups(_) => self.float_groups(scheme, rows),
        }
    }

    fn float_groups(&self, scheme: FloatScheme, rows: &mut [f32]) {
        let tensor_scale = match self.quantizer.scheme.timing {
            Timing::Dynamic if scheme.scale.has_tensor_scale() => scheme.tensor_scale(self.amax(rows)),
            _ => self.quantizer.parameters.scales.first().copied(),
        };
        for strip in self.strips(rows) {
            let amaxes = self.by_group(strip, 0.0, |v, group, out| group_abs_max(self.isa, v, group, out));
            let scales = match tensor_scale {
                Some(tensor_scale) => self.block_scales(scheme, &amaxes, tensor_scale),
                None => self.scales(scheme, &amaxes),
            };
            self.float_tiles(scheme, strip, self.columns, &scales);
        }
    }

    fn block_scales(&self, scheme: FloatScheme, amaxes: &[f32], tensor_scale: f32) -> Vec<f32> {
        let mut scales = vec![0.0; amaxes.len()];
        let format = if scheme.scale == FloatScale::E5m3OfTensor { MiniFloat::E5M3 } else { MiniFloat::E4M3 };
        let largest = scheme.format.max();
        dispatch(self.isa, BlockScales { format, largest, tensor_scale, amaxes, scales: &mut scales });
        scales
    }

    fn amax(&self, rows: &[f32]) -> f32 {
        let mut amax = [0.0];
        group_abs_max(self.isa, rows, rows.len(), &mut amax);
        amax[0]
    }

    /// The scales of largest magnitudes; NaN where one is no number.
    fn scales(&self, scheme: FloatScheme, amaxes: &[f32]) -> Vec<f32> {
        let mut scales = vec![0.0; amaxes.len()];
        let arithmetic = self.arithmetic;
        dispatch(self.isa, Scales { scheme, arithmetic, tensor_scale: 1.0, amaxes, scales: &mut scales });
        let by_token = self.quantizer.spread == Spread::Tokens;
        for (scale, amax) in scales.iter_mut().zip(amaxes) {
            // A vector of scales is cast to the type of what it divides.
            let cast = if by_token { arithmetic.round(*scale) } else { *scale };
            let positive = if cast == 0.0 { EPSILON } else { cast };
            *scale = if amax.is_finite() { positive } else { f32::NAN };
        }
        scales
    }

    fn float_tiles(&self, scheme: FloatScheme, values: &mut [f32], width: usize, scales: &[f32]) {
        let group = if scales.len() == 1 { width } else { self.group() };
        let grouped = matches!(self.quantizer.spread, Spread::Groups(_));
        let quotient = if grouped { Arithmetic::F32 } else { self.arithmetic };
        let (format, arithmetic) = (scheme.format, self.arithmetic);
        dispatch(self.isa, FloatTiles { format, quotient, arithmetic, values, width, group, scales });
    }
}

/// A row as long as everything.
fn rows_len(rows: &[f32]) -> usize {
    rows.len()
}

/// Whether the loops take the format: they count in `f32`.
fn is_plain(scheme: IntScheme) -> bool {
    scheme.zero_point != ZeroPoint::Float && scheme.format.bits() <= 16
}
