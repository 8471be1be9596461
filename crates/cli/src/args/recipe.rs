//! What to make of which model: the options of every command that plans.

use super::calibration::CalibrationArgs;
use super::format::format_parser;
use super::gguf::GgufArgs;
use super::number::least_scale;
use super::onnx::OnnxArgs;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use kvant::Format;
use kvant_llm::byte_size::ByteSize;
use kvant_llm::engine::Options;
use kvant_llm::recipe::{OverrideText, PackMethod};
use std::path::PathBuf;

/// What to make of which model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recipe for any model")]
pub struct RecipeArgs {
    /// A Hugging Face directory, a .safetensors or .gguf file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath, help_heading = None::<&'static str>)]
    pub model: PathBuf,
    /// How to quantize: a name (`kvant list schemes`; for ONNX graphs `kvant list presets`) or a spelling such as int4:g128
    #[arg(short, long, visible_alias = "preset", value_name = "SCHEME", required_unless_present = "recipe")]
    pub scheme: Option<String>,
    /// A recipe: Kvant's TOML, a quantization_config of AMD Quark or compressed-tensors, or llm-compressor's YAML; options given beside it win
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub recipe: Option<PathBuf>,
    /// Quantize weights alone, and leave activations out of the scheme
    #[arg(long)]
    pub weights_only: bool,
    /// Quantize keys and values for the cache: fp8, int8 or a spelling such as int8:tensor; needs calibration data
    #[arg(long, value_name = "SCHEME", help_heading = "Checkpoints")]
    pub kv_cache: Option<String>,
    /// Quantize keys and values as they are cached, after the rotary embedding, not as the layers give them
    #[arg(long, help_heading = "Checkpoints")]
    pub kv_cache_post_rope: bool,
    /// The least scale of keys and values
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true, value_parser = least_scale, help_heading = "Checkpoints")]
    pub min_kv_scale: Option<f32>,
    /// Quantize queries and the output of the softmax: fp8 or a spelling; needs calibration data
    #[arg(long, value_name = "SCHEME", help_heading = "Checkpoints")]
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
    /// The format to write (`kvant list formats`); may be given often, and each gets a folder in the output directory
    /// [default: the one the scheme's name comes from]
    #[arg(short, long, value_name = "FORMAT", value_parser = format_parser(), help_heading = "Checkpoints")]
    pub format: Vec<Format>,
    /// The order of 4-bit codes in AMD Quark's layout
    #[arg(long, value_name = "METHOD", value_parser = pack_method_parser(), help_heading = "Checkpoints")]
    pub pack_method: Option<PackMethod>,
    /// Quantize also what is kept by default: output heads, routers
    #[arg(long, help_heading = "Checkpoints")]
    pub no_keep_defaults: bool,
    /// Take a source that is quantized already, and accept the loss of both quantizations
    #[arg(long, help_heading = "Checkpoints")]
    pub requantize: bool,
    /// A LoRA adapter (a folder as PEFT saves it) to merge into the weights as they are read; may be given often
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath, help_heading = "Checkpoints")]
    pub lora: Vec<PathBuf>,
    /// The most bytes of tensors in one file, e.g. 5GB [default: 5GB]
    #[arg(long, value_name = "SIZE", help_heading = "Checkpoints")]
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
    /// The options by name.
    #[arg(skip)]
    pub typed: Options,
}

fn pack_method_parser() -> impl TypedValueParser<Value = PackMethod> {
    let reorder = PossibleValue::new("reorder").help("Codes 0 2 4 6 1 3 5 7 from the low bits up, as in AWQ");
    let order = PossibleValue::new("order").help("Codes 0 to 7 from the low bits up");
    PossibleValuesParser::new([reorder, order]).try_map(|name| name.parse::<PackMethod>())
}

fn glob_and_scheme(text: &str) -> Result<OverrideText, &'static str> {
    text.parse().map_err(|_| "write it as in '*.down_proj=int8:channel'")
}
