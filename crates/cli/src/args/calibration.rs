//! Calibration data, and how they are run.

use super::number::count_from;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, ValueHint};
use kvant::Precision;
use kvant_llm::blockwise::Propagate;
use kvant_llm::byte_size::ByteSize;
use kvant_llm::calibration::data::Packing;
use std::path::PathBuf;

/// The options that name text, of which windows are taken.
pub(super) const TEXT: &str = "text";

/// Data to run through the model, for what is found with data: static scales of activations, and what algorithms need.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration", group(ArgGroup::new(TEXT).multiple(true)))]
pub struct CalibrationArgs {
    /// Calibration data: .txt, .json, .jsonl, .parquet, .npy or .safetensors, also .gz and .zst, or a directory; may be given often
    ///
    /// For ONNX graphs: .npz, .npy, .safetensors, a directory of them or of images, or `random`.
    #[arg(long, visible_alias = "data", value_name = "FILE", value_hint = ValueHint::AnyPath, group = TEXT)]
    pub calib: Vec<PathBuf>,
    /// Sequences or samples to take
    #[arg(long, value_name = "N", default_value = "128", requires = "calib", value_parser = count_from(1))]
    pub num_samples: usize,
    /// Tokens of a window, and of the longest sequence [default: the smaller of 512 and the model's longest context]
    #[arg(long, value_name = "N", requires = TEXT, value_parser = count_from(1), help_heading = "Calibration of language models")]
    pub seq_len: Option<usize>,
    /// How documents become sequences: document, sample, concatenate or random [default: what suits the file]
    #[arg(long, value_name = "METHOD", requires = "calib", hide_possible_values = true, value_parser = packing_parser(), help_heading = "Calibration of language models")]
    pub packing: Option<Packing>,
    /// The field or column with the text, conversation or tokens [default: found by its name]
    #[arg(long, value_name = "NAME", requires = "calib", help_heading = "Calibration of language models")]
    pub column: Option<String>,
    /// Take rows in random order
    #[arg(long, requires = "calib", help_heading = "Calibration of language models")]
    pub shuffle: bool,
    /// What random order and random windows are drawn from
    #[arg(long, value_name = "N", default_value = "0", requires = "calib")]
    pub seed: u64,
    /// The precision of activations while data run, f32 or bf16: the latter is what a bf16 model computes in torch, and faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", requires = "calib", hide_possible_values = true, value_parser = precision_parser(), help_heading = "Calibration of language models")]
    pub precision: Precision,
    /// Activations and Hessians kept in memory; more activations go to a temporary file, more Hessians take more passes; the
    /// largest is held in any case
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GB",
        requires = "calib",
        help_heading = "Calibration of language models"
    )]
    pub max_memory: ByteSize,
    /// What the next block is calibrated on: the output of the quantized block, or of the float one
    #[arg(long, alias = "carry", value_name = "OUTPUT", default_value = "quantized", requires = "calib", hide_possible_values = true, value_parser = propagate_parser(), help_heading = "Calibration of language models")]
    pub propagate: Propagate,
}

pub(super) fn precision_parser() -> impl TypedValueParser<Value = Precision> {
    const ALL: [Precision; 2] = [Precision::F32, Precision::Bf16];
    PossibleValuesParser::new(ALL.map(Precision::name))
        .try_map(|name| ALL.into_iter().find(|precision| precision.name() == name).ok_or("no such precision"))
}

fn propagate_parser() -> impl TypedValueParser<Value = Propagate> {
    PossibleValuesParser::new(Propagate::ALL.map(Propagate::name))
        .try_map(|name| Propagate::ALL.into_iter().find(|propagate| propagate.name() == name).ok_or("no such output"))
}

fn packing_parser() -> impl TypedValueParser<Value = Packing> {
    PossibleValuesParser::new(Packing::ALL.map(Packing::name))
        .try_map(|name| Packing::ALL.into_iter().find(|packing| packing.name() == name).ok_or("no such method"))
}
