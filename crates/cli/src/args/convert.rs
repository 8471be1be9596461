//! The arguments of `kvant convert`.

use super::format::GGUF;
use super::run::{AdapterArgs, FinishArgs, OutputArgs, RunArgs, ShardArgs};
use super::value::one_of;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use kvant::{ConvertTo, Format};
use kvant_checkpoint::engine::Options;
use kvant_formats::transcode::{ConversionTarget, FloatType};
use std::path::PathBuf;

const CONVERT: &str = "\
Examples:
  kvant convert Llama-3.2-1B-AWQ --to gptq -o out
      the same codes, scales and zero points in GPTQ's layout
  kvant convert gpt-oss-20b --to compressed-tensors -o out
  kvant convert Qwen3-8B-FP8 --to float --dtype bf16 -o out
      dequantized weights
  kvant convert Llama-3.2-1B-int4 --to onnx -o model.onnx
      a decoder for onnxruntime, with the codes in MatMulNBits or behind DequantizeLinear
  kvant convert model.gguf --to float -o out
      config.json, tokenizer and weights for transformers
  kvant convert Llama-3.2-1B-GPTQ --to gguf -o model.gguf
      symmetric codes in Q4_0, those with zero points in Q4_1
  kvant convert Llama-3.2-1B-W3 --to awq --requantize -o out
      requantized, since AWQ has no 3 bits; the error is reported

Unsupported conversions fail before anything is written; with --requantize, the weights are requantized and the error is reported.";

/// `kvant convert`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant convert <MODEL> --to <TARGET> --output <PATH> [OPTIONS]", after_help = CONVERT)]
pub struct ConvertArgs {
    /// Hugging Face directory, .safetensors or .gguf file, quantized in a readable format
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Checkpoint format to write, or float, gguf or onnx
    ///
    /// `kvant list formats` lists the formats, of which tensors and fake are only for `kvant quantize`; onnx is a decoder graph.
    #[arg(long, hide_possible_values = true, visible_alias = "format", short_alias = 'f', value_name = "TARGET", value_parser = target_parser())]
    pub to: ConvertTo,
    /// Adapters, for --to float.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Type of floats, for --to float [default: the type in config.json]
    #[arg(long, value_name = "TYPE", value_parser = one_of(FloatType::ALL.iter().map(|(name, .., ty)| (*name, *ty))))]
    pub dtype: Option<FloatType>,
    /// Requantize weights where necessary, and accept the loss
    ///
    /// Weights that the target cannot hold exactly get the closest scheme that it supports, and the error is reported.
    #[arg(long)]
    pub requantize: bool,
    /// Quantize weights only; activations stay in float
    #[arg(long)]
    pub weights_only: bool,
    /// The sizes of its files.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// The output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The options by name.
    #[arg(skip)]
    pub typed: Options,
    /// The commit of the output.
    #[command(flatten)]
    pub finish: FinishArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
}

fn target_parser() -> impl TypedValueParser<Value = ConvertTo> {
    let names: Vec<&'static str> = ConversionTarget::names().chain([Format::ONNX, GGUF]).collect();
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        Format::ONNX => Ok(ConvertTo::Onnx),
        GGUF => Ok(ConvertTo::Gguf),
        name => name.parse::<ConversionTarget>().map(ConvertTo::Checkpoint),
    })
}
