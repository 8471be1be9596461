//! Data a model is run on: arrays from files and folders, matched to the model's inputs, one sample at a time.
//!
//! [`inputs`] says what a model takes, [`SampleSource::open`] finds and checks it, [`Samples::sample`] lends one sample. Memory does
//! not grow with the number of samples: files are mapped, or read a sample at a time. Nothing here runs a model.

mod column;
mod error;
#[cfg(feature = "images")]
mod images;
#[cfg(not(feature = "images"))]
#[path = "no_images.rs"]
mod images;
mod inputs;
mod preprocessing;
mod random;
mod samples;
mod source;

pub use kvant_samples::{Array, Element, Values};

pub(crate) use column::Column;
pub use error::DataError;
pub use inputs::{Axis, Input, display_axes, inputs, type_of};
pub(crate) use kvant_samples::{each_type, from_bytes};
pub use preprocessing::{Channels, Interpolation, Layout, Preprocessing, Resize};
pub use random::Distribution;
pub use samples::{Sample, Samples};
pub use source::{DataOptions, SampleSource};

#[cfg(test)]
mod tests;
