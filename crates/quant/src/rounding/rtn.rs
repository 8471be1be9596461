//! Round to nearest: every weight to the nearest code under the scale of its group. Needs no data.

use crate::observer::Observer;
use crate::parameters::{Affine, quantize};
use crate::quant_tensor::{Codes, QuantTensor, has_zero_points};
use crate::scheme::{FloatScale, FloatScheme, Granularity, IntScheme, SchemeError, TensorScheme, ZeroPoint};
use kvant_numeric::Arithmetic;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::{AffineStep, Range, Scaling, encode_minifloat, group_abs_max, group_ranges, quantize_int};
use kvant_numeric::simd::Isa;

/// What must be known of a tensor before a part of it can be quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorContext {
    /// The precision of the model's scale arithmetic.
    pub arithmetic: Arithmetic,
    /// The range of the whole tensor (of all tensors that share its scale), where the scheme
    /// [needs it](TensorScheme::needs_tensor_range) and more than a whole tensor is rounded.
    pub range: Option<Range>,
}

impl TensorContext {
    /// Nothing but the arithmetic: for whole tensors.
    pub fn new(arithmetic: Arithmetic) -> TensorContext {
        TensorContext { arithmetic, range: None }
    }
}

/// What keeps weights from being rounded.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RoundingError {
    /// The scheme does not fit the shape (*invalid*).
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// The scheme has no codes of its own (*unsupported* here; see [`crate::fake`]).
    #[error("`{0}` has no codes: its values can only be simulated in floats")]
    NoCodes(TensorScheme),
    /// A weight is NaN or infinite (*invalid*).
    #[error("it holds NaN or infinite values")]
    NotFinite,
}

/// Round to nearest with one scheme.
#[derive(Clone, Copy, Debug)]
pub struct Rtn {
    scheme: TensorScheme,
    context: TensorContext,
    isa: Isa,
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
    /// Where the scheme does not fit the shape or a weight is not finite.
    pub fn round(&self, values: &[f32], rows: usize, columns: usize) -> Result<QuantTensor, RoundingError> {
        match self.scheme {
            TensorScheme::Int(scheme) => self.round_int(scheme, values, rows, columns),
            TensorScheme::Float(scheme) => self.round_float(scheme, values, rows, columns),
            TensorScheme::Progressive { first, second } => self.round_progressive(first, second, values, rows, columns),
            TensorScheme::Block(_) | TensorScheme::Cast(_) => Err(RoundingError::NoCodes(self.scheme)),
        }
    }

    fn round_int(
        &self,
        scheme: IntScheme,
        values: &[f32],
        rows: usize,
        columns: usize,
    ) -> Result<QuantTensor, RoundingError> {
        let scale_shape = scheme.granularity.scale_shape(rows, columns)?;
        let tiles = Tiles::new(scheme.granularity, rows, columns);
        let affines = self.affines(scheme, values, &tiles)?;
        let codes = if scheme.format.bits() <= 8 && scheme.zero_point != ZeroPoint::Float {
            Codes::Bytes(self.byte_codes(scheme, values, &tiles, &affines))
        } else {
            plain_codes(scheme, values, &tiles, &affines)
        };
        Ok(QuantTensor {
            scheme: TensorScheme::Int(scheme),
            rows,
            columns,
            codes,
            scales: affines.iter().map(|a| a.scale).collect(),
            zero_points: affines.iter().filter(|_| has_zero_points(scheme)).map(|a| a.zero_point).collect(),
            tensor_scale: None,
            scale_shape,
        })
    }

    fn affines(&self, scheme: IntScheme, values: &[f32], tiles: &Tiles) -> Result<Vec<Affine>, RoundingError> {
        let arithmetic = self.context.arithmetic;
        let ranges = self.ranges(values, tiles)?;
        if scheme.observer == Observer::MinMax {
            return Ok(ranges.iter().map(|range| scheme.parameters(*range, arithmetic)).collect());
        }
        let searched = |(tile, range): (usize, &Range)| {
            let values = tiles.gather(values, tile);
            if scheme.observer == Observer::Mse && scheme.scale == crate::scheme::ScaleType::PowerOfTwo {
                return scheme.best_power_of_two(&values, *range);
            }
            let error = |range| scheme.squared_error(&values, scheme.parameters(range, arithmetic));
            let range = scheme.observer.range(&values, scheme.zero_point == ZeroPoint::Zero, error);
            scheme.parameters(range, arithmetic)
        };
        Ok(ranges.iter().enumerate().map(searched).collect())
    }

    fn byte_codes(&self, scheme: IntScheme, values: &[f32], tiles: &Tiles, affines: &[Affine]) -> Vec<u8> {
        let steps: Vec<AffineStep> = affines
            .iter()
            .map(|a| AffineStep { inverse_scale: 1.0 / a.scale, zero_point: a.zero_point as i32 })
            .collect();
        let mut codes = vec![0; values.len()];
        for run in tiles.runs(values.len()) {
            quantize_int(
                self.isa,
                scheme.format,
                &values[run.elements.clone()],
                tiles.columns,
                &steps[run.scales],
                &mut codes[run.elements],
            );
        }
        codes
    }

    fn round_float(
        &self,
        scheme: FloatScheme,
        values: &[f32],
        rows: usize,
        columns: usize,
    ) -> Result<QuantTensor, RoundingError> {
        let scale_shape = scheme.granularity.scale_shape(rows, columns)?;
        let tiles = Tiles::new(scheme.granularity, rows, columns);
        let amaxes = self.abs_maxima(values, &tiles)?;
        let tensor_scale = scheme.tensor_scale(self.tensor_amax(&amaxes));
        let scales = self.float_scales(scheme, values, &tiles, &amaxes, tensor_scale);
        let divisors: Vec<f32> =
            scales.iter().map(|scale| positive(tensor_scale.map_or(*scale, |g| scale * g))).collect();
        let codes = self.float_codes(scheme, values, &tiles, &divisors);
        let scheme = TensorScheme::Float(scheme);
        Ok(QuantTensor {
            scheme,
            rows,
            columns,
            codes: Codes::Bytes(codes),
            scales,
            zero_points: Vec::new(),
            tensor_scale,
            scale_shape,
        })
    }

    fn float_scales(
        &self,
        scheme: FloatScheme,
        values: &[f32],
        tiles: &Tiles,
        amaxes: &[f32],
        tensor_scale: Option<f32>,
    ) -> Vec<f32> {
        let arithmetic = self.context.arithmetic;
        let scale = |amax| scheme.scale(amax, arithmetic, tensor_scale.unwrap_or(1.0));
        if scheme.observer == Observer::MinMax {
            return amaxes.iter().map(|amax| scale(*amax)).collect();
        }
        let searched = |tile| {
            let values = tiles.gather(values, tile);
            let error = |range: Range| squared_error(scheme.format, &values, scale(range.abs_max()));
            scale(scheme.observer.range(&values, true, error).abs_max())
        };
        (0..amaxes.len()).map(searched).collect()
    }

    fn float_codes(&self, scheme: FloatScheme, values: &[f32], tiles: &Tiles, scales: &[f32]) -> Vec<u8> {
        let scaling = self.scaling(scheme);
        let mut codes = vec![0; values.len()];
        for run in tiles.runs(values.len()) {
            encode_minifloat(
                self.isa,
                scheme.format,
                scaling,
                &values[run.elements.clone()],
                tiles.columns,
                &scales[run.scales],
                &mut codes[run.elements],
            );
        }
        codes
    }

    fn scaling(&self, scheme: FloatScheme) -> Scaling {
        match scheme.scale {
            FloatScale::E8m0(_) => Scaling::PowerOfTwo,
            FloatScale::Plain(scale) if !matches!(scheme.granularity, Granularity::Group { .. }) => {
                Scaling::Divide(scale.arithmetic(self.context.arithmetic))
            }
            _ => Scaling::Divide(Arithmetic::F32),
        }
    }

    fn round_progressive(
        &self,
        first: FloatScheme,
        second: IntScheme,
        values: &[f32],
        rows: usize,
        columns: usize,
    ) -> Result<QuantTensor, RoundingError> {
        let amax = self.tensor_amax(&self.abs_maxima(values, &Tiles::new(first.granularity, rows, columns))?);
        let tensor_scale = first.scale(amax, self.context.arithmetic, 1.0);
        // The quotient is rounded to the model's type even under an f32 scale, as PyTorch does with a scalar divisor.
        let scaling = Scaling::Divide(self.context.arithmetic);
        let mut stage = vec![0; values.len()];
        encode_minifloat(self.isa, first.format, scaling, values, values.len().max(1), &[tensor_scale], &mut stage);
        let on_grid: Vec<f32> = stage.iter().map(|code| first.format.decode(*code)).collect();
        let whole = Rtn { context: TensorContext::new(self.context.arithmetic), ..*self };
        let codes = whole.round_int(second, &on_grid, rows, columns)?;
        Ok(QuantTensor { scheme: self.scheme, tensor_scale: Some(tensor_scale), ..codes })
    }

    fn tensor_amax(&self, amaxes: &[f32]) -> f32 {
        self.context.range.map_or_else(|| amaxes.iter().copied().fold(0.0, f32::max), Range::abs_max)
    }

    /// The largest magnitude of every tile.
    fn abs_maxima(&self, values: &[f32], tiles: &Tiles) -> Result<Vec<f32>, RoundingError> {
        let mut amaxes = vec![0.0f32; tiles.count];
        for run in tiles.runs(values.len()) {
            let mut row = vec![0.0; run.scales.len()];
            group_abs_max(self.isa, &values[run.elements], tiles.columns, &mut row);
            if row.iter().any(|amax| !amax.is_finite()) {
                return Err(RoundingError::NotFinite);
            }
            amaxes[run.scales].iter_mut().zip(row).for_each(|(amax, new)| *amax = amax.max(new));
        }
        if let (Some(range), true) = (self.context.range, tiles.whole_tensor) {
            amaxes.fill(range.abs_max());
        }
        Ok(amaxes)
    }

    /// The range of every tile.
    fn ranges(&self, values: &[f32], tiles: &Tiles) -> Result<Vec<Range>, RoundingError> {
        let mut ranges = vec![Range::EMPTY; tiles.count];
        for run in tiles.runs(values.len()) {
            let mut row = vec![Range::EMPTY; run.scales.len()];
            group_ranges(self.isa, &values[run.elements], tiles.columns, &mut row);
            if row.iter().any(|range| !(range.min.is_finite() && range.max.is_finite())) {
                return Err(RoundingError::NotFinite);
            }
            ranges[run.scales].iter_mut().zip(row).for_each(|(range, new)| *range = range.join(new));
        }
        if let (Some(range), true) = (self.context.range, tiles.whole_tensor) {
            ranges.fill(range);
        }
        Ok(ranges)
    }
}

/// A scale to divide by: an e5m3 scale may be zero, where all codes are zero too.
fn positive(scale: f32) -> f32 {
    if scale > 0.0 { scale } else { crate::parameters::EPSILON }
}

fn squared_error(format: MiniFloat, values: &[f32], scale: f32) -> f64 {
    values.iter().map(|v| f64::from(format.decode(format.encode(v / scale)) * scale - v).powi(2)).sum()
}

fn plain_codes(scheme: IntScheme, values: &[f32], tiles: &Tiles, affines: &[Affine]) -> Codes {
    let code = |(i, v): (usize, &f32)| {
        let affine = affines[tiles.tile_of(i)];
        quantize(scheme.format, *v, 1.0 / affine.scale, affine.zero_point)
    };
    let codes = values.iter().enumerate().map(code);
    if scheme.format.bits() <= 8 {
        Codes::Bytes(codes.map(|c| c as u8).collect())
    } else {
        Codes::Wide(codes.collect())
    }
}

/// The tiles of a matrix that share a scale, as runs that the kernels can take.
struct Tiles {
    /// Columns of the matrix.
    width: usize,
    /// Rows of a tile.
    rows: usize,
    /// Columns of a tile.
    columns: usize,
    /// Tiles side by side.
    across: usize,
    count: usize,
    /// Whether the one tile is the whole tensor, of which the matrix may be a part.
    whole_tensor: bool,
}

/// Consecutive elements, in groups of the tiles' columns, and the scales of those groups.
struct Run {
    elements: std::ops::Range<usize>,
    scales: std::ops::Range<usize>,
}

impl Tiles {
    fn new(granularity: Granularity, rows: usize, columns: usize) -> Tiles {
        let (tile_rows, tile_columns) = granularity.tile(rows, columns);
        let (tile_rows, tile_columns) = (tile_rows.max(1), tile_columns.max(1));
        let across = columns.div_ceil(tile_columns);
        let count = rows.div_ceil(tile_rows) * across;
        let whole_tensor = granularity == Granularity::Tensor;
        Tiles { width: columns.max(1), rows: tile_rows, columns: tile_columns, across, count, whole_tensor }
    }

    /// Splits `length` elements into runs: one row each, or all at once where no tile spans rows.
    fn runs(&self, length: usize) -> impl Iterator<Item = Run> + '_ {
        let at_once = self.rows == 1 && self.width.is_multiple_of(self.columns);
        let step = if at_once { length.max(1) } else { self.width };
        (0..length).step_by(step).map(move |start| {
            let end = (start + step).min(length);
            let first = start / self.width / self.rows * self.across;
            let scales = if at_once { first..self.count } else { first..first + self.across };
            Run { elements: start..end, scales }
        })
    }

    fn tile_of(&self, element: usize) -> usize {
        element / self.width / self.rows * self.across + element % self.width / self.columns
    }

    /// The elements of one tile.
    fn gather(&self, values: &[f32], tile: usize) -> Vec<f32> {
        let (top, left) = (tile / self.across * self.rows, tile % self.across * self.columns);
        let rows = values.chunks(self.width).skip(top).take(self.rows);
        rows.flat_map(|row| row.iter().skip(left).take(self.columns)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * 7919 % 1000) as f32 / 500.0 - 1.0) * (1.0 + (i / columns) as f32)).collect()
    }

    fn rtn(text: &str) -> Rtn {
        Rtn::new(text.parse().unwrap(), TensorContext::new(Arithmetic::F32)).unwrap()
    }

    #[test]
    fn every_granularity_agrees_with_one_tile_at_a_time() {
        let (rows, columns) = (12, 20);
        let data = values(rows, columns);
        for granularity in ["tensor", "channel", "channel@1", "g5", "g-1", "g4@0", "b8x8", "b5x7"] {
            for format in ["int4", "uint4:zp", "e4m3", "int8:mse", "e4m3:mse", "uint8:zp:percentile99", "int16"] {
                let (name, rest) = format.split_once(':').unwrap_or((format, ""));
                let text = format!("{name}:{granularity}:{rest}");
                let quantized = rtn(text.trim_end_matches(':')).round(&data, rows, columns).unwrap();
                let tiles = Tiles::new(quantized.scheme().granularity().unwrap(), rows, columns);
                let restored = quantized.dequantize();
                for tile in 0..tiles.count {
                    let part = tiles.gather(&data, tile);
                    let single = rtn(text.replacen(granularity, "tensor", 1).trim_end_matches(':'));
                    let expected = single.round(&part, 1, part.len()).unwrap();
                    assert_eq!(quantized.scales()[tile], expected.scales()[0], "{text}");
                    assert_eq!(tiles.gather(&restored, tile), expected.dequantize(), "{text}");
                }
            }
        }
    }

    #[test]
    fn bands_make_the_same_tensor() {
        let data = values(8, 32);
        for text in [
            "int4:g16",
            "uint4:channel:zp",
            "e2m1:g32:e8m0",
            "int8:tensor",
            "e2m1:g16:e4m3:f32",
            "int4:channel:f32/e4m3:tensor:f32",
            "e4m3:b2x16",
        ] {
            let whole = rtn(text).round(&data, 8, 32).unwrap();
            let range = data.iter().fold(Range::EMPTY, |r, v| r.join(Range { min: *v, max: *v }));
            let banded =
                Rtn::new(text.parse().unwrap(), TensorContext { arithmetic: Arithmetic::F32, range: Some(range) })
                    .unwrap();
            let mut joined = banded.round(&data[..128], 4, 32).unwrap();
            joined.append_rows(banded.round(&data[128..], 4, 32).unwrap()).unwrap();
            assert_eq!(joined, whole, "{text}");
        }
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        for bad in [f32::NAN, f32::INFINITY] {
            for text in ["int4:g4", "e4m3:tensor", "e2m1:g2:e8m0", "uint8:channel@1:zp"] {
                let mut data = values(2, 4);
                data[5] = bad;
                assert_eq!(rtn(text).round(&data, 2, 4), Err(RoundingError::NotFinite), "{text}");
            }
        }
        assert!(matches!(rtn("int4:g4").round(&values(1, 6), 1, 6), Err(RoundingError::Scheme(_))));
    }

    #[test]
    fn zeros_and_empty_matrices_are_fine() {
        for text in ["int4:g4", "e4m3:tensor", "e2m1:g4:e8m0", "e2m1:g4:e5m3", "e2m1:g4:e4m3:f32", "uint4:g4:fzp"] {
            assert_eq!(rtn(text).round(&[0.0; 8], 2, 4).unwrap().dequantize(), [0.0; 8], "{text}");
            assert_eq!(rtn(text).round(&[], 0, 4).unwrap().dequantize(), Vec::<f32>::new(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn errors_stay_within_half_a_step(data in prop::collection::vec(-1e3f32..1e3, 64)) {
            for text in ["int8:g16", "uint8:g16:zp", "uint4:g32:zp"] {
                let quantized = rtn(text).round(&data, 1, 64).unwrap();
                let group = 64 / quantized.scales().len();
                for (i, (value, restored)) in data.iter().zip(quantized.dequantize()).enumerate() {
                    // Symmetric codes end half a step short of the largest value.
                    prop_assert!((value - restored).abs() <= quantized.scales()[i / group] * 1.0001);
                }
            }
        }

        #[test]
        fn every_isa_rounds_alike(data in prop::collection::vec(-10f32..10.0, 96)) {
            for text in ["int4:g32", "e2m1:g32:e8m0", "e4m3:channel", "uint4:g16:zp"] {
                let scalar = rtn(text).on(Isa::BASELINE).round(&data, 3, 32).unwrap();
                for isa in Isa::available() {
                    prop_assert_eq!(&rtn(text).on(isa).round(&data, 3, 32).unwrap(), &scalar);
                }
            }
        }
    }
}
