//! The outputs of a run, and how they get their names.

use super::format::Format;
use kvant_checkpoint::byte_size::ByteSize;
use kvant_checkpoint::engine::Options;
use kvant_container::onnx::ExternalData;
use kvant_formats::format::OutputFormat;
use kvant_onnx::ranges::RangesFormat;
use kvant_onnx::settings::PairLayout;
use std::path::PathBuf;

/// The outputs of a job.
#[derive(Clone, Debug, Default)]
pub struct Sinks {
    /// The directory or file to write; a directory with a folder for each of several formats.
    pub output: Option<PathBuf>,
    /// The formats to write; none is the one that the scheme's name comes from.
    pub formats: Vec<Format>,
    /// The most bytes of tensors in one file; `None` is 5 GB.
    pub max_shard_size: Option<ByteSize>,
    /// The way outputs get their names.
    pub commit: Commit,
    /// The path for the measured importance of inputs.
    pub save_imatrix: Option<PathBuf>,
    /// The formats of a graph: Q/DQ pairs, or integer operators. None is the recipe's; with several the output is a directory with a
    /// graph for each, named after its format.
    pub graph_formats: Vec<PairLayout>,
    /// The path for the ranges of a graph's tensors, for other tools.
    pub save_ranges: Option<PathBuf>,
    /// The format of that file; none is the one that its name means.
    pub ranges_format: Option<&'static RangesFormat>,
    /// The path for a report on every tensor of a graph.
    pub report: Option<PathBuf>,
    /// The path for a report for people, in HTML (.html) or Markdown (.md).
    pub page: Option<PathBuf>,
    /// Whether checkpoints get no README.md with a model card.
    pub no_model_card: bool,
    /// When weights of a graph are stored in a separate file.
    pub external_data: ExternalData,
    /// The settings of this job by name, as the user gave them. A run refuses to resume the work of a job with other settings, and
    /// names those that differ.
    pub settings: Options,
}

/// The way outputs get their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Replace existing files, and directories that contain only Kvant's output.
    pub overwrite: bool,
    /// Discard the unfinished work of an earlier run.
    pub restart: bool,
    /// Flush the output to disk before it gets its name.
    pub sync: bool,
    /// Skip verification.
    pub no_verify: bool,
}

impl Sinks {
    /// The checkpoint formats. Plain floats come last, since they contain no codes.
    pub fn checkpoints(&self) -> Vec<OutputFormat> {
        let format = |format: &Format| match format {
            Format::Onnx | Format::Model(OutputFormat::Gguf) => None,
            Format::Model(format) => Some(*format),
        };
        let mut formats: Vec<OutputFormat> = self.formats.iter().filter_map(format).collect();
        formats.sort_by_key(|format| *format == OutputFormat::PlainFloats);
        formats
    }

    /// Returns whether a checkpoint is one of the outputs, and not only an intermediate step to a file or a graph.
    pub fn keeps_checkpoint(&self) -> bool {
        self.formats.is_empty() || !self.checkpoints().is_empty()
    }

    /// Returns whether a GGUF file is one of the formats.
    pub fn wants_gguf(&self) -> bool {
        self.formats.contains(&Format::Model(OutputFormat::Gguf))
    }

    /// Returns whether an ONNX graph is one of the formats.
    pub fn wants_graph(&self) -> bool {
        self.formats.contains(&Format::Onnx)
    }
}
