//! Calibration data, and how models run over them.

use super::value::{count_from, one_of};
use clap::builder::TypedValueParser;
use clap::{ArgGroup, Args, ValueHint};
use kvant::Precision;
use kvant_checkpoint::blockwise::Propagate;
use kvant_checkpoint::byte_size::ByteSize;
use kvant_data::calibration::Packing;
use std::path::PathBuf;

/// The options that name text, which is cut into windows.
pub(super) const TEXT: &str = "text";

/// Data for static scales of activations and for calibrated algorithms.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration", group(ArgGroup::new(TEXT).multiple(true)))]
pub struct CalibrationArgs {
    /// Calibration data: text, JSON, Parquet, arrays, images, sounds
    ///
    /// Repeatable. For language models .txt, .json, .jsonl, .parquet, .npy or .safetensors, also .gz and .zst, or a directory of them; with
    /// shares of the samples as in chat.jsonl:0.6,prose.txt:0.4; or `self`, sequences that the model writes. For
    /// models of images or sounds pictures, .wav files or arrays, or a directory of them. For
    /// ONNX graphs .npz, .npy, .safetensors, a directory of them or of images, or `random`; text and JSON for graphs of decoders.
    #[arg(long, visible_alias = "data", value_name = "FILE", value_hint = ValueHint::AnyPath, group = TEXT)]
    pub calib: Vec<PathBuf>,
    /// Number of sequences or samples to use
    #[arg(long, value_name = "N", default_value = "128", requires = "calib", value_parser = count_from(1))]
    pub num_samples: usize,
    /// Tokens per window [default: 512, or the model's longest context if that is shorter]
    #[arg(long, value_name = "N", requires = TEXT, value_parser = count_from(1), help_heading = "Calibration of language models")]
    pub seq_len: Option<usize>,
    /// How documents become sequences: document, sample, concatenate or random [default: depends on the file]
    #[arg(long, value_name = "METHOD", requires = "calib", hide_possible_values = true, value_parser = one_of(Packing::ALL.map(|packing| (packing.name(), packing))), help_heading = "Calibration of language models")]
    pub packing: Option<Packing>,
    /// The field or column with the text, conversation or tokens [default: found by its name]
    #[arg(long, value_name = "NAME", requires = "calib", help_heading = "Calibration of language models")]
    pub column: Option<String>,
    /// Use rows in random order
    #[arg(long, requires = "calib", help_heading = "Calibration of language models")]
    pub shuffle: bool,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value = "0", requires = "calib")]
    pub seed: u64,
    /// Precision of activations: f32, or bf16, which computes as a bf16 model does in torch and is faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", requires = "calib", hide_possible_values = true, value_parser = precision_parser(), help_heading = "Calibration of language models")]
    pub precision: Precision,
    /// Memory for activations and Hessians, e.g. 500MB
    ///
    /// Further activations go to a temporary file, further Hessians take more passes. The largest Hessian is always in memory.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GB",
        requires = "calib",
        help_heading = "Calibration of language models"
    )]
    pub max_memory: ByteSize,
    /// Output of a block on which the next block is calibrated: quantized or float
    #[arg(long, alias = "carry", value_name = "OUTPUT", default_value = "quantized", requires = "calib", hide_possible_values = true, value_parser = one_of(Propagate::ALL.map(|propagate| (propagate.name(), propagate))), help_heading = "Calibration of language models")]
    pub propagate: Propagate,
}

pub(super) fn precision_parser() -> impl TypedValueParser<Value = Precision> {
    one_of([Precision::F32, Precision::Bf16].map(|precision| (precision.name(), precision)))
}
