//! Zero points: in range where they are stored in more bits than codes have, and in the middle where config.json says that
//! codes are symmetric, because kernels for such do not read them.

use super::DAMAGED;
use crate::import::survey::StoredWeight;
use crate::verify::scan;
use crate::verify::subject::CheckpointView;
use kvant_container::TensorView;
use kvant_quant::finding::Findings;
use kvant_weights::parts::{Content, Packing};

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for weight in &subject.survey.weights {
        let is_symmetric = subject.statement.as_ref().is_some_and(|stated| stated.is_symmetric(&weight.module));
        for (packing, view) in zero_points(weight) {
            range(weight, packing, view, findings);
            if is_symmetric || !weight.zero_points {
                middle(weight, packing, view, findings);
            }
        }
    }
}

fn zero_points<'w, 'a>(weight: &'w StoredWeight<'a>) -> impl Iterator<Item = (Packing, TensorView<'a>)> + use<'w, 'a> {
    weight.parts.iter().filter_map(|(content, view)| match content {
        Content::ZeroPoints { packing, .. } => Some((*packing, *view)),
        _ => None,
    })
}

/// Codes that have a byte or a word each may be out of range.
fn range(weight: &StoredWeight<'_>, packing: Packing, view: TensorView<'_>, findings: &mut Findings) {
    let signed = !weight.element.starts_with('u');
    let (least, most) = if signed {
        (-(1i64 << (weight.bits - 1)), (1i64 << (weight.bits - 1)) - 1)
    } else {
        (0, (1i64 << weight.bits) - 1)
    };
    let bytes = view.bytes();
    let is_out = |value: i64| value < least || value > most;
    let out = match packing {
        Packing::Bytes if signed => bytes.iter().filter(|byte| is_out(i64::from(**byte as i8))).count(),
        Packing::Bytes => bytes.iter().filter(|byte| is_out(i64::from(**byte))).count(),
        Packing::Int32 => {
            bytes.as_chunks::<4>().0.iter().filter(|word| is_out(i64::from(i32::from_le_bytes(**word)))).count()
        }
        _ => 0,
    };
    view.release();
    if out > 0 {
        findings.error(view.name(), format!("{out} zero points are outside of {least} to {most}"), DAMAGED);
    }
}

/// The byte that a symmetric layer's zero points are made of; `None` where they do not fill bytes.
fn middle_byte(weight: &StoredWeight<'_>, packing: Packing) -> Option<u8> {
    let unsigned = weight.element.starts_with('u');
    let code = match (unsigned, weight.less_one) {
        (false, _) => 0,
        (true, less_one) => (1u32 << (weight.bits - 1)) - u32::from(less_one),
    };
    match (packing, weight.bits) {
        (Packing::OffsetWords(_) | Packing::OffsetWordsDown(_), _) if !unsigned => None,
        (Packing::Bytes | Packing::Int32, _) if !unsigned => Some(0),
        (Packing::Bytes | Packing::Int32, _) => None,
        (_, bits @ (2 | 4 | 8)) => Some((0..8 / bits).fold(0, |byte, at| byte | code << (at * bits)) as u8),
        _ => None,
    }
}

fn middle(weight: &StoredWeight<'_>, packing: Packing, view: TensorView<'_>, findings: &mut Findings) {
    let Some(byte) = middle_byte(weight, packing) else { return };
    if !scan::is_all(view, byte) {
        let reason = "the layer is symmetric, and some of its zero points are not in the middle: kernels ignore them";
        findings.error(view.name(), reason, "say in config.json that codes are asymmetric");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::pack::NibbleOrder;

    fn weight(element: &str, bits: u32, less_one: bool) -> StoredWeight<'static> {
        StoredWeight {
            module: String::new(),
            rows: 8,
            columns: 8,
            element: element.to_owned(),
            float: None,
            bits,
            tile: (1, 8),
            two_stages: false,
            zero_points: true,
            scales: None,
            global_scale: false,
            matrices: 1,
            less_one,
            parts: Vec::new(),
            groups: None,
            is_reordered: false,
            granularity: None,
        }
    }

    #[test]
    fn middle_byte_of_packed_codes() {
        let byte = |element: &str, bits, less_one, packing| middle_byte(&weight(element, bits, less_one), packing);
        assert_eq!(byte("uint4", 4, true, Packing::OffsetWords(4)), Some(0x77));
        assert_eq!(byte("uint4", 4, false, Packing::OffsetWords(4)), Some(0x88));
        assert_eq!(byte("uint8", 8, true, Packing::OffsetWords(8)), Some(0x7F));
        assert_eq!(byte("uint2", 2, true, Packing::OffsetWords(2)), Some(0x55));
        assert_eq!(byte("uint3", 3, true, Packing::OffsetWords(3)), None);
        assert_eq!(byte("int4", 4, false, Packing::Words(NibbleOrder::Awq)), Some(0));
        assert_eq!(byte("int8", 8, false, Packing::Bytes), Some(0));
    }
}
