//! Options of ONNX graphs only.

use super::value::{decibels, one_of, percent, yes_or_no};
use clap::{Args, ValueHint};
use kvant_container::onnx::ExternalData;
use kvant_onnx::calibration::ObserverRef;
use kvant_onnx::element::Element;
use kvant_onnx::ranges::{FORMATS, RangesFormat};
use kvant_onnx::recipe::{BiasKind, Boundary, Form, Subgraph};
use kvant_onnx::runtime::RuntimeChoice;
use kvant_onnx::settings::PairLayout;
use kvant_quant::scheme::TensorScheme;
use std::path::PathBuf;

/// Options of ONNX graphs only.
#[derive(Debug, Args)]
#[command(next_help_heading = "ONNX graphs")]
pub struct OnnxArgs {
    /// Element type of activations, e.g. uint16 (`kvant list elements`)
    #[arg(long, value_name = "TYPE")]
    pub activation: Option<Element>,
    /// Element type of weights, e.g. int4
    #[arg(long, value_name = "TYPE")]
    pub weight: Option<Element>,
    /// Whether activation codes are symmetric around zero
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no)]
    pub symmetric: Option<bool>,
    /// One scale for each output channel of a weight
    #[arg(long)]
    pub per_channel: bool,
    /// One scale for each channel of an activation, where Q/DQ pairs can express it; computed in float
    #[arg(long)]
    pub per_channel_activations: bool,
    /// Cross-layer equalization: scale the channels of consecutive layers; same as the preset suffix _CLE
    #[arg(long, visible_alias = "cle")]
    pub equalize: bool,
    /// Use half of the weight codes, for processors on which sums of 8-bit products saturate
    #[arg(long)]
    pub reduce_range: bool,
    /// Method that determines activation ranges (`kvant list observers`)
    #[arg(long, value_name = "METHOD")]
    pub calibration_method: Option<ObserverRef>,
    /// Method that determines weight ranges
    #[arg(long, value_name = "METHOD")]
    pub weight_method: Option<ObserverRef>,
    /// Percent of the values inside the range, for the percentile method [default: 99.999, or 99.9999 for some presets]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub percentile: Option<f64>,
    /// Ranges of activations in a file, in place of calibration data: AIMET's encodings, ONNX Runtime's calibration table, TensorRT's cache
    ///
    /// `kvant list range-formats` lists the formats, which are recognized by their contents. Scales are those of the file where its codes are
    /// those of the recipe, also of weights. Activations that the file does not name are calibrated on --data, or refused without.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ranges: Option<PathBuf>,
    /// Write the ranges of activations to a file for other tools
    ///
    /// Its name says the format: .encodings is AIMET's, .json and .flatbuffers ONNX Runtime's, .cache TensorRT's.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save_ranges: Option<PathBuf>,
    /// Format of the file of --save-ranges (`kvant list range-formats`) [default: that of its name]
    #[arg(long, value_name = "FORMAT", requires = "save_ranges", hide_possible_values = true, value_parser = one_of(FORMATS.iter().map(|format| (format.name, format))))]
    pub ranges_format: Option<&'static RangesFormat>,
    /// How biases are stored: int32, int32-all (those of normalizations too), int16, weight (quantized like a weight) or float; for checkpoints a scheme, e.g. int8:tensor
    #[arg(long, value_name = "KIND", value_parser = bias)]
    pub bias: Option<String>,
    /// Operator domain of the result: standard, microsoft or quark [default: standard where such an operator exists]
    #[arg(long = "op-domain", alias = "form", value_name = "DOMAIN")]
    pub form: Option<Form>,
    /// qdq: Q/DQ pairs around float operators; qoperator: integer operators
    ///
    /// Repeatable: the output is then a directory with a graph for each format, e.g. qdq.onnx, all from one calibration.
    #[arg(long = "graph-format", alias = "layout", value_name = "FORMAT", hide_possible_values = true, value_parser = one_of([("qdq", PairLayout::Qdq), ("qoperator", PairLayout::Qoperator)]))]
    pub layout: Vec<PairLayout>,
    /// Inputs and outputs of the graph: pairs (float, quantized inside), float (not quantized) or integer
    #[arg(long = "io-dtype", alias = "boundary", value_name = "KIND")]
    pub boundary: Option<Boundary>,
    /// Quantize only these operators, e.g. Conv,Gemm
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub op_types: Vec<String>,
    /// Quantize these operators too
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub more_op_types: Vec<String>,
    /// Leave these operators in float
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub exclude_op_types: Vec<String>,
    /// Quantize only the nodes whose names match; repeatable
    #[arg(long, value_name = "GLOB")]
    pub nodes: Vec<String>,
    /// Leave the nodes on every path between two sets of nodes in float, e.g. conv1..add3 or a,b..c
    #[arg(long, value_name = "FROM..TO")]
    pub exclude_subgraph: Vec<Subgraph>,
    /// Run a graph pass that is off by default (`kvant list passes`)
    #[arg(long, value_name = "PASS")]
    pub enable_pass: Vec<String>,
    /// Skip a graph pass
    #[arg(long, value_name = "PASS")]
    pub disable_pass: Vec<String>,
    /// Steps from the images of a directory to inputs, e.g. size=256,crop=224,mean=0.485:0.456:0.406,std=0.229:0.224:0.225
    ///
    /// Keys are size, letterbox, interpolation, crop, pad, fill, scale, mean, std, layout and channels, as described in
    /// docs/reference/onnx.md.
    #[arg(long, value_name = "STEPS")]
    pub preprocess: Option<String>,
    /// Fail, and write only the report, if the SQNR of an output is lower
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = decibels)]
    pub min_sqnr: Option<f64>,
    /// When weights go to a separate file: auto (above 1.9 GB), always or never
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true, value_parser = one_of([("auto", ExternalData::Auto), ("always", ExternalData::Always), ("never", ExternalData::Never)]))]
    pub external_data: ExternalData,
    /// The engine that runs the float model.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// The engine that runs an ONNX graph.
#[derive(Debug, Args)]
#[command(next_help_heading = "ONNX graphs")]
pub struct EngineArgs {
    /// Engine that runs the graph: auto (ONNX Runtime if its library is found, otherwise rten), rten or ort
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub runtime: RuntimeChoice,
    /// ONNX Runtime's library, e.g. libonnxruntime.so [default: searched, also in the Python package]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub runtime_library: Option<PathBuf>,
}

/// A kind of biases of graphs, or the scheme of those of a checkpoint.
fn bias(text: &str) -> Result<String, String> {
    match text.parse::<BiasKind>() {
        Err(error) if text.parse::<TensorScheme>().is_err() => Err(format!("{error}; or a scheme, e.g. int8:tensor")),
        _ => Ok(text.to_owned()),
    }
}
