//! A constant tensor to codes, per tensor or per channel.

use rayon::prelude::*;

use super::Settings;
use crate::element::Element;
use crate::quantization::{
    Affine, CodeRange, Range, ScaleKind, ZERO, encode, grid, pack, quantize_value, quantize_values,
};
use kvant_quant::observer::{ObserverRef, SampleView, scale_candidates};

/// The method of finding a weight's scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightMethod {
    /// The element type.
    pub element: Element,
    /// Whether the scale is made for codes symmetric about zero. Codes are limited to the symmetric ones in any case, so that
    /// the kernels of 8-bit products may rely on it, unless `full_range` is set.
    pub symmetric: bool,
    /// The allowed scales.
    pub scale: ScaleKind,
    /// The observer of the range.
    pub method: ObserverRef,
    /// Half of the codes only.
    pub reduce_range: bool,
    /// Whether asymmetric codes include the lowest one of a signed type.
    pub full_range: bool,
}

/// The channels of a tensor: `outer x channels x inner` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Channels {
    number: usize,
    inner: usize,
}

impl Channels {
    /// Those along an axis of a shape; one where there is no axis.
    pub(crate) fn of(shape: &[usize], axis: Option<usize>) -> Self {
        match axis {
            Some(axis) if axis < shape.len() => {
                Self { number: shape[axis], inner: shape[axis + 1..].iter().product::<usize>().max(1) }
            }
            _ => Self { number: 1, inner: usize::MAX },
        }
    }

    /// The channel of an element, row-major.
    pub(crate) fn channel(&self, element: usize) -> usize {
        element / self.inner % self.number.max(1)
    }
}

/// Scale and zero point of each channel of a weight; `axis` names the channels, none makes one of all.
pub fn weight_parameters(values: &[f32], shape: &[usize], axis: Option<usize>, method: WeightMethod) -> Vec<Affine> {
    parameters(values, None, Channels::of(shape, axis), method)
}

/// The same where the errors of elements count as much as given, by the squares of what multiplies them, to a method that searches scales.
pub fn weighed_parameters(
    values: &[f32],
    importance: &[f32],
    shape: &[usize],
    axis: Option<usize>,
    method: WeightMethod,
) -> Vec<Affine> {
    parameters(values, Some(importance), Channels::of(shape, axis), method)
}

/// The codes of a weight as raw data of the element's type, with one scale and zero point for each channel.
pub fn weight_codes(
    values: &[f32],
    shape: &[usize],
    axis: Option<usize>,
    parameters: &[Affine],
    method: WeightMethod,
) -> Vec<u8> {
    codes(values, Channels::of(shape, axis), parameters, method)
}

fn parameters(values: &[f32], importance: Option<&[f32]>, channels: Channels, method: WeightMethod) -> Vec<Affine> {
    if channels.number == 1 {
        return vec![method.parameters(values, importance)];
    }
    let gather = |values: &[f32], channel: usize| -> Vec<f32> {
        let starts = (channel * channels.inner..values.len()).step_by(channels.inner * channels.number);
        starts.flat_map(|start| &values[start..(start + channels.inner).min(values.len())]).copied().collect()
    };
    let of_channel = |channel: usize| {
        let importance = importance.map(|importance| gather(importance, channel));
        method.parameters(&gather(values, channel), importance.as_deref())
    };
    (0..channels.number).into_par_iter().map(of_channel).collect()
}

impl WeightMethod {
    /// The codes a scale is made for.
    fn scale_codes(&self) -> Option<CodeRange> {
        if self.reduce_range { self.element.reduced_range() } else { self.element.range(self.symmetric) }
    }

    /// The codes that are used.
    pub(crate) fn used_codes(&self) -> Option<CodeRange> {
        match self.reduce_range {
            true => self.element.reduced_range(),
            false => self.element.range(self.symmetric || !self.full_range),
        }
    }

    /// Scale and zero point of the values of one channel.
    fn parameters(&self, values: &[f32], importance: Option<&[f32]>) -> Affine {
        if self.method == ObserverRef::MSE && self.element.is_integer() {
            return self.least_error(values, None).0;
        }
        if self.method == ObserverRef::SEARCH && self.element.is_integer() {
            return self.searched(values, importance);
        }
        let mut statistic = Settings::new(self.method, self.element, self.symmetric, self.scale).start();
        statistic.observe(&SampleView::new(values));
        self.of_range(statistic.range())
    }

    fn of_range(&self, range: Range) -> Affine {
        let grid = grid(self.element, self.symmetric, self.scale);
        match (self.scale_codes(), self.reduce_range) {
            (Some(codes), true) => grid.affine_of_codes(range, codes),
            _ => grid.affine(range),
        }
    }

    /// The candidate with the least squared error on the values themselves, the first of equals, and its error.
    fn least_error(&self, values: &[f32], importance: Option<&[f32]>) -> (Affine, f64) {
        let range = SampleView::new(values).range().unwrap_or(ZERO);
        let plain = self.of_range(range);
        let Some(codes) = self.used_codes() else { return (plain, f64::INFINITY) };
        let candidates = scale_candidates(range, self.scale, |range| self.of_range(range));
        let score = |affine| (Fit::of(values, importance, affine, codes).error, affine);
        let scored: Vec<(f64, Affine)> = candidates.into_par_iter().map(score).collect();
        let best = scored.into_iter().reduce(|best, next| if next.0 < best.0 { next } else { best });
        best.map_or((plain, f64::INFINITY), |(error, affine)| (affine, error))
    }

    fn searched(&self, values: &[f32], importance: Option<&[f32]>) -> Affine {
        let (affine, error) = self.least_error(values, importance);
        match self.used_codes().filter(|_| self.scale == ScaleKind::Float) {
            Some(codes) => ScaleSearch { values, importance, codes }.refined((error, affine), !self.symmetric),
            None => affine,
        }
    }
}

/// The search for the scale of values that share one.
pub(crate) struct ScaleSearch<'a> {
    /// The values.
    pub values: &'a [f32],
    /// How much the error of each counts; all as much where there is nothing.
    pub importance: Option<&'a [f32]>,
    /// The codes they can have.
    pub codes: CodeRange,
}

impl ScaleSearch<'_> {
    /// The candidate with the least error, the first of equals, refined.
    pub fn best(&self, candidates: impl IntoIterator<Item = Affine>, moves_zero_point: bool) -> Option<Affine> {
        let scored = candidates.into_iter().map(|affine| (self.fit(affine).error, affine));
        let best = scored.reduce(|best, next| if next.0 < best.0 { next } else { best });
        best.map(|best| self.refined(best, moves_zero_point))
    }

    /// From a scale and its error to the least squares of its codes, and to the zero points beside it.
    fn refined(&self, best: (f64, Affine), moves_zero_point: bool) -> Affine {
        let mut best = self.refitted(best);
        if moves_zero_point {
            for offset in [-1, 1] {
                let zero_point = (best.1.zero_point + offset).clamp(self.codes.min, self.codes.max);
                let moved = Affine { zero_point, ..best.1 };
                let moved = self.refitted((self.fit(moved).error, moved));
                best = if moved.0 < best.0 { moved } else { best };
            }
        }
        best.1
    }

    fn refitted(&self, mut best: (f64, Affine)) -> (f64, Affine) {
        for _ in 0..REFITS {
            let share = self.fit(best.1).share;
            let moved = Affine { scale: best.1.scale * share, ..best.1 };
            let error = self.fit(moved).error;
            if moved.scale.is_normal() && share > 0.0 && error < best.0 {
                best = (error, moved);
            }
        }
        best
    }

    fn fit(&self, affine: Affine) -> Fit {
        Fit::of(self.values, self.importance, affine, self.codes)
    }
}

/// How often a searched scale is brought to the least squares of its codes.
const REFITS: usize = 2;

/// The fit of codes to values.
struct Fit {
    /// The squared error, each value counting as much as its importance.
    error: f64,
    /// What the scale is multiplied by where the error of these codes is least.
    share: f32,
}

impl Fit {
    fn of(values: &[f32], importance: Option<&[f32]>, affine: Affine, codes: CodeRange) -> Fit {
        let (mut error, mut product, mut square) = (0.0, 0.0, 0.0);
        let mut add = |at: usize, code: i64| {
            let (value, made) = (values[at], (code - affine.zero_point) as f32 * affine.scale);
            if value.is_finite() {
                let importance = importance.map_or(1.0, |importance| f64::from(importance[at]));
                error += importance * f64::from(made - value).powi(2);
                product += importance * f64::from(made) * f64::from(value);
                square += importance * f64::from(made).powi(2);
            }
        };
        if !fits(codes) {
            values.iter().enumerate().for_each(|(at, &value)| add(at, quantize_value(value, affine, codes)));
        } else {
            let mut made = [0; BLOCK];
            for (block, values) in values.chunks(BLOCK).enumerate() {
                quantize_values(values, affine, codes, &mut made);
                let codes = made[..values.len()].iter().enumerate();
                codes.for_each(|(at, &code)| add(block * BLOCK + at, i64::from(code)));
            }
        }
        Fit { error, share: (product / square) as f32 }
    }
}

/// Returns whether codes are numbers of 32 bits with a sign, as those that are made many at once.
fn fits(codes: CodeRange) -> bool {
    codes.min >= i32::MIN.into() && codes.max <= i32::MAX.into()
}

/// Values whose codes are made at once.
const BLOCK: usize = 1 << 10;

/// Elements per piece of parallel work: even, so that two 4-bit codes share a byte within one piece.
const PIECE: usize = 1 << 14;

fn codes(values: &[f32], channels: Channels, parameters: &[Affine], method: WeightMethod) -> Vec<u8> {
    let used = method.used_codes();
    if let (Some(codes), [affine]) = (used.filter(|&codes| fits(codes)), parameters) {
        return codes_of_one(values, *affine, codes, method.element);
    }
    let code = |element: usize, value: f32| {
        let affine = parameters[channels.channel(element)];
        match used {
            Some(codes) => quantize_value(value, affine, codes),
            None => encode(value, method.element, affine.scale),
        }
    };
    let pieces = values.par_chunks(PIECE).enumerate().map(|(piece, values)| {
        let codes: Vec<i64> = values.iter().enumerate().map(|(i, &value)| code(piece * PIECE + i, value)).collect();
        pack(&codes, method.element)
    });
    pieces.collect::<Vec<_>>().concat()
}

/// Codes with one scale for all values.
fn codes_of_one(values: &[f32], affine: Affine, codes: CodeRange, element: Element) -> Vec<u8> {
    let pieces = values.par_chunks(PIECE).map(|values| {
        let mut made = vec![0; values.len()];
        quantize_values(values, affine, codes, &mut made);
        pack(&made.into_iter().map(i64::from).collect::<Vec<_>>(), element)
    });
    pieces.collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Made {
        codes: Vec<u8>,
        parameters: Vec<Affine>,
    }

    fn weight(values: &[f32], shape: &[usize], axis: Option<usize>, method: WeightMethod) -> Made {
        let parameters = weight_parameters(values, shape, axis, method);
        Made { codes: weight_codes(values, shape, axis, &parameters, method), parameters }
    }

    fn int8(symmetric: bool, method: ObserverRef, scale: ScaleKind) -> WeightMethod {
        WeightMethod { element: Element::Int8, symmetric, scale, method, reduce_range: false, full_range: false }
    }

    #[test]
    fn middle_axis_channels_have_their_own_scales() {
        let values = [1.0, -2.0, 10.0, 20.0, 0.5, 1.0, -5.0, 4.0];
        let made = weight(&values, &[2, 2, 2], Some(1), int8(true, ObserverRef::MIN_MAX, ScaleKind::Float));
        let scales: Vec<f32> = made.parameters.iter().map(|p| p.scale).collect();
        assert_eq!(scales, [2.0 / 127.0, 20.0 / 127.0]);
        assert_eq!(made.codes[3] as i8, 127);
        assert_eq!(made.codes[1] as i8, -127);
    }

    #[test]
    fn asymmetric_weights_use_symmetric_code_range() {
        let made = weight(&[-1.0, 3.0], &[2], None, int8(false, ObserverRef::MIN_MAX, ScaleKind::Float));
        assert_eq!(made.codes.iter().map(|&c| c as i8).collect::<Vec<_>>(), [-127, 127]);
        assert_ne!(made.parameters[0].zero_point, 0);
    }

    #[test]
    fn full_range_adds_the_lowest_code_to_asymmetric_weights() {
        let codes = |symmetric| {
            let plain = int8(symmetric, ObserverRef::MIN_MAX, ScaleKind::Float);
            let made = weight(&[-1.0, 3.0, -3.0], &[3], None, WeightMethod { full_range: true, ..plain });
            made.codes.iter().map(|&c| c as i8).collect::<Vec<_>>()
        };
        assert_eq!(codes(false), [-42, 127, -128]);
        assert_eq!(codes(true), [-42, 127, -127]);
    }

    #[test]
    fn mse_is_no_larger_than_minmax() {
        let values: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.5).chain([3.0]).collect();
        let codes = Element::Int8.range(true).unwrap();
        for kind in [ScaleKind::Float, ScaleKind::PowerOfTwo] {
            let error = |method| {
                let affine = int8(true, method, kind).parameters(&values, None);
                Fit::of(&values, None, affine, codes).error
            };
            assert!(error(ObserverRef::MSE) <= error(ObserverRef::MIN_MAX));
            assert!(error(ObserverRef::SEARCH) <= error(ObserverRef::MSE));
        }
    }

    #[test]
    fn searched_scales_count_errors_by_importance() {
        let values: Vec<f32> = (0..256).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).map(|v| v.powi(3)).collect();
        // Small values count more, which scales of large ones leave few codes.
        let importance: Vec<f32> = values.iter().map(|v| if v.abs() < 0.3 { 50.0 } else { 1.0 }).collect();
        for (element, symmetric) in [(Element::Int4, true), (Element::UInt4, false)] {
            let method = WeightMethod { element, ..int8(symmetric, ObserverRef::SEARCH, ScaleKind::Float) };
            let codes = method.used_codes().unwrap();
            let error = |affine: &[Affine]| Fit::of(&values, Some(&importance), affine[0], codes).error;
            let plain = weight_parameters(&values, &[256], None, method);
            let weighed = weighed_parameters(&values, &importance, &[256], None, method);
            assert!(error(&weighed) < 0.97 * error(&plain), "{} {}", error(&weighed), error(&plain));
            let channels = |values: &[f32]| values.iter().flat_map(|&v| [v, v]).collect::<Vec<f32>>();
            let both = weighed_parameters(&channels(&values), &channels(&importance), &[256, 2], Some(1), method);
            assert_eq!(both, [weighed[0], weighed[0]]);
        }
    }

    #[test]
    fn odd_counts_of_int4_codes_pack_across_pieces() {
        let values = vec![1.0f32; PIECE + 3];
        let method = WeightMethod { element: Element::Int4, ..int8(true, ObserverRef::MIN_MAX, ScaleKind::Float) };
        let made = weight(&values, &[values.len()], None, method);
        assert_eq!((made.codes.len(), made.codes[0], *made.codes.last().unwrap()), (PIECE / 2 + 2, 0x77, 0x07));
    }
}
