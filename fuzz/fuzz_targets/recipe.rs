//! See `kvant_fuzz::recipe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::recipe::run(input));
