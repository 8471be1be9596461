//! Per tensor the best of several percentiles.

use super::percentile::{Percentile, bins_of, needs, range_of};
use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, ObservedTensor, ObservedValues, Observer, SharedBy};
use crate::graph_grid::{CodeRange, GraphGrid, ScaleKind};
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "layerwise-percentile",
    aliases: &["lwp", "layerwisepercentile"],
    example: "layerwise-percentile",
    about: "per tensor the one of the percentiles 99.99, 99.999 and 99.99999 with the least mean absolute error",
    make: |settings| plain(settings, LayerwisePercentile),
};

/// The percentile whose codes have the least mean absolute error; the first among equals.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerwisePercentile;

impl Observer for LayerwisePercentile {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        needs(grid)
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        let few = tensor.is_weight && tensor.shared_by != SharedBy::Tensor;
        few.then_some("a channel or a group has too few values for such percentiles: use `mse`")
    }

    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        let ranges = Percentile::CANDIDATES.map(|percentile| range_of(percentile, seen, grid));
        let errors = ranges.map(|range| match grid.graph() {
            Some(graph) => error_of_graph(seen, graph, range),
            None => absolute_error(seen, grid, range),
        });
        let best = (1..ranges.len()).fold(0, |best, i| if errors[i] < errors[best] { i } else { best });
        ranges[best]
    }
}

/// `sum count |c - dq(c)|` over bin centres c.
fn absolute_error(seen: &ObservedValues<'_>, grid: &dyn Grid, range: Range) -> f64 {
    let restore = grid.restore(range);
    let error = |center: f32| f64::from((restore(center) - center).abs());
    seen.histogram().bins().map(|bin| error(bin.center) * bin.count as f64).sum()
}

/// The same of a tensor of a graph, in f64 and with the scale of all codes of the type.
fn error_of_graph(seen: &ObservedValues<'_>, grid: &GraphGrid, range: Range) -> f64 {
    let histogram = seen.growing_histograms().and_then(|growing| bins_of(growing, grid.symmetric));
    let (Some(int), Some(histogram)) = (grid.int(), histogram) else { return 0.0 };
    let codes = CodeRange::full(int);
    let affine = GraphGrid { symmetric: false, scale: ScaleKind::Float, ..*grid }.affine(range);
    let (scale, zero_point) = (f64::from(affine.scale), affine.zero_point as f64);
    let dequantized = |value: f64| {
        let code = ((value / scale).round_ties_even() + zero_point).clamp(codes.min as f64, codes.max as f64);
        (code - zero_point) * scale
    };
    histogram.centres().zip(&histogram.counts).map(|(c, &n)| n as f64 * (c - dequantized(c)).abs()).sum()
}
