//! Limits on the quality of a result.

use super::calibration::TEXT;
use super::value::not_negative;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Limits on the distance of a language model from its source.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Quality gate for language models")]
pub struct GateArgs {
    /// Reject a result whose mean Kullback-Leibler divergence from the source is larger, in nats
    ///
    /// It is measured before the output gets its name, on the text of --eval, or else on held-out calibration sequences. A
    /// rejected result leaves a report and nothing under the final name.
    #[arg(long, value_name = "NATS", value_parser = not_negative)]
    pub max_kl: Option<f64>,
    /// Reject a result whose perplexity exceeds the source's by more than this many percent
    #[arg(long, value_name = "PERCENT", value_parser = not_negative)]
    pub max_perplexity_increase: Option<f64>,
    /// Data to measure the result on
    ///
    /// Text or tokens, as `kvant eval` takes them, on which the result is compared with the source. Without limits the comparison is
    /// only reported.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = TEXT)]
    pub eval: Option<PathBuf>,
}
