//! `kvant sensitivity`: what can be typed behind it.

use super::number::{count_from, decibels, points};
use super::recipe::RecipeArgs;
use super::run::RunArgs;
use clap::{Arg, Args, ValueHint};
use kvant_onnx::sensitivity::{Candidate, Size as TargetSize};
use std::path::PathBuf;

const SENSITIVITY: &str = "\
Examples:
  kvant sensitivity model.onnx --preset A8W8 --data calib.npz --test test.npz
      the SQNR of the outputs with one layer alone quantized, layer by layer
  kvant sensitivity model.onnx --preset A8W4 --data calib.npz --test test.npz --target-sqnr 25 -o mixed.toml
  kvant quantize model.onnx --recipe mixed.toml --data calib.npz -o model.q.onnx
      the cheapest mix of A8W4, A8W8, A16W8 and float that has 25 dB, and the model it makes
  kvant sensitivity model.onnx --preset A8W8 --data calib.npz --test test.npz --labels label --max-drop 0.5 -o mixed.toml
      at most half a percentage point of top-1 accuracy lost

A layer is a product (Conv, ConvTranspose, Gemm, MatMul) with its data and its weights, or another node with the \
tensors that no product reads. Layers that read the same tensor share its type, the higher of both.";

/// `kvant sensitivity`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant sensitivity <MODEL> --preset <PRESET> --data <FILE> [OPTIONS]", after_help = SENSITIVITY)]
#[command(mut_args(for_graphs))]
pub struct SensitivityArgs {
    /// What to make.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Samples to measure models on, which no range comes from [default: the calibration data]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Search")]
    pub test: Option<PathBuf>,
    /// Samples of them to take
    #[arg(long, value_name = "N", default_value = "64", help_heading = "Search", value_parser = count_from(1))]
    pub test_samples: usize,
    /// The array of the test data with the class of each sample, for accuracy
    #[arg(long, value_name = "NAME", help_heading = "Search")]
    pub labels: Option<String>,
    /// Types to choose from beyond the recipe's, from cheap to dear: A16W8, A8W8:channel, bfloat16/int8, float [default: what suits the recipe]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Search")]
    pub candidates: Vec<Candidate>,
    /// Find the cheapest mix whose worst output has so many dB
    #[arg(long, value_name = "DB", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = decibels)]
    pub target_sqnr: Option<f64>,
    /// Find the most accurate mix whose constants are no larger, e.g. 12MB or 30%
    #[arg(long, value_name = "SIZE", group = "target", help_heading = "Search")]
    pub target_size: Option<TargetSize>,
    /// Find the cheapest mix that loses at most so many percentage points of top-1 accuracy
    #[arg(long, value_name = "POINTS", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = points)]
    pub max_drop: Option<f64>,
    /// Measure also what all other layers lose together, one left out at a time
    #[arg(long, help_heading = "Search")]
    pub leave_one_out: bool,
    /// The recipe to write (TOML), for --recipe of `kvant quantize`
    #[arg(short, long, help_heading = "Run", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Replace the recipe if it exists
    #[arg(long, help_heading = "Run")]
    pub overwrite: bool,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options of a recipe that nothing here reads: those of checkpoints, and those of a file that is written.
const OF_OTHERS: &[&str] = &[
    "format",
    "pack_method",
    "kv_cache",
    "kv_cache_post_rope",
    "min_kv_scale",
    "attention",
    "no_keep_defaults",
    "requantize",
    "max_shard_size",
    "seq_len",
    "packing",
    "column",
    "shuffle",
    "precision",
    "max_memory",
    "propagate",
    "imatrix",
    "save_imatrix",
    "report",
    "external_data",
];

/// What the help says of options that graphs have otherwise than checkpoints.
const OF_GRAPHS: &[(&str, &str)] = &[
    ("model", "An ONNX graph"),
    ("scheme", "How to quantize: a preset (`kvant list presets`), perhaps with algorithms behind it, e.g. A8W8_CLE"),
    ("recipe", "A recipe (TOML); options given beside it win"),
    ("exclude", "Leave the nodes whose names match in float; may be given often"),
    (
        "algorithm",
        "Algorithms beside those of the preset, e.g. cle; those that run over data are left to `kvant quantize`",
    ),
    (
        "overrides",
        "Another type for tensors, e.g. 'logits=uint16', 'fc.weight=int8:channel', 'x=entropy' or '=keep'; may be given often",
    ),
    ("calib", "Calibration data: .npz, .npy, .safetensors, a directory of them or of images, or `random`"),
    ("num_samples", "Samples to take"),
    ("seed", "What random data are drawn from"),
];

/// An option as graphs have it; hidden, and refused when it is given, where they have none.
fn for_graphs(arg: Arg) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    match OF_GRAPHS.iter().find(|(known, _)| *known == id) {
        Some((_, help)) => arg.help(*help).long_help(None::<&str>),
        None if OF_OTHERS.contains(&id.as_str()) => arg.hide(true),
        None => arg,
    }
}
