//! The layouts of compressed-tensors, which llm-compressor writes: the parts are those that are written.

use super::packing_format::Format;
use super::parts::parts_as;
use super::read::{ModuleClass, StoredCompressedTensors};
use crate::format::fp8;
use crate::format::stored::{
    GlobalScaleName, ModuleReader, ModuleTensors, ModuleWeight, ParameterNames, StoredActivations, StoredAttention,
    WeightLayout, scalars,
};
use kvant_model::network::is_embedding_name;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::rotation::Rotation;
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{LayerSpec, Packing};
use serde_json::Value;
use std::sync::Arc;

pub(super) fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    Ok(Box::new(CompressedTensorsReader { config: StoredCompressedTensors::read(config)? }))
}

/// Reads modules as the configuration describes them.
#[derive(Debug)]
struct CompressedTensorsReader {
    config: StoredCompressedTensors,
}

impl ModuleReader for CompressedTensorsReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let group = self.config.group(module.name, class(module.name)).filter(|_| is_quantized(module));
        let layout = match group.and_then(|group| group.format.zip(group.scheme.weight)) {
            Some((format, scheme)) => Some(layout(module, format, scheme)?),
            // fp8 layers of the source that were left as they are.
            None => fp8::layout(module, None)?,
        };
        match layout {
            None if is_quantized(module) => {
                Err(ImportError::invalid(module.name, "is quantized in a way that config.json does not say"))
            }
            layout => Ok(layout.map(|layout| ModuleWeight::of(module, layout)).into_iter().collect()),
        }
    }

    fn activations(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredActivations, ImportError> {
        let group = self.config.group(module.name, class(module.name)).filter(|_| is_quantized(module));
        let scheme = group.map(|group| group.scheme).unwrap_or_default();
        Ok(StoredActivations {
            input: scheme.input.map(|scheme| INPUT.read(module, scheme)).transpose()?,
            output: scheme.output.map(|scheme| OUTPUT.read(module, scheme)).transpose()?,
        })
    }

    fn input_rotation(
        &self,
        module: &ModuleTensors<'_, '_>,
        columns: usize,
    ) -> Result<Option<Arc<Rotation>>, ImportError> {
        if class(module.name) != ModuleClass::Linear {
            return Ok(None);
        }
        let mut found = None;
        for transform in &self.config.transforms {
            let next = transform.of_layer(module, columns)?;
            if found.is_some() && next.is_some() {
                let reason = "has inputs that transform_config transforms more than once";
                return Err(ImportError::unsupported(module.name, reason, "use a checkpoint with one transform"));
            }
            found = found.or(next);
        }
        Ok(found)
    }

    fn describes_transform(&self, tensor: &str) -> bool {
        self.config.transforms.iter().any(|transform| transform.owns(tensor))
    }

    fn quantizes(&self, module: &str) -> Option<bool> {
        let group = self.config.group(module, ModuleClass::Linear);
        Some(group.is_some_and(|group| group.scheme.weight.is_some()))
    }

    fn attention(&self, module: &ModuleTensors<'_, '_>) -> Result<StoredAttention, ImportError> {
        let leaf = module.name.rsplit('.').next();
        // Dynamic scales leave no tensor: then the layer that computes keys or values locates the attention.
        let cache = |places: ParameterNames, maker: &str| {
            let is_here = |scheme: &ActivationScheme| scheme.timing == Timing::Dynamic && leaf == Some(maker);
            self.config.cache.filter(|scheme| is_here(scheme) || module.tensor(places.scale).is_some())
        };
        // With its own scheme, attention quantizes its inputs: queries too, keys and values as the cache does.
        let own = |places: ParameterNames| {
            module.tensor(places.scale)?;
            self.config.group(module.name, ModuleClass::Attention)?.scheme.input
        };
        let read = |scheme: Option<ActivationScheme>, places: ParameterNames| {
            scheme.map(|scheme| places.read(module, scheme)).transpose()
        };
        Ok(StoredAttention {
            query: read(own(QUERY), QUERY)?,
            key: read(cache(KEY, "k_proj").or(own(KEY)), KEY)?,
            value: read(cache(VALUE, "v_proj").or(own(VALUE)), VALUE)?,
            probabilities: None,
        })
    }
}

const INPUT: ParameterNames =
    ParameterNames::new("input_scale", "input_zero_point", GlobalScaleName::Divisor("input_global_scale"));

const OUTPUT: ParameterNames =
    ParameterNames::new("output_scale", "output_zero_point", GlobalScaleName::Divisor("output_global_scale"));

const QUERY: ParameterNames =
    ParameterNames::new("q_scale", "q_zero_point", GlobalScaleName::Divisor("q_global_scale"));

const KEY: ParameterNames = ParameterNames::new("k_scale", "k_zero_point", GlobalScaleName::Divisor("k_global_scale"));

const VALUE: ParameterNames =
    ParameterNames::new("v_scale", "v_zero_point", GlobalScaleName::Divisor("v_global_scale"));

fn is_quantized(module: &ModuleTensors<'_, '_>) -> bool {
    ["weight_packed", "weight_scale"].iter().any(|suffix| module.tensor(suffix).is_some())
}

/// The class of a module, from its name.
fn class(module: &str) -> ModuleClass {
    if is_embedding_name(module) { ModuleClass::Embedding } else { ModuleClass::Linear }
}

fn layout(module: &ModuleTensors<'_, '_>, format: Format, scheme: TensorScheme) -> Result<WeightLayout, ImportError> {
    let (rows, columns) = shape(module, format, scheme)?;
    let layer = LayerSpec::weight_only(module.name, (rows, columns), scheme, NibbleOrder::Natural);
    let parts = parts_as(format, &layer);
    let parts = parts.map_err(|error| ImportError::cannot_hold(module.name, &error))?;
    let layout = WeightLayout::of_scheme(module.name, scheme, (rows, columns), parts)?;
    let groups = module.tensor("weight_g_idx").map(|view| view.name().to_owned());
    Ok(WeightLayout { groups, ..layout })
}

/// Output and input channels.
fn shape(module: &ModuleTensors<'_, '_>, format: Format, scheme: TensorScheme) -> Result<(usize, usize), ImportError> {
    match format {
        Format::PackQuantized => stated_shape(module, scheme),
        Format::Nvfp4Pack | Format::Mxfp4Pack | Format::Mxfp6Pack => {
            let (rows, bytes) = module.matrix_shape("weight_packed")?;
            Ok((rows, Packing::Bits(scheme.format().bits()).codes_in(bytes)))
        }
        Format::IntQuantized | Format::FloatQuantized | Format::NaiveQuantized | Format::Mxfp8 => {
            module.matrix_shape("weight")
        }
    }
}

/// Rows of streams are padded to words, so that their length does not determine the number of codes.
fn stated_shape(module: &ModuleTensors<'_, '_>, scheme: TensorScheme) -> Result<(usize, usize), ImportError> {
    let view = module.need("weight_shape")?;
    let stated = scalars::integers(view)?;
    let (rows, words) = module.matrix_shape("weight_packed")?;
    let (bits, per_word) = (u64::from(scheme.format().bits()), u64::from(32 / scheme.format().bits()));
    let columns = stated.get(1).and_then(|columns| u32::try_from(*columns).ok()).map_or(0, u64::from);
    if stated.first() != i64::try_from(rows).ok().as_ref() || stated.len() != 2 {
        return Err(ImportError::invalid(view.name(), format!("says {stated:?}; {rows} rows are stored")));
    }
    match words as u64 {
        words if words == (columns * bits).div_ceil(32) => Ok((rows, columns as usize)),
        words if words == columns.div_ceil(per_word) => Err(ImportError::unsupported(
            module.tensor_name("weight_packed"),
            format!("{bits}-bit codes that do not cross words, as older versions of compressed-tensors packed them"),
            "pack it again with a current compressed-tensors",
        )),
        words => {
            let reason = format!("has {words} words in a row, which is not {columns} codes of {bits} bits");
            Err(ImportError::invalid(module.tensor_name("weight_packed"), reason))
        }
    }
}
