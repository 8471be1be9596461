//! See `kvant_fuzz::pickle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::pickle::run(input));
