//! AWQ's gemm layout: codes and zero points are unsigned and stand eight to a word along the output channels.

use super::activations::{StoredActivations, StoredAttention};
use super::catalog::Module;
use super::layout::{Element, Layout};
use super::{Method, Weight};
use crate::export::{Content, Packing, Part, ScaleEncoding};
use crate::import_error::ImportError;
use kvant_container::Dtype;
use kvant_numeric::pack::NibbleOrder;
use serde_json::Value;

pub(super) fn reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    let place = |key: &str| format!("quantization_config.{key}");
    let bits = ["bits", "w_bit"].iter().find_map(|key| config.get(*key)?.as_u64()).unwrap_or(4);
    if bits != 4 {
        return Err(ImportError::unsupported(place("bits"), format!("AWQ with {bits} bits"), HINT));
    }
    let version = config.get("version").and_then(Value::as_str).unwrap_or("gemm");
    match version.eq_ignore_ascii_case("gemm") {
        true => Ok(Box::new(Awq)),
        false => {
            let reason = format!("the layout {} of AWQ is not read", crate::recipe_error::quoted(version));
            Err(ImportError::unsupported(place("version"), reason, HINT))
        }
    }
}

const HINT: &str = "use a checkpoint with 4 bits in the gemm layout";

struct Awq;

impl Method for Awq {
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError> {
        if module.tensor("qweight").is_none() {
            return Ok(Vec::new());
        }
        let (columns, words) = module.matrix_shape("qweight")?;
        let (groups, rows) = module.matrix_shape("scales")?;
        if words.checked_mul(8) != Some(rows) || rows == 0 || groups == 0 || columns == 0 {
            let reason = format!("{words} words of 8 codes are not {rows} output channels");
            return Err(ImportError::invalid(module.tensor_name("qweight"), reason));
        }
        let part = |suffix: &str, dtype, shape: [usize; 2], content| Part {
            name: module.tensor_name(suffix),
            dtype,
            shape: shape.to_vec(),
            content,
        };
        let (packing, transposed) = (Packing::Words(NibbleOrder::Awq), true);
        let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed };
        let parts = vec![
            part("qweight", Dtype::I32, [columns, words], Content::Codes { packing, transposed }),
            part("scales", Dtype::F16, [groups, rows], scales),
            part("qzeros", Dtype::I32, [groups, words], Content::ZeroPoints { packing, transposed, less_one: false }),
        ];
        if !columns.is_multiple_of(groups) {
            let reason = format!("has {groups} groups, which do not divide {columns} input channels");
            return Err(ImportError::invalid(module.tensor_name("scales"), reason));
        }
        let element = Element::Integer { bits: 4, signed: false };
        let layout = Layout::new(element, (rows, columns), (1, columns / groups), parts);
        Ok(vec![Weight::of(module, layout)])
    }

    fn activations(&self, _module: &Module<'_, '_>) -> Result<StoredActivations, ImportError> {
        Ok(StoredActivations::default())
    }

    fn attention(&self, _module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
        Ok(StoredAttention::default())
    }
}
