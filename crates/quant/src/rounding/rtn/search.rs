//! Scales searched for the least squared error of the weights on their grid, where each error counts as much as the input that meets
//! it. From the scale of the range: shares of it, negative ones where the codes of integers reach further on one side, then
//! the least squares of the codes that were best, and zero points beside the best.

use super::{RoundingError, Rtn, Strip, TensorContext};
use crate::parameters::Affine;
use crate::quant_tensor::QuantTensor;
use crate::rounding::steps::Scaled;
use crate::rounding::tiles::Tiles;
use crate::rounding::value_grid::{Grid, OnGrid, Step, on_grid};
use crate::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, TensorScheme, ZeroPoint};
use kvant_numeric::ComputeDType;
use kvant_numeric::simd::{Isa, Loop, dispatch};
use std::borrow::Cow;

impl Rtn {
    /// Replaces the parameters of each tile by those found. `affines` has those of the tiles' ranges.
    pub(super) fn search(
        &self,
        scheme: TensorScheme,
        global_scale: Option<f32>,
        strip: Strip<'_>,
        tiles: &Tiles,
        affines: &mut [Affine],
    ) -> Result<(), RoundingError> {
        let values = strip.values(self.isa);
        let storable = StorableScales { scheme, arithmetic: self.context.arithmetic, global_scale };
        let search = Search { storable, values: &values, importance: strip.importance, tiles, affines, isa: self.isa };
        on_grid(scheme, self.context, global_scale, search)
    }
}

/// The scales that a scheme can store.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct StorableScales {
    pub(in crate::rounding) scheme: TensorScheme,
    pub(in crate::rounding) arithmetic: ComputeDType,
    pub(in crate::rounding) global_scale: Option<f32>,
}

impl StorableScales {
    /// Those of a tensor.
    pub(in crate::rounding) fn of(tensor: &QuantTensor, context: TensorContext) -> StorableScales {
        let (scheme, global_scale) = (tensor.scheme(), tensor.global_scale());
        StorableScales { scheme, arithmetic: context.arithmetic, global_scale }
    }

    /// Whether they are powers of two alone.
    pub(in crate::rounding) fn are_powers_of_two(&self) -> bool {
        matches!(
            self.scheme,
            TensorScheme::Int(IntScheme { scale: ScaleType::PowerOfTwo, .. })
                | TensorScheme::Float(FloatScheme { scale: FloatScale::E8m0(_), .. })
        )
    }

    /// The scale that is stored for one that the grid should have.
    pub(in crate::rounding) fn stored(&self, wanted: f32) -> f32 {
        match self.scheme {
            TensorScheme::Int(int) | TensorScheme::Progressive { second: int, .. } => {
                int.stored_scale(wanted, self.arithmetic)
            }
            TensorScheme::Float(float) => float.stored_scale(wanted, self.arithmetic, self.outer()),
            // What blocks store depends on the factors of each.
            TensorScheme::Gguf(_) | TensorScheme::Block(_) | TensorScheme::Cast(_) => wanted,
        }
    }

    /// The scale that the grid gets where this one is wanted.
    pub(in crate::rounding) fn nearest(&self, wanted: f32) -> f32 {
        self.stored(wanted) * self.outer()
    }

    /// What stored scales are multiplied by on the grid: the scale of the tensor for floats.
    pub(in crate::rounding) fn outer(&self) -> f32 {
        match self.scheme {
            TensorScheme::Float(_) => self.global_scale.unwrap_or(1.0),
            _ => 1.0,
        }
    }

    /// Shares of the scale of the range that are tried.
    fn shares(&self) -> Vec<f32> {
        let evenly =
            |from: f32, to: f32, steps: u32| (0..=steps).map(move |i| from + (to - from) * i as f32 / steps as f32);
        if self.are_powers_of_two() {
            return vec![0.5, 2.0];
        }
        match self.scheme {
            TensorScheme::Int(int) | TensorScheme::Progressive { second: int, .. } => {
                let least = match int.format.bits() {
                    ..=2 => 0.35,
                    3 => 0.45,
                    4 => 0.6,
                    5 | 6 => 0.75,
                    _ => 0.9,
                };
                let shares = evenly(least, 1.05, 24);
                // Codes reach further below zero than above it.
                let is_symmetric = int.zero_point == ZeroPoint::Zero;
                if is_symmetric { shares.flat_map(|share| [share, -share]).collect() } else { shares.collect() }
            }
            // Up to where the second largest number of e2m1 is that of the range.
            TensorScheme::Float(float) if float.format.bits() <= 4 => evenly(0.6, 1.55, 24).collect(),
            TensorScheme::Float(_) => evenly(0.5, 1.1, 24).collect(),
            TensorScheme::Gguf(_) | TensorScheme::Block(_) | TensorScheme::Cast(_) => Vec::new(),
        }
    }

    /// Whether zero points are whole numbers that may be moved.
    pub(in crate::rounding) fn has_whole_zero_points(&self) -> bool {
        matches!(self.scheme, TensorScheme::Int(int) | TensorScheme::Progressive { second: int, .. }
            if int.zero_point == ZeroPoint::Integer)
    }

    /// The lowest and the highest code.
    pub(in crate::rounding) fn codes(&self) -> (f64, f64) {
        match self.scheme {
            TensorScheme::Int(int) | TensorScheme::Progressive { second: int, .. } => {
                (int.format.min() as f64, int.format.max() as f64)
            }
            _ => (0.0, 0.0),
        }
    }
}

struct Search<'a> {
    storable: StorableScales,
    values: &'a [f32],
    /// By column.
    importance: Option<&'a [f32]>,
    tiles: &'a Tiles,
    affines: &'a mut [Affine],
    isa: Isa,
}

impl OnGrid for Search<'_> {
    type Output = ();

    fn run<G: Grid>(self, grid: G, scaled: Scaled) {
        let (tiles, shares) = (self.tiles, self.storable.shares());
        let whole_rows = tiles.rows == 1 && tiles.width.is_multiple_of(tiles.columns);
        for (index, affine) in self.affines.iter_mut().enumerate() {
            let values = match whole_rows {
                true => Cow::Borrowed(&self.values[index * tiles.columns..(index + 1) * tiles.columns]),
                false => Cow::Owned(tiles.gather(self.values, index)),
            };
            let first = index % tiles.across * tiles.columns;
            let importance = self.importance.map(|importance| {
                let own = &importance[first..importance.len().min(first + tiles.columns)];
                if values.len() == own.len() {
                    Cow::Borrowed(own)
                } else {
                    Cow::Owned(own.repeat(values.len() / own.len().max(1)))
                }
            });
            let start = Affine { scale: affine.scale * self.storable.outer(), ..*affine };
            let tile = TileSearch {
                grid,
                scaled,
                storable: &self.storable,
                shares: &shares,
                values: &values,
                importance: importance.as_deref(),
                start,
            };
            let found = dispatch(self.isa, tile);
            *affine = Affine { scale: self.storable.stored(found.scale), ..found };
        }
    }
}

/// The search for one tile.
struct TileSearch<'a, G> {
    grid: G,
    scaled: Scaled,
    storable: &'a StorableScales,
    shares: &'a [f32],
    values: &'a [f32],
    importance: Option<&'a [f32]>,
    start: Affine,
}

/// How often scales are brought to the least squares of their codes.
const REFITS: usize = 2;

impl<G: Grid> Loop for TileSearch<'_, G> {
    type Output = Affine;

    #[inline(always)]
    fn run(self) -> Affine {
        let mut best = (self.fit(self.start), self.start);
        for share in self.shares {
            self.take_better(&mut best, Affine { scale: self.start.scale * share, ..self.start });
        }
        self.refit(&mut best);
        if self.storable.has_whole_zero_points() {
            let (lowest, highest) = self.storable.codes();
            for offset in [-1.0, 1.0] {
                let zero_point = (best.1.zero_point + offset).clamp(lowest, highest);
                let mut moved = (self.fit(Affine { zero_point, ..best.1 }), Affine { zero_point, ..best.1 });
                self.refit(&mut moved);
                best = if moved.0.error < best.0.error { moved } else { best };
            }
        }
        best.1
    }
}

impl<G: Grid> TileSearch<'_, G> {
    #[inline(always)]
    fn take_better(&self, best: &mut (Fit, Affine), wanted: Affine) {
        let affine = Affine { scale: self.storable.nearest(wanted.scale), ..wanted };
        let fit = self.fit(affine);
        if fit.error < best.0.error {
            *best = (fit, affine);
        }
    }

    /// Brings the scale to the least squares of its codes.
    #[inline(always)]
    fn refit(&self, best: &mut (Fit, Affine)) {
        for _ in 0..REFITS {
            let share = best.0.product / best.0.square;
            if share.is_finite() && share > 0.0 {
                let wanted = Affine { scale: best.1.scale * share as f32, ..best.1 };
                self.take_better(best, wanted);
            }
        }
    }

    #[inline(always)]
    fn fit(&self, affine: Affine) -> Fit {
        let step = Step::new(affine.scale, affine.zero_point, self.scaled);
        let mut fit = Fit::default();
        for start in (0..self.values.len()).step_by(PART) {
            let end = self.values.len().min(start + PART);
            let part = Part { grid: self.grid, step, values: &self.values[start..end] };
            let [error, product, square] = match self.importance {
                Some(importance) => part.sums(&importance[start..end]),
                None => part.sums(&ONES[..end - start]),
            };
            fit.error += f64::from(error);
            fit.product += f64::from(product);
            fit.square += f64::from(square);
        }
        fit
    }
}

/// Values whose errors are added up in f32.
const PART: usize = 1024;
static ONES: [f32; PART] = [1.0; PART];

/// Sums over the values of a tile: of squared errors, of values times their quantized ones, and of squares of these, each weighed.
#[derive(Clone, Copy, Default)]
struct Fit {
    error: f64,
    product: f64,
    square: f64,
}

struct Part<'a, G> {
    grid: G,
    step: Step,
    values: &'a [f32],
}

/// Sums side by side.
const LANES: usize = 16;

impl<G: Grid> Part<'_, G> {
    #[inline(always)]
    fn sums(&self, importance: &[f32]) -> [f32; 3] {
        let (mut errors, mut products, mut squares) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        let (values, rest) = self.values.as_chunks::<LANES>();
        let (weights, rest_of_weights) = importance.as_chunks::<LANES>();
        for (values, weights) in values.iter().zip(weights) {
            for lane in 0..LANES {
                let (value, weight) = (values[lane], weights[lane]);
                let (_, nearest) = self.grid.nearest(value, self.step);
                let error = value - nearest;
                errors[lane] += weight * error * error;
                products[lane] += weight * value * nearest;
                squares[lane] += weight * nearest * nearest;
            }
        }
        for ((value, weight), lane) in rest.iter().zip(rest_of_weights).zip(0..) {
            let (_, nearest) = self.grid.nearest(*value, self.step);
            let error: f32 = value - nearest;
            errors[lane] += weight * error * error;
            products[lane] += weight * value * nearest;
            squares[lane] += weight * nearest * nearest;
        }
        [errors, products, squares].map(|lanes| lanes.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use crate::QuantTensor;
    use crate::rounding::{Rtn, Scratch, TensorContext, Weights, nearest_in_bands};
    use kvant_numeric::ComputeDType;
    use kvant_numeric::kernel::Elements;
    use kvant_numeric::simd::Isa;

    /// Numbers about zero, a few far out.
    fn values(count: usize) -> Vec<f32> {
        let number = |i: usize| ((i * 7919) % 1009) as f32 / 504.5 - 1.0;
        (0..count).map(|i| number(i).powi(3) * if i % 61 == 0 { 2.0 } else { 1.0 }).collect()
    }

    fn error(tensor: &QuantTensor, values: &[f32], importance: &[f32]) -> f64 {
        let squares = tensor.dequantize().into_iter().zip(values).map(|(q, v)| f64::from(q - v).powi(2));
        squares.zip(importance.iter().cycle()).map(|(square, weight)| square * f64::from(*weight)).sum()
    }

    #[test]
    fn searched_scales_lose_less_in_every_scheme_and_on_every_processor() {
        let (rows, columns) = (64, 192);
        let values = values(rows * columns);
        let context = TensorContext::new(ComputeDType::Bf16);
        for plain in [
            "int2:g64",
            "int4:g32:f16",
            "int4:channel",
            "int8:tensor",
            "uint4:g64:zp",
            "uint4:g64:fzp",
            "int4:channel:pow2",
            "e4m3:b64x64:f32",
            "e2m1:g16:e5m3",
            "e2m1:g16:e4m3:f32",
            "e2m1:g32:e8m0",
        ] {
            let rounded = |text: &str, isa: Isa| {
                Rtn::new(text.parse().unwrap(), context).unwrap().on(isa).round(&values, rows, columns).unwrap()
            };
            let searched = format!("{plain}:search");
            let (before, after) = (rounded(plain, Isa::best()), rounded(&searched, Isa::best()));
            let [before, found] = [&before, &after].map(|tensor| error(tensor, &values, &[1.0]));
            assert!(found <= before, "{plain}: {found} {before}");
            for isa in Isa::available() {
                assert_eq!(rounded(&searched, isa), after, "{plain}");
            }
            let weights = Weights::of_shape(Elements::Values(&values), rows, columns);
            assert_eq!(nearest_in_bands(searched.parse().unwrap(), context, weights).unwrap(), after, "{plain}");
        }
    }

    #[test]
    fn errors_count_as_much_as_the_inputs_that_meet_them() {
        let (rows, columns) = (16, 128);
        let values = values(rows * columns);
        let importance: Vec<f32> = (0..columns).map(|column| if column % 9 == 0 { 50.0 } else { 1.0 }).collect();
        let rtn = Rtn::new("int3:g64:search".parse().unwrap(), TensorContext::new(ComputeDType::F32)).unwrap();
        let weights = Weights::of_shape(Elements::Values(&values), rows, columns);
        let [plain, weighed] = [weights, weights.weighed_by(&importance)].map(|weights| {
            let mut out = rtn.empty(columns);
            rtn.round_onto(weights, &mut Scratch::default(), &mut out).unwrap();
            error(&out, &values, &importance)
        });
        assert!(weighed < 0.95 * plain, "{weighed} {plain}");
    }

    #[test]
    fn codes_that_reach_further_below_zero_serve_either_sign() {
        // -1, -1/2, 0 and 1/2 times the scale are codes; 1 is one of a negative scale alone.
        let rtn = Rtn::new("int2:tensor:search".parse().unwrap(), TensorContext::new(ComputeDType::F32)).unwrap();
        let tensor = rtn.round(&[1.0, 0.5, 0.0, -0.5], 1, 4).unwrap();
        assert!(tensor.scales()[0] < 0.0 && error(&tensor, &[1.0, 0.5, 0.0, -0.5], &[1.0]) < 1e-9, "{tensor:?}");
    }
}
