//! The arguments of `kvant verify`.

use super::run::ListingArgs;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::path::PathBuf;

const VERIFY: &str = "\
Examples:
  kvant verify Llama-3.2-1B-int4
  kvant verify Qwen3-8B-FP8 --for vllm --tensor-parallel 4
      does vLLM load it on four GPUs?
  kvant verify model.int8.onnx --for onnxruntime --fusions
      which tensors are dequantized and quantized again in every run?
  kvant verify model-AWQ --quick --json | jq '.loaders[] | select(.loads == \"yes\") | .loader'

Checks checkpoints from Kvant, AMD Quark, llm-compressor, AutoAWQ, GPTQModel and ModelOpt, fp8 as published by \
DeepSeek and Qwen, and models that are not quantized:
  structure      files, names, shapes, types, output head, tokenizer
  values         scales, zero points, groups, NaN and infinite values, layers of zeros
  configuration  config.json against the tensors: schemes, excluded layers, announced scales
  fusion         q, k and v, gate and up: layers that engines fuse
  parallelism    groups, blocks and packed words against splits across 2, 4 and 8 GPUs
`kvant list checks` lists all checks, `kvant list loaders` the loader versions whose rules Kvant knows.

Exit status: 0 passed; 1 a check found an error, or the loader of --for does not load the model; 2 wrong usage.";

/// `kvant verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY)]
pub struct VerifyArgs {
    /// Hugging Face directory, .safetensors or .gguf file, or ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Consider this loader only
    #[arg(long = "for", value_name = "LOADER", value_parser = loader_parser())]
    pub loader: Option<String>,
    /// Check that the model can be split across N GPUs [default: 2, 4 and 8 are reported]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub tensor_parallel: Option<u16>,
    /// Read headers and configuration files only, no scales and no weights
    #[arg(long)]
    pub quick: bool,
    /// List the QuantizeLinear and DequantizeLinear nodes of a graph that no kernel of onnxruntime absorbs, with the reason
    #[arg(long)]
    pub fusions: bool,
    /// How much is listed.
    #[command(flatten)]
    pub listing: ListingArgs,
}

pub(super) fn loader_parser() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(
        kvant_formats::verify::loaders().iter().map(|loader| PossibleValue::new(loader.id.as_str())),
    )
}
