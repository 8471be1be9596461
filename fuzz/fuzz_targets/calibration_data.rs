//! See `kvant_fuzz::calibration_data`.
#![no_main]

// The loader catches panics of the parquet crate. The usual hook would end the process before it can; a panic that gets out
// of the target ends it still.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |input: &[u8]| kvant_fuzz::calibration_data::run(input));
