//! The arguments of `kvant quantize`.

use super::gate::{AccuracyArgs, GateArgs};
use super::recipe::RecipeArgs;
use super::run::{ConfirmArgs, FinishArgs, OutputArgs, RunArgs};
use super::worker::WorkerArgs;
use clap::{Arg, Args};

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

`kvant list schemes --for vllm` lists the schemes that a loader reads, `kvant plan` previews a run.";

const ALL_EXAMPLES: &str = "\
Examples:
  kvant quantize Llama-3.2-1B --scheme int4_wo_128 -o out
      int4 weights in groups of 128, in AMD Quark's format
  kvant quantize Qwen3-8B --scheme FP8_DYNAMIC -o out
      fp8 weights and activations, in compressed-tensors' format
  kvant quantize Qwen3-8B -s mxfp4 --override '*.down_proj=e4m3:channel' -x '*.layers.0.*' -o out
      another scheme for some layers; others stay in float
  kvant quantize opt-125m --scheme int8 --weights-only --format fake -o out
      int8 weights as plain floats, which load wherever the source loads
  kvant quantize Llama-3.2-1B --scheme uint4_wo_128 --algorithm awq,gptq --calib text.txt -o out
      smaller loss with calibrated algorithms (`kvant list algorithms`)
  kvant quantize Qwen3-8B --scheme Q4_K_M -o Qwen3-8B-Q4_K_M.gguf
      a file for llama.cpp, tokenizer included; better with --algorithm imatrix --calib text.txt
  kvant quantize Qwen3-8B --recipe recipe.toml -o out
      options from a file
  kvant quantize resnet50.onnx --preset A8W8 --data calib.npz -o resnet50.int8.onnx
      an ONNX graph with activations calibrated on samples (`kvant list presets`)
  kvant quantize resnet50.onnx --auto --data calib.npz --eval test.npz --labels label --max-drop 0.01 -o resnet50.int8.onnx
      the cheapest recipe that loses at most one percentage point of top-1

Each of MX6, MX9, BFP16, MXINT8, MX with e5m2 elements and int16 is for evaluation only: no loader supports it; use --format fake.

To resume an interrupted run, run the same command again. stdout has the path of the output only, or with --json one object.";

/// The options that `-h` shows.
const ESSENTIAL: &[&str] =
    &["model", "scheme", "format", "algorithm", "calib", "exclude", "overrides", "output", "dry_run", "overwrite"];

/// Options that take the place of a scheme: a recipe, schemes for parts of the model, or the search for one.
const IN_PLACE_OF_SCHEME: [&str; 5] = ["recipe", "components", "layer_types", "towers", "auto"];

/// The scheme, which need not be given with `--auto`.
fn optional_with_auto(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "scheme" => arg.required_unless_present_any(IN_PLACE_OF_SCHEME),
        _ => arg,
    }
}

/// `kvant quantize`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant quantize <MODEL> --scheme <SCHEME> --output <PATH> [OPTIONS]", after_help = EXAMPLES, after_long_help = ALL_EXAMPLES)]
#[command(mut_args(|arg| super::short_help(optional_with_auto(arg), ESSENTIAL)))]
pub struct QuantizeArgs {
    /// The model and the recipe.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Do not write a README.md with a model card beside a checkpoint
    #[arg(long, help_heading = "Checkpoints")]
    pub no_model_card: bool,
    /// Limits on the quality of the result.
    #[command(flatten)]
    pub gate: GateArgs,
    /// Limits on the accuracy of a graph.
    #[command(flatten)]
    pub accuracy: AccuracyArgs,
    /// The commit of the output.
    #[command(flatten)]
    pub finish: FinishArgs,
    /// The part of the work that this process does.
    #[command(flatten)]
    pub worker: WorkerArgs,
    /// Whether it asks.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
}
