//! fp8 weights with scales beside them: one for the tensor, an output channel, or a block (DeepSeek, Qwen). Named `fp8` by
//! most tools, `fbgemm_fp8` by one; also what is met without a word in config.json, or among the layers that other
//! methods leave alone.

use super::activations::{Places, StoredActivations, StoredAttention, TensorScalePlace};
use super::catalog::Module;
use super::layout::{Element, Layout};
use super::{Method, Weight};
use crate::export::{Content, Packing, Part, ScaleEncoding};
use crate::import_error::ImportError;
use kvant_container::Dtype;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, FloatScheme, Granularity, ScaleType, TensorScheme, Timing,
};
use serde_json::Value;
use std::num::NonZeroU32;

/// The names that tools give to the tensor of scales. Despite one of them scales multiply.
const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

pub(super) fn reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    let inputs = match config.get("activation_scheme").and_then(Value::as_str) {
        Some("static") => Inputs::Static,
        Some("dynamic") => Inputs::Dynamic,
        None => Inputs::Float,
        Some(other) => {
            let reason = format!("{} is not read", crate::recipe_error::quoted(other));
            let hint = "use a checkpoint with static or dynamic scales of activations";
            return Err(ImportError::unsupported("quantization_config.activation_scheme", reason, hint));
        }
    };
    Ok(Box::new(Fp8 { block: stated_block(config), inputs }))
}

/// fbgemm's weights have a scale an output channel, its inputs one a token. The upper bound of the latter only matters for
/// tokens beyond a thousand times what models have.
pub(super) fn fbgemm_reader(_config: &Value) -> Result<Box<dyn Method>, ImportError> {
    Ok(Box::new(Fp8 { block: None, inputs: Inputs::Dynamic }))
}

struct Fp8 {
    /// Rows and columns that share a scale.
    block: Option<(usize, usize)>,
    inputs: Inputs,
}

/// How inputs are quantized.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inputs {
    Float,
    Static,
    Dynamic,
}

impl Fp8 {
    /// Whether a weight is cut into blocks along its input channels, be it into one.
    fn is_in_blocks(&self, layout: &Layout) -> bool {
        let stated = self.block.is_some() && layout.tile.1 == layout.columns;
        stated || layout.tile.1 < layout.columns
    }
}

impl Method for Fp8 {
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError> {
        Ok(layout(module, self.block)?.map(|layout| Weight::of(module, layout)).into_iter().collect())
    }

    fn activations(&self, module: &Module<'_, '_>) -> Result<StoredActivations, ImportError> {
        let Some(layout) = layout(module, self.block)? else { return Ok(StoredActivations::default()) };
        let scheme = match self.inputs {
            Inputs::Float => None,
            Inputs::Static => Some(e4m3(Granularity::Tensor, Timing::Static)),
            // Blocks of weights go with groups of inputs as wide, other weights with one scale a token.
            Inputs::Dynamic if self.is_in_blocks(&layout) => {
                let group = u32::try_from(layout.tile.1).ok().and_then(NonZeroU32::new);
                Some(e4m3(Granularity::Group { axis: Axis::Columns, size: group }, Timing::Dynamic))
            }
            Inputs::Dynamic => Some(e4m3(Granularity::Channel(Axis::Rows), Timing::Dynamic)),
        };
        let input = scheme.map(|scheme| INPUT.read(module, scheme)).transpose()?;
        Ok(StoredActivations { input, output: None })
    }

    fn attention(&self, module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
        cache(module)
    }
}

pub(super) const INPUT: Places = Places {
    scale: "input_scale",
    zero_point: "input_zero_point",
    tensor_scale: TensorScalePlace::Multiplier("input_scale"),
};

/// The scales of an fp8 cache, in the module of attention or in those that make keys and values; older tools wrote one
/// for both.
pub(super) fn cache(module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
    let read = |own: &'static str| {
        let suffix = [own, "kv_scale"].into_iter().find(|suffix| module.tensor(suffix).is_some());
        let places = suffix.map(|scale| Places { scale, ..INPUT });
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

/// How the weight of a module is stored, if it is an fp8 matrix with scales.
pub(super) fn layout(module: &Module<'_, '_>, stated: Option<(usize, usize)>) -> Result<Option<Layout>, ImportError> {
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
    Ok(Some(Layout::new(Element::Float(format), (rows, columns), tile, parts)))
}

/// `weight_block_size` of a quantization_config.
pub(crate) fn stated_block(config: &Value) -> Option<(usize, usize)> {
    let block = config.get("weight_block_size")?.as_array()?;
    let size = |i: usize| block.get(i)?.as_u64().filter(|size| *size > 0).map(|size| size as usize);
    Some((size(0)?, size(1)?))
}

/// Rows and columns that share a scale, from the shape of the scales; `None` where it does not fit the weight.
pub(crate) fn scale_block(
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
    fn blocks_are_never_empty() {
        assert_eq!(scale_block(&[1], 0, 64, None), Some((1, 64)));
        assert_eq!(scale_block(&[2, 3], 32, 40, Some((16, 16))), Some((16, 16)));
        assert_eq!(scale_block(&[2, 3], 32, 40, None), Some((16, 14)));
        assert_eq!(scale_block(&[2, 3], 0, 0, Some((16, 16))), None);
    }
}
