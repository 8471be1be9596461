//! See `kvant_fuzz::tokenizer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::tokenizer::run(input));
