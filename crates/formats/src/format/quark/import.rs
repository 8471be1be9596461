//! The layout of AMD Quark: the parts are those that are written.

use super::parts::{code_layout, of_bias, parts};
use super::rotation::INPUT_ROTATION;
use super::{StoredQuark, WeightFormat};
use crate::format::ModuleScheme;
use crate::format::fp8;
use crate::format::stored::{
    GlobalScaleName, ModuleReader, ModuleTensors, ModuleWeight, ParameterNames, RoundedWeight, StoredActivation,
    StoredActivations, StoredAttention, WeightLayout,
};
use kvant_container::Dtype;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::rotation::Rotation;
use kvant_quant::scheme::{Axis, Granularity, TensorScheme};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::LayerSpec;
use serde_json::Value;
use std::sync::Arc;

pub(super) fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    Ok(Box::new(QuarkReader { config: StoredQuark::read(config)? }))
}

/// Reads modules as the configuration describes them.
#[derive(Debug)]
struct QuarkReader {
    config: StoredQuark,
}

impl ModuleReader for QuarkReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let has_scales = module.tensor("weight_scale").is_some();
        let dtype = module.tensor("weight").map(|weight| weight.dtype());
        // Floats on the grid of their codes, with the scales beside them.
        let is_float = matches!(dtype, None | Some(Dtype::F32 | Dtype::F16 | Dtype::BF16));
        if is_float && self.config.weight_format == WeightFormat::Fake {
            return Ok(Vec::new());
        }
        let layout = match self.config.scheme(module.name).weight.filter(|_| has_scales) {
            Some(scheme) => Some(self.layout(module, scheme)?),
            // fp8 layers of the source that were left as they are.
            None => fp8::layout(module, None)?,
        };
        match layout {
            None if has_scales => {
                Err(ImportError::invalid(module.name, "is quantized in a way that config.json does not say"))
            }
            layout => Ok(layout.map(|layout| ModuleWeight::of(module, layout)).into_iter().collect()),
        }
    }

    fn convolution(&self, module: &ModuleTensors<'_, '_>) -> Option<TensorScheme> {
        let is_convolution = is_quantized(module) && module.tensor("weight")?.shape().len() > 2;
        let scheme = self.config.scheme(module.name).weight.filter(|_| is_convolution)?;
        (self.config.weight_format == WeightFormat::Real).then_some(scheme)
    }

    fn bias(&self, module: &ModuleTensors<'_, '_>) -> Result<Option<ModuleWeight>, ImportError> {
        let has_codes = module.tensor("bias").is_some() && module.tensor("bias_scale").is_some();
        let is_real = self.config.weight_format == WeightFormat::Real;
        match self.config.scheme(module.name).bias.filter(|_| has_codes && is_real) {
            Some(scheme) => bias(module, scheme).map(Some),
            None => Ok(None),
        }
    }

    fn rounded(&self, module: &ModuleTensors<'_, '_>) -> Option<RoundedWeight> {
        let scheme = self.rounded_scheme(module)?;
        let beside = module.suffixes().filter(|suffix| ROUNDED.contains(suffix));
        let parameters = beside.map(|suffix| module.tensor_name(suffix)).collect();
        Some(RoundedWeight { scheme: scheme.weight?, parameters })
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        if let Some(scheme) = self.rounded_scheme(module) {
            let read =
                |names: &ParameterNames, given: Option<_>| given.map(|given| names.read(module, given)).transpose();
            let (input, output) = (read(&ROUNDED_INPUT, scheme.input)?, read(&ROUNDED_OUTPUT, scheme.output)?);
            return Ok(StoredActivations { input, output });
        }
        let scheme = self.config.scheme(module.name);
        let input = scheme.input.filter(|_| is_quantized(module)).map(|input| INPUT.read(module, input)).transpose()?;
        let output = if self.cached(module).is_some() { None } else { self.output(module)? };
        Ok(StoredActivations { input, output })
    }

    fn input_rotation(
        &self,
        module: &ModuleTensors<'_, '_>,
        columns: usize,
    ) -> Result<Option<Arc<Rotation>>, ImportError> {
        // Layers that stay as they are stay unwrapped.
        let rotation = self.config.rotation.as_ref().filter(|_| is_quantized(module));
        let found = rotation.map_or(Ok(None), |rotation| rotation.of_layer(module, columns))?;
        match module.tensor(INPUT_ROTATION).filter(|_| found.is_none()) {
            Some(view) => Err(ImportError::invalid(view.name(), "rotates inputs, which config.json does not say")),
            None => Ok(found),
        }
    }

    fn quantizes(&self, module: &str) -> Option<bool> {
        Some(self.config.scheme(module).weight.is_some())
    }

    fn quantizes_cache(&self) -> bool {
        self.config.quantizes_cache()
    }

    fn attention(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredAttention, ImportError> {
        let softmax = self.config.softmax.filter(|_| module.tensor(PROBABILITIES.scale).is_some());
        let probabilities = softmax.map(|scheme| PROBABILITIES.read(module, scheme)).transpose()?;
        let output = if self.cached(module).is_some() { self.output(module)? } else { None };
        let (key, value) = if self.cached(module) == Some("k_proj") { (output, None) } else { (None, output) };
        Ok(StoredAttention { key, value, probabilities, ..StoredAttention::default() })
    }
}

pub(in crate::format) const INPUT: ParameterNames =
    ParameterNames::new("input_scale", "input_zero_point", GlobalScaleName::Multiplier("input_scale_2"));

pub(in crate::format) const OUTPUT: ParameterNames =
    ParameterNames::new("output_scale", "output_zero_point", GlobalScaleName::Multiplier("output_scale_2"));

const PROBABILITIES: ParameterNames = ParameterNames::new(
    "prob_output_scale",
    "prob_output_zero_point",
    GlobalScaleName::Multiplier("prob_output_scale_2"),
);

/// The names in modules that Quark does not pack (convolutions and embeddings): those of its quantizers.
const ROUNDED_INPUT: ParameterNames = ParameterNames {
    scale: "_input_scale",
    zero_point: "_input_zero_point",
    global_scale: GlobalScaleName::Multiplier("_input_scale_2"),
};

const ROUNDED_OUTPUT: ParameterNames = ParameterNames {
    scale: "_output_scale",
    zero_point: "_output_zero_point",
    global_scale: GlobalScaleName::Multiplier("_output_scale_2"),
};

/// All of them.
const ROUNDED: [&str; 8] = [
    "_weight_scale",
    "_weight_zero_point",
    "_bias_scale",
    "_bias_zero_point",
    "_input_scale",
    "_input_zero_point",
    "_output_scale",
    "_output_zero_point",
];

/// The codes of a bias: as those of a weight with one row, or with one column where each value has a scale.
fn bias(module: &ModuleTensors<'_, '_>, scheme: TensorScheme) -> Result<ModuleWeight, ImportError> {
    let shape = module.need("bias")?.shape().to_vec();
    let length = shape.iter().product();
    let is_column = scheme.granularity() == Some(Granularity::Channel(Axis::Rows));
    let size = if is_column { (length, 1) } else { (1, length) };
    let layer = LayerSpec::weight_only(module.name, size, scheme, NibbleOrder::default());
    let parts = parts(&layer).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
    let parts = of_bias(parts, module.name);
    let layout = WeightLayout::of_scheme(module.name, scheme, size, parts)?;
    Ok(ModuleWeight { name: module.tensor_name("bias"), shape, matrices: vec![layout] })
}

/// Returns whether the weight of a module is quantized.
fn is_quantized(module: &ModuleTensors<'_, '_>) -> bool {
    module.tensor("weight").is_some() && module.tensor("weight_scale").is_some()
}

impl QuarkReader {
    /// The description of a module whose weight is floats on the grid of its codes, beside the parameters of Quark's quantizers.
    fn rounded_scheme(&self, module: &ModuleTensors<'_, '_>) -> Option<ModuleScheme> {
        let weight = module.tensor("weight").filter(|_| module.tensor("_weight_scale").is_some())?;
        let types: &[&str] = match weight.shape().len() {
            2 => &["Embedding", "EmbeddingBag"],
            _ => &["Conv2d", "ConvTranspose2d", "Conv1d", "Conv3d"],
        };
        let is_float = matches!(weight.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        Some(self.config.scheme_of_type(module.name, types)).filter(|scheme| is_float && scheme.weight.is_some())
    }

    /// The name of a module whose output is quantized only as it enters the cache.
    fn cached(&self, module: &ModuleTensors<'_, '_>) -> Option<&'static str> {
        let leaf = module.name.rsplit('.').next()?;
        let known = ["k_proj", "v_proj"].into_iter().find(|name| *name == leaf);
        known.filter(|_| self.config.cache_behind_rotary && module.tensor("weight").is_some())
    }

    /// The output of a module: of one whose weight is quantized, of one that the configuration names for its output alone, or of one
    /// that has a scale for it.
    fn output(&self, module: &ModuleTensors<'_, '_>) -> Result<Option<StoredActivation>, ImportError> {
        let is_quantized = is_quantized(module) || self.config.names_output_alone(module.name);
        let has_output = module.tensor("weight").is_some() && (is_quantized || module.tensor(OUTPUT.scale).is_some());
        let scheme = self.config.scheme(module.name).output.filter(|_| has_output);
        scheme.map(|scheme| OUTPUT.read(module, scheme)).transpose()
    }

    fn layout(&self, module: &ModuleTensors<'_, '_>, scheme: TensorScheme) -> Result<WeightLayout, ImportError> {
        let refused = |error| ImportError::cannot_hold(module.name, &error);
        let (packing, transposed) = code_layout(scheme, self.config.order).map_err(refused)?;
        let (first, last) = module.matrix_shape("weight")?;
        let (rows, columns) = (first, packing.codes_in(last));
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        let layer = LayerSpec::weight_only(module.name, (rows, columns), scheme, self.config.order);
        let parts = parts(&layer).map_err(refused)?;
        WeightLayout::of_scheme(module.name, scheme, (rows, columns), parts)
    }
}
