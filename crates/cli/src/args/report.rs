//! The arguments of `kvant report`.

use super::run::OverwriteArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

const REPORT: &str = "\
Examples:
  kvant eval Llama-3.2-1B-int4 --reference Llama-3.2-1B --data wikitext.txt --json > int4.json
  kvant report int4.json -o int4.html
      one HTML file with charts and tables, which needs no network
  kvant report int4.json int3.json int2.json -o compare.html
      evaluations beside each other
  kvant quantize Llama-3.2-1B --scheme int4:g128 -o Llama-3.2-1B-int4 --report int4.md
      the report of a run in Markdown, for a model card; quantize, eval, generate, search and sensitivity take --report

The results are what quantize, eval, generate, search and sensitivity print with --json. Several must be evaluations of one kind, which are named \
after their files.";

/// `kvant report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT)]
pub struct ReportArgs {
    /// Files with what commands printed with --json
    #[arg(value_name = "RESULT", required = true, value_hint = ValueHint::FilePath)]
    pub results: Vec<PathBuf>,
    /// File to write: .html, or .md for Markdown
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Whether files may be replaced.
    #[command(flatten)]
    pub replace: OverwriteArgs,
}
