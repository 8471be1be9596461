//! What files say of codes that belong to no model: an entry of their metadata, since there is no config.json. Written, and read
//! by the importer.

use crate::export::{Content, Packing, Part, TENSORS_METHOD};
use kvant_container::Checkpoint;
use kvant_quant::scheme::LayerScheme;
use serde_json::{Map, Value, json};

/// What the metadata of a checkpoint's files says of codes that belong to no model.
pub fn described(checkpoint: &Checkpoint) -> Option<Value> {
    let text = checkpoint.metadata().remove(METADATA_KEY)?;
    // A text that cannot be parsed describes nothing.
    Some(serde_json::from_str(&text).unwrap_or_else(|_| reference()))
}

/// The key in the metadata of safetensors files.
pub const METADATA_KEY: &str = "kvant.quantization";

/// The version of the description.
const VERSION: u64 = 1;

/// A layer, and the tensors that it has become.
#[derive(Clone, Copy, Debug)]
pub struct DescribedLayer<'a> {
    /// The module's name: its tensors are `name.weight` and so on.
    pub name: &'a str,
    /// Output and input channels.
    pub shape: (usize, usize),
    /// How it is quantized.
    pub scheme: LayerScheme,
    /// Its tensors.
    pub parts: &'a [Part],
}

/// What config.json says where there is one: the rest stands in the metadata.
pub(crate) fn reference() -> Value {
    json!({ "quant_method": TENSORS_METHOD, "version": VERSION, "described_in": METADATA_KEY })
}

/// The description of all layers: of each its scheme, its shape, the type of its codes, how many weights share a scale, and how
/// codes are packed. A weight is `(code - zero point) * scale`.
pub(crate) fn description<'a>(layers: impl Iterator<Item = DescribedLayer<'a>>) -> Value {
    let layers: Map<String, Value> = layers.map(|layer| (layer.name.to_owned(), of_layer(&layer))).collect();
    json!({ "quant_method": TENSORS_METHOD, "version": VERSION, "layers": layers })
}

fn of_layer(layer: &DescribedLayer<'_>) -> Value {
    let weight = layer.scheme.weight;
    let (rows, columns) = layer.shape;
    let group = weight.granularity().map(|granularity| granularity.tile(rows, columns));
    json!({
        "scheme": layer.scheme.to_string(),
        "dtype": weight.format().to_string(),
        "shape": [rows, columns],
        "group": group.map(|(rows, columns)| [rows, columns]),
        "packing": layer.parts.iter().find_map(packing),
    })
}

/// How codes become bytes, in words.
fn packing(part: &Part) -> Option<String> {
    let Content::Codes { packing, .. } = part.content else { return None };
    Some(match packing {
        Packing::Bytes => "one byte a code".to_owned(),
        Packing::Bits(bits) => format!("rows of {bits}-bit codes from the low bits up, each row padded to bytes"),
        Packing::Words(order) => format!("eight 4-bit codes to a 32-bit word, order {order:?}"),
        other => format!("{other:?}"),
    })
}
