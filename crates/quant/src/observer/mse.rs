//! Search for the range with the least squared error. Unlike the incumbent's, which tries the last three bins of a
//! histogram from zero, it shrinks both ends together and so holds for asymmetric data.
//!
//! For tensors of graphs the candidates are other ones: of scales that are powers of two five, else a hundred shares of the
//! range.

use super::growing::{EqualBins, GrowingNeeds};
use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, ObservedValues, Observer};
use crate::affine::Affine;
use crate::graph_grid::{CodeRange, GraphGrid, ScaleKind};
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "mse",
    aliases: &["minmse", "min-mse"],
    example: "mse",
    about: "the shrunken range with the least squared error; with scales of powers of two the best of five exponents",
    make: |settings| plain(settings, Mse),
};

/// The observer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mse;

impl Observer for Mse {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        match grid.graph() {
            Some(_) => Needs::growing(GrowingNeeds { signed: true, ..GrowingNeeds::NONE }),
            None => Needs::HISTOGRAM,
        }
    }

    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        if let Some(graph) = grid.graph() {
            return of_graph(seen, graph);
        }
        search(seen.range(), |range| seen.squared_error(grid, range))
    }
}

/// Hundredths by which the range is shrunk, at most: int2 gains until about a quarter of the range is left.
const STEPS: u32 = 80;

/// The range among `full * (1 - i / 100)`, `i = 0..=80`, with the least error; the widest of equals.
fn search(full: Range, error: impl Fn(Range) -> f64) -> Range {
    let candidates = (0..=STEPS).map(|i| scaled(full, 1.0 - i as f32 / 100.0));
    let best =
        candidates.map(|range| (error(range), range)).reduce(|best, next| if next.0 < best.0 { next } else { best });
    best.map_or(full, |(_, range)| range)
}

/// Powers of two tried: twice the plain scale, itself, and three halvings.
const POWERS: i32 = 5;
/// Shares of the observed range tried for float scales: 1/100 to 100/100.
const SHARES: usize = 100;

/// The candidates for a range of a tensor of a graph: powers of two about its scale, or shares of it. `affine` makes the scale
/// of a range.
pub fn scale_candidates(range: Range, kind: ScaleKind, affine: impl Fn(Range) -> Affine<i64>) -> Vec<Affine<i64>> {
    let plain = affine(range);
    match kind {
        ScaleKind::PowerOfTwo => {
            (0..POWERS).map(|i| Affine { scale: plain.scale * 2f32.powi(1 - i), ..plain }).collect()
        }
        _ => (1..=SHARES).rev().map(|i| affine(scaled(range, i as f32 / SHARES as f32))).collect(),
    }
}

/// The range between the smallest and the largest code under the best candidate, the first of equals.
fn of_graph(seen: &ObservedValues<'_>, grid: &GraphGrid) -> Range {
    let full = seen.range();
    let Some(codes) = grid.codes() else { return full };
    let scored = scale_candidates(full, grid.scale, |range| grid.affine(range))
        .into_iter()
        .map(|affine| (error_of_graph(seen, codes, affine), affine));
    let best = scored.reduce(|best, next| if next.0 < best.0 { next } else { best });
    let value = |code: i64, affine: Affine<i64>| ((code - affine.zero_point) as f64 * f64::from(affine.scale)) as f32;
    best.map_or(full, |(_, affine)| Range { min: value(codes.min, affine), max: value(codes.max, affine) })
}

/// The squared error of the values of a tensor of a graph, were they quantized so.
pub(super) fn error_of_graph(seen: &ObservedValues<'_>, codes: CodeRange, affine: Affine<i64>) -> f64 {
    let histogram = seen.growing_histograms().and_then(|growing| growing.signed.as_ref());
    histogram.map_or(0.0, |histogram| squared_error(&histogram.0, codes, affine))
}

/// `sum count (c - dq(c))^2` over bin centres c, rounded to f32.
fn squared_error(histogram: &EqualBins, codes: CodeRange, affine: Affine<i64>) -> f64 {
    let error = |centre: f64| {
        let centre = centre as f32;
        let code = ((centre / affine.scale).round_ties_even() as i64).saturating_add(affine.zero_point);
        let code = code.clamp(codes.min, codes.max);
        f64::from(centre) - (code - affine.zero_point) as f64 * f64::from(affine.scale)
    };
    let filled = histogram.centres().zip(&histogram.counts).filter(|&(_, &count)| count > 0);
    filled.map(|(centre, &count)| count as f64 * error(centre) * error(centre)).sum()
}

fn scaled(range: Range, factor: f32) -> Range {
    Range { min: range.min * factor, max: range.max * factor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::{GraphStatistic, ObserverRef, SampleView};

    #[test]
    fn mse_in_graphs_prefers_cutting_an_outlier() {
        let mut values: Vec<f32> = (0..10_000).map(|i| (i % 100) as f32 / 100.0 - 0.5).collect();
        values.push(8.0);
        let max = |scale| {
            let grid = GraphGrid { dtype: Some("int4".parse().unwrap()), symmetric: true, scale };
            let mut statistic = GraphStatistic::new(ObserverRef::MSE, grid);
            statistic.observe(&SampleView::new(&values));
            statistic.range().max
        };
        assert!(max(ScaleKind::Float) < 4.0, "{:?}", max(ScaleKind::Float));
        assert_eq!((max(ScaleKind::PowerOfTwo) / 7.0).log2().fract(), 0.0);
    }

    #[test]
    fn mse_search_finds_the_minimum_and_prefers_the_widest() {
        let full = Range { min: -2.0, max: 10.0 };
        let best = search(full, |r| f64::from((r.max - 6.0).abs()));
        assert!((best.max - 6.0).abs() < 1e-5 && (best.min + 1.2).abs() < 1e-5);
        assert_eq!(search(full, |_| 1.0), full);
    }
}
