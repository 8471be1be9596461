//! From ranges to scales and zero points, and from values to codes. No graphs, no statistics.

mod affine;
mod codes;
mod scale_kind;
mod weight;

pub use affine::{Affine, Range, affine};
pub use codes::{encode, pack, quantize_value};
pub use scale_kind::{ScaleKind, nearest_int16_scale};
pub(crate) use scale_kind::{position, power_of_two};
pub(crate) use weight::Channels;
pub use weight::{WeightMethod, weight_codes, weight_parameters};
