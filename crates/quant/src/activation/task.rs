//! One call of a quantizer: from rows to scales, and from both to the loops. Not the loops.

use super::StaticParameters;
use super::apply::{BlockScales, FloatFeatures, FloatTiles, IntFeatures, IntTiles};
use super::spread::Spread;
use crate::parameters::{Affine, EPSILON, dequantize, quantize};
use crate::rounding::batch::{Affines, Scales};
use crate::scheme::{ActivationScheme, FloatScale, FloatScheme, IntScheme, Timing, ZeroPoint};
use kvant_numeric::ComputeDType;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::{Range, group_abs_max, group_ranges};
use kvant_numeric::simd::{Isa, dispatch};

/// Elements that are quantized at a time, so that they are still in the cache when their scales are known.
const STRIP: usize = 1 << 14;

/// One call of a quantizer.
pub(super) struct Task<'a> {
    pub(super) scheme: ActivationScheme,
    pub(super) spread: Spread,
    pub(super) parameters: &'a StaticParameters,
    pub(super) isa: Isa,
    pub(super) arithmetic: ComputeDType,
    pub(super) columns: usize,
}

impl Task<'_> {
    fn is_stored(&self) -> bool {
        self.scheme.timing == Timing::Static
    }

    /// Elements that share a scale within a row.
    fn group(&self) -> usize {
        match self.spread {
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

    pub(super) fn ints(&self, scheme: IntScheme, rows: &mut [f32]) {
        let stored = self.parameters;
        let zero_point = |i: usize| stored.zero_points.get(i).map_or(0.0, |point| f64::from(*point));
        let affine = |i: usize| Affine { scale: stored.scales[i], zero_point: zero_point(i) };
        match self.spread {
            Spread::Whole if self.is_stored() => self.int_tiles(scheme, rows.len(), rows, &[affine(0)]),
            Spread::Whole => {
                let mut range = [Range::EMPTY];
                group_ranges(self.isa, rows, rows.len(), &mut range);
                let affines = self.affines(scheme, &range);
                self.int_tiles(scheme, rows.len(), rows, &affines);
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
                    self.int_tiles(scheme, self.columns, strip, &affines);
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

    fn int_tiles(&self, scheme: IntScheme, width: usize, values: &mut [f32], affines: &[Affine]) {
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

    pub(super) fn floats(&self, scheme: FloatScheme, rows: &mut [f32]) {
        let stored = self.parameters;
        match self.spread {
            Spread::Whole if self.is_stored() => self.float_tiles(scheme, rows.len(), rows, &stored.scales),
            Spread::Whole => {
                let amax = self.amax(rows);
                let scales = self.scales(scheme, &[amax]);
                self.float_tiles(scheme, rows.len(), rows, &scales);
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
        let global_scale = match self.scheme.timing {
            Timing::Dynamic if scheme.scale.has_global_scale() => scheme.global_scale(self.amax(rows)),
            _ => self.parameters.scales.first().copied(),
        };
        for strip in self.strips(rows) {
            let amaxes = self.by_group(strip, 0.0, |v, group, out| group_abs_max(self.isa, v, group, out));
            let scales = match global_scale {
                Some(global_scale) => self.block_scales(scheme, &amaxes, global_scale),
                None => self.scales(scheme, &amaxes),
            };
            self.float_tiles(scheme, self.columns, strip, &scales);
        }
    }

    fn block_scales(&self, scheme: FloatScheme, amaxes: &[f32], global_scale: f32) -> Vec<f32> {
        let mut scales = vec![0.0; amaxes.len()];
        let format = if scheme.scale == FloatScale::E5m3WithGlobal { MiniFloat::E5M3 } else { MiniFloat::E4M3 };
        let largest = scheme.format.max();
        dispatch(self.isa, BlockScales { format, largest, global_scale, amaxes, scales: &mut scales });
        scales
    }

    fn amax(&self, rows: &[f32]) -> f32 {
        let mut amax = [0.0];
        group_abs_max(self.isa, rows, rows.len(), &mut amax);
        amax[0]
    }

    /// The scales of largest magnitudes; NaN where one is NaN.
    fn scales(&self, scheme: FloatScheme, amaxes: &[f32]) -> Vec<f32> {
        let mut scales = vec![0.0; amaxes.len()];
        let arithmetic = self.arithmetic;
        dispatch(self.isa, Scales { scheme, arithmetic, global_scale: 1.0, amaxes, scales: &mut scales });
        let by_token = self.spread == Spread::Tokens;
        for (scale, amax) in scales.iter_mut().zip(amaxes) {
            // A vector of scales is cast to the type of its dividend.
            let cast = if by_token { arithmetic.round(*scale) } else { *scale };
            let positive = if cast == 0.0 { EPSILON } else { cast };
            *scale = if amax.is_finite() { positive } else { f32::NAN };
        }
        scales
    }

    fn float_tiles(&self, scheme: FloatScheme, width: usize, values: &mut [f32], scales: &[f32]) {
        let group = if scales.len() == 1 { width } else { self.group() };
        let grouped = matches!(self.spread, Spread::Groups(_));
        let quotient = if grouped { ComputeDType::F32 } else { self.arithmetic };
        let (format, arithmetic) = (scheme.format, self.arithmetic);
        dispatch(self.isa, FloatTiles { format, quotient, arithmetic, values, width, group, scales });
    }
}

/// Returns whether the loops take the format: they count in `f32`.
fn is_plain(scheme: IntScheme) -> bool {
    scheme.zero_point != ZeroPoint::Float && scheme.format.bits() <= 16
}
