//! `kvant inspect`: what can be typed behind it.

use clap::{Args, ValueHint};
use std::path::PathBuf;

const INSPECT: &str = "\
Examples:
  kvant inspect Llama-3.2-1B
  kvant inspect model.safetensors --all
  kvant inspect out --json | jq .quantization";

/// `kvant inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT)]
pub struct InspectArgs {
    /// A Hugging Face directory, quantized or not, a .safetensors or .gguf file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// One line for every tensor, instead of one for tensors that are alike
    #[arg(long)]
    pub all: bool,
}
