//! Tensor parallelism: how engines cut the weights of a model for several devices, and where a cut falls into a group, a
//! block or a word. Column-parallel layers (q, k, v, gate, up, the head) are cut along their output channels,
//! row-parallel ones (the output of attention, down) along their input channels (arXiv 1909.08053); routers and latents are
//! repeated. What single loaders ask beyond that is in their rules.

use crate::import::survey::StoredWeight;
use kvant_model::family::Role;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Linear, Network};
use kvant_quant::scheme::{Axis, Granularity};
use kvant_weights::parts::{Content, Packing};
use std::collections::HashMap;

/// The sharding of a model's layers.
#[derive(Debug, Default)]
pub(crate) struct Sharding {
    layers: Vec<Sharded>,
    by_module: HashMap<String, usize>,
    heads: Option<usize>,
    key_value_heads: Option<usize>,
}

/// The sharding of a layer.
#[derive(Debug)]
pub(crate) struct Sharded {
    pub module: String,
    pub rows: usize,
    columns: usize,
    cut: Cut,
    /// See [`fused_rows`].
    pub fused_rows: Option<usize>,
    /// Rows and columns that must stay together, and why.
    units: Vec<Unit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Rows,
    /// The rows of keys and values, which are repeated if there are fewer heads than devices.
    KeyValueRows,
    Columns,
    Nowhere,
}

/// A unit that must not be split.
#[derive(Debug)]
struct Unit {
    rows: usize,
    columns: usize,
    name: &'static str,
}

impl Cut {
    fn of(role: Role) -> Cut {
        match role {
            Role::Key | Role::Value => Cut::KeyValueRows,
            Role::Query
            | Role::QueryKeyValue
            | Role::QueryUp
            | Role::OutputDown
            | Role::KeyValueUp
            | Role::HeadGate
            | Role::Gate
            | Role::Up
            | Role::GateUp
            | Role::RecurrentInput
            | Role::RecurrentQuery
            | Role::RecurrentKey
            | Role::RecurrentValue
            | Role::RecurrentGate
            | Role::RecurrentInputGate
            | Role::RecurrentDecay
            | Role::RecurrentSteps
            | Role::RecurrentDecayUp
            | Role::RecurrentGateUp
            | Role::RecurrentStrength
            | Role::RecurrentRates
            | Role::RecurrentStep
            | Role::Head => Cut::Rows,
            Role::Output | Role::Down | Role::RecurrentChoice => Cut::Columns,
            Role::QueryDown
            | Role::KeyValueDown
            | Role::RecurrentDecayDown
            | Role::RecurrentGateDown
            | Role::Router
            | Role::SharedGate
            | Role::IndexQuery
            | Role::IndexKey
            | Role::IndexGate
            | Role::IndexWeights
            | Role::KeyValue
            | Role::CompressedKey
            | Role::CompressedGate
            | Role::LaneInput
            | Role::LaneOutput
            | Role::LaneRouter
            | Role::LanePrediction
            | Role::LaneCorrection
            | Role::LowRankDown
            | Role::LowRankUp
            | Role::LayerInputs
            | Role::LayerInputGate
            | Role::LayerInputOutput
            | Role::ProjectIn
            | Role::ProjectOut
            | Role::Readout
            | Role::Unknown => Cut::Nowhere,
        }
    }
}

/// The output channels of a part of a layer that engines fuse, or that is stored so (Phi-3): blocks of weights must not straddle parts.
/// Queries, keys and values are parts of different sizes, of which this is the largest common divisor. `None` of a layer alone.
pub fn fused_rows(linear: &Linear, config: &ModelConfig) -> Option<usize> {
    let parts = || {
        let (keys, width) = (config.num_kv_heads()?, config.head_dim()?);
        let values = keys.checked_mul(config.value_dim()?)?;
        Some([config.num_heads?.checked_mul(width)?, keys.checked_mul(width)?, values])
    };
    match linear.role {
        Role::QueryKeyValue => parts().map(|parts| parts.into_iter().fold(0, gcd)),
        Role::GateUp => Some(linear.out_features / 2),
        // Its queries and keys are one part each, and its values.
        Role::RecurrentInput => config.delta.as_ref().and_then(|delta| {
            let values = delta.value_heads.checked_mul(delta.value_dim)?;
            Some(gcd(delta.key_heads.checked_mul(delta.key_dim)?, values))
        }),
        _ => linear.siblings.map(|_| linear.out_features),
    }
}

/// The greatest common divisor; of 0 and a number the number.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Sharding {
    /// The sharding of a checkpoint.
    pub fn new(config: &ModelConfig, network: &Network, weights: &[StoredWeight<'_>]) -> Sharding {
        let stored: HashMap<&str, &StoredWeight<'_>> = weights.iter().map(|weight| (&*weight.module, weight)).collect();
        let known = network.linears().iter().filter(|linear| linear.out_features > 0 && linear.in_features > 0);
        let layers: Vec<Sharded> =
            known.map(|linear| Sharded::new(linear, config, stored.get(linear.module.as_str()).copied())).collect();
        let by_module = layers.iter().enumerate().map(|(at, layer)| (layer.module.clone(), at)).collect();
        let is_latent = config.latent.is_some();
        Sharding {
            layers,
            by_module,
            heads: config.num_heads.filter(|_| network.family().is_some()),
            key_value_heads: config.num_kv_heads().filter(|_| network.family().is_some() && !is_latent),
        }
    }

    /// A layer.
    pub fn layer(&self, module: &str) -> Option<&Sharded> {
        self.by_module.get(module).map(|at| &self.layers[*at])
    }

    /// The obstacles to splitting the model over a number of devices: place and reason.
    pub fn problems(&self, ways: usize) -> impl Iterator<Item = (String, String)> {
        let layers = self.layers.iter().flat_map(move |layer| layer.problems(ways, self.key_value_heads));
        self.head_problems(ways).into_iter().chain(layers)
    }

    fn head_problems(&self, ways: usize) -> Option<(String, String)> {
        let place = |key: &str| format!("config.json: {key}");
        let uneven = |heads: &usize| !heads.is_multiple_of(ways);
        if let Some(heads) = self.heads.filter(uneven) {
            return Some((
                place("num_attention_heads"),
                format!("{heads} heads cannot be split across {ways} devices"),
            ));
        }
        let heads = self.key_value_heads.filter(|heads| uneven(heads) && !ways.is_multiple_of((*heads).max(1)))?;
        Some((
            place("num_key_value_heads"),
            format!("{heads} heads of keys and values can neither be split across {ways} devices nor repeated on them"),
        ))
    }
}

impl Sharded {
    fn new(linear: &Linear, config: &ModelConfig, stored: Option<&StoredWeight<'_>>) -> Sharded {
        Sharded {
            module: linear.module.clone(),
            rows: linear.out_features,
            columns: linear.in_features,
            cut: Cut::of(linear.role),
            fused_rows: fused_rows(linear, config),
            units: stored.map(units).unwrap_or_default(),
        }
    }

    /// Output and input channels of a shard; `None` where the layer cannot be cut evenly.
    pub fn shard(&self, ways: usize) -> Option<(usize, usize)> {
        let even = |length: usize| length.is_multiple_of(ways).then(|| length / ways);
        match self.cut {
            Cut::Rows => Some((even(self.rows)?, self.columns)),
            Cut::KeyValueRows => Some((even(self.rows).unwrap_or(self.rows), self.columns)),
            Cut::Columns => Some((self.rows, even(self.columns)?)),
            Cut::Nowhere => Some((self.rows, self.columns)),
        }
    }

    fn problems(&self, ways: usize, key_value_heads: Option<usize>) -> Vec<(String, String)> {
        let ways = match (self.cut, key_value_heads) {
            (Cut::Nowhere, _) => 1,
            (Cut::KeyValueRows, Some(heads)) => ways.min(heads),
            _ => ways,
        };
        // Embeddings and heads are padded.
        let is_head = self.module.ends_with("lm_head") || self.module.ends_with("embed_out");
        if ways <= 1 || is_head {
            return Vec::new();
        }
        let problem = |reason: String| vec![(self.module.clone(), reason)];
        let (length, axis) = match self.cut {
            Cut::Columns => (self.columns, "input"),
            _ => (self.rows, "output"),
        };
        if !length.is_multiple_of(ways) {
            return problem(format!("{length} {axis} channels cannot be split across {ways} devices"));
        }
        let shard = length / ways;
        let size = |unit: &Unit| if self.cut == Cut::Columns { unit.columns } else { unit.rows };
        let split = self.units.iter().find(|unit| size(unit) > 1 && !shard.is_multiple_of(size(unit)));
        split.map_or_else(Vec::new, |unit| {
            let (size, name) = (size(unit), unit.name);
            problem(format!("{name} of {size} {axis} channels straddle shards of {shard}"))
        })
    }
}

/// Groups and blocks, and the words of packed codes.
fn units(weight: &StoredWeight<'_>) -> Vec<Unit> {
    let (rows, columns) = weight.tile;
    let limited = |size: usize, whole: usize| if size >= whole { 1 } else { size };
    let is_grouped = matches!(weight.granularity, Some(Granularity::Group { axis: Axis::Columns, size: Some(_) }));
    let columns = match () {
        // With groups in another order every device keeps all scales.
        () if weight.is_reordered => 1,
        // A group stays one where it is all of a row.
        () if is_grouped => columns,
        () => limited(columns, weight.columns),
    };
    let tile = Unit { rows: limited(rows, weight.rows), columns, name: if rows > 1 { "blocks" } else { "groups" } };
    let words = weight.parts.iter().filter_map(|(content, _)| match content {
        Content::Codes { packing, transposed } | Content::ZeroPoints { packing, transposed, .. } => {
            let codes = codes_in_unit(*packing)?;
            // Zero points have no separate input channels.
            let is_zero_points = matches!(content, Content::ZeroPoints { .. });
            let along_rows = *transposed != matches!(packing, Packing::OffsetWordsDown(_));
            let (rows, columns) = if along_rows { (codes, 1) } else { (1, if is_zero_points { 1 } else { codes }) };
            Some(Unit { rows, columns, name: "words" })
        }
        _ => None,
    });
    std::iter::once(tile).chain(words).collect()
}

/// The least number of codes that end where a byte or a word does.
fn codes_in_unit(packing: Packing) -> Option<usize> {
    let (bits, unit) = match packing {
        Packing::Bytes | Packing::Int32 => return None,
        Packing::Words(_) | Packing::OffsetNibbles(_) => (4, 32),
        Packing::Bits(bits) => (bits, 8),
        Packing::OffsetWords(bits) | Packing::OffsetWordsDown(bits) => (bits, 32),
        Packing::CrumbsFirstHigh => (2, 8),
    };
    (1..=32usize).find(|codes| (codes * bits as usize).is_multiple_of(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::pack::NibbleOrder;

    fn layer(cut: Cut, units: Vec<Unit>) -> Sharded {
        Sharded { module: "m".to_owned(), rows: 96, columns: 384, cut, fused_rows: None, units }
    }

    #[test]
    fn shards_must_not_split_groups_blocks_or_words() {
        let group = || vec![Unit { rows: 1, columns: 128, name: "groups" }];
        assert!(layer(Cut::Rows, group()).problems(4, None).is_empty());
        let found = layer(Cut::Columns, group()).problems(2, None);
        assert_eq!(found[0].1, "groups of 128 input channels straddle shards of 192");
        assert!(layer(Cut::Columns, group()).problems(3, None).is_empty());
        let words = || vec![Unit { rows: 8, columns: 1, name: "words" }];
        assert!(layer(Cut::Rows, words()).problems(4, None).is_empty());
        assert_eq!(
            layer(Cut::Rows, words()).problems(8, None)[0].1,
            "words of 8 output channels straddle shards of 12"
        );
        assert!(layer(Cut::Nowhere, words()).problems(7, None).is_empty());
        assert!(layer(Cut::Rows, Vec::new()).problems(7, None)[0].1.contains("cannot be split across"));
    }

    #[test]
    fn key_value_heads_are_repeated_across_shards() {
        let words = || vec![Unit { rows: 8, columns: 1, name: "words" }];
        assert!(layer(Cut::KeyValueRows, words()).problems(8, Some(2)).is_empty());
        assert!(!layer(Cut::KeyValueRows, words()).problems(8, Some(8)).is_empty());
    }

    #[test]
    fn codes_per_packing_unit() {
        assert_eq!(codes_in_unit(Packing::Words(NibbleOrder::Awq)), Some(8));
        assert_eq!(codes_in_unit(Packing::OffsetWords(3)), Some(32));
        assert_eq!(codes_in_unit(Packing::OffsetWords(8)), Some(4));
        assert_eq!(codes_in_unit(Packing::Bits(6)), Some(4));
        assert_eq!(codes_in_unit(Packing::Bytes), None);
    }
}
