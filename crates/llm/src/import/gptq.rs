//! GPTQ's layout: codes are dense streams down the input channels, zero points along the output channels, all unsigned.
//! With activation order a list says to which group each input channel belongs.

use super::activations::{StoredActivations, StoredAttention};
use super::catalog::Module;
use super::layout::{Element, Layout};
use super::{Method, Weight};
use crate::export::{Content, Packing, Part, ScaleEncoding};
use crate::import_error::ImportError;
use kvant_container::Dtype;
use serde_json::Value;

const HINT: &str = "dequantize the checkpoint with the tool that made it";

pub(super) fn reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    let format = ["checkpoint_format", "format"].iter().find_map(|key| config.get(*key)?.as_str()).unwrap_or("gptq");
    let less_one = match format {
        "gptq" => true,
        "gptq_v2" => false,
        other => {
            let reason = format!("the layout {} of GPTQ is not read", crate::recipe_error::quoted(other));
            return Err(ImportError::unsupported("quantization_config.checkpoint_format", reason, HINT));
        }
    };
    let number = |key: &str| config.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    Ok(Box::new(Gptq { bits: number("bits").unwrap_or(4), group: number("group_size"), less_one }))
}

/// AutoRound's files, where they are laid out as one of the others are.
pub(super) fn auto_round_reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    match config.get("packing_format").and_then(Value::as_str) {
        Some("auto_round:auto_gptq") => reader(config),
        Some("auto_round:auto_awq") => super::awq::reader(config),
        other => {
            let reason = format!("{} is not read", crate::recipe_error::quoted(other.unwrap_or("null")));
            Err(ImportError::unsupported("quantization_config.packing_format", reason, HINT))
        }
    }
}

struct Gptq {
    /// Bits of a code, where no list tells the number of input channels.
    bits: usize,
    /// Input channels of a group.
    group: Option<usize>,
    /// Whether zero points are stored less 1, as the first version of the format has it.
    less_one: bool,
}

impl Method for Gptq {
    fn weights(&self, module: &Module<'_, '_>) -> Result<Vec<Weight>, ImportError> {
        match module.tensor("qweight") {
            Some(_) => Ok(vec![Weight::of(module, self.layout(module)?)]),
            None => Ok(Vec::new()),
        }
    }

    fn activations(&self, _module: &Module<'_, '_>) -> Result<StoredActivations, ImportError> {
        Ok(StoredActivations::default())
    }

    fn attention(&self, _module: &Module<'_, '_>) -> Result<StoredAttention, ImportError> {
        Ok(StoredAttention::default())
    }
}

impl Gptq {
    fn layout(&self, module: &Module<'_, '_>) -> Result<Layout, ImportError> {
        let (words, rows) = module.matrix_shape("qweight")?;
        let (groups, _) = module.matrix_shape("scales")?;
        let (columns, bits) = self.columns_and_bits(module, words)?;
        if rows == 0 || groups == 0 {
            return Err(ImportError::invalid(module.name, "is empty"));
        }
        let group = self.group.filter(|group| *group > 0 && columns.div_ceil(*group) == groups);
        let part = |suffix: &str, dtype, shape: [usize; 2], content| Part {
            name: module.tensor_name(suffix),
            dtype,
            shape: shape.to_vec(),
            content,
        };
        let (packing, along) = (Packing::OffsetWordsDown(bits), Packing::OffsetWords(bits));
        let transposed = true;
        let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed };
        let zero_points = Content::ZeroPoints { packing: along, transposed, less_one: self.less_one };
        let parts = vec![
            part("qweight", Dtype::I32, [words, rows], Content::Codes { packing, transposed }),
            part("scales", Dtype::F16, [groups, rows], scales),
            part("qzeros", Dtype::I32, [groups, along.shape(1, rows)[1]], zero_points),
        ];
        let element = Element::Integer { bits, signed: false };
        let tile = (1, group.unwrap_or(columns.div_ceil(groups)));
        let groups = module.tensor("g_idx").map(|_| module.tensor_name("g_idx"));
        let layout = Layout::new(element, (rows, columns), tile, parts);
        Ok(Layout { groups, ..layout })
    }

    /// Layers may differ in bits, which the number of words tells where that of channels is known.
    fn columns_and_bits(&self, module: &Module<'_, '_>, words: usize) -> Result<(usize, u32), ImportError> {
        let listed = module.tensor("g_idx").and_then(|view| view.shape().first().copied());
        let columns = listed.unwrap_or(words.saturating_mul(32) / self.bits.max(1));
        let bits =
            [2, 3, 4, 8].into_iter().find(|bits| Some(words) == columns.checked_mul(*bits).map(|b| b.div_ceil(32)));
        match bits.filter(|_| columns > 0) {
            Some(bits) => Ok((columns, bits as u32)),
            None => {
                let reason = format!("{words} words are not {columns} codes of 2, 3, 4 or 8 bits");
                Err(ImportError::invalid(module.tensor_name("qweight"), reason))
            }
        }
    }
}
