//! Tensors without a model around them: codes, scales and zero points as plainly as they can be stored, and a description of them in the
//! metadata of their files, since there is no config.json. The description is all that a reader needs. Two-stage integers are stored as in
//! Quark's layout.

use super::quark::{INPUT, OUTPUT};
use super::stored::{ModuleReader, ModuleTensors, ModuleWeight, StoredActivations, WeightLayout};
use super::{Capabilities, CheckpointFormat, FormatHandle, ModelDescription, quark};
use kvant_container::{Checkpoint, Dtype};
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::ggml::GroupedType;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{
    Axis, FloatScale, FloatScheme, Granularity, IntScheme, LayerScheme, TensorScheme, ZeroPoint,
};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{
    ActivationSpec, AttentionSpec, CannotHold, Content, LayerSpec, Packing, ParameterPart, Part, ScaleEncoding,
};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Its `quant_method`.
pub(crate) const TENSORS_METHOD: &str = "kvant-tensors";

/// The format.
pub(super) struct Tensors;

impl CheckpointFormat for Tensors {
    fn name(&self) -> &'static str {
        "tensors"
    }

    fn about(&self) -> &'static str {
        "codes and scales of files without a config.json, described in their metadata: no runtime loads them as a model"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_config: false,
            is_conversion_target: false,
            activations: true,
            shaped_layers: true,
            ..Capabilities::of_method(TENSORS_METHOD, &[TENSORS_METHOD])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(layer)
    }

    fn activation_parts(&self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        FormatHandle::QUARK.activation_parts(spec)
    }

    fn attention_parts(&self, _spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        Err(CannotHold::new(
            "the format tensors describes single weights, not attention",
            "leave ‹kv-cache› and ‹attention› out, or put config.json next to the weights for another format",
        ))
    }

    fn config(&self, _model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        Ok(reference())
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        reader(config)
    }
}

const FAKE_HINT: &str = "write floats with ‹format› fake";

fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    match layer.scheme.weight {
        TensorScheme::Int(scheme) => int_parts(layer, scheme),
        TensorScheme::Float(scheme) => float_parts(layer, scheme),
        TensorScheme::Progressive { .. } => quark::parts(layer),
        TensorScheme::Gguf(blocks) => block_parts(layer, blocks),
        scheme @ (TensorScheme::Block(_) | TensorScheme::Cast(_)) => {
            Err(CannotHold::new(format!("there are no codes for `{scheme}`"), FAKE_HINT))
        }
    }
}

/// Rows of whole blocks.
fn block_parts(layer: &LayerSpec<'_>, blocks: GroupedType) -> Result<Vec<Part>, CannotHold> {
    let row = blocks.kind.row_bytes(layer.columns).ok_or_else(|| {
        let (kind, size) = (blocks.kind, blocks.kind.block_elements());
        let reason = format!("{} input channels are not a multiple of {size}, the block size of {kind}", layer.columns);
        CannotHold::new(reason, "use another type for it")
    })?;
    Ok(vec![layer.part("weight", Dtype::U8, [layer.rows, row], Content::Blocks)])
}

fn int_parts(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<Vec<Part>, CannotHold> {
    if scheme.format.bits() > 8 {
        return Err(CannotHold::new(format!("codes of {} bits are not stored", scheme.format.bits()), FAKE_HINT));
    }
    let packing = packing_of(scheme.format.bits());
    if scheme.zero_point == ZeroPoint::Float {
        return Err(CannotHold::new("zero points are stored as integers (`:zp`)", FAKE_HINT));
    }
    let mut parts = vec![
        codes(layer, packing, byte_type(scheme.format, packing)),
        scales(layer, scheme.granularity, layer.encoding(scheme.scale))?,
    ];
    if scheme.zero_point == ZeroPoint::Integer || !scheme.format.is_signed() {
        let packing = Packing::Bytes;
        let content = Content::ZeroPoints { packing, transposed: false, less_one: false };
        let shape = scale_shape(layer, scheme.granularity)?;
        parts.push(layer.part("weight_zero_point", byte_type(scheme.format, packing), shape, content));
    }
    Ok(parts)
}

fn float_parts(layer: &LayerSpec<'_>, scheme: FloatScheme) -> Result<Vec<Part>, CannotHold> {
    let encoding = match scheme.scale {
        FloatScale::Plain(scale) => layer.encoding(scale),
        FloatScale::E8m0(_) => ScaleEncoding::E8m0,
        FloatScale::E5m3 | FloatScale::E5m3WithGlobal => ScaleEncoding::E5m3,
        FloatScale::E4m3WithGlobal => ScaleEncoding::E4m3,
    };
    let dtype = match scheme.format {
        MiniFloat::E4M3 => Dtype::F8_E4M3,
        MiniFloat::E5M2 => Dtype::F8_E5M2,
        _ => Dtype::U8,
    };
    let mut parts =
        vec![codes(layer, packing_of(scheme.format.bits()), dtype), scales(layer, scheme.granularity, encoding)?];
    if scheme.scale.has_global_scale() {
        parts.push(layer.part("weight_scale_2", Dtype::F32, [], Content::GlobalScale));
    }
    Ok(parts)
}

/// A byte a code of eight bits; a stream of smaller ones, every row from a byte on.
fn packing_of(bits: u32) -> Packing {
    if bits == 8 { Packing::Bytes } else { Packing::Bits(bits) }
}

fn byte_type(format: Int, packing: Packing) -> Dtype {
    if packing == Packing::Bytes && format.is_signed() { Dtype::I8 } else { Dtype::U8 }
}

fn codes(layer: &LayerSpec<'_>, packing: Packing, dtype: Dtype) -> Part {
    let content = Content::Codes { packing, transposed: false };
    layer.part("weight", dtype, packing.shape(layer.rows, layer.columns), content)
}

fn scales(layer: &LayerSpec<'_>, granularity: Granularity, encoding: ScaleEncoding) -> Result<Part, CannotHold> {
    let shape = scale_shape(layer, granularity)?;
    Ok(layer.part("weight_scale", encoding.dtype(), shape, Content::Scales { encoding, transposed: false }))
}

/// The matrix of scales: `[1, 1]` for the tensor, `[out, 1]` for channels, `[out, in / group]` for groups.
fn scale_shape(layer: &LayerSpec<'_>, granularity: Granularity) -> Result<Vec<usize>, CannotHold> {
    match granularity {
        Granularity::Channel(Axis::Columns) | Granularity::Group { axis: Axis::Rows, .. } => Err(CannotHold::new(
            format!("scales per `{granularity}` are not stored"),
            "use groups along the input channels (g128), `channel` or `tensor`",
        )),
        _ => layer.scale_shape().map(|(rows, columns)| vec![rows, columns]),
    }
}

/// The description of codes without a model in the metadata of a checkpoint's files.
pub fn described(checkpoint: &Checkpoint) -> Option<Value> {
    let text = checkpoint.metadata().remove(METADATA_KEY)?;
    // A text that cannot be parsed describes nothing.
    Some(serde_json::from_str(&text).unwrap_or_else(|_| reference()))
}

/// The key in the metadata of safetensors files.
pub const METADATA_KEY: &str = "kvant.quantization";

/// The version of the description.
const VERSION: u64 = 1;

/// A layer, and the tensors that it has become.
#[derive(Clone, Copy, Debug)]
pub struct DescribedLayer<'a> {
    /// The module's name: its tensors are `name.weight` and so on.
    pub name: &'a str,
    /// Output and input channels.
    pub shape: (usize, usize),
    /// The recipe.
    pub scheme: LayerScheme,
    /// Its tensors.
    pub parts: &'a [Part],
    /// The type of its floats.
    pub dtype: Dtype,
}

/// The config.json, if any: everything else is in the metadata.
fn reference() -> Value {
    json!({ "quant_method": TENSORS_METHOD, "version": VERSION, "described_in": METADATA_KEY })
}

/// The description of all layers: of each its scheme, its shape, the type of its codes, how many weights share a scale, and how
/// codes are packed. A weight is `(code - zero point) * scale`.
pub fn description<'a>(layers: impl Iterator<Item = DescribedLayer<'a>>) -> Value {
    let layers: Map<String, Value> = layers.map(|layer| (layer.name.to_owned(), of_layer(&layer))).collect();
    json!({ "quant_method": TENSORS_METHOD, "version": VERSION, "layers": layers })
}

fn of_layer(layer: &DescribedLayer<'_>) -> Value {
    let weight = layer.scheme.weight;
    let (rows, columns) = layer.shape;
    let group = weight.granularity().map(|granularity| granularity.tile(rows, columns));
    json!({
        "scheme": layer.scheme.to_string(),
        "dtype": weight.format().to_string(),
        "shape": [rows, columns],
        "group": group.map(|(rows, columns)| [rows, columns]),
        "packing": layer.parts.iter().find_map(packing),
    })
}

/// The packing of codes, in words.
fn packing(part: &Part) -> Option<String> {
    let Content::Codes { packing, .. } = part.content else { return None };
    Some(match packing {
        Packing::Bytes => "one byte a code".to_owned(),
        Packing::Bits(bits) => format!("rows of {bits}-bit codes from the low bits up, each row padded to bytes"),
        Packing::Words(order) => format!("eight 4-bit codes to a 32-bit word, order {order:?}"),
        other => format!("{other:?}"),
    })
}

/// The most elements of a matrix: sizes of packed rows stay numbers.
const MAX_ELEMENTS: usize = 1 << 44;

pub(crate) fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    let layers = config.get("layers").and_then(Value::as_object);
    let layers = layers.ok_or_else(|| ImportError::invalid(METADATA_KEY, "does not describe any layers"))?;
    let layers = layers.iter().map(|(name, stated)| Ok((name.clone(), Described::read(name, stated)?)));
    Ok(Box::new(TensorReader { layers: layers.collect::<Result<_, ImportError>>()? }))
}

/// Reads the description.
#[derive(Debug)]
struct TensorReader {
    layers: HashMap<String, Described>,
}

/// The description of a layer.
#[derive(Debug)]
struct Described {
    scheme: LayerScheme,
    shape: (usize, usize),
}

impl Described {
    fn read(name: &str, stated: &Value) -> Result<Described, ImportError> {
        let wrong = |field: &str| ImportError::invalid(METADATA_KEY, format!("`{name}` has no valid {field}"));
        let scheme = stated.get("scheme").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let size = |at: usize| usize::try_from(stated.get("shape")?.get(at)?.as_u64()?).ok();
        let shape = size(0).zip(size(1));
        let fits = |(rows, columns): &(usize, usize)| rows.checked_mul(*columns).is_some_and(|all| all <= MAX_ELEMENTS);
        Ok(Described {
            scheme: scheme.ok_or_else(|| wrong("scheme"))?,
            shape: shape.filter(fits).ok_or_else(|| wrong("shape"))?,
        })
    }
}

impl ModuleReader for TensorReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let Some(layer) = self.layers.get(module.name) else { return Ok(Vec::new()) };
        let scheme = layer.scheme.weight;
        let spec = LayerSpec::weight_only(module.name, layer.shape, scheme, NibbleOrder::default());
        let parts =
            FormatHandle::TENSORS.parts(&spec).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
        let layout = WeightLayout::of_scheme(module.name, scheme, layer.shape, parts)?;
        Ok(vec![ModuleWeight::of(module, layout)])
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        let Some(layer) = self.layers.get(module.name) else { return Ok(StoredActivations::default()) };
        let LayerScheme { input, output, .. } = layer.scheme;
        Ok(StoredActivations {
            input: input.map(|scheme| INPUT.read(module, scheme)).transpose()?,
            output: output.map(|scheme| OUTPUT.read(module, scheme)).transpose()?,
        })
    }
}
