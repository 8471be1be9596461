//! The arguments of `kvant plan`.

use super::recipe::RecipeArgs;
use super::run::{ListingArgs, OverwriteArgs, RunArgs};
use super::worker::WorkersArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

const PLAN: &str = "\
Examples:
  kvant plan Llama-3.2-1B --scheme int4_wo_128
  kvant plan Llama-3.2-1B --scheme MXFP4A16 --exclude '*.self_attn.*' --all
  kvant plan Llama-3.2-1B --scheme uint4_wo_128 --algorithm gptq --calib text.txt
      with estimates of the arithmetic, memory and disk space of calibration
  kvant plan Llama-3.2-1B --scheme nvfp4 --weights-only --json | grep '\"quantize\"'

Reads only headers, and the floats that are kept (up to 2 GiB each), which must be finite. What `kvant quantize` would refuse fails here too, except calibration data that are not given.";

/// The options that `-h` shows.
const ESSENTIAL: &[&str] =
    &["model", "scheme", "format", "algorithm", "calib", "exclude", "overrides", "output", "all"];

/// `kvant plan`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant plan <MODEL> --scheme <SCHEME> [OPTIONS]", after_help = PLAN)]
#[command(mut_args(|arg| super::short_help(arg, ESSENTIAL)))]
pub struct PlanArgs {
    /// The model and the recipe.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Directory, .gguf or .onnx file to write; it appears when it is complete
    ///
    /// `kvant plan` checks whether it could be written, and does not touch it.
    #[arg(short, long, help_heading = "Run", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub output: Option<PathBuf>,
    /// Whether files may be replaced.
    #[command(flatten)]
    pub replace: OverwriteArgs,
    /// Skip output verification (see `kvant verify`)
    #[arg(long, help_heading = "Run")]
    pub no_verify: bool,
    /// The work of several workers.
    #[command(flatten)]
    pub workers: WorkersArgs,
    /// How much is listed.
    #[command(flatten, next_help_heading = "Run")]
    pub listing: ListingArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
}
