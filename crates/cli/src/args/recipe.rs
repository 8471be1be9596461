//! The model and the recipe: the options of every command that plans.

use super::calibration::CalibrationArgs;
use super::format::format_parser;
use super::gguf::GgufArgs;
use super::onnx::OnnxArgs;
use super::run::{AdapterArgs, PageArgs, ShardArgs};
use super::value::least_scale;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use kvant::Format;
use kvant_checkpoint::engine::Options;
use kvant_checkpoint::recipe::{LayerTypeText, OverrideText, PackMethod, QUALITY_LEVELS, QualityLevel, layer_kinds};
use kvant_onnx::calibration::ObserverRef;
use std::path::PathBuf;

/// The model and the recipe.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recipe for any model")]
pub struct RecipeArgs {
    /// Hugging Face directory, .safetensors, .gguf or .onnx file, or hf:// or https:// address
    ///
    /// Checkpoints at hf://ORG/NAME or https://HOST/FOLDER are downloaded as they are quantized, and not kept.
    #[arg(value_hint = ValueHint::AnyPath, help_heading = None::<&'static str>)]
    pub model: PathBuf,
    /// Scheme by name or spelling, e.g. int4:g128
    ///
    /// `kvant list schemes` lists the names. For ONNX graphs a preset (`kvant list presets`).
    #[arg(short, long, visible_alias = "preset", value_name = "SCHEME", required_unless_present_any = ["recipe", "components", "layer_types", "towers"])]
    pub scheme: Option<String>,
    /// Recipe file: TOML, JSON of AMD Quark, compressed-tensors or AutoRound, or llm-compressor's YAML; options take precedence over it
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub recipe: Option<PathBuf>,
    /// Quantize weights only; activations stay in float
    #[arg(long)]
    pub weights_only: bool,
    /// Choose scales and algorithms for the scheme and the model, trading time for accuracy
    ///
    /// `kvant plan` shows the choice. All levels but fast need calibration data where calibrated algorithms pay off. Not a key of recipes,
    /// which name scales and algorithms.
    #[arg(long, value_name = "LEVEL", value_parser = quality_level_parser())]
    pub quality: Option<QualityLevel>,
    /// How the scales of weights are found, e.g. search (`kvant list observers`) [default: minmax]
    ///
    /// `search` tries scales for the least squared error, weighed by the inputs where a calibrated rounding sees them, and in graphs
    /// wherever there are data. Schemes that name an observer keep it.
    #[arg(long, value_name = "OBSERVER")]
    pub scales: Option<ObserverRef>,
    /// Statistics of layers' inputs in a file, in place of calibration data
    ///
    /// Safetensors with LAYER.input_min and LAYER.input_max, from which static scales of activations follow, and LAYER.input_mean_square,
    /// which weighs the errors of `--scales search`. For models that do not run in Kvant; `kvant.torch.capture_statistics` of the Python
    /// package writes one. For a diffusers pipeline a file whose names begin with the component, or a folder with COMPONENT.safetensors.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Checkpoints")]
    pub statistics: Option<PathBuf>,
    /// Quantize the KV cache: fp8, int8 or a spelling such as int8:tensor; needs calibration data
    #[arg(long, value_name = "SCHEME", help_heading = "Checkpoints")]
    pub kv_cache: Option<String>,
    /// Quantize keys and values after the rotary embedding, as they are cached, instead of before it
    #[arg(long, help_heading = "Checkpoints")]
    pub kv_cache_post_rope: bool,
    /// Smallest scale of keys and values
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true, value_parser = least_scale, help_heading = "Checkpoints")]
    pub min_kv_scale: Option<f32>,
    /// Quantize queries and the softmax output: fp8 or a spelling; needs calibration data
    #[arg(long, value_name = "SCHEME", help_heading = "Checkpoints")]
    pub attention: Option<String>,
    /// Keep the layers or nodes whose names match in float; repeatable
    #[arg(short = 'x', long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Algorithms, e.g. gptq (`kvant list algorithms`)
    ///
    /// For checkpoints: rotate, transforms, one rounding, autoround, tune and bias-correction, with options after colons (`kvant list algorithm-options`), e.g.
    /// awq,gptq:damping=0.05; the default is rtn, and all others but rotate without steps and hqq need calibration data. For ONNX graphs, e.g. cle,bias-correction, in any order, also as suffixes of
    /// a preset. A file with AMD Quark's JSON (algo_config, or one of its objects) is accepted too. Replaces the algorithms of
    /// the recipe.
    #[arg(short, long, alias = "quant-algo", alias = "quant_algo", value_name = "LIST")]
    pub algorithm: Vec<String>,
    /// Scheme for some layers, e.g. '*.down_proj=int8:channel'
    ///
    /// The pattern matches full layer names. For ONNX graphs a type for tensors, e.g. 'logits=uint16', 'fc.weight=int8:channel', 'x=entropy' or '=keep'. Repeatable;
    /// the last match wins.
    #[arg(long = "override", value_name = "GLOB=SCHEME", value_parser = glob_and_scheme)]
    pub overrides: Vec<OverrideText>,
    /// Scheme for a kind of layer, e.g. conv2d=int8:channel
    ///
    /// linear, conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, embedding or tower. All but linear stay in
    /// float otherwise, unless --override gives their full name. Repeatable.
    #[arg(long = "layer-type", value_name = "KIND=SCHEME", value_parser = layer_type_and_scheme, help_heading = "Checkpoints")]
    pub layer_types: Vec<LayerTypeText>,
    /// Scheme for the linear layers of towers for images or sound, e.g. FP8_DYNAMIC; they stay in float otherwise
    ///
    /// The same as --layer-type tower=SCHEME.
    #[arg(long, value_name = "SCHEME", help_heading = "Checkpoints")]
    pub towers: Option<String>,
    /// Scheme for a component of a diffusers pipeline, e.g. transformer=e4m3:channel, or =keep
    ///
    /// `--scheme` applies to all components with at least a tenth of the weights but those that turn latents into images. Without
    /// `--scheme` only the named components are quantized. Repeatable.
    #[arg(long = "component", value_name = "NAME=SCHEME", value_parser = component_and_scheme, help_heading = "Diffusers pipelines")]
    pub components: Vec<OverrideText>,
    /// Checkpoint format [default: that of the scheme's tool, or one that loads]
    ///
    /// `kvant list formats` lists them. Repeatable: each format gets a directory in the output directory.
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true, value_parser = format_parser(), help_heading = "Checkpoints")]
    pub format: Vec<Format>,
    /// Order of 4-bit codes in AMD Quark's format
    #[arg(long, value_name = "METHOD", value_parser = pack_method_parser(), help_heading = "Checkpoints")]
    pub pack_method: Option<PackMethod>,
    /// Also quantize layers that stay in float by default: output heads, routers
    #[arg(long, help_heading = "Checkpoints")]
    pub no_keep_defaults: bool,
    /// Requantize weights where necessary, and accept the loss
    ///
    /// Accepts a source that is already quantized; its weights are dequantized and quantized again.
    #[arg(long, help_heading = "Checkpoints")]
    pub requantize: bool,
    /// Adapters.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// The sizes of its files.
    #[command(flatten)]
    pub shards: ShardArgs,
    /// Calibration data.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// Options of GGUF files only.
    #[command(flatten)]
    pub gguf: GgufArgs,
    /// Options of ONNX graphs only.
    #[command(flatten)]
    pub onnx: OnnxArgs,
    /// A report for people.
    #[command(flatten)]
    pub page: PageArgs,
    /// The options by name.
    #[arg(skip)]
    pub typed: Options,
}

fn quality_level_parser() -> impl TypedValueParser<Value = QualityLevel> {
    let values = QUALITY_LEVELS.map(|(_, name, about)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<QualityLevel>())
}

fn pack_method_parser() -> impl TypedValueParser<Value = PackMethod> {
    let reorder = PossibleValue::new("reorder").help("Codes 0 2 4 6 1 3 5 7 from the low bits up, as in AWQ");
    let order = PossibleValue::new("order").help("Codes 0 to 7 from the low bits up");
    PossibleValuesParser::new([reorder, order]).try_map(|name| name.parse::<PackMethod>())
}

fn component_and_scheme(text: &str) -> Result<OverrideText, &'static str> {
    text.parse().map_err(|_| "write NAME=SCHEME, e.g. transformer=e4m3:channel")
}

fn layer_type_and_scheme(text: &str) -> Result<LayerTypeText, String> {
    text.parse().map_err(|_| format!("write KIND=SCHEME, e.g. conv2d=int8:channel; {}", layer_kinds()))
}

fn glob_and_scheme(text: &str) -> Result<OverrideText, &'static str> {
    text.parse().map_err(|_| "write GLOB=SCHEME, e.g. '*.down_proj=int8:channel'")
}
