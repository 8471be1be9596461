//! Limits on the quality of a result.

use super::calibration::TEXT;
use super::value::{count_from, not_negative};
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
    /// only reported. For ONNX graphs arrays or images, on which the accuracy is measured that --max-drop limits.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, group = TEXT)]
    pub eval: Option<PathBuf>,
}

/// Limits on the accuracy of an ONNX graph, and the search for a recipe that keeps them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Accuracy of ONNX graphs")]
pub struct AccuracyArgs {
    /// Largest loss of accuracy: in the unit of --metric, or a share of top-1, where 0.01 is one percentage point
    ///
    /// If the recipe loses more, as few layers as possible stay in float, those first that hurt most. Without --metric, top-1 is measured
    /// on --eval, or else on samples of the calibration data behind those that are calibrated on; without --labels, the classes of
    /// the float graph are right.
    #[arg(long, value_name = "DROP", value_parser = not_negative)]
    pub max_drop: Option<f64>,
    /// Command that measures a graph, e.g. 'python accuracy.py --model {}'
    ///
    /// The path of the graph stands for {}, or is the last argument. The last line that the command prints is a number, and higher is better.
    /// It is run on the float graph twice, and on each graph that is tried. No shell runs it: quotes hold words together.
    #[arg(long, value_name = "COMMAND", requires = "max_drop")]
    pub metric: Option<String>,
    /// The number of --metric is an error or a loss: lower is better
    #[arg(long, requires = "metric")]
    pub lower_is_better: bool,
    /// Seconds after which --metric is ended and the run fails [default: no limit]
    #[arg(long, value_name = "SECONDS", requires = "metric", value_parser = count_from(1))]
    pub metric_timeout: Option<usize>,
    /// Array of the data with the class of each sample, for accuracy
    #[arg(long, value_name = "NAME")]
    pub labels: Option<String>,
    /// Try recipes from cheap to expensive until --max-drop and --min-sqnr hold
    ///
    /// Scales per channel, other methods for ranges, equalization, bias correction, AdaRound, and then float layers, each on top of the
    /// best so far. Without --preset it starts from U8S8_AAWS.
    #[arg(long)]
    pub auto: bool,
}
