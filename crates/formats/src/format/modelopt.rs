//! NVIDIA ModelOpt's layouts: fp8 with one scale, and NVFP4, which is stored like AMD Quark's. The layout of a layer
//! follows from its tensors. They are read only.

use super::stored::{
    GlobalScaleName, ModuleReader, ModuleTensors, ModuleWeight, ParameterNames, StoredActivations, StoredAttention,
    WeightLayout,
};
use super::{Capabilities, CheckpointFormat, FormatHandle, ModelDescription, fp8};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{CannotHold, LayerSpec, Packing, Part};
use serde_json::Value;

/// The format.
pub(super) struct ModelOpt;

impl CheckpointFormat for ModelOpt {
    fn name(&self) -> &'static str {
        "modelopt"
    }

    fn about(&self) -> &'static str {
        "NVIDIA ModelOpt's layouts of fp8 and NVFP4"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            side_files: &["hf_quant_config.json"],
            is_written: false,
            is_conversion_target: false,
            activations: true,
            excluded_fields: &["ignore", "exclude_modules"],
            ..Capabilities::of_method("modelopt", &["modelopt"])
        }
    }

    fn parts(&self, _layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        Err(read_only())
    }

    fn config(&self, _model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        Err(read_only())
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        reader(config)
    }
}

fn read_only() -> CannotHold {
    CannotHold::new("ModelOpt's layouts are not written", "use ‹format› compressed-tensors or quark")
}

/// NVFP4.
const NVFP4: &str = "e2m1:g16:e4m3:f32";

fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    // The separate file has the fields one level down.
    let config = config.get("quantization").unwrap_or(config);
    let algorithm = config.get("quant_algo").and_then(Value::as_str).unwrap_or_default();
    match algorithm {
        "FP8" | "NVFP4" | "W4A16_NVFP4" | "MIXED_PRECISION" => Ok(Box::new(ModeloptReader)),
        other => {
            let reason = format!("{} is not read; FP8 and NVFP4 are", kvant_weights::recipe_error::quoted(other));
            let hint = "dequantize the checkpoint with the tool that made it";
            Err(ImportError::unsupported("quantization_config.quant_algo", reason, hint))
        }
    }
}

/// Reads both, by the tensors of each layer.
#[derive(Debug)]
struct ModeloptReader;

impl ModuleReader for ModeloptReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let layout = match module.tensor("weight_scale_2") {
            Some(_) => Some(nvfp4(module)?),
            None => fp8::layout(module, None)?,
        };
        Ok(layout.map(|layout| ModuleWeight::of(module, layout)).into_iter().collect())
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        if module.tensor("input_scale").is_none() || module.tensor("weight_scale").is_none() {
            return Ok(StoredActivations::default());
        }
        let is_fp4 = module.tensor("weight_scale_2").is_some();
        let (scheme, timing) = if is_fp4 { (NVFP4, Timing::Local) } else { ("e4m3:tensor:f32", Timing::Static) };
        let input = INPUT.read(module, ActivationScheme { scheme: parsed(module, scheme)?, timing })?;
        Ok(StoredActivations { input: Some(input), output: None })
    }

    fn attention(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredAttention, ImportError> {
        fp8::cache(module)
    }
}

const INPUT: ParameterNames = ParameterNames { global_scale: GlobalScaleName::Multiplier("input_scale"), ..fp8::INPUT };

fn parsed(module: &ModuleTensors<'_, '_>, text: &str) -> Result<TensorScheme, ImportError> {
    text.parse().map_err(|_| ImportError::invalid(module.name, format!("`{text}` is not a scheme")))
}

fn nvfp4(module: &ModuleTensors<'_, '_>) -> Result<WeightLayout, ImportError> {
    let (rows, bytes) = module.matrix_shape("weight")?;
    let shape = (rows, Packing::Bits(4).codes_in(bytes));
    let scheme = parsed(module, NVFP4)?;
    let layer = LayerSpec::weight_only(module.name, shape, scheme, NibbleOrder::Natural);
    let parts = FormatHandle::QUARK.parts(&layer).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
    WeightLayout::of_scheme(module.name, scheme, shape, parts)
}
