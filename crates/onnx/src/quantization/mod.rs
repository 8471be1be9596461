//! From ranges to scales and zero points, and from values to codes. No graphs, no statistics.

mod affine;
mod codes;
mod scale_kind;

pub(crate) use affine::of_codes as affine_of_codes;
pub use affine::{Affine, Range, affine};
pub(crate) use codes::quantize_values;
pub use codes::{encode, pack, quantize_value};
pub use scale_kind::{ScaleKind, nearest_int16_scale};
pub(crate) use scale_kind::{position, power_of_two};
