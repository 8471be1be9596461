//! MXFP4 as gpt-oss is published: the experts of a block in two tensors, `*_blocks` `[experts, out, in / 32, 16]` with two
//! codes a byte, the even one low, and `*_scales` `[experts, out, in / 32]` of powers of two. The float tensor that they
//! stand for is `[experts, in, out]`.

use super::activations::{StoredActivations, StoredAttention};
use super::catalog::Module;
use super::layout::{Element, Layout};
use super::{Method, Weight};
use crate::export::{Content, Packing, Part, ScaleEncoding};
use crate::import_error::ImportError;
use kvant_container::{Dtype, TensorView};
use kvant_numeric::format::MiniFloat;
use serde_json::Value;

/// Codes that share a scale.
const BLOCK: usize = 32;

pub(super) fn reader(_config: &Value) -> Result<Box<dyn Method>, ImportError> {
    Ok(Box::new(Mxfp4))
}

struct Mxfp4;

impl Method for Mxfp4 {
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError> {
        let blocks = module.suffixes().filter_map(|suffix| suffix.strip_suffix("_blocks"));
        blocks.map(|name| weight(module, name)).collect()
    }

    fn activations(&self, _module: &Module<'_, '_>) -> Result<StoredActivations, ImportError> {
        Ok(StoredActivations::default())
    }

    fn attention(&self, _module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
        Ok(StoredAttention::default())
    }
}

fn weight(module: &Module<'_, '_>, name: &str) -> Result<Weight, ImportError> {
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
    let layout = Layout::new(Element::Float(MiniFloat::E2M1), (rows, columns), (1, BLOCK), parts);
    let expert = |expert: usize| Layout { slice: (expert, experts), ..layout.clone() };
    Ok(Weight {
        name: module.tensor_name(name),
        shape: vec![experts, columns, rows],
        matrices: (0..experts).map(expert).collect(),
    })
}
