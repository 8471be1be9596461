//! The request to search for a mix of precisions.

use super::Job;
use kvant_onnx::sensitivity::Size;
use std::fmt;
use std::path::PathBuf;

/// A search for the mix of schemes, layer by layer, that loses least for its size.
#[derive(Clone, Debug)]
pub struct Search {
    /// The model, the data to measure on and the limits. Of its recipe, the observer of scales, weights only and the defaults apply, of its
    /// sinks the format and whether files are replaced.
    pub job: Job,
    /// What layers may become: schemes, types of GGUF or `float`; empty is what suits the loader.
    pub options: Vec<String>,
    /// The loader that must take the result, by its id.
    pub loader: Option<String>,
    /// The target; without one everything is measured, and nothing is chosen.
    pub target: Option<MixTarget>,
    /// How single groups are measured; `None` is measured, or estimated where that takes many passes of the model.
    pub method: Option<SearchMethod>,
    /// Text to measure whole mixes on; `None` is the data.
    pub eval: Option<PathBuf>,
    /// The recipe to write.
    pub output: Option<PathBuf>,
    /// The file in which sensitivities are kept; `None` is one beside the recipe.
    pub sensitivities: Option<PathBuf>,
    /// A job to run with the recipe that was found.
    pub then: Option<Box<Job>>,
}

/// How it is found what the options of single groups lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchMethod {
    /// The divergence of the model's output with one group quantized: a pass of the rest of the model for every option of every group.
    Measured,
    /// An estimate by the model's Fisher information: a pass forward and one back, whatever the number of groups.
    Estimated,
}

impl SearchMethod {
    /// Both.
    pub const ALL: [SearchMethod; 2] = [SearchMethod::Measured, SearchMethod::Estimated];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            SearchMethod::Measured => "measured",
            SearchMethod::Estimated => "estimated",
        }
    }
}

/// The target of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixTarget {
    /// The least loss within this size of the weight files; a share is of those of the source.
    Size(Size),
    /// The least loss within so many bits for each weight that has a choice, on average.
    BitsPerWeight(f64),
    /// The smallest mix with at most this mean Kullback-Leibler divergence from the model, in nats.
    MaxKl(f64),
    /// The smallest mix whose likeliest token is that of the model for at least this share of the tokens.
    MinTop1(f64),
}

impl fmt::Display for MixTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MixTarget::Size(Size::Bytes(bytes)) => write!(f, "at most {bytes} bytes"),
            MixTarget::Size(Size::Share(share)) => write!(f, "at most {} % of the source", percentage(*share)),
            MixTarget::BitsPerWeight(bits) => write!(f, "at most {bits} bits per weight"),
            MixTarget::MaxKl(kl) => write!(f, "a KL divergence of at most {kl} nats"),
            MixTarget::MinTop1(share) => write!(f, "the same top token for at least {} %", percentage(*share)),
        }
    }
}

/// A share in percent, as it was written: without what binary fractions add.
fn percentage(share: f64) -> f64 {
    (share * 1e8).round() / 1e6
}
