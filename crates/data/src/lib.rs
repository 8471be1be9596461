//! Data to calibrate with and to evaluate on.
//!
//! * [`calibration`]: from files of text, conversations or tokens to sequences of tokens,
//! * [`tokenizer`]: the checkpoint's own tokenizer.

pub mod calibration;
pub mod tokenizer;
