//! The results of a search, as printed and written.

use kvant_quant::recipe::OverrideEntry;
use serde::Serialize;

use crate::evaluation::Quality;

/// A layer. Numbers that are not finite are `null` in JSON: an SQNR is infinite where nothing differs.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its name.
    pub layer: String,
    /// Its operator.
    pub op: String,
    /// The tensors whose types it has.
    pub tensors: Vec<String>,
    /// With only this layer quantized, in dB of the worst output: with the recipe's types, then with each candidate's but float.
    pub alone: Vec<Quality>,
    /// With all quantized but this layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without: Option<Quality>,
    /// The types that were chosen, where it has others than the recipe's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
}

/// The measurements and the choice.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The recipe's types, then the candidates.
    pub candidates: Vec<String>,
    /// The layers, in the order of the graph.
    pub layers: Vec<Row>,
    /// All layers with the recipe's types.
    pub recipe: Quality,
    /// The mix that was chosen; none without a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<Quality>,
    /// Bytes of the constants: of the float model, with the recipe's types, of the mix.
    pub bytes: [u64; 3],
    /// Models that were made and run.
    pub trials: usize,
    /// The additions to the recipe.
    #[serde(skip)]
    pub overrides: Vec<OverrideEntry>,
}
