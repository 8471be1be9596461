//! `kvant quantize`: what can be typed behind it.

use super::gate::GateArgs;
use super::recipe::RecipeArgs;
use super::run::{FinishArgs, RunArgs};
use clap::{Args, ValueHint};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant quantize Llama-3.2-1B --scheme int4_wo_128 -o out
      a checkpoint with 4-bit weights, for vLLM and transformers
  kvant quantize Qwen3-8B --scheme FP8_DYNAMIC -o out
      fp8 weights and activations, for vLLM and SGLang
  kvant quantize Qwen3-8B --scheme W4A16 --algorithm gptq --calib text.txt -o out
      4-bit weights that lose less, with calibration data
  kvant quantize Qwen3-8B --scheme Q4_K_M -o Qwen3-8B.gguf
      a file for llama.cpp and Ollama
  kvant quantize resnet50.onnx --preset A8W8 --data calib.npz -o resnet50.int8.onnx
      an ONNX graph

`kvant list schemes --for vllm` lists the schemes that a loader takes, `kvant plan` shows what a run would do, and \
`kvant quantize --help` lists every option by kind of input.";

const ALL_EXAMPLES: &str = "\
Examples:
  kvant quantize Llama-3.2-1B --scheme int4_wo_128 -o out
      int4 weights in groups of 128, in AMD Quark's layout
  kvant quantize Qwen3-8B --scheme FP8_DYNAMIC -o out
      fp8 weights and activations, in the layout of compressed-tensors
  kvant quantize Qwen3-8B -s mxfp4 --override '*.down_proj=e4m3:channel' -x '*.layers.0.*' -o out
      another scheme for some layers, and none for others
  kvant quantize opt-125m --scheme int8 --weights-only --format fake -o out
      int8 weights as plain floats, which load wherever the source loads
  kvant quantize Llama-3.2-1B --scheme uint4_wo_128 --algorithm awq,gptq --calib text.txt -o out
      weights that are scaled and rounded so that the model changes least on a text (`kvant list algorithms`)
  kvant quantize Qwen3-8B --scheme Q4_K_M -o Qwen3-8B-Q4_K_M.gguf
      a file for llama.cpp, tokenizer included; better with --algorithm imatrix --calib text.txt
  kvant quantize Qwen3-8B --recipe recipe.toml -o out
      what the options say, from a file
  kvant quantize resnet50.onnx --preset A8W8 --data calib.npz -o resnet50.int8.onnx
      an ONNX graph, its activations calibrated on samples (`kvant list presets`)

Each of MX6, MX9, BFP16, MXINT8, MX with e5m2 elements and int16 is for evaluation only: no loader supports it; use --format fake.

Interrupted runs resume when the same command is given again. \
stdout carries the path of the output and nothing else; with --json, one object.";

/// The options that `-h` shows.
const ESSENTIAL: &[&str] = &[
    "model",
    "scheme",
    "format",
    "algorithm",
    "calib",
    "exclude",
    "overrides",
    "output",
    "dry_run",
    "overwrite",
    "max_kl",
];

/// `kvant quantize`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant quantize <MODEL> --scheme <SCHEME> --output <DIR> [OPTIONS]", after_help = EXAMPLES, after_long_help = ALL_EXAMPLES)]
#[command(mut_args(|arg| super::short_help(arg, ESSENTIAL)))]
pub struct QuantizeArgs {
    /// What to make.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The directory to write, or the .gguf or .onnx file; it appears when it is complete
    #[arg(short, long, help_heading = "Run", value_name = "DIR", value_hint = ValueHint::DirPath, required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Show the plan and stop, as `kvant plan` does
    #[arg(long, help_heading = "Run")]
    pub dry_run: bool,
    /// What the result must measure up to.
    #[command(flatten)]
    pub gate: GateArgs,
    /// How the output gets its name.
    #[command(flatten)]
    pub finish: FinishArgs,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}
