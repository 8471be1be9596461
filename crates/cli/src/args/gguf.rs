//! Options of GGUF files only.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Options of GGUF files only.
#[derive(Debug, Args)]
#[command(next_help_heading = "GGUF files")]
pub struct GgufArgs {
    /// Importance matrix of llama.cpp (GGUF or .dat) that weights errors; --algorithm imatrix measures one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub imatrix: Option<PathBuf>,
    /// Write the importance matrix of --algorithm imatrix to a file, as llama-imatrix does
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "calib")]
    pub save_imatrix: Option<PathBuf>,
}
