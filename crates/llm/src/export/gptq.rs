//! GPTQ's layout (AutoGPTQ, GPTQModel): unsigned codes of 2, 3, 4 or 8 bits as streams down the input channels, zero points
//! along the output channels, scales in binary16, and the group of every input channel. The first version stores zero points
//! less 1, the second as they are.

use super::part::{Content, Packing, Part, ScaleEncoding};
use super::{CannotHold, LayerSpec};
use kvant_container::Dtype;

/// How zero points are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Less 1.
    One,
    /// As they are.
    Two,
}

/// `qweight` `[in * bits / 32, out]`, `qzeros` `[in / group, out * bits / 32]`, `scales` `[in / group, out]`, `g_idx` `[in]`.
pub(super) fn parts(version: Version, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = layer.grouped_int("GPTQ", "integers of 2, 3, 4 or 8 bits (`int4:g128`)")?;
    let bits = scheme.format.bits();
    check(version, layer, bits)?;
    let (_, groups) = layer.scale_shape()?;
    let (down, along) = (Packing::OffsetWordsDown(bits), Packing::OffsetWords(bits));
    let zero_points = Content::ZeroPoints { packing: along, transposed: true, less_one: version == Version::One };
    let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed: true };
    let codes = Content::Codes { packing: down, transposed: true };
    Ok(vec![
        layer.part("qweight", Dtype::I32, down.shape(layer.columns, layer.rows), codes),
        layer.part("qzeros", Dtype::I32, along.shape(groups, layer.rows), zero_points),
        layer.part("scales", Dtype::F16, [groups, layer.rows], scales),
        layer.part("g_idx", Dtype::I32, [layer.columns], Content::Groups),
    ])
}

fn check(version: Version, layer: &LayerSpec<'_>, bits: u32) -> Result<(), CannotHold> {
    if !matches!(bits, 2 | 3 | 4 | 8) {
        let reason = format!("GPTQ has codes of 2, 3, 4 or 8 bits, not of {bits}");
        return Err(CannotHold::new(reason, "use another width, or ‹format› compressed-tensors"));
    }
    if (version, bits) == (Version::One, 3) {
        let reason = "readers of GPTQ's first version do not agree on zero points of 3 bits";
        return Err(CannotHold::new(reason, "use ‹format› gptq_v2"));
    }
    let odd = [("output", layer.rows), ("input", layer.columns)];
    match odd.into_iter().find(|(_, length)| !(length * bits as usize).is_multiple_of(32)) {
        None => Ok(()),
        Some((axis, length)) => Err(CannotHold::new(
            format!("GPTQ fills whole words, which {length} {axis} channels of {bits} bits do not"),
            "use ‹format› compressed-tensors, or keep the layer with ‹exclude›",
        )),
    }
}
