//! The arguments of `kvant search`.

use super::calibration::{CalibrationArgs, TEXT};
use super::format::format_parser;
use super::run::{AdapterArgs, OverwriteArgs, PageArgs, RunArgs};
use super::value::{not_negative, one_of, share};
use clap::{Arg, Args, ValueHint};
use kvant::{Format, SearchMethod};
use kvant_onnx::calibration::ObserverRef;
use kvant_onnx::sensitivity::Size as TargetSize;
use std::ffi::OsString;
use std::path::PathBuf;

const SEARCH: &str = "\
Examples:
  kvant search Llama-3.2-1B --target-size 900MB --for vllm --data text.txt -o mixed.toml
  kvant quantize Llama-3.2-1B --recipe mixed.toml -o Llama-3.2-1B-mixed
      the mix of int4:g128, int8:channel and float with the least loss in 900 MB, for vLLM
  kvant search Llama-3.2-1B --target-bpw 4.25 --options int3:g128,int4:g128,int8:channel --data text.txt -o mixed.toml
      with other options, at most 4.25 bits for each weight on average
  kvant search Qwen3-8B --max-kl 0.02 --for llama.cpp --data text.txt -o mixed.toml --then quantize -o Qwen3-8B.gguf
      the smallest GGUF file with a KL divergence of at most 0.02, and the file

Every group of layers is measured in every option: the KL divergence of the model's output with this group alone quantized, rounded \
to nearest; for large models it is estimated by gradients. Layers that loaders fuse (q, k and v; gate and up) and all experts of a block are one group; in GGUF files every tensor is. \
The mix for the target is then measured as a whole, beside every option everywhere.

The measurements are kept in a file beside the recipe: an interrupted search resumes, and a search with another target reuses them.";

/// The options that `-h` shows.
const ESSENTIAL: &[&str] = &[
    "model",
    "options",
    "loader",
    "calib",
    "num_samples",
    "eval",
    "target_size",
    "target_bpw",
    "max_kl",
    "min_top1",
    "output",
    "overwrite",
    "then",
];

/// Options of calibration that do not apply.
const OF_OTHERS: &[&str] = &["propagate"];

/// `kvant search`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant search <MODEL> --data <FILE> [OPTIONS]", after_help = SEARCH)]
#[command(mut_args(|arg| super::short_help(for_search(arg), ESSENTIAL)))]
pub struct SearchArgs {
    /// Hugging Face directory, .safetensors or .gguf file
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// What layers may become, e.g. int4:g128,int8:channel,float, or types of GGUF such as Q4_K,Q6_K [default: depends on the loader]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Search")]
    pub options: Vec<String>,
    /// Consider this loader only
    #[arg(long = "for", value_name = "LOADER", value_parser = super::verify::loader_parser(), help_heading = "Search")]
    pub loader: Option<String>,
    /// Find the most accurate mix whose constants are at most this large, e.g. 12MB or 30%
    ///
    /// Constants of a checkpoint or GGUF file are its weight files, headers included. A share is of the source's.
    #[arg(long, value_name = "SIZE", group = "target", help_heading = "Search")]
    pub target_size: Option<TargetSize>,
    /// Find the most accurate mix with at most this many bits for each weight that has a choice, on average
    #[arg(long, value_name = "BITS", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = not_negative)]
    pub target_bpw: Option<f64>,
    /// Find the smallest mix whose mean KL divergence from the model is at most this, in nats
    #[arg(long, value_name = "NATS", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = not_negative)]
    pub max_kl: Option<f64>,
    /// Find the smallest mix that agrees with the model on the likeliest token for at least this share of the tokens, e.g. 0.95
    #[arg(long, value_name = "SHARE", group = "target", help_heading = "Search", allow_negative_numbers = true, value_parser = share)]
    pub min_top1: Option<f64>,
    /// How groups are measured: measured (a pass for every option of every group) or estimated (by gradients) [default: measured, or estimated beyond 100 passes]
    #[arg(long, value_name = "METHOD", hide_possible_values = true, value_parser = one_of(SearchMethod::ALL.map(|method| (method.name(), method))), help_heading = "Search")]
    pub method: Option<SearchMethod>,
    /// Data to measure the result on
    ///
    /// Text or tokens, as `kvant eval` takes them, for whole mixes. Without it, they are measured on the data of the search.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = TEXT, help_heading = "Search")]
    pub eval: Option<PathBuf>,
    /// File in which measurements are kept [default: that of the recipe, ending in .sensitivities.json]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Search")]
    pub sensitivities: Option<PathBuf>,
    /// Quantize weights only; activations stay in float
    #[arg(long, help_heading = "Recipe for any model")]
    pub weights_only: bool,
    /// How the scales of weights are found, e.g. search (`kvant list observers`) [default: minmax]
    ///
    /// `search` tries scales for the least squared error, weighed by the inputs where a calibrated rounding sees them, and in graphs
    /// wherever there are data. Schemes that name an observer keep it.
    #[arg(long, value_name = "OBSERVER", help_heading = "Recipe for any model")]
    pub scales: Option<ObserverRef>,
    /// Checkpoint format [default: that of the scheme's tool, or one that loads]
    ///
    /// `kvant list formats` lists them. Repeatable: each format gets a directory in the output directory.
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true, value_parser = format_parser(), help_heading = "Checkpoints")]
    pub format: Vec<Format>,
    /// Also quantize layers that stay in float by default: output heads, routers
    #[arg(long, help_heading = "Checkpoints")]
    pub no_keep_defaults: bool,
    /// Adapters.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// The data.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// Recipe file (TOML) to write, for `kvant quantize`
    #[arg(short, long, help_heading = "Run", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Whether files may be replaced.
    #[command(flatten)]
    pub replace: OverwriteArgs,
    /// A report for people.
    #[command(flatten)]
    pub page: PageArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
    /// Command to run with the recipe: `quantize` and its options, which are all that follow
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, help_heading = "Run")]
    pub then: Vec<OsString>,
}

/// An option as it applies to a search: a pass for every option takes less data than calibration does.
fn for_search(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "num_samples" => arg.default_value("32"),
        id if OF_OTHERS.contains(&id) => arg.hide(true),
        _ => arg,
    }
}
