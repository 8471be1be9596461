//! Selects per tensor the observer whose range loses least: all candidates observe the values, and the squared error of each one's
//! range is compared at the end; for graph tensors on the histogram of `mse`.

use super::entropy::Entropy;
use super::min_max::MinMax;
use super::mse::{self, Mse};
use super::percentile::{self, Percentile, PercentileObserver};
use super::registry::ObserverRow;
use super::{Found, Grid, Needs, ObservedTensor, ObservedValues, Observer, SharedBy, entropy, min_max};
use kvant_numeric::DType;
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "auto",
    aliases: &["automatic"],
    example: "auto",
    about: "per tensor the one of minmax, percentile, entropy and mse that loses least, by squared error",
    make: |settings| {
        let percentile = if settings.is_empty() { None } else { Some(settings.parse().ok()?) };
        Some(Box::new(Automatic(percentile)))
    },
};

/// The observer, with the share of its percentile where it was given one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Automatic(Option<Percentile>);

impl Automatic {
    /// The observers that are tried before `mse`, with their names.
    fn candidates(self) -> [(&'static str, Box<dyn Observer>); 3] {
        [
            (min_max::ROW.name, Box::new(MinMax)),
            (percentile::ROW.name, Box::new(PercentileObserver::new(self.0))),
            (entropy::ROW.name, Box::new(Entropy)),
        ]
    }
}

/// Returns whether the range of all values is best, because the type's numbers are dense about zero.
fn is_float_of_graph(grid: &dyn Grid) -> bool {
    grid.graph().is_some_and(|graph| graph.codes().is_none())
}

/// The squared error that quantization under the scale of a range leaves.
fn error(seen: &ObservedValues<'_>, grid: &dyn Grid, range: Range) -> f64 {
    match grid.graph().and_then(|graph| Some((graph, graph.codes()?))) {
        Some((graph, codes)) => mse::error_of_graph(seen, codes, graph.affine(range)),
        None => seen.squared_error(grid, range),
    }
}

impl Observer for Automatic {
    fn spelling(&self) -> String {
        self.0.map_or_else(|| ROW.name.to_owned(), |percentile| format!("{}{percentile}", ROW.name))
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        if is_float_of_graph(grid) {
            return Needs::RANGE;
        }
        self.candidates().iter().fold(Mse.needs(grid), |needs, (_, observer)| needs.and(observer.needs(grid)))
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        match tensor.dtype {
            DType::Int(_) if tensor.is_weight && tensor.shared_by == SharedBy::Group => {
                Some("a group has too few values for a histogram of 2048 bins: use `mse`")
            }
            DType::Int(_) => None,
            _ => Some("it tries `entropy`, which takes integers: use `mse` or a percentile"),
        }
    }

    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        self.find(seen, grid).range
    }

    /// Of equals the first, and `mse` the last of all.
    fn find(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Found {
        if is_float_of_graph(grid) {
            return Found { range: seen.range(), chosen: None };
        }
        let range = Mse.range(seen, grid);
        let (mut best, mut least) = (Found { range, chosen: Some(mse::ROW.name) }, error(seen, grid, range));
        for (name, observer) in self.candidates().into_iter().rev() {
            let range = observer.range(seen, grid);
            let error = error(seen, grid, range);
            if error <= least {
                (least, best) = (error, Found { range, chosen: Some(name) });
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use crate::graph_grid::{GraphGrid, ScaleKind};
    use crate::observer::{GraphStatistic, Grid, SampleView};

    #[test]
    fn auto_loses_no_more_than_any_candidate() {
        let wave = |i: u32| ((i as f32) * 0.731).sin() + ((i as f32) * 0.0113).cos() * 0.3;
        let plain: Vec<f32> = (0..20_000).map(wave).collect();
        let heavy: Vec<f32> = plain.iter().map(|v| v * v * v * 4.0).chain([60.0]).collect();
        let one_sided: Vec<f32> = heavy.iter().map(|v| v.abs()).collect();
        for (values, symmetric) in [(&plain, true), (&heavy, true), (&one_sided, false)] {
            let grid = GraphGrid { dtype: Some("int8".parse().unwrap()), symmetric, scale: ScaleKind::Float };
            let found = |observer: &str| {
                let mut statistic = GraphStatistic::new(observer.parse().unwrap(), grid);
                statistic.observe(&SampleView::new(values));
                (statistic.range(), statistic.chosen())
            };
            let error = |observer: &str| grid.squared_error(values, found(observer).0);
            let least = ["minmax", "percentile", "entropy", "mse"].map(error).into_iter().fold(f64::INFINITY, f64::min);
            let (range, chosen) = found("auto");
            assert_eq!(found(chosen.unwrap()), (range, None));
            // The histogram represents the values up to its bin width.
            assert!(error("auto") <= least * 1.02, "{} {least}", error("auto"));
        }
    }
}
