//! Options that only ONNX graphs have.

use super::number::decibels;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use kvant_container::onnx::ExternalData;
use kvant_onnx::calibration::ObserverRef;
use kvant_onnx::element::Element;
use kvant_onnx::recipe::{BiasKind, Boundary, Form, Subgraph};
use kvant_onnx::runtime::RuntimeChoice;
use kvant_onnx::settings::PairLayout;
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
    /// How ranges of activations are found (`kvant list observers`)
    #[arg(long, value_name = "METHOD")]
    pub calibration_method: Option<ObserverRef>,
    /// How ranges of weights are found
    #[arg(long, value_name = "METHOD")]
    pub weight_method: Option<ObserverRef>,
    /// Percent of the values inside the range, for the percentile method [default: 99.999, of some presets 99.9999]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub percentile: Option<f64>,
    /// What becomes of biases: int32, int16, weight (quantized like one) or float
    #[arg(long, value_name = "KIND")]
    pub bias: Option<BiasKind>,
    /// The operators of the result: standard, microsoft or quark [default: standard where there is one]
    #[arg(long = "op-domain", alias = "form", value_name = "DOMAIN")]
    pub form: Option<Form>,
    /// Q/DQ around float operators, or integer operators: qdq or qoperator
    #[arg(long = "graph-format", alias = "layout", value_name = "FORMAT", value_parser = layout_parser())]
    pub layout: Option<PairLayout>,
    /// What the graph takes and gives: pairs (floats, quantized inside), float (not quantized) or integer
    #[arg(long = "io-dtype", alias = "boundary", value_name = "KIND")]
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
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, value_parser = external_data_parser())]
    pub external_data: ExternalData,
    /// What the float model is run with.
    #[command(flatten)]
    pub engine: EngineArgs,
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

fn layout_parser() -> impl TypedValueParser<Value = PairLayout> {
    let qdq = PossibleValue::new("qdq").help("QuantizeLinear and DequantizeLinear around float operators");
    let qoperator = PossibleValue::new("qoperator").help("QLinearConv and other integer operators");
    PossibleValuesParser::new([qdq, qoperator])
        .map(|name| if name == "qdq" { PairLayout::Qdq } else { PairLayout::Qoperator })
}

fn external_data_parser() -> impl TypedValueParser<Value = ExternalData> {
    PossibleValuesParser::new(["auto", "always", "never"]).map(|name| match name.as_str() {
        "always" => ExternalData::Always,
        "never" => ExternalData::Never,
        _ => ExternalData::Auto,
    })
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
