//! Round to nearest: every weight to the nearest code under the scale of its group. Needs no data.

use super::batch::{Affines, Divisors, Scales, Steps};
use super::tiles::Tiles;
use super::weights::Weights;
use crate::hessian::HessianError;
use crate::observer::Observer;
use crate::parameters::{Affine, quantize};
use crate::quant_tensor::{Codes, QuantTensor, has_zero_points};
use crate::scheme::{FloatScale, FloatScheme, Granularity, IntScheme, ScaleType, SchemeError, TensorScheme, ZeroPoint};
use kvant_numeric::Arithmetic;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::{
    AffineStep, Elements, Range, Scaling, element_abs_max, element_codes, element_ranges, encode_elements,
    widen_elements,
};
use kvant_numeric::simd::{Isa, dispatch};
use std::borrow::Cow;

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
    /// What calibration knows of its inputs cannot be used.
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

/// What is known of the groups of a strip.
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
    /// Where the scheme does not fit the shape or a weight is not finite.
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
        out.grow(rows)?;
        let step = self.strip_rows(rows, columns);
        for start in (0..rows).step_by(step) {
            let end = (start + step).min(rows);
            let elements = weights.elements(self.isa, start..end, &mut scratch.values);
            self.append(Strip { elements, rows: end - start, columns }, &mut scratch.groups, out)?;
        }
        Ok(())
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
        match self.scheme {
            TensorScheme::Int(scheme) => scheme.observer != Observer::MinMax,
            TensorScheme::Float(scheme) => scheme.observer != Observer::MinMax,
            _ => false,
        }
    }

    fn append(&self, strip: Strip<'_>, groups: &mut Groups, out: &mut QuantTensor) -> Result<(), RoundingError> {
        match self.scheme {
            TensorScheme::Int(scheme) => self.append_int(scheme, strip, groups, out),
            TensorScheme::Float(scheme) => self.append_float(scheme, strip, groups, out),
            TensorScheme::Progressive { first, second } => self.append_progressive(first, second, strip, groups, out),
            TensorScheme::Block(_) | TensorScheme::Cast(_) => Err(RoundingError::NoCodes(self.scheme)),
        }
    }

    fn append_int(
        &self,
        scheme: IntScheme,
        strip: Strip<'_>,
        groups: &mut Groups,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let tiles = strip.tiles(scheme.granularity);
        self.find_ranges(scheme, strip, &tiles, groups)?;
        self.find_affines(scheme, strip, &tiles, groups);
        match &mut out.codes {
            Codes::Bytes(codes) if scheme.zero_point != ZeroPoint::Float => {
                self.byte_codes(scheme, strip, &tiles, groups, codes);
            }
            codes => plain_codes(scheme, &strip.values(self.isa), &tiles, &groups.affines, codes),
        }
        if scheme.granularity != Granularity::Tensor || out.scales.is_empty() {
            out.scales.extend(groups.affines.iter().map(|a| a.scale));
            out.zero_points.extend(groups.affines.iter().filter(|_| has_zero_points(scheme)).map(|a| a.zero_point));
        }
        Ok(())
    }

    fn find_affines(&self, scheme: IntScheme, strip: Strip<'_>, tiles: &Tiles, groups: &mut Groups) {
        let arithmetic = self.context.arithmetic;
        let Groups { ranges, affines, .. } = groups;
        affines.resize(ranges.len(), Affine { scale: 1.0, zero_point: 0.0 });
        if scheme.observer == Observer::MinMax {
            return dispatch(self.isa, Affines { scheme, arithmetic, ranges, affines });
        }
        let values = strip.values(self.isa);
        for (tile, (affine, range)) in affines.iter_mut().zip(ranges).enumerate() {
            *affine = self.searched_affine(scheme, &tiles.gather(&values, tile), *range);
        }
    }

    fn searched_affine(&self, scheme: IntScheme, values: &[f32], range: Range) -> Affine {
        let arithmetic = self.context.arithmetic;
        if scheme.observer == Observer::Mse && scheme.scale == ScaleType::PowerOfTwo {
            return scheme.best_power_of_two(values, range);
        }
        let error = |range| scheme.squared_error(values, scheme.parameters(range, arithmetic));
        let range = scheme.observer.range(values, scheme.zero_point == ZeroPoint::Zero, error);
        scheme.parameters(range, arithmetic)
    }

    fn byte_codes(&self, scheme: IntScheme, strip: Strip<'_>, tiles: &Tiles, groups: &mut Groups, codes: &mut Vec<u8>) {
        let Groups { affines, steps, .. } = groups;
        steps.resize(affines.len(), AffineStep { inverse_scale: 1.0, zero_point: 0 });
        dispatch(self.isa, Steps { affines, steps });
        let codes = grown(codes, strip.elements.len());
        for run in tiles.runs(codes.len()) {
            let elements = strip.elements.slice(run.elements.clone());
            element_codes(
                self.isa,
                scheme.format,
                elements,
                tiles.columns,
                &steps[run.scales],
                &mut codes[run.elements],
            );
        }
    }

    fn append_float(
        &self,
        scheme: FloatScheme,
        strip: Strip<'_>,
        groups: &mut Groups,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let tiles = strip.tiles(scheme.granularity);
        self.find_abs_maxima(strip, &tiles, groups)?;
        let tensor_scale = scheme.tensor_scale(self.tensor_amax(&groups.amaxes));
        if scheme.granularity == Granularity::Tensor {
            out.scales.clear();
        }
        let scales = grown(&mut out.scales, tiles.count);
        self.find_scales(scheme, strip, &tiles, &groups.amaxes, tensor_scale, scales);
        groups.divisors.resize(tiles.count, 0.0);
        dispatch(self.isa, Divisors { scales, tensor_scale, divisors: &mut groups.divisors });
        if let Codes::Bytes(codes) = &mut out.codes {
            self.float_codes(scheme, strip, &tiles, &groups.divisors, grown(codes, strip.elements.len()));
        }
        out.tensor_scale = tensor_scale;
        Ok(())
    }

    fn find_scales(
        &self,
        scheme: FloatScheme,
        strip: Strip<'_>,
        tiles: &Tiles,
        amaxes: &[f32],
        tensor_scale: Option<f32>,
        scales: &mut [f32],
    ) {
        let (arithmetic, tensor_scale) = (self.context.arithmetic, tensor_scale.unwrap_or(1.0));
        if scheme.observer == Observer::MinMax {
            return dispatch(self.isa, Scales { scheme, arithmetic, tensor_scale, amaxes, scales });
        }
        let values = strip.values(self.isa);
        for (tile, out) in scales.iter_mut().enumerate() {
            let values = tiles.gather(&values, tile);
            let scale = |range: Range| scheme.scale(range.abs_max(), arithmetic, tensor_scale);
            let error = |range| squared_error(scheme.format, &values, scale(range));
            *out = scale(scheme.observer.range(&values, true, error));
        }
    }

    fn float_codes(&self, scheme: FloatScheme, strip: Strip<'_>, tiles: &Tiles, divisors: &[f32], codes: &mut [u8]) {
        let scaling = self.scaling(scheme);
        for run in tiles.runs(codes.len()) {
            let elements = strip.elements.slice(run.elements.clone());
            let (divisors, codes) = (&divisors[run.scales], &mut codes[run.elements]);
            encode_elements(self.isa, scheme.format, scaling, elements, tiles.columns, divisors, codes);
        }
    }

    /// How values are brought to their scale.
    pub(super) fn scaling(&self, scheme: FloatScheme) -> Scaling {
        match scheme.scale {
            FloatScale::E8m0(_) => Scaling::PowerOfTwo,
            FloatScale::Plain(scale) if !matches!(scheme.granularity, Granularity::Group { .. }) => {
                Scaling::Divide(scale.arithmetic(self.context.arithmetic))
            }
            _ => Scaling::Divide(Arithmetic::F32),
        }
    }

    fn append_progressive(
        &self,
        first: FloatScheme,
        second: IntScheme,
        strip: Strip<'_>,
        groups: &mut Groups,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        self.find_abs_maxima(strip, &strip.tiles(first.granularity), groups)?;
        let tensor_scale = first.scale(self.tensor_amax(&groups.amaxes), self.context.arithmetic, 1.0);
        // The quotient is rounded to the model's type even under an f32 scale, as PyTorch does with a scalar divisor.
        let scaling = Scaling::Divide(self.context.arithmetic);
        let count = strip.elements.len();
        let mut stage = vec![0; count];
        encode_elements(self.isa, first.format, scaling, strip.elements, count.max(1), &[tensor_scale], &mut stage);
        let on_grid: Vec<f32> = stage.iter().map(|code| first.format.decode(*code)).collect();
        let whole = Rtn { context: TensorContext::new(self.context.arithmetic), ..*self };
        whole.append_int(second, Strip { elements: Elements::Values(&on_grid), ..strip }, groups, out)?;
        out.tensor_scale = Some(tensor_scale);
        Ok(())
    }

    fn tensor_amax(&self, amaxes: &[f32]) -> f32 {
        self.context.range.map_or_else(|| amaxes.iter().copied().fold(0.0, f32::max), Range::abs_max)
    }

    /// The largest magnitude of every tile.
    fn find_abs_maxima(&self, strip: Strip<'_>, tiles: &Tiles, groups: &mut Groups) -> Result<(), RoundingError> {
        let amaxes = &mut groups.amaxes;
        amaxes.clear();
        amaxes.resize(tiles.count, 0.0);
        let mut row = Vec::new();
        for run in tiles.runs(strip.elements.len()) {
            let elements = strip.elements.slice(run.elements);
            if tiles.rows == 1 {
                element_abs_max(self.isa, elements, tiles.columns, &mut amaxes[run.scales]);
                continue;
            }
            row.resize(run.scales.len(), 0.0f32);
            element_abs_max(self.isa, elements, tiles.columns, &mut row);
            // Of two magnitudes as bits, so that NaN stays.
            let joined = amaxes[run.scales].iter_mut().zip(&row);
            joined.for_each(|(amax, new)| *amax = f32::from_bits(amax.to_bits().max(new.to_bits())));
        }
        if amaxes.iter().any(|amax| !amax.is_finite()) {
            return Err(RoundingError::NotFinite);
        }
        if let (Some(range), true) = (self.context.range, tiles.whole_tensor) {
            amaxes.fill(range.abs_max());
        }
        Ok(())
    }

    /// The range of every tile; for symmetric schemes the range from minus to plus the largest magnitude, which is enough.
    fn find_ranges(
        &self,
        scheme: IntScheme,
        strip: Strip<'_>,
        tiles: &Tiles,
        groups: &mut Groups,
    ) -> Result<(), RoundingError> {
        if scheme.zero_point == ZeroPoint::Zero {
            self.find_abs_maxima(strip, tiles, groups)?;
            groups.ranges.clear();
            groups.ranges.extend(groups.amaxes.iter().map(|amax| Range { min: -amax, max: *amax }));
            return Ok(());
        }
        let ranges = &mut groups.ranges;
        ranges.clear();
        ranges.resize(tiles.count, Range::EMPTY);
        let mut row = Vec::new();
        for run in tiles.runs(strip.elements.len()) {
            row.resize(run.scales.len(), Range::EMPTY);
            element_ranges(self.isa, strip.elements.slice(run.elements), tiles.columns, &mut row);
            if row.iter().any(|range| !(range.min.is_finite() && range.max.is_finite())) {
                return Err(RoundingError::NotFinite);
            }
            ranges[run.scales].iter_mut().zip(&row).for_each(|(range, new)| *range = range.join(*new));
        }
        if let (Some(range), true) = (self.context.range, tiles.whole_tensor) {
            ranges.fill(range);
        }
        Ok(())
    }
}

/// The new elements at the end of a vector that grows by `count`.
fn grown<T: Clone + Default>(vector: &mut Vec<T>, count: usize) -> &mut [T] {
    let start = vector.len();
    vector.resize(start + count, T::default());
    &mut vector[start..]
}

fn squared_error(format: MiniFloat, values: &[f32], scale: f32) -> f64 {
    values.iter().map(|v| f64::from(format.decode(format.encode(v / scale)) * scale - v).powi(2)).sum()
}

fn plain_codes(scheme: IntScheme, values: &[f32], tiles: &Tiles, affines: &[Affine], out: &mut Codes) {
    let code = |(i, v): (usize, &f32)| {
        let affine = affines[tiles.tile_of(i)];
        quantize(scheme.format, *v, 1.0 / affine.scale, affine.zero_point)
    };
    let codes = values.iter().enumerate().map(code);
    match out {
        Codes::Bytes(bytes) => bytes.extend(codes.map(|c| c as u8)),
        Codes::Wide(wide) => wide.extend(codes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::kernel::Source;
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
            let (mut joined, mut scratch) = (banded.empty(32), Scratch::default());
            for band in data.chunks(128) {
                banded.round_onto(Weights::new(Elements::Values(band), 32), &mut scratch, &mut joined).unwrap();
            }
            assert_eq!(joined, whole, "{text}");
        }
    }

    /// bf16 bytes and their values.
    fn stored(count: usize) -> (Vec<u8>, Vec<f32>) {
        let words: Vec<u16> = values(1, count).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let values = words.iter().map(|w| f32::from_bits(u32::from(*w) << 16)).collect();
        (words.into_iter().flat_map(u16::to_le_bytes).collect(), values)
    }

    const SCHEMES: [&str; 14] = [
        "int4:g128",
        "uint4:g32:zp",
        "int8:channel",
        "int8:tensor",
        "int4:channel@1",
        "int16:g64",
        "uint4:g64:fzp",
        "int8:g64:mse",
        "e4m3:channel",
        "e4m3:b16x64",
        "e2m1:g32:e8m0",
        "e2m1:g16:e4m3:f32",
        "e2m1:g16:e5m3",
        "int4:channel:f32/e4m3:tensor:f32",
    ];

    #[test]
    fn bytes_are_rounded_as_their_values_are_and_buffers_may_be_dirty() {
        let (rows, columns) = (80, 256);
        let (bytes, values) = stored(rows * columns);
        let weights = Weights::new(Elements::stored(Source::Bf16, &bytes).unwrap(), columns);
        let mut scratch = Scratch::default();
        for text in SCHEMES {
            let expected = rtn(text).round(&values, rows, columns).unwrap();
            let mut out = rtn(text).empty(columns);
            for _ in 0..2 {
                out.clear();
                rtn(text).round_onto(weights, &mut scratch, &mut out).unwrap();
                assert_eq!(out, expected, "{text}");
            }
        }
    }

    #[test]
    fn parts_of_weights_are_rounded_as_copies_of_them_are() {
        let (rows, columns) = (64, 384);
        let (bytes, values) = stored(rows * columns);
        let weights = Weights::new(Elements::stored(Source::Bf16, &bytes).unwrap(), columns);
        let copy: Vec<f32> = values.chunks(columns).skip(16).take(32).flat_map(|row| &row[128..384]).copied().collect();
        for text in SCHEMES {
            let expected = rtn(text).round(&copy, 32, 256).unwrap();
            let mut out = rtn(text).empty(256);
            let part = weights.rows(16..48).columns(128..384);
            rtn(text).round_onto(part, &mut Scratch::default(), &mut out).unwrap();
            assert_eq!(out, expected, "{text}");
            let part = weights.columns(128..384).rows(16..48);
            out.clear();
            rtn(text).round_onto(part, &mut Scratch::default(), &mut out).unwrap();
            assert_eq!(out, expected, "{text}");
        }
    }

    #[test]
    fn rows_are_appended_to_tensors_of_their_kind_only() {
        let data = values(32, 64);
        let weights = Weights::new(Elements::Values(&data), 64);
        let (int4, mut out) = (rtn("int4:g32"), rtn("int4:g32").empty(64));
        for rows in [0..16, 16..32] {
            int4.round_onto(weights.rows(rows), &mut Scratch::default(), &mut out).unwrap();
        }
        assert_eq!(out, int4.round(&data, 32, 64).unwrap());
        for mut other in [rtn("int4:g64").empty(64), int4.empty(32)] {
            let refused = int4.round_onto(weights, &mut Scratch::default(), &mut other);
            assert!(matches!(refused, Err(RoundingError::Scheme(SchemeError::Combination { .. }))));
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
                    let most = 0.5001 * quantized.scales()[i / group] + 1e-6 * value.abs();
                    prop_assert!((value - restored).abs() <= most, "{text}: {value} {restored}");
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
