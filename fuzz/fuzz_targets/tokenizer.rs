//! See `kvant_fuzz::tokenizer`.
#![no_main]

// The loader catches panics of the tokenizers crate. The usual hook would end the process before it can; a panic that gets out
// of the target ends it still.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |input: &[u8]| kvant_fuzz::tokenizer::run(input));
