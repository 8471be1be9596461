//! Calibration data.

use kvant_checkpoint::blockwise::Propagate;
use kvant_data::calibration::Packing;
use kvant_forward::forward::cpu::{self, Cpu};
use std::path::{Path, PathBuf};

/// Calibration data, and how they run through the model.
#[derive(Clone, Debug)]
pub struct Data {
    /// Text, JSON, Parquet or tokens, or [`Data::SELF`]; for graphs that are no decoders one file or directory of arrays or images, or `random`.
    pub files: Vec<PathBuf>,
    /// The share of each file in the samples of a language model; empty without shares.
    pub shares: Vec<f64>,
    /// Sequences or samples to take.
    pub num_samples: usize,
    /// Tokens of the longest sequence; `None` is 512, or as many as the model takes if these are fewer.
    pub seq_len: Option<usize>,
    /// The packing of documents into sequences; `None` depends on the file.
    pub packing: Option<Packing>,
    /// The field with the text, conversation or tokens; `None` is found by its name.
    pub column: Option<String>,
    /// Whether rows are taken in random order.
    pub shuffle: bool,
    /// The seed of random order, random windows and random samples.
    pub seed: u64,
    /// The precision of activations.
    pub precision: Precision,
    /// The inputs that the next block is calibrated on.
    pub propagate: Propagate,
    /// The preprocessing of images for a graph.
    pub preprocess: Option<String>,
}

impl Data {
    /// In place of a file: samples that a language model writes itself.
    pub const SELF: &str = "self";

    /// Returns whether a path stands for samples that the model writes. A file of that name is a file.
    pub(crate) fn is_self(path: &Path) -> bool {
        path.as_os_str() == Data::SELF && !path.exists()
    }
}

impl Default for Data {
    fn default() -> Data {
        Data {
            files: Vec::new(),
            shares: Vec::new(),
            num_samples: 128,
            seq_len: None,
            packing: None,
            column: None,
            shuffle: false,
            seed: 0,
            precision: Precision::F32,
            propagate: Propagate::Quantized,
            preprocess: None,
        }
    }
}

/// The precision of activations in a forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
    /// Every operation rounds its result to bf16, as a bf16 model does in torch.
    Bf16,
}

impl Precision {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }

    pub(crate) fn of_pass(self) -> cpu::Precision {
        match self {
            Precision::F32 => cpu::Precision::F32,
            Precision::Bf16 => cpu::Precision::Bf16,
        }
    }

    pub(crate) fn ops(self) -> Cpu {
        Cpu::with_precision(self.of_pass())
    }
}
