//! Data to calibrate with and to evaluate on.
//!
//! * [`calibration`]: from files of text, conversations or tokens to sequences of tokens,
//! * [`images`]: images and arrays for models of images, prepared as the checkpoint says,
//! * [`sounds`]: sounds and arrays for models of sounds, likewise,
//! * [`tokenizer`]: the checkpoint's own tokenizer.

pub mod calibration;
mod hashed;
pub mod images;
mod json_file;
pub mod sounds;
pub mod tokenizer;
