//! Options that only GGUF files have.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Options that only GGUF files have.
#[derive(Debug, Args)]
#[command(next_help_heading = "GGUF files")]
pub struct GgufArgs {
    /// Weigh errors by the importance of inputs in this file of llama.cpp's, GGUF or .dat; --algorithm imatrix measures it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub imatrix: Option<PathBuf>,
    /// Write what --algorithm imatrix measures to a file, as llama-imatrix does
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "calib")]
    pub save_imatrix: Option<PathBuf>,
}
