//! The arguments of `kvant inspect`.

use super::run::ListingArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

const INSPECT: &str = "\
Examples:
  kvant inspect Llama-3.2-1B
  kvant inspect model.safetensors --all
  kvant inspect out --json | jq .quantization
  kvant inspect new-model --suggest-family > new_model.toml";

/// `kvant inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT)]
pub struct InspectArgs {
    /// Hugging Face directory, diffusers pipeline, .safetensors or .gguf file, ONNX graph, or checkpoint at hf://ORG/NAME or
    /// https://HOST/FOLDER, quantized or not
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Print a first description of the architecture for --family, made from the names of tensors, instead
    #[arg(long, conflicts_with = "all")]
    pub suggest_family: bool,
    /// How much is listed.
    #[command(flatten)]
    pub listing: ListingArgs,
}
