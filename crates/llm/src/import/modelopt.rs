//! NVIDIA ModelOpt's layouts: fp8 with a scale of the tensor, and NVFP4, which is stored as AMD Quark's. Which a layer has
//! is told by its tensors.

use super::activations::{Places, StoredActivations, StoredAttention, TensorScalePlace};
use super::catalog::Module;
use super::layout::Layout;
use super::{Method, Weight, fp8};
use crate::export::{Export, LayerSpec, Packing};
use crate::import_error::ImportError;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use serde_json::Value;

/// NVFP4.
const NVFP4: &str = "e2m1:g16:e4m3:f32";

pub(super) fn reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    // The separate file has the fields one level down.
    let config = config.get("quantization").unwrap_or(config);
    let algorithm = config.get("quant_algo").and_then(Value::as_str).unwrap_or_default();
    match algorithm {
        "FP8" | "NVFP4" | "W4A16_NVFP4" | "MIXED_PRECISION" => Ok(Box::new(ModelOpt)),
        other => {
            let reason = format!("{} is not read; FP8 and NVFP4 are", crate::recipe_error::quoted(other));
            let hint = "dequantize the checkpoint with the tool that made it";
            Err(ImportError::unsupported("quantization_config.quant_algo", reason, hint))
        }
    }
}

struct ModelOpt;

impl Method for ModelOpt {
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError> {
        let layout = match module.tensor("weight_scale_2") {
            Some(_) => Some(nvfp4(module)?),
            None => fp8::layout(module, None)?,
        };
        Ok(layout.map(|layout| Weight::of(module, layout)).into_iter().collect())
    }

    fn activations(&self, module: &Module<'_, '_>) -> Result<StoredActivations, ImportError> {
        if module.tensor("input_scale").is_none() || module.tensor("weight_scale").is_none() {
            return Ok(StoredActivations::default());
        }
        let is_fp4 = module.tensor("weight_scale_2").is_some();
        let (scheme, timing) = if is_fp4 { (NVFP4, Timing::Local) } else { ("e4m3:tensor:f32", Timing::Static) };
        let input = INPUT.read(module, ActivationScheme { scheme: parsed(module, scheme)?, timing })?;
        Ok(StoredActivations { input: Some(input), output: None })
    }

    fn attention(&self, module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
        fp8::cache(module)
    }
}

const INPUT: Places = Places { tensor_scale: TensorScalePlace::Multiplier("input_scale"), ..fp8::INPUT };

fn parsed(module: &Module<'_, '_>, text: &str) -> Result<TensorScheme, ImportError> {
    text.parse().map_err(|_| ImportError::invalid(module.name, format!("`{text}` is no scheme")))
}

fn nvfp4(module: &Module<'_, '_>) -> Result<Layout, ImportError> {
    let (rows, bytes) = module.matrix_shape("weight")?;
    let shape = (rows, Packing::Bits(4).codes_in(bytes));
    let scheme = parsed(module, NVFP4)?;
    let layer = LayerSpec::weight_only(module.name, shape, scheme, NibbleOrder::Natural);
    let parts = Export::Quark.parts(&layer).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
    Layout::of_scheme(module.name, scheme, shape, parts)
}
