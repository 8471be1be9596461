//! See `kvant_fuzz::checkpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::checkpoint::run(input));
