//! torchao's tensors in safetensors files, which transformers and diffusers load: codes and scales of `module.weight` are called
//! `module._weight_qdata` and `module._weight_scale`, and the metadata of the files say of every tensor what torchao makes of it.
//!
//! | class | scheme | tensors |
//! |---|---|---|
//! | `Int8Tensor` | int8 | `qdata` I8 `[out, in]`, `scale` F32 `[out, 1]` or `[1, 1]` |
//! | `Float8Tensor` | e4m3 | `qdata` F8_E4M3 `[out, in]`, `scale` F32 `[out, 1]` or `[1, 1]` |
//! | `MXTensor` | e4m3 or e2m1 in groups of 32 | `qdata`, two codes of 4 bits to a byte, the first one low; `scale` F8_E8M0 `[out, in / 32]` |
//! | `NVFP4Tensor` | NVFP4 | `qdata` U8 `[out, in / 2]`, `scale` F8_E4M3 `[out, in / 16]`, `per_tensor_scale` F32 `[]` |
//!
//! Scales that torchao has put into the order of a GPU's kernels are not written, and refused where they are read. Facts: what torchao
//! 0.18 writes and reads (`torchao.prototype.safetensors`).

use super::stored::{ModuleReader, ModuleTensors, ModuleWeight, StoredActivation, StoredActivations, WeightLayout};
use super::tensors::DescribedLayer;
use super::{Capabilities, CheckpointFormat, FormatHandle, ModelDescription};
use kvant_container::Dtype;
use kvant_numeric::format::{Int, MiniFloat, ScaleRule};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, Granularity, LayerScheme, ScaleType, TensorScheme, Timing, ZeroPoint,
};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{
    AttentionSpec, CannotHold, Content, LayerSpec, Packing, ParameterPart, Part, ScaleEncoding,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The format.
pub(super) struct TorchAo;

impl CheckpointFormat for TorchAo {
    fn name(&self) -> &'static str {
        "torchao"
    }

    fn about(&self) -> &'static str {
        "int8, fp8, MX and NVFP4 as torchao stores them, for transformers and diffusers"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scale: Some(ScaleType::F32),
            activations: true,
            found_by_tensors: true,
            ..Capabilities::of_method("torchao", &["torchao"])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(layer)
    }

    fn attention_parts(&self, _spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        let hint = "leave ‹kv-cache› and ‹attention› out, or use ‹format› quark or compressed-tensors";
        Err(CannotHold::new("torchao's layout has no quantized keys, values or queries", hint))
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        quantization_config(model.layers)
    }

    fn metadata(&self, layers: &[DescribedLayer<'_>], others: &[&str]) -> BTreeMap<String, String> {
        metadata(layers, others)
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        Ok(Box::new(TorchAoReader { quantizes_inputs: quantizes_inputs(config) }))
    }
}

const CODES: &str = "_weight_qdata";
const SCALES: &str = "_weight_scale";
const TENSOR_SCALE: &str = "_weight_per_tensor_scale";
const ZERO_POINTS: &str = "_weight_zero_point";

/// The key of the metadata that lists the tensors of the float model.
const TENSOR_NAMES: &str = "tensor_names";

// Names no other format: diffusers loads this one alone.
const HINT: &str = "use W8A8 or int8:channel, FP8_DYNAMIC or e4m3:channel, MXFP8, MXFP4 or NVFP4A16, or another ‹format› \
                    (`kvant list formats`)";

/// A class of torchao for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Integers with a scale for each output channel or for all.
    Int8,
    /// Floats of 8 bits likewise.
    Float8,
    /// Floats in groups of 32 with powers of two as scales.
    Mx(MiniFloat, ScaleRule),
    /// Floats of 4 bits in groups of 16 with scales of 8 bits, and a scale of these.
    Nvfp4,
}

/// Channels that share a scale in the class for MX.
const MX_GROUP: u32 = 32;
/// Channels that share a scale in NVFP4.
const NVFP4_GROUP: u32 = 16;

impl Class {
    /// The class for a weight.
    fn of(weight: TensorScheme) -> Option<Class> {
        let group = match weight.granularity()? {
            Granularity::Group { axis: Axis::Columns, size: Some(size) } => Some(size.get()),
            _ => None,
        };
        let is_plain = matches!(weight.granularity()?, Granularity::Tensor | Granularity::Channel(Axis::Rows));
        match weight {
            TensorScheme::Int(int) => {
                let fits = int.format == Int::INT8 && int.zero_point == ZeroPoint::Zero && int.scale == ScaleType::F32;
                (is_plain && fits).then_some(Class::Int8)
            }
            TensorScheme::Float(float) => match (float.format, float.scale, group) {
                (MiniFloat::E4M3, FloatScale::Plain(ScaleType::F32), None) if is_plain => Some(Class::Float8),
                (MiniFloat::E4M3 | MiniFloat::E2M1, FloatScale::E8m0(rule), Some(MX_GROUP)) => {
                    Some(Class::Mx(float.format, rule))
                }
                (MiniFloat::E2M1, FloatScale::E4m3WithGlobal, Some(NVFP4_GROUP)) => Some(Class::Nvfp4),
                _ => None,
            },
            _ => None,
        }
    }

    /// The class for a layer, whose inputs it quantizes as torchao does, or not at all.
    ///
    /// # Errors
    /// [`CannotHold`] where torchao has no such layers.
    fn of_layer(scheme: LayerScheme) -> Result<Class, CannotHold> {
        let refuse = |reason: String| CannotHold::new(reason, HINT);
        let class = Class::of(scheme.weight).ok_or_else(|| refuse(format!("torchao has no `{}`", scheme.weight)))?;
        if let Some(output) = scheme.output {
            return Err(refuse(format!("torchao has no outputs `{output}`")));
        }
        match (class, scheme.input) {
            (Class::Mx(..), None) => {
                let hint = "quantize inputs too (MXFP8, MXFP4), or use ‹format› compressed-tensors";
                Err(CannotHold::new("torchao runs MX weights only with MX inputs", hint))
            }
            (_, Some(input)) if !class.takes(scheme.weight, input) => {
                Err(refuse(format!("torchao has no inputs `{input}` of weights `{}`", scheme.weight)))
            }
            _ => Ok(class),
        }
    }

    /// Whether inputs are quantized so: as the weight is, when the model runs.
    fn takes(self, weight: TensorScheme, input: ActivationScheme) -> bool {
        let alike = Class::of(with_f32_scales(input.scheme)).is_some_and(|class| match (self, class) {
            (Class::Mx(format, _), Class::Mx(other, _)) => format == other,
            _ => self == class,
        });
        let per_token = self != Class::Nvfp4 && weight.granularity() == input.scheme.granularity();
        alike && per_token && input.timing == Timing::Dynamic
    }

    fn name(self) -> &'static str {
        match self {
            Class::Int8 => "Int8Tensor",
            Class::Float8 => "Float8Tensor",
            Class::Mx(..) => "MXTensor",
            Class::Nvfp4 => "NVFP4Tensor",
        }
    }
}

/// Scales of inputs are computed when the model runs, in a type that torchao chooses.
fn with_f32_scales(scheme: TensorScheme) -> TensorScheme {
    TorchAo.capabilities().fitted(LayerScheme::weight_only(scheme)).weight
}

fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    if let Some(fused) = layer.fused {
        let reason = format!("torchao's layout has no experts in one tensor such as `{}`", fused.module);
        return Err(CannotHold::new(reason, "use ‹format› compressed-tensors or quark"));
    }
    let class = Class::of_layer(layer.scheme)?;
    let (rows, columns) = layer.scale_shape()?;
    let (packing, codes, encoding, scales) = match class {
        Class::Int8 => (Packing::Bytes, Dtype::I8, ScaleEncoding::F32, Dtype::F32),
        Class::Float8 => (Packing::Bytes, Dtype::F8_E4M3, ScaleEncoding::F32, Dtype::F32),
        Class::Mx(MiniFloat::E4M3, _) => (Packing::Bytes, Dtype::F8_E4M3, ScaleEncoding::E8m0, Dtype::F8_E8M0),
        Class::Mx(..) => (Packing::Bits(4), Dtype::U8, ScaleEncoding::E8m0, Dtype::F8_E8M0),
        Class::Nvfp4 => (Packing::Bits(4), Dtype::U8, ScaleEncoding::E4m3, Dtype::F8_E4M3),
    };
    let shape = packing.shape(layer.rows, layer.columns);
    let mut parts = vec![
        layer.part(CODES, codes, shape, Content::Codes { packing, transposed: false }),
        layer.part(SCALES, scales, [rows, columns], Content::Scales { encoding, transposed: false }),
    ];
    if class == Class::Nvfp4 {
        parts.push(layer.part(TENSOR_SCALE, Dtype::F32, [], Content::GlobalScale));
    }
    Ok(parts)
}

/// An object as torchao writes it.
fn object(class: &str, fields: Value) -> Value {
    json!({ "_type": class, "_data": fields })
}

/// An object that has a version.
fn versioned(class: &str, version: u32, fields: Value) -> Value {
    json!({ "_type": class, "_version": version, "_data": fields })
}

fn torch_type(name: &str) -> Value {
    json!({ "_type": "torch.dtype", "_data": name })
}

fn element_type(format: MiniFloat) -> Value {
    torch_type(if format == MiniFloat::E4M3 { "float8_e4m3fn" } else { "float4_e2m1fn_x2" })
}

/// The object and its fields for weights that share a scale so.
fn sharing(weight: TensorScheme) -> (&'static str, Value) {
    match weight.granularity() {
        Some(Granularity::Tensor) => ("PerTensor", json!({})),
        _ => ("PerRow", json!({ "dim": -1 })),
    }
}

/// torchao's rule for the scales of inputs that comes nearest: `CEIL` is `ceil(log2 amax)` there too.
fn scaling_mode(rule: ScaleRule) -> Value {
    let name = match rule {
        ScaleRule::Even => "EVEN",
        ScaleRule::Floor => "FLOOR",
        ScaleRule::Ceil => "CEIL",
        ScaleRule::Rceil => "RCEIL",
    };
    object("ScaleCalculationMode", json!(name))
}

/// What the metadata of files say of a quantized weight.
fn described(layer: &DescribedLayer<'_>, class: Class) -> Value {
    let weight = layer.scheme.weight;
    let (rows, columns) = layer.shape;
    let block = if weight.granularity() == Some(Granularity::Tensor) { [rows, columns] } else { [1, columns] };
    let dtype = torch_type(match layer.dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        _ => "bfloat16",
    });
    let auto = || object("KernelPreference", json!("AUTO"));
    let (sharing, fields) = sharing(weight);
    let sharing = object(sharing, fields);
    let input = layer.scheme.input.map(|input| match (class, input.scheme) {
        (Class::Int8, _) => object(
            "QuantizeTensorToInt8Kwargs",
            json!({ "granularity": sharing, "mapping_type": object("MappingType", json!("SYMMETRIC")), "reduce_range": false }),
        ),
        (_, TensorScheme::Float(float)) => match float.scale {
            FloatScale::E8m0(rule) => object(
                "QuantizeTensorToMXKwargs",
                json!({
                    "elem_dtype": element_type(float.format), "block_size": MX_GROUP, "scaling_mode": scaling_mode(rule),
                    "kernel_preference": auto(), "is_swizzled_scales": false,
                }),
            ),
            _ => object(
                "QuantizeTensorToFloat8Kwargs",
                json!({
                    "float8_dtype": element_type(float.format), "granularity": sharing, "mm_config": null,
                    "hp_value_lb": null, "hp_value_ub": null, "kernel_preference": auto(),
                }),
            ),
        },
        _ => Value::Null,
    });
    let fields = match class {
        Class::Int8 => {
            json!({ "block_size": block, "dtype": dtype, "act_quant_kwargs": input, "reduce_range": false })
        }
        Class::Float8 => json!({
            "block_size": block, "mm_config": null, "act_quant_kwargs": input, "kernel_preference": auto(), "dtype": dtype,
        }),
        Class::Mx(format, _) => json!({
            "elem_dtype": element_type(format), "block_size": MX_GROUP, "orig_dtype": dtype, "kernel_preference": auto(),
            "act_quant_kwargs": input, "is_swizzled_scales": false,
        }),
        Class::Nvfp4 => json!({
            "block_size": NVFP4_GROUP, "orig_dtype": dtype, "is_swizzled_scales": false, "use_triton_kernel": false,
            "act_quant_kwargs": null,
        }),
    };
    let names: &[&str] = match class {
        Class::Nvfp4 => &["qdata", "scale", "per_tensor_scale"],
        _ => &["qdata", "scale"],
    };
    json!({ "_type": class.name(), "_data": fields, "_tensor_data_names": names })
}

/// The metadata of each file: every tensor of the float model, and what it is.
fn metadata(layers: &[DescribedLayer<'_>], others: &[&str]) -> BTreeMap<String, String> {
    let quantized = layers.iter().filter_map(|layer| {
        let class = Class::of_layer(layer.scheme).ok()?;
        Some((format!("{}.weight", layer.name), described(layer, class).to_string()))
    });
    let plain = others.iter().map(|name| ((*name).to_owned(), json!({ "_type": "Tensor" }).to_string()));
    let mut metadata: BTreeMap<String, String> = quantized.chain(plain).collect();
    let names: Vec<&String> = metadata.keys().collect();
    let names = json!(names).to_string();
    metadata.insert(TENSOR_NAMES.to_owned(), names);
    metadata
}

/// Takes the descriptions of tensors out of the metadata of a source: they are not true of what it becomes.
pub(super) fn forget(metadata: &mut BTreeMap<String, String>) {
    let Some(names) = metadata.remove(TENSOR_NAMES) else { return };
    let names: Vec<String> = serde_json::from_str(&names).unwrap_or_default();
    names.iter().for_each(|name| drop(metadata.remove(name)));
}

/// The whole object: one kind of layers. Loaders know them by their tensors: a list of the others would exclude layers whose names end
/// alike, too.
///
/// # Errors
/// [`CannotHold`] where layers differ.
fn quantization_config(layers: &[(&str, LayerScheme)]) -> Result<Value, CannotHold> {
    let Some((_, first)) = layers.first() else {
        return Err(CannotHold::new("torchao's layout has no such layers", HINT));
    };
    if let Some((name, other)) = layers.iter().find(|(_, scheme)| scheme != first) {
        let reason = format!("torchao's config.json has one scheme: `{name}` is `{other}`, others `{first}`");
        return Err(CannotHold::new(reason, "use one scheme for all layers, or ‹format› compressed-tensors"));
    }
    Ok(json!({
        "include_input_output_embeddings": false,
        "modules_to_not_convert": null,
        "quant_method": "torchao",
        "quant_type": { "default": layer_config(*first)? },
        "untie_embedding_weights": false,
    }))
}

/// The configuration with which torchao quantizes such a layer itself.
fn layer_config(scheme: LayerScheme) -> Result<Value, CannotHold> {
    let (sharing, fields) = sharing(scheme.weight);
    let sharing = versioned(sharing, 1, fields);
    let auto = || object("KernelPreference", json!("AUTO"));
    Ok(match (Class::of_layer(scheme)?, scheme.input) {
        (Class::Int8, None) => versioned(
            "Int8WeightOnlyConfig",
            2,
            json!({ "group_size": null, "granularity": sharing, "set_inductor_config": true }),
        ),
        (Class::Int8, Some(_)) => versioned(
            "Int8DynamicActivationInt8WeightConfig",
            2,
            json!({
                "act_mapping_type": object("MappingType", json!("SYMMETRIC")), "granularity": sharing,
                "set_inductor_config": true,
            }),
        ),
        (Class::Float8, None) => versioned(
            "Float8WeightOnlyConfig",
            2,
            json!({ "granularity": sharing, "set_inductor_config": true, "weight_dtype": element_type(MiniFloat::E4M3) }),
        ),
        (Class::Float8, Some(_)) => versioned(
            "Float8DynamicActivationFloat8WeightConfig",
            2,
            json!({
                "activation_dtype": element_type(MiniFloat::E4M3), "weight_dtype": element_type(MiniFloat::E4M3),
                "granularity": [sharing, sharing], "mm_config": null, "activation_value_lb": null,
                "activation_value_ub": null, "kernel_preference": auto(), "set_inductor_config": true,
            }),
        ),
        (Class::Mx(format, rule), _) => versioned(
            "MXDynamicActivationMXWeightConfig",
            1,
            json!({
                "block_size": MX_GROUP, "activation_dtype": element_type(format), "weight_dtype": element_type(format),
                "kernel_preference": auto(), "scaling_mode": scaling_mode(rule),
            }),
        ),
        (Class::Nvfp4, _) => versioned("NVFP4WeightOnlyConfig", 1, json!({ "use_dynamic_per_tensor_scale": true })),
    })
}

/// Whether a configuration says that inputs are quantized when the model runs.
fn quantizes_inputs(config: &Value) -> bool {
    let kind = config.pointer("/quant_type/default/_type").and_then(Value::as_str);
    kind.is_some_and(|kind| kind.contains("DynamicActivation"))
}

/// Reads modules by their tensors; the configuration says what becomes of inputs.
#[derive(Debug)]
struct TorchAoReader {
    quantizes_inputs: bool,
}

impl ModuleReader for TorchAoReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let Some(StoredWeight { scheme, shape }) = stored(module)? else { return Ok(Vec::new()) };
        // The tensors of a weight do not depend on its inputs, but torchao has MX weights only beside MX inputs.
        let input = ActivationScheme { scheme, timing: Timing::Dynamic };
        let input = Some(input).filter(|_| matches!(Class::of(scheme), Some(Class::Mx(..))));
        let layer = LayerSpec {
            scheme: LayerScheme { weight: scheme, input, output: None },
            ..LayerSpec::weight_only(module.name, shape, scheme, NibbleOrder::default())
        };
        let mut parts =
            FormatHandle::TORCHAO.parts(&layer).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
        if module.tensor(ZERO_POINTS).is_some() {
            // torchao stores the zeros of symmetric codes.
            let content = Content::ZeroPoints { packing: Packing::Bytes, transposed: false, less_one: false };
            let (rows, columns) = layer.scale_shape().map_err(|error| ImportError::cannot_hold(module.name, &error))?;
            parts.push(layer.part(ZERO_POINTS, Dtype::I8, [rows, columns], content));
        }
        let layout = WeightLayout::of_scheme(module.name, scheme, shape, parts)?;
        Ok(vec![ModuleWeight::of(module, layout)])
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        let scheme = stored(module)?.map(|weight| weight.scheme).filter(|_| self.quantizes_inputs);
        let input = scheme.map(|scheme| StoredActivation {
            scheme: ActivationScheme { scheme, timing: Timing::Dynamic },
            parameters: None,
        });
        Ok(StoredActivations { input, output: None })
    }
}

/// A weight as it is stored.
struct StoredWeight {
    scheme: TensorScheme,
    /// Output and input channels.
    shape: (usize, usize),
}

/// The scheme and the shape of a module's weight, by the types of its tensors; `None` for a plain one.
fn stored(module: &ModuleTensors<'_, '_>) -> Result<Option<StoredWeight>, ImportError> {
    let Some(codes) = module.tensor(CODES) else { return Ok(None) };
    let dequantize = "dequantize the checkpoint with torchao, and quantize that";
    if let Some(zero_points) = module.tensor(ZERO_POINTS)
        && zero_points.bytes().iter().any(|byte| *byte != 0)
    {
        let name = module.tensor_name(ZERO_POINTS);
        return Err(ImportError::unsupported(name, "zero points other than 0 are not read", dequantize));
    }
    let (rows, width) = module.matrix_shape(CODES)?;
    let scales = module.matrix_shape(SCALES)?;
    let columns = if codes.dtype() == Dtype::U8 { Packing::Bits(4).codes_in(width) } else { width };
    let sharing = if scales == (rows, 1) { "channel" } else { "tensor" };
    let scheme = match (codes.dtype(), module.need(SCALES)?.dtype()) {
        (Dtype::I8, _) => format!("int8:{sharing}:f32"),
        (Dtype::F8_E4M3, Dtype::F8_E8M0 | Dtype::U8) => "e4m3:g32:e8m0".to_owned(),
        (Dtype::U8, Dtype::F8_E8M0) => "e2m1:g32:e8m0".to_owned(),
        (Dtype::U8, Dtype::F8_E4M3) => "e2m1:g16:e4m3:f32".to_owned(),
        (Dtype::F8_E4M3, _) => format!("e4m3:{sharing}:f32"),
        (codes, scales) => {
            let reason = format!("codes of type {codes} with scales of type {scales} are not read");
            return Err(ImportError::unsupported(module.tensor_name(CODES), reason, dequantize));
        }
    };
    let scheme: TensorScheme = scheme
        .parse()
        .map_err(|_| ImportError::invalid(module.tensor_name(CODES), format!("`{scheme}` is not a scheme")))?;
    let expected = scheme.granularity().and_then(|granularity| granularity.scale_shape(rows, columns).ok());
    if expected != Some(scales) {
        let (down, across) = scales;
        let reason = format!(
            "a {down} x {across} matrix of scales for {rows} x {columns} weights is not read: scales in groups of another \
             size, or in the order of a GPU's kernels"
        );
        return Err(ImportError::unsupported(module.tensor_name(SCALES), reason, dequantize));
    }
    Ok(Some(StoredWeight { scheme, shape: (rows, columns) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> Result<Class, CannotHold> {
        Class::of_layer(TorchAo.capabilities().fitted(text.parse().unwrap()))
    }

    #[test]
    fn inputs_are_quantized_as_the_weight_is_or_not_at_all() {
        for text in [
            "int8:channel",
            "int8:tensor",
            "int8:channel+int8:channel!dynamic",
            "e4m3:channel",
            "e4m3:tensor+e4m3:tensor!dynamic",
            "e4m3:g32:e8m0+e4m3:g32:e8m0!dynamic",
            "e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic",
            "e2m1:g16:e4m3:f32",
        ] {
            assert!(class(text).is_ok(), "{text}");
        }
        for text in [
            "int4:g32",
            "int8:channel:zp",
            "int8:g32",
            "int8:channel+int8:tensor!static",
            "e4m3:channel+e4m3:tensor!dynamic",
            "e2m1:g32:e8m0",
            "e2m1:g32:e8m0+e4m3:g32:e8m0!dynamic",
            "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local",
            "e4m3:b128x128",
            "e4m3:channel+-+e4m3:tensor!static",
        ] {
            assert!(class(text).is_err(), "{text}");
        }
    }

    #[test]
    fn metadata_describe_every_tensor_and_are_forgotten_whole() {
        let scheme = TorchAo.capabilities().fitted("int8:channel".parse().unwrap());
        let layer = DescribedLayer { name: "a.b", shape: (4, 8), scheme, parts: &[], dtype: Dtype::BF16 };
        let mut metadata = metadata(&[layer], &["a.norm.weight"]);
        assert_eq!(metadata[TENSOR_NAMES], r#"["a.b.weight","a.norm.weight"]"#);
        let stated: Value = serde_json::from_str(&metadata["a.b.weight"]).unwrap();
        assert_eq!(stated["_type"], "Int8Tensor");
        assert_eq!(stated["_data"]["block_size"], json!([1, 8]));
        metadata.insert("format".to_owned(), "pt".to_owned());
        forget(&mut metadata);
        assert_eq!(metadata.into_keys().collect::<Vec<_>>(), ["format"]);
    }

    #[test]
    fn layers_of_two_schemes_are_refused() {
        let scheme = |text: &str| TorchAo.capabilities().fitted(text.parse().unwrap());
        let layers = [("a", scheme("int8:channel")), ("b", scheme("e4m3:channel"))];
        assert!(quantization_config(&layers).unwrap_err().reason.contains("`b` is"));
        assert!(quantization_config(&layers[..1]).is_ok());
    }
}
