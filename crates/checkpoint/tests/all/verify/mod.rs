//! `kvant_formats::verify`: every check finds what was broken, and is silent about what is healthy.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod configuration;
mod foreign;
mod fusion;
mod loaders;
mod model;
mod structure;
mod values;
