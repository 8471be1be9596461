//! From ranges to scales and zero points of element types, and from values to codes. No graphs, no statistics.

mod codes;

pub(crate) use codes::quantize_values;
pub use codes::{encode, pack, quantize_value};
pub use kvant_numeric::kernel::Range;
pub use kvant_quant::graph_grid::{CodeRange, ScaleKind, nearest_int16_scale};
pub(crate) use kvant_quant::graph_grid::{position, power_of_two};

use crate::element::Element;
use kvant_quant::graph_grid::GraphGrid;

/// How values map to codes.
pub type Affine = kvant_quant::Affine<i64>;

/// The range of nothing but zeros.
pub(crate) const ZERO: Range = Range { min: 0.0, max: 0.0 };

/// The grid of a tensor.
pub(crate) fn grid(element: Element, symmetric: bool, scale: ScaleKind) -> GraphGrid {
    GraphGrid { dtype: element.dtype(), symmetric, scale }
}

/// Scale and zero point of a range in an element type. Floats other than the 8-bit ones have scale 1.
pub fn affine(range: Range, element: Element, symmetric: bool, kind: ScaleKind) -> Affine {
    grid(element, symmetric, kind).affine(range)
}
