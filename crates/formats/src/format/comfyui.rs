//! The weights of diffusion models as ComfyUI has them: one file without a config.json, whose metadata name the quantized layers.
//!
//! | `format` | scheme | tensors |
//! |---|---|---|
//! | `float8_e4m3fn`, `float8_e5m2` | fp8 | `weight` `[out, in]`, `weight_scale` F32 `[]` |
//! | `int8_tensorwise` | int8 | `weight` I8 `[out, in]`, `weight_scale` F32 `[]` or `[out, 1]` |
//!
//! A weight is `code * weight_scale`. The key `_quantization_metadata` holds `{"layers": {"NAME": {"format": ...}}}`; with
//! `full_precision_matrix_mult` a layer computes in floats, otherwise inputs are quantized when the model runs. Other tools write the
//! same object of each layer into a tensor `NAME.comfy_quant`, and older ones `scale_weight` and one tensor `scaled_fp8` for all.
//! Facts: ComfyUI's `comfy/ops.py` and `comfy/utils.py` (`convert_old_quants`), and comfy-kitchen 0.2.

use super::stored::{ModuleReader, ModuleTensors, ModuleWeight, StoredActivation, StoredActivations, WeightLayout};
use super::tensors::DescribedLayer;
use super::{Capabilities, CheckpointFormat, FormatHandle, ModelDescription};
use kvant_container::{Checkpoint, Dtype};
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, Granularity, LayerScheme, ScaleType, TensorScheme, Timing, ZeroPoint,
};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{
    AttentionSpec, CannotHold, Content, LayerSpec, Packing, ParameterPart, Part, ScaleEncoding,
};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// What rules of loaders and reports call the layout; no config.json has it.
pub(crate) const METHOD: &str = "comfyui";

/// The key in the metadata of safetensors files.
const METADATA_KEY: &str = "_quantization_metadata";

/// The last part of the name of a tensor that says what a layer is.
const MARKER: &str = "comfy_quant";

/// The tensor that says of a whole file that its fp8 weights have scales.
const OLD_MARKER: &str = "scaled_fp8";

const SCALE: &str = "weight_scale";
/// The scale in files with [`OLD_MARKER`].
const OLD_SCALE: &str = "scale_weight";

/// The key of layers that compute in floats.
const IN_FLOATS: &str = "full_precision_matrix_mult";

const HINT: &str =
    "use e4m3:tensor, int8:channel or int8:tensor, with inputs e4m3:tensor!dynamic or int8:channel!dynamic";

/// The format.
pub(super) struct ComfyUi;

impl CheckpointFormat for ComfyUi {
    fn name(&self) -> &'static str {
        "comfyui"
    }

    fn about(&self) -> &'static str {
        "fp8 and int8 weights of diffusion models in one file, for ComfyUI"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            scale: Some(ScaleType::F32),
            needs_config: false,
            one_file: true,
            is_conversion_target: false,
            activations: true,
            found_by_tensors: true,
            ..Capabilities::of_method(METHOD, &[METHOD])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        if let Some(fused) = layer.fused {
            let reason = format!("ComfyUI's layout has no experts in one tensor such as `{}`", fused.module);
            return Err(CannotHold::new(reason, "leave them in floats with ‹exclude›"));
        }
        if is_named_by_diffusers(layer.name) {
            let reason =
                "it has its name in diffusers, which ComfyUI changes as it loads, and loses the scale".to_owned();
            return Err(CannotHold::new(reason, "quantize the file that ComfyUI itself takes, in its original naming"));
        }
        let kind = Kind::of_layer(layer.scheme)?;
        let codes = Content::Codes { packing: Packing::Bytes, transposed: false };
        let scales = Content::Scales { encoding: ScaleEncoding::F32, transposed: false };
        let shape = match kind.per_channel {
            true => vec![layer.rows, 1],
            false => Vec::new(),
        };
        Ok(vec![
            layer.part("weight", kind.dtype, [layer.rows, layer.columns], codes),
            layer.part(SCALE, Dtype::F32, shape, scales),
        ])
    }

    fn attention_parts(&self, _spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        let reason = "ComfyUI's layout has no quantized keys, values or queries";
        Err(CannotHold::new(reason, "leave ‹kv-cache› and ‹attention› out"))
    }

    fn config(&self, _model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        // Names and classes of a config.json are other libraries'.
        let reason = "ComfyUI takes a file in its original naming without a config.json, and this source has one";
        let hint = "name the one file that ComfyUI takes, in its original naming and without a config.json beside it, or use another ‹format›";
        Err(CannotHold::new(reason, hint))
    }

    fn metadata(&self, layers: &[DescribedLayer<'_>], _others: &[&str]) -> BTreeMap<String, String> {
        let stated = |layer: &DescribedLayer<'_>| {
            let format = Kind::of_layer(layer.scheme).ok()?.format();
            let stated = match layer.scheme.input {
                Some(_) => json!({ "format": format }),
                None => json!({ "format": format, IN_FLOATS: true }),
            };
            Some((layer.name.to_owned(), stated))
        };
        let layers: Map<String, Value> = layers.iter().filter_map(stated).collect();
        BTreeMap::from([(METADATA_KEY.to_owned(), json!({ "layers": layers }).to_string())])
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        let layers = config.get("layers").and_then(Value::as_object);
        let layers = layers.ok_or_else(|| ImportError::invalid(METADATA_KEY, "does not describe any layers"))?;
        let layers = layers.iter().map(|(name, stated)| Ok((name.clone(), StatedLayer::read(name, stated)?)));
        Ok(Box::new(Reader { layers: layers.collect::<Result<_, ImportError>>()? }))
    }
}

/// Returns whether a layer of UNets, FLUX, SD3, AuraFlow, Wan or PixArt has its name in diffusers. Qwen-Image and LTX-Video have the same
/// names in both.
fn is_named_by_diffusers(name: &str) -> bool {
    const FIRST: [&str; 5] =
        ["down_blocks", "joint_transformer_blocks", "mid_block", "single_transformer_blocks", "up_blocks"];
    let first = name.split('.').next().unwrap_or_default();
    FIRST.contains(&first)
        || first == "transformer_blocks" && (name.contains(".ff_context.") || name.contains(".norm1_context."))
        || first == "blocks" && name.contains(".attn1.to_")
}

/// A kind of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    /// The type of codes.
    dtype: Dtype,
    /// Whether each output channel has a scale.
    per_channel: bool,
}

impl Kind {
    /// The kind of a layer, whose inputs ComfyUI quantizes as it does, or not at all.
    ///
    /// # Errors
    /// [`CannotHold`] where ComfyUI has no such layers.
    fn of_layer(scheme: LayerScheme) -> Result<Kind, CannotHold> {
        let refuse = |reason: String| CannotHold::new(reason, HINT);
        let kind =
            Kind::of(scheme.weight).ok_or_else(|| refuse(format!("ComfyUI's layout has no `{}`", scheme.weight)))?;
        if let Some(output) = scheme.output {
            return Err(refuse(format!("ComfyUI's layout has no outputs `{output}`")));
        }
        match scheme.input {
            Some(input) if !kind.takes(input) => {
                Err(refuse(format!("ComfyUI's layout has no inputs `{input}` of weights `{}`", scheme.weight)))
            }
            _ => Ok(kind),
        }
    }

    fn of(weight: TensorScheme) -> Option<Kind> {
        let per_channel = match weight.granularity()? {
            Granularity::Tensor => false,
            Granularity::Channel(Axis::Rows) => true,
            _ => return None,
        };
        let dtype = match weight {
            TensorScheme::Int(int) if int.zero_point == ZeroPoint::Zero && int.scale == ScaleType::F32 => {
                (int.format == Int::INT8).then_some(Dtype::I8)?
            }
            TensorScheme::Float(float) if float.scale == FloatScale::Plain(ScaleType::F32) && !per_channel => {
                match float.format {
                    MiniFloat::E4M3 => Dtype::F8_E4M3,
                    MiniFloat::E5M2 => Dtype::F8_E5M2,
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Kind { dtype, per_channel })
    }

    /// Whether inputs are quantized so when the model runs: fp8 with a scale for all of them, int8 with one for each row.
    fn takes(self, input: ActivationScheme) -> bool {
        let fitted = ComfyUi.capabilities().fitted(LayerScheme::weight_only(input.scheme)).weight;
        let is_int8 = self.dtype == Dtype::I8;
        let fits = Kind::of(fitted).is_some_and(|kind| kind.dtype == self.dtype && kind.per_channel == is_int8);
        fits && input.timing == Timing::Dynamic
    }

    /// ComfyUI's name of it.
    fn format(self) -> &'static str {
        match self.dtype {
            Dtype::I8 => "int8_tensorwise",
            Dtype::F8_E5M2 => "float8_e5m2",
            _ => "float8_e4m3fn",
        }
    }
}

/// What a file says of its layers: in its metadata, in a tensor of each layer, or in one tensor for all. `None` where it says nothing.
pub(crate) fn described(checkpoint: &Checkpoint) -> Option<Value> {
    if let Some(text) = checkpoint.metadata().get(METADATA_KEY) {
        // A text that cannot be parsed describes nothing.
        return Some(serde_json::from_str(text).unwrap_or(Value::Null));
    }
    let (mut layers, mut is_old) = (Map::new(), false);
    for view in checkpoint.tensors() {
        let (module, last) = view.name().rsplit_once('.').unwrap_or(("", view.name()));
        match last {
            MARKER => {
                layers.insert(module.to_owned(), serde_json::from_slice(view.bytes()).unwrap_or(Value::Null));
            }
            OLD_SCALE => {
                layers.insert(module.to_owned(), json!({ "scale": OLD_SCALE }));
            }
            OLD_MARKER => is_old = true,
            _ => {}
        }
    }
    // Scales of that name alone may be anything.
    layers.retain(|_, stated| is_old || stated.get("scale").is_none());
    (!layers.is_empty()).then(|| json!({ "layers": layers }))
}

/// Takes the description of layers out of the metadata of a source: it is not true of what the source becomes.
pub(super) fn forget(metadata: &mut BTreeMap<String, String>) {
    metadata.remove(METADATA_KEY);
}

/// What a file says of a layer.
#[derive(Debug)]
struct StatedLayer {
    /// The last part of the name of its scale.
    scale: &'static str,
    /// Whether inputs are quantized when the model runs.
    quantizes_inputs: bool,
}

impl StatedLayer {
    fn read(name: &str, stated: &Value) -> Result<StatedLayer, ImportError> {
        if stated.get("scale").is_some() {
            return Ok(StatedLayer { scale: OLD_SCALE, quantizes_inputs: false });
        }
        let format = stated.get("format").and_then(Value::as_str);
        let format = format.ok_or_else(|| ImportError::invalid(METADATA_KEY, format!("`{name}` has no format")))?;
        let is_read = ["float8_e4m3fn", "float8_e5m2", "int8_tensorwise"].contains(&format);
        let rotates = stated.get("convrot").and_then(Value::as_bool) == Some(true);
        if !is_read || rotates {
            let what = if rotates { "rotated weights (`convrot`)" } else { format };
            let reason = format!("{what} of `{name}` are not read; float8_e4m3fn, float8_e5m2 and int8_tensorwise are");
            return Err(ImportError::unsupported(METADATA_KEY, reason, "quantize the model that it was made from"));
        }
        let in_floats = stated.get(IN_FLOATS).and_then(Value::as_bool) == Some(true);
        Ok(StatedLayer { scale: SCALE, quantizes_inputs: !in_floats })
    }
}

/// Reads the layers that a file describes.
#[derive(Debug)]
struct Reader {
    layers: HashMap<String, StatedLayer>,
}

impl Reader {
    /// The scheme of a module's weight, by the types and sizes of its tensors.
    fn scheme(&self, module: &ModuleTensors<'_, '_>, layer: &StatedLayer) -> Result<TensorScheme, ImportError> {
        let (rows, _) = module.matrix_shape("weight")?;
        let scales: usize = module.need(layer.scale)?.shape().iter().product();
        let dtype = module.need("weight")?.dtype();
        let text = match (dtype, scales) {
            (Dtype::I8, 1) => "int8:tensor:f32",
            (Dtype::I8, found) if found == rows => "int8:channel:f32",
            (Dtype::F8_E4M3, 1) => "e4m3:tensor:f32",
            (Dtype::F8_E5M2, 1) => "e5m2:tensor:f32",
            _ => {
                let reason = format!("{scales} scales of a weight of type {dtype} with {rows} rows are not read");
                let hint = "quantize the model that it was made from";
                return Err(ImportError::unsupported(module.tensor_name(layer.scale), reason, hint));
            }
        };
        text.parse()
            .map_err(|_| ImportError::invalid(module.tensor_name("weight"), format!("`{text}` is not a scheme")))
    }
}

impl ModuleReader for Reader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let Some(layer) = self.layers.get(module.name) else { return Ok(Vec::new()) };
        let scheme = self.scheme(module, layer)?;
        let shape = module.matrix_shape("weight")?;
        let spec = LayerSpec::weight_only(module.name, shape, scheme, NibbleOrder::default());
        let parts = FormatHandle::COMFYUI.parts(&spec);
        let mut parts = parts.map_err(|error| ImportError::cannot_hold(module.name, &error))?;
        for part in &mut parts {
            if matches!(part.content, Content::Scales { .. }) {
                part.name = module.tensor_name(layer.scale);
                part.shape = module.need(layer.scale)?.shape().to_vec();
            }
        }
        let layout = WeightLayout::of_scheme(module.name, scheme, shape, parts)?;
        Ok(vec![ModuleWeight::of(module, layout)])
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        let layer = self.layers.get(module.name).filter(|layer| layer.quantizes_inputs);
        let Some(layer) = layer else { return Ok(StoredActivations::default()) };
        let text = match self.scheme(module, layer)?.format() {
            format if format.to_string() == "int8" => "int8:channel",
            _ => "e4m3:tensor",
        };
        let scheme = text.parse().map(|scheme| ActivationScheme { scheme, timing: Timing::Dynamic });
        let input = scheme.ok().map(|scheme| StoredActivation { scheme, parameters: None });
        Ok(StoredActivations { input, output: None })
    }

    fn quantizes(&self, module: &str) -> Option<bool> {
        Some(self.layers.contains_key(module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Result<Kind, CannotHold> {
        Kind::of_layer(ComfyUi.capabilities().fitted(text.parse().unwrap()))
    }

    #[test]
    fn layers_are_fp8_or_int8_with_inputs_as_the_kernels_quantize_them() {
        for (text, format) in [
            ("e4m3:tensor", "float8_e4m3fn"),
            ("e5m2:tensor", "float8_e5m2"),
            ("e4m3:tensor+e4m3:tensor!dynamic", "float8_e4m3fn"),
            ("int8:tensor", "int8_tensorwise"),
            ("int8:channel", "int8_tensorwise"),
            ("int8:channel+int8:channel!dynamic", "int8_tensorwise"),
            ("int8:tensor+int8:channel!dynamic", "int8_tensorwise"),
        ] {
            assert_eq!(kind(text).unwrap().format(), format, "{text}");
        }
        for text in [
            "e4m3:channel",
            "e4m3:tensor+e4m3:tensor!static",
            "e4m3:tensor+int8:channel!dynamic",
            "int8:channel+int8:tensor!dynamic",
            "int8:channel:zp",
            "int4:g32",
            "e2m1:g16:e4m3:f32",
        ] {
            let refused = kind(text).unwrap_err();
            assert!(
                refused.reason.contains("ComfyUI's layout has no") && refused.hint.contains("e4m3:tensor"),
                "{text}"
            );
        }
    }

    #[test]
    fn metadata_name_each_layer_and_are_forgotten() {
        let described = |name, text: &str| DescribedLayer {
            name,
            shape: (4, 8),
            scheme: ComfyUi.capabilities().fitted(text.parse().unwrap()),
            parts: &[],
            dtype: Dtype::BF16,
        };
        let layers = [described("a.b", "e4m3:tensor"), described("c", "int8:channel+int8:channel!dynamic")];
        let mut metadata = ComfyUi.metadata(&layers, &[]);
        let stated: Value = serde_json::from_str(&metadata[METADATA_KEY]).unwrap();
        let expected = json!({ "layers": {
            "a.b": { "format": "float8_e4m3fn", "full_precision_matrix_mult": true },
            "c": { "format": "int8_tensorwise" },
        }});
        assert_eq!(stated, expected);
        forget(&mut metadata);
        assert!(metadata.is_empty());
    }

    #[test]
    fn layers_of_other_formats_are_refused_by_name() {
        let read = |stated: Value| ComfyUi.reader(METHOD, &json!({ "layers": { "a.b": stated } })).map(drop);
        assert!(read(json!({ "format": "int8_tensorwise" })).is_ok());
        for (stated, told) in [
            (json!({ "format": "nvfp4" }), "nvfp4 of `a.b` are not read"),
            (json!({ "format": "int8_tensorwise", "convrot": true }), "rotated weights (`convrot`) of `a.b`"),
            (json!({}), "`a.b` has no format"),
        ] {
            let refused = read(stated).unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
        assert!(ComfyUi.reader(METHOD, &Value::Null).is_err());
    }
}
