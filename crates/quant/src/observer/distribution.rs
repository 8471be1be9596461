//! The standard deviation of the values, mapped to that of all numbers of an 8-bit float.

use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, ObservedTensor, ObservedValues, Observer};
use kvant_numeric::DType;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "distribution",
    aliases: &[],
    example: "distribution",
    about: "the standard deviation mapped to that of all 8-bit floats; e4m3 and e5m2 only",
    make: |settings| plain(settings, Distribution),
};

/// The observer. Integers of graphs have no such distribution: their range is that of the values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution;

/// The format, where it is one of the two.
fn float8(dtype: Option<DType>) -> Option<MiniFloat> {
    match dtype {
        Some(DType::MiniFloat(float)) => [MiniFloat::E4M3, MiniFloat::E5M2].contains(&float).then_some(float),
        _ => None,
    }
}

/// Standard deviation of all finite numbers of a format, each once.
fn format_deviation(format: MiniFloat) -> f64 {
    let finite = || (0..=255u8).map(|code| f64::from(format.decode(code))).filter(|value| value.is_finite());
    let (count, mean) = (finite().count() as f64, finite().sum::<f64>() / finite().count() as f64);
    (finite().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

impl Observer for Distribution {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn needs(&self, _: &dyn Grid) -> Needs {
        Needs::MOMENTS
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        let fits = float8(Some(tensor.dtype)).is_some();
        (!fits).then_some("it maps deviations to that of an 8-bit float: use it with e4m3 or e5m2")
    }

    /// The range whose scale, its end over the format's largest number, is the ratio of the deviations.
    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        let Some(format) = float8(grid.dtype()) else { return seen.range() };
        let scale = seen.moments().deviation() / format_deviation(format);
        let bound = (scale * f64::from(format.max())) as f32;
        if bound > 0.0 && bound.is_finite() { Range { min: -bound, max: bound } } else { seen.range() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph_grid::{GraphGrid, ScaleKind};

    fn grid(dtype: &str) -> GraphGrid {
        GraphGrid { dtype: Some(dtype.parse().unwrap()), symmetric: true, scale: ScaleKind::Float }
    }

    #[test]
    fn values_distributed_like_the_format_have_scale_one() {
        let all: Vec<f32> = (0..=255u8).map(|code| MiniFloat::E4M3.decode(code)).filter(|v| v.is_finite()).collect();
        let range = Distribution.range(&ObservedValues::values(&all), &grid("e4m3"));
        assert!((range.max / 448.0 - 1.0).abs() < 1e-6, "{range:?}");
        assert_eq!(
            Distribution.range(&ObservedValues::values(&[-1.0, 2.0]), &grid("int8")),
            Range { min: -1.0, max: 2.0 }
        );
    }
}
