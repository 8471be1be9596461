//! The arguments of `kvant graph`.

use super::run::OverwriteArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};
use kvant_onnx::element::Element;
use kvant_onnx::tool::{CodeTypes, FixedDim, FixedShape, RenamedDomain};
use std::path::PathBuf;

const GRAPH: &str = "\
Examples:
  kvant graph show model.onnx --list-nodes
      inputs, outputs, operators, scales of quantized tensors, and each node with types and shapes
  kvant graph simplify model.onnx -o simple.onnx
  kvant graph fix-shapes model.onnx --dim batch=1 -o fixed.onnx
  kvant graph extract model.onnx --inputs x --outputs h -o part.onnx
  kvant graph convert-opset model.onnx --opset 17 -o newer.onnx
  kvant graph dequantize model.int8.onnx -o model.float.onnx

A graph is checked first, and nothing of it is executed. The result has external data if the source has some or if it is larger than 1.9 GB.";

const SIMPLIFY: &str = "\
Examples:
  kvant graph simplify model.onnx -o simple.onnx
  kvant graph simplify model.onnx --disable-pass gelu-fusion -o simple.onnx
  kvant graph simplify model.onnx --enable-pass split-to-slice -o simple.onnx

`kvant list passes` lists the passes.";

const CONVERT_OPSET: &str = "\
Examples:
  kvant graph convert-opset model.onnx --opset 17 -o newer.onnx

Functions of the model become their nodes. An older opset is refused: operators gained meanings that it does not have.";

const EXTRACT: &str = "\
Examples:
  kvant graph extract model.onnx --inputs x --outputs h -o first.onnx
  kvant graph extract model.onnx --inputs h,mask --outputs logits -o last.onnx
  kvant graph extract model.onnx --outputs h -o first.onnx
      all that h depends on

`kvant graph show MODEL --list-nodes` lists the tensors. Those in bodies of If, Loop and Scan cannot be named.";

const FIX_SHAPES: &str = "\
Examples:
  kvant graph fix-shapes model.onnx --dim batch=1 --dim length=128 -o fixed.onnx
  kvant graph fix-shapes model.onnx --input-shape x=1,3,224,224 -o fixed.onnx

The shape of an input also gives the names of its dimensions sizes, everywhere in the graph. Sizes that contradict each other or the graph are \
refused.";

const DEQUANTIZE: &str = "\
Examples:
  kvant graph dequantize model.int8.onnx -o model.float.onnx

Constants become the floats that DequantizeLinear makes of them: weights and biases, of tensors, channels and blocks, from 2 bits on. Pairs of \
QuantizeLinear and DequantizeLinear around activations go. Weights of MatMulNBits become those of MatMul. Integer operators such as QLinearConv are \
refused: `kvant graph to-qdq` makes pairs of them.";

const TO_QOPERATOR: &str = "\
Examples:
  kvant graph to-qoperator model.int8.onnx -o model.qop.onnx

Q/DQ pairs with the operator between them become one integer operator: QLinearConv, QLinearMatMul and QGemm, QLinearAdd and QLinearMul, \
QLinearConcat, pools, activation functions. What moves values moves codes. Scales and codes stay the same. Pairs around anything else stay, and the \
line on the result counts what is between them.";

const TO_QDQ: &str = "\
Examples:
  kvant graph to-qdq model.qop.onnx -o model.qdq.onnx

Integer operators become float operators between Q/DQ pairs, with the same scales and codes. Runtimes that fuse pairs compute what they computed \
before; others differ by at most one code. ConvInteger, MatMulInteger and operators with computed scales stay, and the line on the result counts them.";

const RETYPE: &str = "\
Examples:
  kvant graph retype model.s8s8.onnx --to u8s8 -o model.u8s8.onnx
  kvant graph retype model.u16s8.onnx --to s16s8 -o model.s16s8.onnx
  kvant graph retype model.s8s8.onnx --bias int16 -o model.bias16.onnx

Signed codes become unsigned ones or the reverse, with zero points moved by half of the range: they stand for the same values. Tensors of another \
number of bits keep their types, and so do inputs and outputs that hold codes. Biases keep their scales; one that int16 does not hold is refused.";

const CLIP_INFINITIES: &str = "\
Examples:
  kvant graph clip-infinities model.onnx -o finite.onnx
  kvant graph clip-infinities model.onnx --limit 10000 -o finite.onnx

Masks of attention are often constants of minus infinity, which some devices and quantizers do not take.";

const RENAME_DOMAIN: &str = "\
Examples:
  kvant graph rename-domain model.onnx --domain ai.onnx.contrib=com.example -o renamed.onnx";

const TO_FLOAT16: &str = "\
Examples:
  kvant graph to-float16 model.onnx -o half.onnx

Inputs and outputs keep their types. The preset FP16_MODEL of `kvant quantize` does the same to a simplified graph, and measures the result.";

const TO_BFLOAT16: &str = "\
Examples:
  kvant graph to-bfloat16 model.onnx -o half.onnx

Inputs and outputs keep their types. The preset BF16_MODEL of `kvant quantize` does the same to a simplified graph, and measures the result.";

const SHOW: &str = "\
Examples:
  kvant graph show model.onnx
  kvant graph show model.int8.onnx --list-nodes --wide
  kvant graph show model.int8.onnx --svg model.svg
      a picture of a graph of at most 200 nodes, with types and scales
  kvant graph show model.int8.onnx --json | jq '.quantized[] | {name, dtype, scale_max}'";

/// `kvant graph`.
#[derive(Debug, Args)]
#[command(after_help = GRAPH)]
pub struct GraphArgs {
    /// The tool.
    #[command(subcommand)]
    pub tool: GraphCommand,
}

/// The tools for graphs.
#[derive(Debug, Subcommand)]
pub enum GraphCommand {
    /// Show inputs, outputs, operators, quantized tensors and nodes of a graph
    #[command(after_help = SHOW)]
    Show(ShowArgs),
    /// Simplify a graph with the passes that `kvant quantize` runs
    #[command(after_help = SIMPLIFY)]
    Simplify(SimplifyArgs),
    /// Convert a graph to a newer opset
    #[command(after_help = CONVERT_OPSET)]
    ConvertOpset(ConvertOpsetArgs),
    /// Write the part of a graph between tensors
    #[command(after_help = EXTRACT)]
    Extract(ExtractArgs),
    /// Give open dimensions of a graph their sizes
    #[command(after_help = FIX_SHAPES)]
    FixShapes(FixShapesArgs),
    /// Write the float graph of a quantized one
    #[command(after_help = DEQUANTIZE)]
    Dequantize(GraphFiles),
    /// Replace Q/DQ pairs by integer operators
    #[command(name = "to-qoperator", after_help = TO_QOPERATOR)]
    ToQoperator(GraphFiles),
    /// Replace integer operators by Q/DQ pairs
    #[command(name = "to-qdq", after_help = TO_QDQ)]
    ToQdq(GraphFiles),
    /// Change the signs of codes, or the width of biases
    #[command(after_help = RETYPE)]
    Retype(RetypeArgs),
    /// Replace infinite constants by the largest finite numbers
    #[command(after_help = CLIP_INFINITIES)]
    ClipInfinities(ClipInfinitiesArgs),
    /// Rename a domain of operators
    #[command(after_help = RENAME_DOMAIN)]
    RenameDomain(RenameDomainArgs),
    /// Convert a graph to float16
    #[command(name = "to-float16", after_help = TO_FLOAT16)]
    ToFloat16(GraphFiles),
    /// Convert a graph to bfloat16
    #[command(name = "to-bfloat16", after_help = TO_BFLOAT16)]
    ToBfloat16(GraphFiles),
}

/// A graph and the file to write.
#[derive(Debug, Args)]
pub struct GraphFiles {
    /// ONNX graph
    #[arg(value_hint = ValueHint::FilePath)]
    pub model: PathBuf,
    /// ONNX graph to write; it appears when it is complete
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::FilePath, help_heading = "Run")]
    pub output: PathBuf,
    /// Whether files may be replaced.
    #[command(flatten)]
    pub replace: OverwriteArgs,
}

/// `kvant graph show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// ONNX graph
    #[arg(value_hint = ValueHint::FilePath)]
    pub model: PathBuf,
    /// List each node with the types and shapes of its tensors
    #[arg(long)]
    pub list_nodes: bool,
    /// Write a picture of a small graph with types, shapes and scales
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
}

/// `kvant graph simplify`.
#[derive(Debug, Args)]
pub struct SimplifyArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Run a graph pass that is off by default (`kvant list passes`)
    #[arg(long, value_name = "PASS", help_heading = "ONNX graphs")]
    pub enable_pass: Vec<String>,
    /// Skip a graph pass
    #[arg(long, value_name = "PASS", help_heading = "ONNX graphs")]
    pub disable_pass: Vec<String>,
}

/// `kvant graph convert-opset`.
#[derive(Debug, Args)]
pub struct ConvertOpsetArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Version of the standard operators
    #[arg(long, value_name = "VERSION", help_heading = "ONNX graphs")]
    pub opset: i64,
}

/// `kvant graph extract`.
#[derive(Debug, Args)]
pub struct ExtractArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Tensors that the part takes, e.g. x,mask [default: the inputs that its outputs depend on]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "ONNX graphs")]
    pub inputs: Vec<String>,
    /// Tensors that the part gives, e.g. h [default: the outputs of the graph]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "ONNX graphs",
        required_unless_present = "inputs"
    )]
    pub outputs: Vec<String>,
}

/// `kvant graph fix-shapes`.
#[derive(Debug, Args)]
pub struct FixShapesArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Shape of an input, e.g. x=1,3,224,224; repeatable
    #[arg(long, value_name = "NAME=SIZES", help_heading = "ONNX graphs", required_unless_present = "dim")]
    pub input_shape: Vec<FixedShape>,
    /// Size of the dimensions of a name, e.g. batch=1; repeatable
    #[arg(long, value_name = "NAME=SIZE", help_heading = "ONNX graphs")]
    pub dim: Vec<FixedDim>,
}

/// `kvant graph retype`.
#[derive(Debug, Args)]
pub struct RetypeArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Types of activations and weights, e.g. u8s8, s8s8 or u16s8
    #[arg(long, value_name = "TYPES", help_heading = "ONNX graphs", required_unless_present = "bias")]
    pub to: Option<CodeTypes>,
    /// Type of biases
    #[arg(long, value_name = "TYPE", help_heading = "ONNX graphs", value_parser = bias_parser())]
    pub bias: Option<Element>,
}

fn bias_parser() -> impl TypedValueParser<Value = Element> {
    PossibleValuesParser::new(["int16", "int32"])
        .map(|name| if name == "int16" { Element::Int16 } else { Element::Int32 })
}

/// `kvant graph clip-infinities`.
#[derive(Debug, Args)]
pub struct ClipInfinitiesArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Number in place of infinity [default: the largest of each type]
    #[arg(long, value_name = "NUMBER", help_heading = "ONNX graphs")]
    pub limit: Option<f64>,
}

/// `kvant graph rename-domain`.
#[derive(Debug, Args)]
pub struct RenameDomainArgs {
    /// The files.
    #[command(flatten)]
    pub files: GraphFiles,
    /// Domain and its new name, e.g. ai.onnx.contrib=com.example
    #[arg(long, value_name = "OLD=NEW", help_heading = "ONNX graphs")]
    pub domain: RenamedDomain,
}
