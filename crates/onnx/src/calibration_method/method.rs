//! The calibration methods: their names, and how each is started for a tensor.

use std::fmt;
use std::str::FromStr;

use super::automatic::Automatic;
use super::distribution::Distribution;
use super::entropy::Entropy;
use super::layerwise_percentile::LayerwisePercentile;
use super::min_max::{MinMax, bounds};
use super::min_mse::MinMse;
use super::percentile::Percentile;
use crate::element::Element;
use crate::quantization::{Range, ScaleKind};

/// The values of a tensor in one sample, with what every statistic asks of them: found in one pass.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    values: &'a [f32],
    range: Option<Range>,
    has_nan: bool,
}

impl<'a> Seen<'a> {
    /// Passes over the values once.
    pub fn new(values: &'a [f32]) -> Self {
        let (range, has_nan) = bounds(values);
        Self { values, range, has_nan }
    }

    /// The values.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// The smallest and the largest value, NaN left out and infinities cut to 1e37; `None` where there are no values.
    pub fn range(&self) -> Option<Range> {
        self.range
    }

    /// The largest magnitude; `None` where there are no values.
    pub fn magnitude(&self) -> Option<f32> {
        self.range.map(|range| range.low.abs().max(range.high.abs()))
    }

    /// Whether a value is no number.
    pub fn has_nan(&self) -> bool {
        self.has_nan
    }
}

/// What a tensor's values are reduced to as they pass.
pub trait Statistic: Send + Sync {
    /// Takes in the values of one sample. NaN counts as nothing, infinities as very large.
    fn observe(&mut self, seen: &Seen<'_>);

    /// The range to quantize; zero and zero before any sample.
    fn range(&self) -> Range;

    /// The method that was found to lose least, where the statistic looks for one.
    fn chosen(&self) -> Option<Method> {
        None
    }
}

/// How a range is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the table describes them")]
pub enum Method {
    MinMax,
    MovingAverage,
    Percentile,
    Entropy,
    MinMse,
    NonOverflow,
    Distribution,
    LayerwisePercentile,
    Auto,
}

/// A method as a user sees it.
#[derive(Debug, Clone, Copy)]
pub struct MethodRow {
    /// The method.
    pub method: Method,
    /// Its name.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// What it does.
    pub about: &'static str,
}

const fn row(method: Method, name: &'static str, aliases: &'static [&'static str], about: &'static str) -> MethodRow {
    MethodRow { method, name, aliases, about }
}

/// Every method.
pub const METHODS: &[MethodRow] = &[
    row(Method::MinMax, "minmax", &["min_max", "min-max"], "smallest and largest value of all samples"),
    row(
        Method::MovingAverage,
        "moving-average",
        &["movingaverage", "ema"],
        "minimum and maximum of the samples, averaged with a constant of 0.01",
    ),
    row(
        Method::Percentile,
        "percentile",
        &[],
        "the range that holds 99.999 % of all values, from a histogram that grows",
    ),
    row(
        Method::Entropy,
        "entropy",
        &["kl"],
        "the range whose quantized histogram has the least Kullback-Leibler divergence from the values'",
    ),
    row(
        Method::MinMse,
        "minmse",
        &["min_mse", "mse"],
        "the scale with the least squared error: of five powers of two, or of a hundred ranges for float scales",
    ),
    row(Method::NonOverflow, "nonoverflow", &["non_overflow"], "smallest and largest value, with a power-of-two scale"),
    row(
        Method::Distribution,
        "distribution",
        &[],
        "the standard deviation mapped to that of all 8-bit floats; fp8 only",
    ),
    row(
        Method::LayerwisePercentile,
        "layerwise-percentile",
        &["layerwisepercentile", "lwp"],
        "per tensor the best of three percentiles by mean absolute error",
    ),
    row(
        Method::Auto,
        "auto",
        &["automatic"],
        "per tensor the one of minmax, percentile, entropy and minmse that loses least, by squared error",
    ),
];

impl Method {
    /// The row of the table.
    pub fn row(self) -> &'static MethodRow {
        METHODS.iter().find(|row| row.method == self).unwrap_or(&METHODS[0])
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

/// A name that is no method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no calibration method; there are {names}", names = names())]
pub struct UnknownMethod(pub String);

fn names() -> String {
    METHODS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        let row = METHODS.iter().find(|row| row.name == wanted || row.aliases.contains(&wanted.as_str()));
        row.map(|row| row.method).ok_or_else(|| UnknownMethod(text.to_owned()))
    }
}

/// Everything a statistic depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The method.
    pub method: Method,
    /// What the tensor will be quantized to.
    pub element: Element,
    /// Whether its codes will be symmetric about zero.
    pub symmetric: bool,
    /// Which scales are allowed.
    pub scale: ScaleKind,
    /// Percent of the values inside the range, for [`Method::Percentile`].
    pub percentile: f64,
}

/// Percent of the values that the percentile method keeps, unless asked otherwise.
pub const DEFAULT_PERCENTILE: f64 = 99.999;

impl Settings {
    /// The usual settings of a method.
    pub fn new(method: Method, element: Element, symmetric: bool, scale: ScaleKind) -> Self {
        Self { method, element, symmetric, scale, percentile: DEFAULT_PERCENTILE }
    }

    /// A statistic that has seen nothing.
    pub fn start(self) -> Box<dyn Statistic> {
        match self.method {
            Method::MinMax | Method::NonOverflow => Box::new(MinMax::default()),
            Method::MovingAverage => Box::new(MinMax::moving_average()),
            Method::Percentile => Box::new(Percentile::new(self.percentile, self.symmetric)),
            Method::Entropy => Box::new(Entropy::new(self.element, self.symmetric)),
            Method::MinMse => Box::new(MinMse::new(self.element, self.symmetric, self.scale)),
            Method::Distribution => Box::new(Distribution::new(self.element)),
            Method::LayerwisePercentile => Box::new(LayerwisePercentile::new(self.element, self.symmetric)),
            Method::Auto => Automatic::start(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_read_back() {
        for row in METHODS {
            assert_eq!(row.name.parse(), Ok(row.method));
            assert!(row.aliases.iter().all(|alias| alias.parse() == Ok(row.method)), "{}", row.name);
        }
        assert!("best".parse::<Method>().is_err());
    }

    #[test]
    fn every_method_takes_any_values() {
        let odd: [&[f32]; 6] = [
            &[],
            &[0.0; 4],
            &[f32::NAN, 1.0, f32::INFINITY, -2.0],
            &[f32::NAN; 3],
            &[-5.0, 1e30, 3.0],
            &[f32::MIN_POSITIVE / 4.0, 0.0],
        ];
        for row in METHODS {
            for symmetric in [true, false] {
                let mut statistic = Settings::new(row.method, Element::Int8, symmetric, ScaleKind::Float).start();
                for values in odd {
                    statistic.observe(&Seen::new(values));
                    let range = statistic.range();
                    assert!(range.low.is_finite() && range.high.is_finite(), "{}: {range:?}", row.name);
                    assert!(range.low <= range.high, "{}: {range:?}", row.name);
                }
            }
        }
    }
}
