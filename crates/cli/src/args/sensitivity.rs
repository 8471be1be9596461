//! The arguments of `kvant sensitivity`.

use super::recipe::RecipeArgs;
use super::run::{OverwriteArgs, RunArgs};
use super::value::{count_from, decibels, drop_of_top1};
use clap::{Arg, Args, ValueHint};
use kvant_onnx::sensitivity::{Candidate, Size as TargetSize};
use std::path::PathBuf;

const SENSITIVITY: &str = "\
Examples:
  kvant sensitivity model.onnx --preset A8W8 --data calib.npz --eval test.npz
      the SQNR of the outputs with only one layer quantized, for each layer
  kvant sensitivity model.onnx --preset A8W4 --data calib.npz --eval test.npz --target-sqnr 25 -o mixed.toml
  kvant quantize model.onnx --recipe mixed.toml --data calib.npz -o model.q.onnx
      find the cheapest mix of A8W4, A8W8, A16W8 and float with 25 dB, and quantize with it
  kvant sensitivity model.onnx --preset A8W8 --data calib.npz --eval test.npz --labels label --max-drop 0.005 -o mixed.toml
      lose at most half a percentage point of top-1 accuracy

A layer is a product (Conv, ConvTranspose, Gemm, MatMul) with its inputs and weights, or another node with the tensors \
that no product reads. Layers that read the same tensor share its type: the one with more bits.";

/// The options that `-h` shows.
const ESSENTIAL: &[&str] = &[
    "model",
    "scheme",
    "calib",
    "eval",
    "labels",
    "candidates",
    "target_sqnr",
    "target_size",
    "max_drop",
    "output",
    "overwrite",
];

/// `kvant sensitivity`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant sensitivity <MODEL> --preset <PRESET> --data <FILE> [OPTIONS]", after_help = SENSITIVITY)]
#[command(mut_args(|arg| super::short_help(for_graphs(arg), ESSENTIAL)))]
pub struct SensitivityArgs {
    /// The model and the recipe.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Data to measure the result on [default: the calibration data]
    #[arg(long, alias = "test", value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Search")]
    pub eval: Option<PathBuf>,
    /// Number of samples to measure the result on
    #[arg(long, alias = "test-samples", value_name = "N", default_value = "64", help_heading = "Search", value_parser = count_from(1))]
    pub eval_samples: usize,
    /// Array of the data with the class of each sample, for accuracy
    #[arg(long, value_name = "NAME", help_heading = "Search")]
    pub labels: Option<String>,
    /// Types to try for sensitive layers, from cheap to expensive, e.g. A16W8,A8W8:channel,bfloat16/int8,float [default: depends on the recipe]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Search")]
    pub candidates: Vec<Candidate>,
    /// Find the cheapest mix whose worst output has at least this SQNR
    #[arg(long, value_name = "DB", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = decibels)]
    pub target_sqnr: Option<f64>,
    /// Find the most accurate mix whose constants are at most this large, e.g. 12MB or 30%
    #[arg(long, value_name = "SIZE", group = "target", help_heading = "Search")]
    pub target_size: Option<TargetSize>,
    /// Find the cheapest mix that loses at most this share of top-1 accuracy, e.g. 0.005 for half a percentage point
    #[arg(long, value_name = "DROP", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = drop_of_top1)]
    pub max_drop: Option<f64>,
    /// Also measure with all layers quantized except one, for each layer
    #[arg(long, help_heading = "Search")]
    pub leave_one_out: bool,
    /// Recipe file (TOML) to write, for --recipe of `kvant quantize`
    #[arg(short, long, help_heading = "Run", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Whether files may be replaced.
    #[command(flatten)]
    pub replace: OverwriteArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Options of a recipe that do not apply: those of checkpoints, and those of a model that is written.
const OF_OTHERS: &[&str] = &[
    "format",
    "pack_method",
    "quality",
    "kv_cache",
    "kv_cache_post_rope",
    "min_kv_scale",
    "attention",
    "no_keep_defaults",
    "requantize",
    "lora",
    "max_shard_size",
    "seq_len",
    "packing",
    "column",
    "shuffle",
    "precision",
    "max_memory",
    "propagate",
    "imatrix",
    "statistics",
    "save_imatrix",
    "ranges",
    "save_ranges",
    "ranges_format",
    "external_data",
    "min_sqnr",
];

/// Options of a recipe whose help describes checkpoints too, and their help for graphs.
const OF_GRAPHS: &[(&str, &str)] = &[
    ("model", "ONNX graph"),
    ("scheme", "Preset (`kvant list presets`), also with algorithms as suffixes, e.g. A8W8_CLE"),
    ("recipe", "Recipe file (TOML); options take precedence over it"),
    ("exclude", "Keep the nodes whose names match in float; repeatable"),
    ("algorithm", "Algorithms besides those of the preset, e.g. cle; `kvant quantize` runs those that need data"),
    (
        "overrides",
        "Type for tensors, e.g. 'logits=uint16', 'fc.weight=int8:channel', 'x=entropy' or '=keep'; repeatable, the last match wins",
    ),
    ("calib", "Calibration data: .npz, .npy, .safetensors, a directory of them or of images, or `random`"),
    ("num_samples", "Number of samples to use"),
];

/// An option as it applies to graphs: with its own help, or hidden, and refused when it is given.
fn for_graphs(arg: Arg) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    match OF_GRAPHS.iter().find(|(known, _)| *known == id) {
        Some((_, help)) => arg.help(*help).long_help(None::<&str>),
        None if OF_OTHERS.contains(&id.as_str()) => arg.hide(true),
        None => arg,
    }
}
