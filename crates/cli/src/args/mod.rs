//! Commands and options as clap parses them; doc comments are the help. One file for each command, and for each group of options
//! that several commands share. Nothing is opened or resolved here.

mod calibration;
mod convert;
mod eval;
mod format;
mod gate;
mod generate;
mod gguf;
mod graph;
mod inspect;
mod list;
mod onnx;
mod plan;
mod quantize;
mod recipe;
mod report;
mod run;
mod search;
mod sensitivity;
mod typed;
mod value;
mod verify;
mod worker;

pub use calibration::CalibrationArgs;
pub use convert::ConvertArgs;
pub use eval::EvalArgs;
pub use gate::{AccuracyArgs, GateArgs};
pub use generate::{GenerateArgs, SamplingArgs};
pub use graph::{GraphArgs, GraphCommand, GraphFiles};
pub use inspect::InspectArgs;
pub use list::ListArgs;
pub use onnx::{EngineArgs, OnnxArgs};
pub use plan::PlanArgs;
pub use quantize::QuantizeArgs;
pub use recipe::RecipeArgs;
pub use report::ReportArgs;
pub use run::{FinishArgs, OverwriteArgs, RunArgs};
pub use search::SearchArgs;
pub use sensitivity::SensitivityArgs;
pub use typed::typed;
pub use verify::VerifyArgs;
pub use worker::{FinishPartsArgs, WorkerNumber, WorkersArgs};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use kvant_checkpoint::engine::Options;
use std::ffi::OsString;
use std::path::PathBuf;

/// The three commands that most people need.
const EXAMPLES: &str = "\
Start here:
  kvant list schemes --for vllm
      list the schemes that a loader reads
  kvant quantize Llama-3.2-1B --scheme int4_wo_128 -o Llama-3.2-1B-int4
      quantize a model
  kvant verify Llama-3.2-1B-int4 --for vllm
      check a quantized model from any tool";

const EXIT_STATUS: &str = "\
Exit status: 0 success; 1 the model or recipe cannot be processed, or a check failed; 2 wrong usage, such as an unknown scheme or a missing data file, or a bug; 130 interrupted with Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.";

/// Quantizes deep-learning models: checkpoints, GGUF files and ONNX graphs
#[derive(Debug, Parser)]
#[command(name = "kvant", bin_name = "kvant", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"), max_term_width = 120, propagate_version = false)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// Description of an architecture that Kvant does not know, in TOML; repeatable. `kvant inspect MODEL --suggest-family` drafts one
    #[arg(long = "family", global = true, hide_short_help = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Model")]
    pub families: Vec<PathBuf>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output of the command")]
pub struct GlobalArgs {
    /// Print one JSON object on stdout, also for errors
    #[arg(long, global = true, hide_short_help = true)]
    pub json: bool,
    /// Print tables at full width instead of the width of the terminal
    #[arg(long, global = true, hide_short_help = true)]
    pub wide: bool,
    /// Print only warnings and errors on stderr
    #[arg(short, long, global = true, hide_short_help = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more on stderr
    #[arg(short, long, global = true, hide_short_help = true)]
    pub verbose: bool,
    /// When to show progress (a bar on a terminal, a line every few seconds elsewhere): auto, always or never
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub progress: ProgressWhen,
    /// When to use colours: auto, always or never; NO_COLOR is respected
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: ColorWhen,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressWhen {
    /// Unless --quiet is given
    Auto,
    /// Never
    Never,
    /// Even with --quiet, from the first second
    Always,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Quantize a model
    Quantize(Box<QuantizeArgs>),
    /// Complete the output of several workers
    Finish(FinishPartsArgs),
    /// Convert a quantized model to another format, losslessly where possible
    Convert(ConvertArgs),
    /// Preview a quantization: tensors, size, memory, loaders; reads headers and kept floats only
    Plan(Box<PlanArgs>),
    /// Show architecture, tensors, sizes and quantization of a model
    Inspect(InspectArgs),
    /// Check that a quantized model from any tool is valid and loadable, without a GPU
    Verify(VerifyArgs),
    /// Measure perplexity, or the distance of a quantized model from its original
    Eval(EvalArgs),
    /// Continue prompts with a model, beside its original if wanted
    Generate(Box<GenerateArgs>),
    /// Simplify, cut, convert, dequantize or show an ONNX graph
    Graph(GraphArgs),
    /// Rank the layers of an ONNX graph by sensitivity, and search for a mixed-precision recipe
    Sensitivity(Box<SensitivityArgs>),
    /// Search for the mix of schemes, layer by layer, that loses least for its size
    Search(Box<SearchArgs>),
    /// Write a report of results in HTML or Markdown, or compare several
    Report(ReportArgs),
    /// List schemes, formats, algorithms, model families, loaders and more
    List(ListArgs),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Open a graph in ONNX Runtime; Kvant runs this in a separate process, which may crash
    #[command(name = "open-graph", hide = true)]
    OpenGraph(OpenGraphArgs),
}

impl Command {
    /// Adds the options as they were typed, for commands whose runs may resume.
    #[must_use]
    pub fn with_typed(mut self, typed: Options) -> Command {
        match &mut self {
            Command::Quantize(args) => args.recipe.typed = typed,
            Command::Convert(args) => args.typed = typed,
            _ => {}
        }
        self
    }

    /// Adds the arguments of the command line, for workers of which another process completes the output.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &[OsString]) -> Command {
        match &mut self {
            Command::Quantize(args) => args.worker.record(arguments),
            Command::Plan(args) => args.workers.arguments = arguments.to_vec(),
            _ => {}
        }
        self
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Quantize(_) => "quantize",
            Command::Finish(_) => "finish",
            Command::Convert(_) => "convert",
            Command::Plan(_) => "plan",
            Command::Inspect(_) => "inspect",
            Command::Verify(_) => "verify",
            Command::Eval(_) => "eval",
            Command::Generate(_) => "generate",
            Command::Graph(_) => "graph",
            Command::Sensitivity(_) => "sensitivity",
            Command::Search(_) => "search",
            Command::Report(_) => "report",
            Command::List(_) => "list",
            Command::Completions(_) => "completions",
            Command::OpenGraph(_) => "open-graph",
        }
    }
}

const COMPLETIONS: &str = "\
Examples:
  kvant completions bash > ~/.local/share/bash-completion/completions/kvant
  kvant completions zsh > ~/.zfunc/_kvant
  kvant completions fish > ~/.config/fish/completions/kvant.fish";

/// `kvant completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `kvant open-graph`.
#[derive(Debug, Args)]
pub struct OpenGraphArgs {
    /// The graph
    pub model: std::path::PathBuf,
    /// ONNX Runtime's library
    pub runtime_library: Option<std::path::PathBuf>,
}

/// Leaves an option out of `-h` unless it is essential.
fn short_help(arg: clap::Arg, essential: &[&str]) -> clap::Arg {
    let is_essential = essential.contains(&arg.get_id().as_str());
    arg.hide_short_help(!is_essential)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    /// The terminal's width decides where lines end: a paragraph that is broken in the text as well has short lines among the long.
    #[test]
    fn closing_paragraphs_are_wrapped_once() {
        for command in Cli::command().get_subcommands() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let is_prose = |line: &str| line.len() > 80 && !line.starts_with(' ');
            let broken =
                lines.windows(2).find(|pair| is_prose(pair[0]) && !pair[1].is_empty() && !pair[1].starts_with(' '));
            assert_eq!(broken, None, "{}", command.get_name());
        }
    }
}
