//! Options that several commands share: how a command runs, and what it may write.

use clap::{Args, ValueHint};
use kvant_checkpoint::byte_size::ByteSize;
use std::path::PathBuf;

/// How a command runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Threads to use; results do not depend on it [default: one per processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// A yes to what is asked on a terminal.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct ConfirmArgs {
    /// Download a model of more than 50 GB without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// Whether files may be replaced.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct OverwriteArgs {
    /// Replace existing files, and directories that contain only Kvant's output
    #[arg(long)]
    pub overwrite: bool,
}

/// A report for people.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct PageArgs {
    /// Write a report with charts: .html, or .md for a model card
    ///
    /// For a quantized ONNX graph, a file with another ending gets the object that --json prints.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
}

/// How an output is committed.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct FinishArgs {
    /// Whether files may be replaced.
    #[command(flatten)]
    pub replace: OverwriteArgs,
    /// Discard the unfinished work of an earlier run and start over
    #[arg(long)]
    pub restart: bool,
    /// Flush the output to disk before exiting (fsync)
    #[arg(long)]
    pub sync: bool,
    /// Skip output verification (see `kvant verify`)
    #[arg(long)]
    pub no_verify: bool,
}

/// The output of a run that writes a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct OutputArgs {
    /// Directory, .gguf or .onnx file to write; it appears when it is complete
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath, required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Show what would be done, and stop
    #[arg(long)]
    pub dry_run: bool,
}

/// How large the files of a checkpoint are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Checkpoints")]
pub struct ShardArgs {
    /// Maximum size of a file of weights, e.g. 5GB [default: 5GB; GGUF is one file without it]
    #[arg(long, value_name = "SIZE")]
    pub max_shard_size: Option<ByteSize>,
}

/// Adapters of a checkpoint.
#[derive(Debug, Args)]
#[command(next_help_heading = "Checkpoints")]
pub struct AdapterArgs {
    /// LoRA adapter (a PEFT directory) to merge into the weights as they are read; repeatable
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub lora: Vec<PathBuf>,
}

/// How much a table lists.
#[derive(Clone, Copy, Debug, Args)]
pub struct ListingArgs {
    /// List each tensor or finding, instead of one row for those that differ only in numbers
    #[arg(long)]
    pub all: bool,
}
