//! Graph passes on a model that has something for most of them: what it computes stays, and no change to it makes them panic.

#![allow(clippy::unwrap_used)]

mod hostile;
mod model;
mod outputs;
