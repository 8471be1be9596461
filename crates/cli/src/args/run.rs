//! How a command runs, and how its output gets its name.

use clap::Args;

/// How an output gets its name.
#[derive(Clone, Copy, Debug, Args)]
pub struct FinishArgs {
    /// Replace existing files, and directories that contain only Kvant's output
    #[arg(long, help_heading = "Run")]
    pub overwrite: bool,
    /// Discard the unfinished work of an earlier run and start over
    #[arg(long, help_heading = "Run")]
    pub restart: bool,
    /// Flush the output to disk before exiting (fsync)
    #[arg(long, help_heading = "Run")]
    pub sync: bool,
    /// Skip output verification (see `kvant verify`)
    #[arg(long, help_heading = "Run")]
    pub no_verify: bool,
}

/// How to run it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Threads to work with [default: as many as there are processors]; the result does not depend on it
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}
