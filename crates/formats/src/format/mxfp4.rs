//! MXFP4 as gpt-oss is published (`quant_method` mxfp4): the experts of a block in two tensors, `*_blocks`
//! `[experts, out, in / 32, 16]` with two codes a byte, the even one low, and `*_scales` `[experts, out, in / 32]` of powers of two. The
//! float tensor that they hold is `[experts, in, out]`. Only experts that are one tensor are quantized.

use super::stored::{CodeType, ModuleReader, ModuleTensors, ModuleWeight, WeightLayout};
use super::{Capabilities, CheckpointFormat, ExcludedNames, ModelDescription};
use kvant_container::{Dtype, TensorView};
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{FloatScale, FloatScheme, Granularity, TensorScheme};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{CannotHold, Content, LayerSpec, Packing, Part, ScaleEncoding};
use serde_json::{Value, json};

/// The format.
pub(super) struct Mxfp4;

impl CheckpointFormat for Mxfp4 {
    fn name(&self) -> &'static str {
        "mxfp4"
    }

    fn about(&self) -> &'static str {
        "MXFP4 experts as gpt-oss is published; other tensors are kept"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fused_experts_only: true,
            excluded_names: ExcludedNames::Parts,
            excluded_fields: &["modules_to_not_convert"],
            ..Capabilities::of_method("mxfp4", &["mxfp4"])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(layer)
    }

    /// Experts are quantized, so only the others are named.
    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        Ok(json!({"modules_to_not_convert": model.exclude, "quant_method": "mxfp4"}))
    }

    fn reader(&self, _method: &str, _config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        Ok(Box::new(Mxfp4Reader))
    }
}

/// Codes that share a scale.
const BLOCK: usize = 32;

/// `*_blocks` `[experts, out, in / 32, 16]` and `*_scales` `[experts, out, in / 32]`, the same for all experts of a tensor.
fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let Some(fused) = layer.fused else {
        let reason = "gpt-oss's layout holds experts that are one tensor, and nothing else";
        return Err(CannotHold::new(reason, "use ‹format› quark or compressed-tensors"));
    };
    if !is_mxfp4(layer) {
        let reason = format!("gpt-oss's layout has no `{}`", layer.scheme);
        return Err(CannotHold::new(reason, "use mxfp4_weight_only (e2m1:g32:e8m0)"));
    }
    let blocks = layer.columns / BLOCK;
    let part = |suffix: &str, shape: Vec<usize>, content| Part {
        name: format!("{}_{suffix}", fused.module),
        dtype: Dtype::U8,
        shape,
        content,
    };
    let codes = Content::Codes { packing: Packing::Bits(4), transposed: false };
    let scales = Content::Scales { encoding: ScaleEncoding::E8m0, transposed: false };
    Ok(vec![
        part("blocks", vec![fused.count, layer.rows, blocks, BLOCK / 2], codes),
        part("scales", vec![fused.count, layer.rows, blocks], scales),
    ])
}

fn is_mxfp4(layer: &LayerSpec<'_>) -> bool {
    let grouped = Granularity::group(BLOCK as u32);
    let weight = matches!(layer.scheme.weight, TensorScheme::Float(FloatScheme { format: MiniFloat::E2M1, granularity, scale: FloatScale::E8m0(_), .. }) if granularity == grouped);
    weight && layer.scheme.input.is_none() && layer.scheme.output.is_none()
}

/// Reads blocks of experts.
#[derive(Debug)]
struct Mxfp4Reader;

impl ModuleReader for Mxfp4Reader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let blocks = module.suffixes().filter_map(|suffix| suffix.strip_suffix("_blocks"));
        blocks.map(|name| weight(module, name)).collect()
    }
}

fn weight(module: &ModuleTensors<'_, '_>, name: &str) -> Result<ModuleWeight, ImportError> {
    let (codes, scales) = (module.need(&format!("{name}_blocks"))?, module.need(&format!("{name}_scales"))?);
    let wrong = || ImportError::invalid(codes.name(), format!("shape {:?} is not that of blocks", codes.shape()));
    let &[experts, rows, groups, 16] = codes.shape() else { return Err(wrong()) };
    if experts == 0 || rows == 0 || groups == 0 {
        return Err(wrong());
    }
    let columns = groups * BLOCK;
    let part = |view: TensorView<'_>, shape: &[usize], content| Part {
        name: view.name().to_owned(),
        dtype: Dtype::U8,
        shape: shape.to_vec(),
        content,
    };
    let packed = Content::Codes { packing: Packing::Bits(4), transposed: false };
    let powers = Content::Scales { encoding: ScaleEncoding::E8m0, transposed: false };
    let parts = vec![part(codes, codes.shape(), packed), part(scales, &[experts, rows, groups], powers)];
    let layout = WeightLayout::new(CodeType::Float(MiniFloat::E2M1), (rows, columns), (1, BLOCK), parts);
    let expert = |expert: usize| WeightLayout { slice: (expert, experts), ..layout.clone() };
    Ok(ModuleWeight {
        name: module.tensor_name(name),
        shape: vec![experts, columns, rows],
        matrices: (0..experts).map(expert).collect(),
    })
}
