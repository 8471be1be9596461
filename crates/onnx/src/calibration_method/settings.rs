//! Everything that the statistic of a tensor depends on.

use crate::element::Element;
use crate::quantization::{ScaleKind, grid};
use kvant_quant::observer::{GraphStatistic, ObserverRef};

/// The method of finding a tensor's range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The observer.
    pub method: ObserverRef,
    /// The element type of the quantized tensor.
    pub element: Element,
    /// Whether its codes will be symmetric about zero.
    pub symmetric: bool,
    /// The allowed scales.
    pub scale: ScaleKind,
    /// Percent of the values inside the range, for observers that read it.
    pub percentile: f64,
}

/// Percent of the values that the percentile method keeps, unless asked otherwise.
pub(crate) const DEFAULT_PERCENTILE: f64 = 99.999;

impl Settings {
    /// The usual settings of an observer.
    pub fn new(method: ObserverRef, element: Element, symmetric: bool, scale: ScaleKind) -> Self {
        Self { method, element, symmetric, scale, percentile: DEFAULT_PERCENTILE }
    }

    /// A statistic that has seen nothing.
    pub fn start(self) -> GraphStatistic {
        GraphStatistic::new(self.method.or_percentile(self.percentile), grid(self.element, self.symmetric, self.scale))
    }
}
