//! fp8 as vLLM, SGLang and DeepSeek's checkpoints have it (`quant_method` fp8): e4m3 with one scale for the tensor, or one for
//! every block of rows and columns, in f32. Inputs are always quantized; their static scales are f32 scalars beside the layer, those of
//! keys and values in the attention module. Scales of an output channel are read too, as `fbgemm_fp8` has them, and so are fp8 weights
//! that no config.json mentions, or that other formats leave alone.

use super::stored::{
    CodeType, GlobalScaleName, ModuleReader, ModuleTensors, ModuleWeight, ParameterNames, StoredActivations,
    StoredAttention, WeightLayout,
};
use super::{Capabilities, CheckpointFormat, ExcludedNames, ModelDescription};
use kvant_container::Dtype;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, FloatScheme, Granularity, LayerScheme, ScaleType, TensorScheme, Timing,
};
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{
    ActivationSpec, AttentionSpec, CannotHold, Content, LayerSpec, Owner, Packing, ParameterPart, Part, ScaleEncoding,
    Side,
};
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// The format.
pub(super) struct Fp8;

impl CheckpointFormat for Fp8 {
    fn name(&self) -> &'static str {
        "fp8"
    }

    fn about(&self) -> &'static str {
        "fp8 with a scale for the tensor or for blocks, as vLLM and DeepSeek have it"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scale: Some(ScaleType::F32),
            activations: true,
            excluded_names: ExcludedNames::Parts,
            excluded_fields: &["ignored_layers", "modules_to_not_convert"],
            ..Capabilities::of_method("fp8", &["fp8", "fbgemm_fp8"])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(layer)
    }

    fn activation_parts(&self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        activation_parts(spec)
    }

    fn attention_parts(&self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        attention_parts(spec)
    }

    fn scale_name(&self, in_blocks: bool) -> Option<&'static str> {
        Some(if in_blocks { BLOCK_SCALES } else { TENSOR_SCALE })
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        quantization_config(model.layers, model.exclude)
    }

    fn reader(&self, method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        if method == "fbgemm_fp8" { fbgemm_reader(config) } else { reader(config) }
    }
}

/// The names of the tensor of scales. Despite the first scales multiply.
const BLOCK_SCALES: &str = "weight_scale_inv";
const TENSOR_SCALE: &str = "weight_scale";

const HINT: &str =
    "use FP8_BLOCK, or FP8 (e4m3:tensor with inputs e4m3:tensor); ‹format› compressed-tensors holds others";

/// `weight` `[out, in]`; `weight_scale` `[]`, or `weight_scale_inv` `[ceil(out / rows), ceil(in / columns)]`. Despite its name the
/// latter multiplies codes.
fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = scheme(layer)?;
    let (suffix, shape) = match scheme.granularity {
        Granularity::Block { .. } => {
            let (down, across) = layer.scale_shape()?;
            (BLOCK_SCALES, vec![down, across])
        }
        _ => (TENSOR_SCALE, vec![]),
    };
    let scales = Content::Scales { encoding: ScaleEncoding::F32, transposed: false };
    let codes = Content::Codes { packing: Packing::Bytes, transposed: false };
    Ok(vec![
        layer.part("weight", Dtype::F8_E4M3, [layer.rows, layer.columns], codes),
        layer.part(suffix, Dtype::F32, shape, scales),
    ])
}

fn scheme(layer: &LayerSpec<'_>) -> Result<FloatScheme, CannotHold> {
    let refuse = || CannotHold::new(format!("fp8's layout has no `{}`", layer.scheme), HINT);
    let TensorScheme::Float(scheme) = layer.scheme.weight else { return Err(refuse()) };
    let whole = matches!(scheme.granularity, Granularity::Tensor | Granularity::Block { .. });
    let plain = scheme.scale == FloatScale::Plain(ScaleType::F32);
    match whole && plain && scheme.format == MiniFloat::E4M3 && layer.scheme.output.is_none() {
        true => Ok(scheme),
        false => Err(refuse()),
    }
}

const ACTIVATION_HINT: &str = "use fp8 (`e4m3:tensor!static`), or ‹format› quark or compressed-tensors";

fn activation_parts(spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
    if spec.side == Side::Output || !is_static_fp8(spec.scheme) {
        let reason = format!("fp8's layout has no {}s `{}`", spec.side.name(), spec.scheme);
        return Err(CannotHold::new(reason, ACTIVATION_HINT));
    }
    Ok(vec![scalar(format!("{}.input_scale", spec.name), spec.site)])
}

fn attention_parts(spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
    if spec.scheme.query.is_some() || spec.scheme.probabilities.is_some() {
        return Err(CannotHold::new("fp8's layout has no quantized queries and softmax", "use ‹format› quark"));
    }
    let (Some([key, value]), Some(cache)) = (&spec.key_value, spec.scheme.key_value) else { return Ok(Vec::new()) };
    if !is_static_fp8(cache.scheme) {
        return Err(CannotHold::new(
            format!("fp8's layout has no keys and values `{}`", cache.scheme),
            ACTIVATION_HINT,
        ));
    }
    let scale = |suffix: &str, owner: &Owner| scalar(format!("{}.{suffix}", spec.module), &owner.site);
    Ok(vec![scale("k_scale", key), scale("v_scale", value)])
}

fn scalar(name: String, site: &ActivationPoint) -> ParameterPart {
    ParameterPart::scales(name, ScaleEncoding::F32, vec![], site)
}

fn is_static_fp8(scheme: ActivationScheme) -> bool {
    let fits = |float: FloatScheme| {
        let plain = matches!(float.scale, FloatScale::Plain(_));
        plain && float.format == MiniFloat::E4M3 && float.granularity == Granularity::Tensor
    };
    scheme.timing == Timing::Static && matches!(scheme.scheme, TensorScheme::Float(float) if fits(float))
}

/// The whole object: one kind of weights and inputs for all layers.
///
/// # Errors
/// [`CannotHold`] where layers differ, where inputs stay floats, or are quantized in ways that readers do not.
fn quantization_config(layers: &[(&str, LayerScheme)], exclude: &[&str]) -> Result<Value, CannotHold> {
    let Some((_, first)) = layers.first() else {
        return Err(CannotHold::new("fp8's layout has no such layers", "use FP8_BLOCK"));
    };
    if let Some((name, other)) = layers.iter().find(|(_, scheme)| scheme != first) {
        let reason = format!("fp8's layout has one scheme: `{name}` is `{other}`, others `{first}`");
        return Err(CannotHold::new(reason, "use one scheme for all layers, or ‹format› compressed-tensors"));
    }
    let block = match first.weight.granularity() {
        Some(Granularity::Block { rows, columns }) => Some([rows.get(), columns.get()]),
        _ => None,
    };
    Ok(json!({
        "activation_scheme": activation_scheme(first, block)?,
        "fmt": "e4m3",
        "ignored_layers": exclude,
        "modules_to_not_convert": exclude,
        "quant_method": "fp8",
        "weight_block_size": block,
    }))
}

/// The quantization of inputs: with one static scale, one scale per token, or, beside blocks, one for as many features as a
/// block is wide.
fn activation_scheme(scheme: &LayerScheme, block: Option<[u32; 2]>) -> Result<&'static str, CannotHold> {
    let refuse = |reason: String| {
        let hint = "use FP8_BLOCK, or FP8 (e4m3:tensor with static inputs); ‹format› compressed-tensors holds others";
        Err(CannotHold::new(reason, hint))
    };
    let Some(input) = scheme.input else {
        return refuse("fp8's layout always quantizes inputs, which would stay floats".to_owned());
    };
    let is_fp8 = matches!(input.scheme, TensorScheme::Float(float) if float.format == MiniFloat::E4M3);
    let group = match input.scheme.granularity() {
        Some(Granularity::Group { axis: Axis::Columns, size: Some(size) }) => Some(size.get()),
        _ => None,
    };
    match (input.timing, input.scheme.granularity(), block) {
        _ if !is_fp8 => refuse(format!("fp8's layout has no inputs `{input}`")),
        (Timing::Static, Some(Granularity::Tensor), None) => Ok("static"),
        (Timing::Dynamic, Some(Granularity::Tensor | Granularity::Channel(Axis::Rows)), None) => Ok("dynamic"),
        (Timing::Dynamic, _, Some([_, columns])) if group == Some(columns) => Ok("dynamic"),
        _ => refuse(format!("the fp8 layout does not combine `{input}` inputs with such weights")),
    }
}

/// The names that tools give to the tensor of scales. Despite one of them scales multiply.
const SCALES: [&str; 2] = [BLOCK_SCALES, TENSOR_SCALE];

pub(super) fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    let inputs = match config.get("activation_scheme").and_then(Value::as_str) {
        Some("static") => InputScales::Static,
        Some("dynamic") => InputScales::Dynamic,
        None => InputScales::Float,
        Some(other) => {
            let reason = format!("{} is not read", kvant_weights::recipe_error::quoted(other));
            let hint = "use a checkpoint with static or dynamic scales of activations";
            return Err(ImportError::unsupported("quantization_config.activation_scheme", reason, hint));
        }
    };
    Ok(Box::new(Fp8Reader { block: stated_block(config), inputs }))
}

/// fbgemm's weights have a scale an output channel, its inputs one a token. The upper bound of the latter only matters for
/// tokens beyond a thousand times what models have.
fn fbgemm_reader(_config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    Ok(Box::new(Fp8Reader { block: None, inputs: InputScales::Dynamic }))
}

/// Reads weights of all these names.
#[derive(Debug)]
struct Fp8Reader {
    /// Rows and columns that share a scale.
    block: Option<(usize, usize)>,
    inputs: InputScales,
}

/// The quantization of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputScales {
    Float,
    Static,
    Dynamic,
}

impl Fp8Reader {
    /// Returns whether a weight is cut into blocks along its input channels, be it into one.
    fn is_in_blocks(&self, layout: &WeightLayout) -> bool {
        let stated = self.block.is_some() && layout.tile.1 == layout.columns;
        stated || layout.tile.1 < layout.columns
    }
}

impl ModuleReader for Fp8Reader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        Ok(layout(module, self.block)?.map(|layout| ModuleWeight::of(module, layout)).into_iter().collect())
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        let Some(layout) = layout(module, self.block)? else { return Ok(StoredActivations::default()) };
        let scheme = match self.inputs {
            InputScales::Float => None,
            InputScales::Static => Some(e4m3(Granularity::Tensor, Timing::Static)),
            // Blocks of weights go with groups of inputs as wide, other weights with one scale a token.
            InputScales::Dynamic if self.is_in_blocks(&layout) => {
                let group = u32::try_from(layout.tile.1).ok().and_then(NonZeroU32::new);
                Some(e4m3(Granularity::Group { axis: Axis::Columns, size: group }, Timing::Dynamic))
            }
            InputScales::Dynamic => Some(e4m3(Granularity::Channel(Axis::Rows), Timing::Dynamic)),
        };
        let input = scheme.map(|scheme| INPUT.read(module, scheme)).transpose()?;
        Ok(StoredActivations { input, output: None })
    }

    fn attention(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredAttention, ImportError> {
        cache(module)
    }
}

pub(super) const INPUT: ParameterNames = ParameterNames {
    scale: "input_scale",
    zero_point: "input_zero_point",
    global_scale: GlobalScaleName::Multiplier("input_scale"),
};

/// The scales of an fp8 cache, in the module of attention or in those that make keys and values; older tools wrote one
/// for both.
pub(super) fn cache(module: &ModuleTensors<'_, '_>) -> Result<StoredAttention, ImportError> {
    let read = |own: &'static str| {
        let suffix = [own, "kv_scale"].into_iter().find(|suffix| module.tensor(suffix).is_some());
        let places = suffix.map(|scale| ParameterNames { scale, ..INPUT });
        places.map(|places| places.read(module, e4m3(Granularity::Tensor, Timing::Static))).transpose()
    };
    Ok(StoredAttention { key: read("k_scale")?, value: read("v_scale")?, ..StoredAttention::default() })
}

/// Activations in e4m3.
fn e4m3(granularity: Granularity, timing: Timing) -> ActivationScheme {
    let scale = FloatScale::Plain(ScaleType::F32);
    let scheme = FloatScheme { format: MiniFloat::E4M3, granularity, scale, observer: Default::default() };
    ActivationScheme { scheme: TensorScheme::Float(scheme), timing }
}

/// The storage of a module's weight, if it is an fp8 matrix with scales.
pub(super) fn layout(
    module: &ModuleTensors<'_, '_>,
    stated: Option<(usize, usize)>,
) -> Result<Option<WeightLayout>, ImportError> {
    let Some(weight) = module.tensor("weight") else { return Ok(None) };
    let format = match weight.dtype() {
        Dtype::F8_E4M3 => MiniFloat::E4M3,
        Dtype::F8_E5M2 => MiniFloat::E5M2,
        _ => return Ok(None),
    };
    let Some((suffix, scales)) = SCALES.iter().find_map(|suffix| Some((*suffix, module.tensor(suffix)?))) else {
        return Ok(None);
    };
    let (rows, columns) = module.matrix_shape("weight")?;
    let Some(tile) = scale_block(scales.shape(), rows, columns, stated) else {
        let reason = format!("shape {:?} does not fit a weight of {rows} rows and {columns} columns", scales.shape());
        return Err(ImportError::invalid(scales.name(), reason));
    };
    let encoding = match scales.dtype() {
        Dtype::F8_E8M0 | Dtype::U8 => ScaleEncoding::E8m0,
        dtype => ScaleEncoding::of_float(dtype).unwrap_or(ScaleEncoding::F32),
    };
    let part = |suffix: &str, dtype, shape: &[usize], content| Part {
        name: module.tensor_name(suffix),
        dtype,
        shape: shape.to_vec(),
        content,
    };
    let codes = Content::Codes { packing: Packing::Bytes, transposed: false };
    let parts = vec![
        part("weight", weight.dtype(), weight.shape(), codes),
        part(suffix, encoding.dtype(), scales.shape(), Content::Scales { encoding, transposed: false }),
    ];
    Ok(Some(WeightLayout::new(CodeType::Float(format), (rows, columns), tile, parts)))
}

/// `weight_block_size` of a quantization_config.
pub fn stated_block(config: &Value) -> Option<(usize, usize)> {
    let block = config.get("weight_block_size")?.as_array()?;
    let size = |i: usize| block.get(i)?.as_u64().filter(|size| *size > 0).map(|size| size as usize);
    Some((size(0)?, size(1)?))
}

/// Rows and columns that share a scale, from the shape of the scales; `None` where it does not fit the weight.
pub fn scale_block(
    shape: &[usize],
    rows: usize,
    columns: usize,
    stated: Option<(usize, usize)>,
) -> Option<(usize, usize)> {
    let (down, across) = match *shape {
        // The parts of a block are divided by, be the weight empty.
        [] | [1] => return Some((rows.max(1), columns.max(1))),
        [down] => (down, 1),
        [down, across] => (down, across),
        _ => return None,
    };
    let fits = |(r, c): &(usize, usize)| rows.div_ceil(*r) == down && columns.div_ceil(*c) == across;
    let even = (down > 0 && across > 0).then(|| (rows.div_ceil(down.max(1)), columns.div_ceil(across.max(1))));
    [stated, Some((128, 128)), even].into_iter().flatten().filter(|(r, c)| *r > 0 && *c > 0).find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_scheme_decides_the_fp8_config() {
        let config = |text: &str| quantization_config(&[("a", text.parse().unwrap())], &["lm_head"]);
        let block = config("e4m3:b128x128:f32+e4m3:g128!dynamic").unwrap();
        assert_eq!((&block["activation_scheme"], &block["weight_block_size"]), (&json!("dynamic"), &json!([128, 128])));
        let tensor = config("e4m3:tensor:f32+e4m3:tensor!static").unwrap();
        assert_eq!((&tensor["activation_scheme"], &tensor["weight_block_size"]), (&json!("static"), &Value::Null));
        for refused in ["e4m3:tensor:f32", "e4m3:b128x128:f32+e4m3:g64!dynamic", "e4m3:tensor:f32+int8:tensor!static"] {
            assert!(config(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn scale_blocks_are_never_empty() {
        assert_eq!(scale_block(&[1], 0, 64, None), Some((1, 64)));
        assert_eq!(scale_block(&[2, 3], 32, 40, Some((16, 16))), Some((16, 16)));
        assert_eq!(scale_block(&[2, 3], 32, 40, None), Some((16, 14)));
        assert_eq!(scale_block(&[2, 3], 0, 0, Some((16, 16))), None);
    }
}
