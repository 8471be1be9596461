//! See `kvant_fuzz::onnx_model`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kvant_fuzz::onnx_model::run(input));
