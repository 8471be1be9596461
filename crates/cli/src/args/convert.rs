//! `kvant convert`: what can be typed behind it.

use super::format::GGUF;
use super::run::{FinishArgs, RunArgs};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use kvant::{ConvertTo, Format};
use kvant_llm::byte_size::ByteSize;
use kvant_llm::conversion::{FloatType, Target};
use kvant_llm::engine::Options;
use std::path::PathBuf;

const CONVERT: &str = "\
Examples:
  kvant convert Llama-3.2-1B-AWQ --to gptq -o out
      the same codes, scales and zero points in GPTQ's layout
  kvant convert gpt-oss-20b --to compressed-tensors -o out
  kvant convert Qwen3-8B-FP8 --to float --dtype bf16 -o out
      the values that the codes stand for
  kvant convert Llama-3.2-1B-int4 --to onnx -o model.onnx
      a decoder for onnxruntime, with the codes in MatMulNBits or behind DequantizeLinear
  kvant convert model.gguf --to float -o out
      config.json, tokenizer and weights for transformers
  kvant convert Llama-3.2-1B-GPTQ --to gguf -o model.gguf
      symmetric codes in Q4_0, those with zero points in Q4_1
  kvant convert Llama-3.2-1B-W3 --to awq --requantize -o out
      requantized, since AWQ has no 3 bits; the error is reported

What the target does not hold exactly is refused before anything is written, unless --requantize accepts the loss.";

/// `kvant convert`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant convert <MODEL> --to <TARGET> --output <DIR> [OPTIONS]", after_help = CONVERT)]
pub struct ConvertArgs {
    /// A Hugging Face directory, a .safetensors file or a GGUF file, quantized in a layout that is read
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// The layout to write (`kvant list formats`), float, gguf, or onnx: a graph with a cache of keys and values
    #[arg(long, value_name = "TARGET", value_parser = target_parser())]
    pub to: ConvertTo,
    /// A LoRA adapter (a folder as PEFT saves it) to merge into the weights as they are read, for --to float; may be given often
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub lora: Vec<PathBuf>,
    /// The type of floats: bf16, f16 or f32 [default: the one that config.json states]
    #[arg(long, value_name = "TYPE", value_parser = float_type_parser())]
    pub dtype: Option<FloatType>,
    /// Requantize weights that the target does not hold exactly to its nearest scheme, and report the error
    #[arg(long)]
    pub requantize: bool,
    /// Leave quantized activations in float: for --to onnx, whose graphs do not hold all of them
    #[arg(long)]
    pub weights_only: bool,
    /// The most bytes of tensors in one file [default: 5GB]
    #[arg(long, value_name = "SIZE")]
    pub max_shard_size: Option<ByteSize>,
    /// The directory to write, or the .gguf or .onnx file; it appears when it is complete
    #[arg(short, long, help_heading = "Run", value_name = "DIR", value_hint = ValueHint::DirPath, required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Say what would be done, and stop
    #[arg(long, help_heading = "Run")]
    pub dry_run: bool,
    /// The options by name.
    #[arg(skip)]
    pub typed: Options,
    /// How the output gets its name.
    #[command(flatten)]
    pub finish: FinishArgs,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

fn target_parser() -> impl TypedValueParser<Value = ConvertTo> {
    let names: Vec<&'static str> = Target::names().chain([Format::ONNX, GGUF]).collect();
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        Format::ONNX => Ok(ConvertTo::Onnx),
        GGUF => Ok(ConvertTo::Gguf),
        name => name.parse::<Target>().map(ConvertTo::Checkpoint),
    })
}

fn float_type_parser() -> impl TypedValueParser<Value = FloatType> {
    let names = FloatType::ALL.iter().map(|(name, ..)| *name);
    let find = |name: String| FloatType::ALL.iter().find(|(known, ..)| *known == name).map(|(.., ty)| *ty);
    PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(move |name| find(name).ok_or("unknown type"))
}
