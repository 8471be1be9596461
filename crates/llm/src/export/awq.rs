//! AWQ's gemm layout (AutoAWQ 0.2): unsigned 4-bit codes with zero points, eight to a word along the output channels, scales
//! in binary16. Symmetric integers are held with 8 added and a zero point of 8.

use super::part::{Content, Packing, Part, ScaleEncoding};
use super::{CannotHold, LayerSpec};
use kvant_container::Dtype;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::IntScheme;

/// Codes of a word.
const WORD: usize = 8;

/// `qweight` `[in, out / 8]`, `qzeros` `[in / group, out / 8]`, `scales` `[in / group, out]`.
pub(super) fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = layer.grouped_int("AWQ", "int4 or uint4 (`uint4:g128:zp`)")?;
    check(layer, scheme)?;
    let (_, groups) = layer.scale_shape()?;
    let packing = Packing::OffsetNibbles(NibbleOrder::Awq);
    let words = layer.rows / WORD;
    let zero_points = Content::ZeroPoints { packing, transposed: true, less_one: false };
    let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed: true };
    Ok(vec![
        layer.part("qweight", Dtype::I32, [layer.columns, words], Content::Codes { packing, transposed: true }),
        layer.part("qzeros", Dtype::I32, [groups, words], zero_points),
        layer.part("scales", Dtype::F16, [groups, layer.rows], scales),
    ])
}

fn check(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<(), CannotHold> {
    if scheme.format.bits() != 4 {
        let reason = format!("AWQ has codes of 4 bits, not of {}", scheme.format.bits());
        return Err(CannotHold::new(reason, "use uint4 (`uint4:g128:zp`), or ‹format› gptq or compressed-tensors"));
    }
    if layer.ordered {
        let reason = "AWQ has no list of groups, and these channels are not grouped as they stand";
        return Err(CannotHold::new(reason, "use ‹format› gptq or compressed-tensors"));
    }
    if !layer.rows.is_multiple_of(WORD) {
        let reason = format!("AWQ packs 8 output channels to a word, and it has {}", layer.rows);
        return Err(CannotHold::new(reason, "use ‹format› compressed-tensors, or keep the layer with ‹exclude›"));
    }
    Ok(())
}
