//! See `kvant_fuzz::gguf_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::gguf_header::run(input));
