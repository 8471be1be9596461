//! What can be typed: commands and options, exactly as given. Their doc comments are the help. Nothing is opened or
//! resolved here.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use kvant_llm::blockwise::Carry;
use kvant_llm::byte_size::ByteSize;
use kvant_llm::calibration::data::Packing;
use kvant_llm::conversion::{FloatType, Target};
use kvant_llm::export::{EXPORTS, Export};
use kvant_llm::forward::cpu::{self, Cpu};
use kvant_llm::recipe::{OverrideText, PackMethod};
use kvant_onnx::calibration::Method;
use kvant_onnx::element::Element;
use kvant_onnx::recipe::{BiasKind, Boundary, Form, Subgraph};
use kvant_onnx::runtime::RuntimeChoice;
use kvant_onnx::sensitivity::{Candidate, Size as TargetSize};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kvant quantize Llama-3.2-1B --scheme int4_wo_128 -o Llama-3.2-1B-int4
  kvant plan Llama-3.2-1B --scheme mxfp4
  kvant inspect Llama-3.2-1B-int4
  kvant verify Llama-3.2-1B-int4 --for vllm
  kvant list schemes

Exit status: 0 done; 1 the model or the recipe cannot be done; 2 wrong usage, or a bug; 130 stopped with Ctrl-C.";

/// Quantizes deep-learning models: from a checkpoint to a smaller one that loads.
#[derive(Debug, Parser)]
#[command(name = "kvant", version, after_help = EXAMPLES, max_term_width = 120, propagate_version = false)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Print JSON on stdout, errors included
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more on stderr
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Show progress: a bar on a terminal, a line every few seconds elsewhere
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub progress: ProgressWhen,
    /// Use colours: auto, always or never; NO_COLOR is respected
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub color: ColorWhen,
}

/// When progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressWhen {
    /// Unless --quiet is given
    Auto,
    /// Never
    Never,
    /// Even with --quiet, from the first second
    Always,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Quantize a model
    Quantize(QuantizeArgs),
    /// Convert a quantized model to another layout, without loss where that holds its codes
    Convert(ConvertArgs),
    /// Show what would become of every tensor, without reading or writing one
    Plan(PlanArgs),
    /// Show what a checkpoint holds: architecture, tensors, sizes, quantization
    Inspect(InspectArgs),
    /// Tell whether a finished model loads, and whether it is sane, without a GPU and without its loader
    Verify(VerifyArgs),
    /// Measure how well a model predicts a text, or how far an ONNX graph is from its float graph
    Eval(EvalArgs),
    /// Tell which layers of an ONNX graph quantization hurts, and find a mix of types that is good enough
    Sensitivity(SensitivityArgs),
    /// List schemes, formats, exports, observers, algorithms, families; presets, passes, elements, methods of ONNX graphs
    List(ListArgs),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS)]
    Completions(CompletionsArgs),
}

const COMPLETIONS: &str = "\
Examples:
  kvant completions bash > ~/.local/share/bash-completion/completions/kvant
  kvant completions zsh > ~/.zfunc/_kvant
  kvant completions fish > ~/.config/fish/completions/kvant.fish";

const QUANTIZE: &str = "\
Examples:
  kvant quantize Llama-3.2-1B --scheme int4_wo_128 -o out
      int4 weights in groups of 128, in AMD Quark's layout
  kvant quantize Qwen3-8B --scheme FP8_DYNAMIC -o out
      fp8 weights and activations, in the layout of compressed-tensors
  kvant quantize Qwen3-8B -s mxfp4 --override '*.down_proj=e4m3:channel' -x '*.layers.0.*' -o out
      another scheme for some layers, and none for others
  kvant quantize opt-125m --scheme int8 --weights-only --format fake -o out
      int8 weights as plain floats, which load wherever the source loads
  kvant quantize Llama-3.2-1B --scheme uint4_wo_128 --algorithm awq,gptq --calib text.txt -o out
      weights that are scaled and rounded so that the model changes least on a text (`kvant list algorithms`)
  kvant quantize Qwen3-8B --scheme Q4_K_M -o Qwen3-8B-Q4_K_M.gguf
      a file for llama.cpp, tokenizer included; better with --algorithm imatrix --calib text.txt
  kvant quantize Qwen3-8B --recipe recipe.toml -o out
      what the options say, from a file
  kvant quantize resnet50.onnx --preset A8W8 --data calib.npz -o resnet50.int8.onnx
      an ONNX graph, its activations calibrated on samples (`kvant list presets`)

A run that was stopped or killed goes on where it was when the same command is given again.
stdout carries the path of the output and nothing else; with --json, one object.";

/// `kvant quantize`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant quantize <MODEL> --scheme <SCHEME> --output <DIR> [OPTIONS]", after_help = QUANTIZE)]
pub struct QuantizeArgs {
    /// What to make.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The directory to write, or the .gguf or .onnx file; it appears when it is complete
    #[arg(short, long, help_heading = "Run", value_name = "DIR", value_hint = ValueHint::DirPath, required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Show the plan and stop, as `kvant plan` does
    #[arg(long, help_heading = "Run")]
    pub dry_run: bool,
    /// How the output gets its name.
    #[command(flatten)]
    pub finish: FinishArgs,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

/// How an output gets its name.
#[derive(Clone, Copy, Debug, Args)]
pub struct FinishArgs {
    /// Replace the output if it exists
    #[arg(long, help_heading = "Run")]
    pub overwrite: bool,
    /// Wait until the output is on disk, not only with the system
    #[arg(long, help_heading = "Run")]
    pub sync: bool,
    /// Give the output its name without verifying it first (see `kvant verify`)
    #[arg(long, help_heading = "Run")]
    pub no_verify: bool,
}

const CONVERT: &str = "\
Examples:
  kvant convert Llama-3.2-1B-AWQ --to gptq -o out
      the same codes, scales and zero points in GPTQ's layout
  kvant convert gpt-oss-20b --to compressed-tensors -o out
  kvant convert Qwen3-8B-FP8 --to float --dtype bf16 -o out
      the values that the codes stand for
  kvant convert Llama-3.2-1B-int4 --to onnx -o model.onnx
      a decoder for onnxruntime, with the codes in MatMulNBits or behind DequantizeLinear
  kvant convert model.gguf --to float -o out
      config.json, tokenizer and weights for transformers
  kvant convert Llama-3.2-1B-GPTQ --to gguf -o model.gguf
      symmetric codes in Q4_0, those with zero points in Q4_1
  kvant convert Llama-3.2-1B-W3 --to awq --requantize -o out
      quantized anew, since AWQ has no 3 bits; the error is told

What the target does not hold exactly is refused before anything is written, unless --requantize accepts the loss.";

/// `kvant convert`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant convert <MODEL> --to <TARGET> --output <DIR> [OPTIONS]", after_help = CONVERT)]
pub struct ConvertArgs {
    /// A Hugging Face directory, a .safetensors file or a GGUF file, quantized in a layout that is read
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// The layout to write (`kvant list exports`), float, gguf, or onnx: a graph with a cache of keys and values
    #[arg(long, value_name = "TARGET", value_parser = target_parser())]
    pub to: ConvertTo,
    /// The type of floats: bf16, f16 or f32 [default: the one that config.json states]
    #[arg(long, value_name = "TYPE", value_parser = float_type_parser())]
    pub dtype: Option<FloatType>,
    /// Quantize to the nearest scheme what the target does not hold exactly, and tell the error
    #[arg(long)]
    pub requantize: bool,
    /// The most bytes of tensors in one file [default: 5GB]
    #[arg(long, value_name = "SIZE")]
    pub max_shard_size: Option<ByteSize>,
    /// The directory to write, or the .gguf or .onnx file; it appears when it is complete
    #[arg(short, long, help_heading = "Run", value_name = "DIR", value_hint = ValueHint::DirPath, required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Say what would be done, and stop
    #[arg(long, help_heading = "Run")]
    pub dry_run: bool,
    /// How the output gets its name.
    #[command(flatten)]
    pub finish: FinishArgs,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

const PLAN: &str = "\
Examples:
  kvant plan Llama-3.2-1B --scheme int4_wo_128
  kvant plan Llama-3.2-1B --scheme MXFP4A16 --exclude '*.self_attn.*' --all
  kvant plan Llama-3.2-1B --scheme uint4_wo_128 --algorithm gptq --calib text.txt
      what calibration takes: arithmetic, memory and disk are estimated
  kvant plan Llama-3.2-1B --scheme nvfp4 --weights-only --json | grep '\"quantize\"'

Everything that `kvant quantize` would refuse, this refuses too, before a weight is read.";

/// `kvant plan`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant plan <MODEL> --scheme <SCHEME> [OPTIONS]", after_help = PLAN)]
pub struct PlanArgs {
    /// What to make.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The directory that would be written: it is checked, not touched
    #[arg(short, long, help_heading = "Run", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Replace the output directory if it exists
    #[arg(long, help_heading = "Run")]
    pub overwrite: bool,
    /// One line for every tensor, instead of one for layers that are alike
    #[arg(long, help_heading = "Run")]
    pub all: bool,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

impl RecipeArgs {
    /// The formats that are checkpoints: all but graphs and GGUF files. Plain floats come last, since codes cannot be made of them.
    pub fn checkpoints(&self) -> Vec<Export> {
        let export = |format: &Format| match format {
            Format::Onnx | Format::Export(Export::Gguf) => None,
            Format::Export(export) => Some(*export),
        };
        let mut exports: Vec<Export> = self.format.iter().filter_map(export).collect();
        exports.sort_by_key(|export| *export == Export::Fake);
        exports
    }

    /// Whether a GGUF file is one of the formats.
    pub fn wants_gguf(&self) -> bool {
        self.format.contains(&Format::Export(Export::Gguf))
    }

    /// Whether an ONNX graph is one of the formats.
    pub fn wants_graph(&self) -> bool {
        self.format.contains(&Format::Onnx)
    }
}

/// What to make of which model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recipe")]
pub struct RecipeArgs {
    /// A Hugging Face directory, a .safetensors file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath, help_heading = None::<&'static str>)]
    pub model: PathBuf,
    /// How to quantize: a name (`kvant list schemes`; for ONNX graphs `kvant list presets`) or a spelling such as int4:g128
    #[arg(short, long, visible_alias = "preset", value_name = "SCHEME", required_unless_present = "recipe")]
    pub scheme: Option<String>,
    /// A recipe: a TOML file, or a quantization_config in AMD Quark's JSON; options given beside it win
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub recipe: Option<PathBuf>,
    /// The layout to write (`kvant list exports`), or onnx: a graph of the decoder; given more than once, each gets a folder in the
    /// output directory [default: the one the scheme's name comes from]
    #[arg(short, long, value_name = "EXPORT", value_parser = format_parser())]
    pub format: Vec<Format>,
    /// The order of 4-bit codes in AMD Quark's layout
    #[arg(long, value_name = "METHOD", value_parser = pack_method_parser())]
    pub pack_method: Option<PackMethod>,
    /// Quantize weights alone, and leave activations out of the scheme
    #[arg(long)]
    pub weights_only: bool,
    /// Quantize keys and values for the cache: fp8, int8 or a spelling such as int8:tensor; needs calibration data
    #[arg(long, value_name = "SCHEME")]
    pub kv_cache: Option<String>,
    /// Quantize keys and values as they are cached, after the rotary embedding, not as the layers give them
    #[arg(long)]
    pub kv_cache_post_rope: bool,
    /// The least scale of keys and values
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true)]
    pub min_kv_scale: Option<f32>,
    /// Quantize queries and the output of the softmax: fp8 or a spelling; needs calibration data
    #[arg(long, value_name = "SCHEME")]
    pub attention: Option<String>,
    /// Keep the layers or nodes whose names match, e.g. '*.down_proj'; may be given often
    #[arg(short = 'x', long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// How weights are made: transforms, then a rounding, with options after colons, e.g. awq,gptq:damping=0.05 [default: rtn];
    /// for ONNX graphs e.g. cle,bias-correction, in any order, also as suffixes of a preset
    ///
    /// `kvant list algorithms` explains them, and `kvant list algorithm-options` what can be set. All but rtn need
    /// calibration data. A file of AMD Quark's JSON (algo_config, or one of its objects) is taken too. Replaces what the
    /// recipe says.
    #[arg(short, long, alias = "quant-algo", alias = "quant_algo", value_name = "LIST")]
    pub algorithm: Vec<String>,
    /// Another scheme for the layers whose names match, e.g. '*.down_proj=int8:channel'; for ONNX graphs another type for
    /// tensors, e.g. 'logits=uint16', 'fc.weight=int8:channel', 'x=entropy' or '=keep'; may be given often
    #[arg(long = "override", value_name = "GLOB=SCHEME", value_parser = glob_and_scheme)]
    pub overrides: Vec<OverrideText>,
    /// Quantize also what is kept by default: output heads, routers
    #[arg(long)]
    pub no_keep_defaults: bool,
    /// Take a source that is quantized already, and accept the loss of both quantizations
    #[arg(long)]
    pub requantize: bool,
    /// The most bytes of tensors in one file, e.g. 5GB [default: 5GB]
    #[arg(long, value_name = "SIZE")]
    pub max_shard_size: Option<ByteSize>,
    /// Data for what needs them.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// What is said of GGUF files only.
    #[command(flatten)]
    pub gguf: GgufArgs,
    /// What is said of ONNX graphs only.
    #[command(flatten)]
    pub onnx: OnnxArgs,
}

/// Options that only GGUF files have.
#[derive(Debug, Args)]
#[command(next_help_heading = "GGUF files")]
pub struct GgufArgs {
    /// Weigh errors by the importance of inputs in this file of llama.cpp's, GGUF or .dat; --algorithm imatrix measures it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub imatrix: Option<PathBuf>,
    /// Write what --algorithm imatrix measures to a file, as llama-imatrix does
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "calib")]
    pub save_imatrix: Option<PathBuf>,
}

impl GgufArgs {
    /// The first option that was given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [(self.imatrix.is_some(), "--imatrix"), (self.save_imatrix.is_some(), "--save-imatrix")];
        first_given(&given)
    }
}

/// The first option that was given, of several with whether they were.
pub fn first_given(options: &[(bool, &'static str)]) -> Option<&'static str> {
    options.iter().find(|(given, _)| *given).map(|(_, option)| *option)
}

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

/// Data to run through the model, for what is found with data: static scales of activations, and what algorithms need.
#[derive(Debug, Args)]
#[command(next_help_heading = "Calibration")]
pub struct CalibrationArgs {
    /// Calibration data: .txt, .json, .jsonl, .parquet, .npy or .safetensors, also .gz and .zst, or a directory; may be given often
    ///
    /// For ONNX graphs: .npz, .npy, .safetensors, a directory of them or of images, or `random`.
    #[arg(long, visible_alias = "data", value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub calib: Vec<PathBuf>,
    /// Sequences or samples to take
    #[arg(long, value_name = "N", default_value = "128", requires = "calib", value_parser = clap::value_parser!(u32).range(1..).map(|n| n as usize))]
    pub num_samples: usize,
    /// Tokens of a window, and of the longest sequence [default: the smaller of 512 and the model's longest context]
    #[arg(long, value_name = "N", requires = "calib", value_parser = clap::value_parser!(u32).range(1..).map(|n| n as usize))]
    pub seq_len: Option<usize>,
    /// How documents become sequences: document, sample, concatenate or random [default: what suits the file]
    #[arg(long, value_name = "METHOD", requires = "calib", hide_possible_values = true, value_parser = packing_parser())]
    pub packing: Option<Packing>,
    /// The field or column with the text, conversation or tokens [default: found by its name]
    #[arg(long, value_name = "NAME", requires = "calib")]
    pub column: Option<String>,
    /// Take rows in random order
    #[arg(long, requires = "calib")]
    pub shuffle: bool,
    /// What random order and random windows are drawn from
    #[arg(long, value_name = "N", default_value = "0", requires = "calib")]
    pub seed: u64,
    /// The precision of activations while data run, f32 or bf16: the latter is what a bf16 model computes in torch, and faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", requires = "calib", hide_possible_values = true)]
    pub precision: Precision,
    /// Activations and Hessians kept in memory; more activations go to a temporary file, more Hessians take more passes
    #[arg(long, value_name = "SIZE", default_value = "1GB", requires = "calib")]
    pub max_memory: ByteSize,
    /// What the next block is calibrated on: the output of the quantized block, or of the float one
    #[arg(long, value_name = "OUTPUT", default_value = "quantized", requires = "calib", hide_possible_values = true, value_parser = carry_parser())]
    pub carry: Carry,
}

/// How to run it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Threads to work with [default: as many as there are processors]; the result does not depend on it
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

const INSPECT: &str = "\
Examples:
  kvant inspect Llama-3.2-1B
  kvant inspect model.safetensors --all
  kvant inspect out --json | jq .quantization";

/// `kvant inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT)]
pub struct InspectArgs {
    /// A Hugging Face directory, quantized or not, a .safetensors or .gguf file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// One line for every tensor, instead of one for tensors that are alike
    #[arg(long)]
    pub all: bool,
}

const VERIFY: &str = "\
Examples:
  kvant verify Llama-3.2-1B-int4
  kvant verify Qwen3-8B-FP8 --for vllm --tensor-parallel 4
      would vLLM take it on four devices? Its rules alone decide
  kvant verify model-AWQ --quick --json | jq '.loaders[] | select(.loads == \"yes\") | .loader'

Checkpoints of any maker are taken: Kvant, AMD Quark, llm-compressor, AutoAWQ, GPTQModel, ModelOpt, fp8 as DeepSeek and
Qwen publish it; one that is not quantized, too. Five things are looked at:
  structure      files, names, shapes, types, the head, the tokenizer
  values         scales, zero points, groups, numbers that are none, layers of zeros
  configuration  config.json against the tensors: schemes, lists of what is not quantized, promised scales
  fusion         q, k and v, gate and up: what engines make one layer of
  parallelism    groups, blocks and words against cuts for 2, 4 and 8 devices
`kvant list checks` names each check, `kvant list loaders` the versions that the rules for loaders were read from.

Exit status: 0 fine; 1 a check has found an error, or with --for, that loader would not take it; 2 wrong usage.";

/// `kvant verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY)]
pub struct VerifyArgs {
    /// A Hugging Face directory, a .safetensors file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Let this loader's rules alone decide
    #[arg(long = "for", value_name = "LOADER", value_parser = loader_parser())]
    pub loader: Option<String>,
    /// A number of devices that the model must be shared out over [default: 2, 4 and 8 are told of]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub tensor_parallel: Option<u16>,
    /// Read headers and configurations only, no scales and no weights
    #[arg(long)]
    pub quick: bool,
    /// One line for every finding, instead of one for those that are alike
    #[arg(long)]
    pub all: bool,
}

const EVAL: &str = "\
Examples:
  kvant eval Llama-3.2-1B --data wikitext.txt
  kvant eval Llama-3.2-1B-int4 --reference Llama-3.2-1B --data wikitext.txt
      how far a quantized model is from the original, token by token and block by block
  kvant eval Llama-3.2-1B --data wikitext.txt --seq-len 512 --json | jq .perplexity

The text is tokenized as a whole and cut into consecutive windows; a shorter tail is dropped. Every token of a window
but the first is scored, given those before it in the window; perplexity is the exponential of the mean. With --stride
windows overlap, and each scores the tokens that the one before did not reach.

With --reference, the Kullback-Leibler divergence of the model's distribution from the reference's is given in nats,
how often both hold the same token for the likeliest, and for each block the signal-to-noise ratio (SQNR) of what comes
out of it: a block behind which it drops is one that quantization hurts.";

/// `kvant eval`.
#[derive(Debug, Args)]
#[command(after_help = EVAL)]
pub struct EvalArgs {
    /// A Hugging Face directory, a GGUF file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// A text file in UTF-8; for an ONNX graph .npz, .npy, .safetensors, a directory of them or of images
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub data: PathBuf,
    /// The model that this one was made from, to be compared with
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub reference: Option<PathBuf>,
    /// Where tokenizer.json is [default: the model]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a window [default: the smaller of 2048 and the model's longest context]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<usize>,
    /// Tokens from the start of one window to that of the next [default: as long as a window]
    #[arg(long, value_name = "N")]
    pub stride: Option<usize>,
    /// The precision of activations, f32 or bf16: the latter is what a bf16 model computes in torch, and faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", hide_possible_values = true)]
    pub precision: Precision,
    /// Activations kept in memory, e.g. 500MB; more go to a temporary file
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    pub max_memory: ByteSize,
    /// The array of the data with the class of each sample: accuracies are told (ONNX graphs)
    #[arg(long, value_name = "NAME", help_heading = "ONNX graphs")]
    pub labels: Option<String>,
    /// Samples to take, all if not said (ONNX graphs)
    #[arg(long, value_name = "N", help_heading = "ONNX graphs")]
    pub num_samples: Option<usize>,
    /// How images of a folder become inputs (see `kvant quantize --help`)
    #[arg(long, value_name = "STEPS", help_heading = "ONNX graphs")]
    pub preprocess: Option<String>,
    /// What the graphs are run with.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

/// The precision of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// Everything in f32
    F32,
    /// Every operation rounds its result to bf16
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

    /// The operations of the forward pass in it.
    pub fn ops(self) -> Cpu {
        Cpu::with_precision(match self {
            Precision::F32 => cpu::Precision::F32,
            Precision::Bf16 => cpu::Precision::Bf16,
        })
    }
}

const SENSITIVITY: &str = "\
Examples:
  kvant sensitivity model.onnx --preset A8W8 --data calib.npz --test test.npz
      the SQNR of the outputs with one layer alone quantized, layer by layer
  kvant sensitivity model.onnx --preset A8W4 --data calib.npz --test test.npz --target-sqnr 25 -o mixed.toml
  kvant quantize model.onnx --recipe mixed.toml --data calib.npz -o model.q.onnx
      the cheapest mix of A8W4, A8W8, A16W8 and float that has 25 dB, and the model it makes
  kvant sensitivity model.onnx --preset A8W8 --data calib.npz --test test.npz --labels label --max-drop 0.5 -o mixed.toml
      at most half a percentage point of top-1 accuracy lost

A layer is a product (Conv, ConvTranspose, Gemm, MatMul) with its data and its weights, or another node with the tensors that no
product reads. Layers that read the same tensor share its type, the higher of both.";

/// `kvant sensitivity`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant sensitivity <MODEL> --preset <PRESET> --data <FILE> [OPTIONS]", after_help = SENSITIVITY)]
pub struct SensitivityArgs {
    /// What to make.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Samples to measure models on, which no range comes from [default: the calibration data]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Search")]
    pub test: Option<PathBuf>,
    /// Samples of them to take
    #[arg(long, value_name = "N", default_value = "64", help_heading = "Search", value_parser = clap::value_parser!(u32).range(1..).map(|n| n as usize))]
    pub test_samples: usize,
    /// The array of the test data with the class of each sample: accuracies are told
    #[arg(long, value_name = "NAME", help_heading = "Search")]
    pub labels: Option<String>,
    /// Types to choose from beyond the recipe's, from cheap to dear: A16W8, A8W8:channel, bfloat16/int8, float [default: what suits the recipe]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Search")]
    pub candidates: Vec<Candidate>,
    /// Find the cheapest mix whose worst output has so many dB
    #[arg(long, value_name = "DB", group = "target", help_heading = "Search")]
    pub target_sqnr: Option<f64>,
    /// Find the most accurate mix whose constants are no larger, e.g. 12MB or 30%
    #[arg(long, value_name = "SIZE", group = "target", help_heading = "Search")]
    pub target_size: Option<TargetSize>,
    /// Find the cheapest mix that loses at most so many percentage points of top-1 accuracy
    #[arg(long, value_name = "POINTS", group = "target", help_heading = "Search")]
    pub max_drop: Option<f64>,
    /// Measure also what all other layers lose together, one left out at a time
    #[arg(long, help_heading = "Search")]
    pub leave_one_out: bool,
    /// The recipe to write (TOML), for --recipe of `kvant quantize`
    #[arg(short, long, help_heading = "Run", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Replace the recipe if it exists
    #[arg(long, help_heading = "Run")]
    pub overwrite: bool,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}

/// `kvant list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Which table
    pub topic: Topic,
}

/// A table that can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Schemes with names, for --scheme and --override
    Schemes,
    /// Number formats, the first part of a scheme's spelling
    Formats,
    /// Layouts of the output, for --format
    Exports,
    /// Range statistics, a part of a scheme's spelling
    Observers,
    /// Algorithms that make quantized weights better, for --algorithm
    Algorithms,
    /// What can be set of algorithms, with the usual values
    AlgorithmOptions,
    /// Model architectures with a description
    Families,
    /// Recipes for ONNX graphs, for --preset
    Presets,
    /// Rewrites of ONNX graphs, for --enable-pass and --disable-pass
    Passes,
    /// Element types of ONNX graphs, for --activation and --weight
    Elements,
    /// Ways to ranges of ONNX activations, for --calibration-method
    CalibrationMethods,
    /// What `kvant verify` looks at
    Checks,
    /// Loaders that `kvant verify` knows, and the versions that its rules were read from
    Loaders,
}

/// `kvant completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// What `kvant convert` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTo {
    /// A checkpoint.
    Checkpoint(Target),
    /// An ONNX graph.
    Onnx,
    /// A GGUF file.
    Gguf,
}

const ONNX: &str = "onnx";
const GGUF: &str = "gguf";

fn target_parser() -> impl TypedValueParser<Value = ConvertTo> {
    let names: Vec<&'static str> = Target::names().chain([ONNX, GGUF]).collect();
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        ONNX => Ok(ConvertTo::Onnx),
        GGUF => Ok(ConvertTo::Gguf),
        name => name.parse::<Target>().map(ConvertTo::Checkpoint),
    })
}

fn float_type_parser() -> impl TypedValueParser<Value = FloatType> {
    let names = FloatType::ALL.iter().map(|(name, ..)| *name);
    let find = |name: String| FloatType::ALL.iter().find(|(known, ..)| *known == name).map(|(.., ty)| *ty);
    PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(move |name| find(name).ok_or("unknown type"))
}

/// What `kvant quantize` makes of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A checkpoint, or a GGUF file.
    Export(Export),
    /// An ONNX graph of the quantized decoder.
    Onnx,
}

impl Format {
    /// The name in `--format`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Export(export) => export.row().name,
            Format::Onnx => ONNX,
        }
    }
}

fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = EXPORTS.iter().map(|row| PossibleValue::new(row.name).help(row.about));
    let onnx = PossibleValue::new(ONNX).help("a graph with a cache of keys and values, for onnxruntime");
    PossibleValuesParser::new(names.chain([onnx])).try_map(|name| match name.as_str() {
        ONNX => Ok(Format::Onnx),
        name => name.parse::<Export>().map(Format::Export),
    })
}

fn loader_parser() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(kvant_llm::verify::loaders().iter().map(|loader| PossibleValue::new(loader.id.as_str())))
}

/// The outputs that can be carried on, by name.
fn carry_parser() -> impl TypedValueParser<Value = Carry> {
    PossibleValuesParser::new(Carry::ALL.map(Carry::name))
        .try_map(|name| Carry::ALL.into_iter().find(|carry| carry.name() == name).ok_or("no such output"))
}

fn packing_parser() -> impl TypedValueParser<Value = Packing> {
    PossibleValuesParser::new(Packing::ALL.map(Packing::name))
        .try_map(|name| Packing::ALL.into_iter().find(|packing| packing.name() == name).ok_or("no such method"))
}

fn pack_method_parser() -> impl TypedValueParser<Value = PackMethod> {
    let reorder = PossibleValue::new("reorder").help("Codes 0 2 4 6 1 3 5 7 from the low bits up, as in AWQ");
    let order = PossibleValue::new("order").help("Codes 0 to 7 from the low bits up");
    PossibleValuesParser::new([reorder, order]).try_map(|name| name.parse::<PackMethod>())
}

fn glob_and_scheme(text: &str) -> Result<OverrideText, &'static str> {
    text.parse().map_err(|_| "write it as in '*.down_proj=int8:channel'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
