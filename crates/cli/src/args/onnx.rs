//! Options that only ONNX graphs have.

use super::first_given;
use super::number::decibels;
use clap::{Args, ValueEnum, ValueHint};
use kvant_onnx::calibration::Method;
use kvant_onnx::element::Element;
use kvant_onnx::recipe::{BiasKind, Boundary, Form, Subgraph};
use kvant_onnx::runtime::RuntimeChoice;
use std::path::PathBuf;

/// Options that only ONNX graphs have.
#[derive(Debug, Args)]
#[command(next_help_heading = "ONNX graphs")]
pub struct OnnxArgs {
    /// Another element type for activations, e.g. uint16 (`kvant list elements`)
    #[arg(long, value_name = "TYPE")]
    pub activation: Option<Element>,
    /// Another element type for weights, e.g. int4
    #[arg(long, value_name = "TYPE")]
    pub weight: Option<Element>,
    /// Whether the codes of activations are symmetric about zero
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no)]
    pub symmetric: Option<bool>,
    /// A scale for each output channel of a weight
    #[arg(long)]
    pub per_channel: bool,
    /// A scale for each channel of an activation, where Q/DQ pairs can express it; computed in float
    #[arg(long)]
    pub per_channel_activations: bool,
    /// Scale the channels of consecutive layers so that both use their range; the same as a preset with _CLE behind
    #[arg(long, visible_alias = "cle")]
    pub equalize: bool,
    /// Half of the codes of weights only: for processors whose products of bytes overflow 16 bits
    #[arg(long)]
    pub reduce_range: bool,
    /// How ranges of activations are found (`kvant list calibration-methods`)
    #[arg(long, value_name = "METHOD")]
    pub calibration_method: Option<Method>,
    /// How ranges of weights are found
    #[arg(long, value_name = "METHOD")]
    pub weight_method: Option<Method>,
    /// Percent of the values inside the range, for the percentile method [default: 99.999, of some presets 99.9999]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub percentile: Option<f64>,
    /// What becomes of biases: int32, int16, weight (quantized like one) or float
    #[arg(long, value_name = "KIND")]
    pub bias: Option<BiasKind>,
    /// The operators of the result: standard, microsoft or quark [default: standard where there is one]
    #[arg(long, value_name = "FORM")]
    pub form: Option<Form>,
    /// Q/DQ around float operators, or integer operators: qdq or qoperator
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<OnnxLayout>,
    /// What the graph takes and gives: pairs (floats, quantized inside), float (not quantized) or integer
    #[arg(long, value_name = "KIND")]
    pub boundary: Option<Boundary>,
    /// Quantize these operators only, e.g. Conv,Gemm
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub op_types: Vec<String>,
    /// Quantize these operators as well
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub more_op_types: Vec<String>,
    /// Leave these operators in float
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub exclude_op_types: Vec<String>,
    /// Quantize only the nodes whose names match; may be given often
    #[arg(long, value_name = "GLOB")]
    pub nodes: Vec<String>,
    /// Leave the nodes on every path between two sets of nodes in float, e.g. conv1..add3 or a,b..c
    #[arg(long, value_name = "FROM..TO")]
    pub exclude_subgraph: Vec<Subgraph>,
    /// Run a pass over the graph that is off otherwise (`kvant list passes`)
    #[arg(long, value_name = "PASS")]
    pub enable_pass: Vec<String>,
    /// Do not run a pass
    #[arg(long, value_name = "PASS")]
    pub disable_pass: Vec<String>,
    /// How images of a folder become inputs, e.g. size=256,crop=224,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,layout=nchw
    #[arg(long, value_name = "STEPS")]
    pub preprocess: Option<String>,
    /// Write what became of every tensor to a file too: the object that --json prints
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Fail and write only the report if an output's SQNR is lower
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = decibels)]
    pub min_sqnr: Option<f64>,
    /// When weights go to a file beside the model: auto (above 1.9 GB), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub external_data: ExternalWhen,
    /// What the float model is run with.
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl OnnxArgs {
    /// The first option that was given, of those without a usual value.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (self.activation.is_some(), "--activation"),
            (self.weight.is_some(), "--weight"),
            (self.symmetric.is_some(), "--symmetric"),
            (self.per_channel, "--per-channel"),
            (self.per_channel_activations, "--per-channel-activations"),
            (self.equalize, "--equalize"),
            (self.reduce_range, "--reduce-range"),
            (self.calibration_method.is_some(), "--calibration-method"),
            (self.weight_method.is_some(), "--weight-method"),
            (self.percentile.is_some(), "--percentile"),
            (self.bias.is_some(), "--bias"),
            (self.form.is_some(), "--form"),
            (self.layout.is_some(), "--layout"),
            (self.boundary.is_some(), "--boundary"),
            (!self.op_types.is_empty(), "--op-types"),
            (!self.more_op_types.is_empty(), "--more-op-types"),
            (!self.exclude_op_types.is_empty(), "--exclude-op-types"),
            (!self.nodes.is_empty(), "--nodes"),
            (!self.exclude_subgraph.is_empty(), "--exclude-subgraph"),
            (!self.enable_pass.is_empty(), "--enable-pass"),
            (!self.disable_pass.is_empty(), "--disable-pass"),
            (self.preprocess.is_some(), "--preprocess"),
            (self.report.is_some(), "--report"),
            (self.min_sqnr.is_some(), "--min-sqnr"),
            (self.external_data != ExternalWhen::Auto, "--external-data"),
            (self.engine.runtime != RuntimeChoice::Auto, "--runtime"),
            (self.engine.runtime_library.is_some(), "--runtime-library"),
        ];
        first_given(&given)
    }
}

/// What an ONNX graph is run with.
#[derive(Debug, Args)]
#[command(next_help_heading = "ONNX graphs")]
pub struct EngineArgs {
    /// What runs the model: auto (ONNX Runtime where its library is found, else rten), rten or ort
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub runtime: RuntimeChoice,
    /// ONNX Runtime's library, libonnxruntime.so or its like [default: looked for, Python's package included]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub runtime_library: Option<PathBuf>,
}

/// When tensors go to a file of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExternalWhen {
    /// When one file cannot hold them
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How quantization is expressed in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnnxLayout {
    /// QuantizeLinear and DequantizeLinear around float operators
    Qdq,
    /// QLinearConv and other integer operators
    Qoperator,
}

fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" | "true" | "on" => Ok(true),
        "no" | "false" | "off" => Ok(false),
        _ => Err("say yes or no"),
    }
}

fn percent(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|p: &f64| (0.0..=100.0).contains(p));
    number.ok_or("a number from 0 to 100 is needed")
}
