//! `kvant verify`: what can be typed behind it.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use std::path::PathBuf;

const VERIFY: &str = "\
Examples:
  kvant verify Llama-3.2-1B-int4
  kvant verify Qwen3-8B-FP8 --for vllm --tensor-parallel 4
      would vLLM take it on four devices? Its rules alone decide
  kvant verify model-AWQ --quick --json | jq '.loaders[] | select(.loads == \"yes\") | .loader'

Checkpoints of any maker are taken: Kvant, AMD Quark, llm-compressor, AutoAWQ, GPTQModel, ModelOpt, fp8 as DeepSeek and \
Qwen publish it; one that is not quantized, too. Five things are looked at:
  structure      files, names, shapes, types, the head, the tokenizer
  values         scales, zero points, groups, numbers that are none, layers of zeros
  configuration  config.json against the tensors: schemes, lists of what is kept, promised scales
  fusion         q, k and v, gate and up: what engines make one layer of
  parallelism    groups, blocks and words against cuts for 2, 4 and 8 devices
`kvant list checks` names each check, `kvant list loaders` the versions that the rules for loaders were read from.

Exit status: 0 fine; 1 a check has found an error, or with --for, that loader would not take it; 2 wrong usage.";

/// `kvant verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY)]
pub struct VerifyArgs {
    /// A Hugging Face directory, a .safetensors or .gguf file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Check against this loader only
    #[arg(long = "for", value_name = "LOADER", value_parser = loader_parser())]
    pub loader: Option<String>,
    /// Check that the model can be split across N GPUs [default: 2, 4 and 8 are reported]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub tensor_parallel: Option<u16>,
    /// Read headers and configurations only, no scales and no weights
    #[arg(long)]
    pub quick: bool,
    /// One line for every finding, instead of one for those that are alike
    #[arg(long)]
    pub all: bool,
}

pub(super) fn loader_parser() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(kvant_llm::verify::loaders().iter().map(|loader| PossibleValue::new(loader.id.as_str())))
}
