//! Which tensors of a graph are quantized, and how: decided from the graph and the recipe alone, before any data is seen.
//!
//! Adding a rule for an operator: one row in [`rules::RULES`].

mod channels;
mod fusion;
mod given;
mod kernels;
mod place;
mod placed;
pub mod rules;
mod select;
mod settle;
mod sources;
mod unmatched;

pub(crate) use channels::{
    FLOAT_WITH_INT8, ONE_SCALE, assign as assign_channels, check as check_channels, is_second_operand,
    refuse_idle as refuse_idle_channels,
};
pub(crate) use fusion::{clip_bounds, scalar};
pub(crate) use given::{FLOAT_IN_FILE, give as give_ranges, settle as settle_ranges, unmatched as unmatched_ranges};
pub(crate) use kernels::check as check_kernels;
pub use place::place;
pub use placed::{Activation, Bias, Channels, GivenRanges, Placement, Skipped, Weight};
pub use select::{in_subgraphs, is_selected};
pub(crate) use sources::RangeSources;
pub use unmatched::{Named, unmatched};
