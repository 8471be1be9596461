//! What a result must measure up to before it gets its name.

use super::calibration::TEXT;
use clap::builder::TypedValueParser;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Limits on how far a language model may be from its source.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Quality gate for language models")]
pub struct GateArgs {
    /// Refuse a result whose mean Kullback-Leibler divergence from the source is larger, in nats
    ///
    /// It is measured before the output gets its name, on the text of --eval, else on calibration sequences that are held
    /// out. A result that is refused leaves a report, and nothing under the final name.
    #[arg(long, value_name = "NATS", value_parser = limit())]
    pub max_kl: Option<f64>,
    /// Refuse a result whose perplexity is larger than the source's by more than so many percent
    #[arg(long, value_name = "PERCENT", value_parser = limit())]
    pub max_perplexity_increase: Option<f64>,
    /// The text on which the result is compared with the source; without limits it is reported only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = TEXT)]
    pub eval: Option<PathBuf>,
}

/// A number that is not negative.
fn limit() -> impl TypedValueParser<Value = f64> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let limit = text.parse::<f64>().ok().filter(|limit| limit.is_finite() && *limit >= 0.0);
        limit.ok_or("a number that is not negative is expected")
    })
}
