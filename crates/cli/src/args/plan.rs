//! `kvant plan`: what can be typed behind it.

use super::recipe::RecipeArgs;
use super::run::RunArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

const PLAN: &str = "\
Examples:
  kvant plan Llama-3.2-1B --scheme int4_wo_128
  kvant plan Llama-3.2-1B --scheme MXFP4A16 --exclude '*.self_attn.*' --all
  kvant plan Llama-3.2-1B --scheme uint4_wo_128 --algorithm gptq --calib text.txt
      what calibration takes: arithmetic, memory and disk are estimated
  kvant plan Llama-3.2-1B --scheme nvfp4 --weights-only --json | grep '\"quantize\"'

Everything that `kvant quantize` would refuse, this refuses too, before a weight is read.";

/// The options that `-h` shows.
const ESSENTIAL: &[&str] =
    &["model", "scheme", "format", "algorithm", "calib", "exclude", "overrides", "output", "all"];

/// `kvant plan`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant plan <MODEL> --scheme <SCHEME> [OPTIONS]", after_help = PLAN)]
#[command(mut_args(|arg| super::short_help(arg, ESSENTIAL)))]
pub struct PlanArgs {
    /// What to make.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The directory that would be written: it is checked, not touched
    #[arg(short, long, help_heading = "Run", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Replace the output directory if it exists
    #[arg(long, help_heading = "Run")]
    pub overwrite: bool,
    /// One line for every tensor, instead of one for layers that are alike
    #[arg(long, help_heading = "Run")]
    pub all: bool,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}
