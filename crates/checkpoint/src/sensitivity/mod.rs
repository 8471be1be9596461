//! Mixed precision: what the layers of a decoder may become, and how much each of it costs in size and in the decoder's output.
//!
//! * [`MixOption`]: a scheme, a tensor type of GGUF or float,
//! * [`LayerGroup`]: layers that get one option together, because loaders fuse them or a file has one tensor for them,
//! * [`Mixture`]: the groups of a model, with the bytes of every option that fits; weights of a group in an option, and recipe and plan of
//!   a choice for every group,
//! * [`Trials`]: whole mixes and single options, measured on text by [`evaluate_variants`](kvant_forward::evaluation::evaluate_variants).
//!
//! What is chosen is decided elsewhere: see [`kvant_quant::allocation`].

mod checkpoint;
mod error;
mod estimates;
mod gguf;
mod group;
mod mixture;
mod option;
mod range;
#[cfg(test)]
mod tests;
mod trials;

pub use error::MixError;
pub use estimates::Estimates;
pub use group::{GroupChoice, LayerGroup};
pub use mixture::{MixPlan, MixSettings, Mixture};
pub use option::{MixKind, MixOption, options};
pub use trials::{Trial, Trials};
