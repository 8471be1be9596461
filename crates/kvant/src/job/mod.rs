//! A quantization as a value: source, recipe, data, outputs and limits.

mod conversion;
mod data;
mod format;
mod limits;
mod recipe;
mod search;
mod sensitivity;
mod sharing;
mod sinks;
mod source;
mod verification;

pub use conversion::{Conversion, ConvertTo};
pub use data::{Data, Precision};
pub use format::Format;
pub use limits::{GraphEngine, Limits, Metric, QualityLimits};
pub use recipe::{GivenStatistics, GraphRecipe, Recipe};
pub use search::{MixTarget, Search, SearchMethod};
pub use sensitivity::Sensitivity;
pub use sharing::Sharing;
pub use sinks::{Commit, Sinks};
pub use source::{Source, SourceKind};
pub(crate) use source::{open, open_whole};
pub use verification::Verification;

/// A model to quantize.
///
/// Whether it is a checkpoint, a GGUF file or an ONNX graph follows from the source; the output follows from the recipe and
/// the formats of the sinks.
///
/// ```no_run
/// use kvant::{CancelToken, Job};
///
/// # fn main() -> Result<(), kvant::Error> {
/// let mut job = Job::new("Llama-3.2-1B");
/// job.recipe.scheme = Some("int4_wo_128".to_owned());
/// job.sinks.output = Some("Llama-3.2-1B-int4".into());
/// let report = job.run(&mut (), &CancelToken::new())?;
/// println!("{}", report.to_json());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    /// The source.
    pub source: Source,
    /// The recipe.
    pub recipe: Recipe,
    /// The calibration data.
    pub data: Data,
    /// The outputs.
    pub sinks: Sinks,
    /// Resources, and the quality that the result must have.
    pub limits: Limits,
    /// The part of it that this process does, where several share it.
    pub sharing: Sharing,
}

impl Job {
    /// A job with defaults for everything but the source.
    pub fn new(model: impl Into<std::path::PathBuf>) -> Job {
        Job {
            source: Source::new(model),
            recipe: Recipe::default(),
            data: Data::default(),
            sinks: Sinks::default(),
            limits: Limits::default(),
            sharing: Sharing::Alone,
        }
    }
}
