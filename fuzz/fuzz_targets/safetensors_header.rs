//! See `kvant_fuzz::safetensors_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::safetensors_header::run(input));
