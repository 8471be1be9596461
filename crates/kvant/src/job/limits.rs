//! Resource limits of a run, and quality limits of its result.

use crate::error::Error;
use kvant_checkpoint::byte_size::ByteSize;
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Resources of a run, and the quality of its result.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Threads to work with; `None` is one for each processor. The result does not depend on it.
    pub threads: Option<u16>,
    /// Activations and Hessians kept in memory; the result does not depend on it.
    pub memory: ByteSize,
    /// Bytes of a model elsewhere that are downloaded at most; `None` is any number.
    pub max_download: Option<ByteSize>,
    /// The engine for ONNX graphs.
    pub engine: GraphEngine,
    /// The quality that the result must have.
    pub quality: QualityLimits,
}

/// The engine for ONNX graphs.
#[derive(Clone, Debug, Default)]
pub struct GraphEngine {
    /// The engine.
    pub choice: RuntimeChoice,
    /// ONNX Runtime's library; `None` is looked for.
    pub library: Option<PathBuf>,
    /// A program, and its first arguments, that opens a graph in a process of its own (`PROGRAM... open-graph GRAPH [LIBRARY]`), because
    /// ONNX Runtime may crash over a graph. The `kvant` binary is one. If it is empty, Kvant does not check whether ONNX Runtime opens a
    /// graph.
    pub prober: Vec<OsString>,
}

/// The quality that a result must have to get its name.
#[derive(Clone, Debug, Default)]
pub struct QualityLimits {
    /// The largest mean Kullback-Leibler divergence from the source, in nats.
    pub max_kl: Option<f64>,
    /// The largest increase of the perplexity, in percent.
    pub max_perplexity_increase: Option<f64>,
    /// A text on which the result is compared with the source.
    pub eval: Option<PathBuf>,
    /// The least signal-to-noise ratio of a graph's outputs, in dB.
    pub min_sqnr: Option<f64>,
    /// The largest loss of accuracy of a graph: in the unit of the metric, or of top-1 as a share of 1.
    pub max_drop: Option<f64>,
    /// The way to measure the accuracy of a graph; `None` is top-1, on `eval` or on held-out samples of the calibration data.
    pub metric: Option<Metric>,
    /// The array of `eval` with the class of each sample; without it the classes of the float graph are right.
    pub labels: Option<String>,
}

/// A command that measures the accuracy of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The command in one text, as for a shell. `{}` in it stands for the path of the graph, which is otherwise its last argument. The last
    /// line that it prints is a number.
    pub command: String,
    /// Whether a lower number is better.
    pub lower_is_better: bool,
    /// Seconds after which the command is ended.
    pub timeout: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            threads: None,
            memory: ByteSize(1_000_000_000),
            max_download: None,
            engine: GraphEngine::default(),
            quality: QualityLimits::default(),
        }
    }
}

impl Limits {
    /// The number of threads.
    pub fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(processors, usize::from)
    }

    /// The threads to work with.
    pub(crate) fn pool(&self) -> Result<rayon::ThreadPool, Error> {
        // Work that threads of an engine hand on goes to the global pool, which must be no larger. It may be there already.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(self.threads()).build_global();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads()).build();
        pool.map_err(|error| Error::system(format!("cannot start threads: {error}")))
    }

    /// The engine for graphs.
    pub(crate) fn runtime(&self) -> RuntimeOptions {
        RuntimeOptions {
            choice: self.engine.choice,
            threads: Some(self.threads()),
            library: self.engine.library.clone(),
            ..RuntimeOptions::default()
        }
    }
}

impl QualityLimits {
    /// The first setting that is given for language models.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            (self.max_kl.is_some(), "‹max-kl›"),
            (self.max_perplexity_increase.is_some(), "‹max-perplexity-increase›"),
            (self.eval.is_some(), "‹eval›"),
        ];
        crate::settings::first_given(&given)
    }
}
