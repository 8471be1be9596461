//! Recurrent mixers as tensors of the file: their layers in the order of llama.cpp's graph, the convolution as a matrix, and rates of decay
//! instead of their logarithms.
//!
//! Source: `conversion/` and `src/models/mamba-base.cpp`, `delta-net-base.cpp`, `qwen3next.cpp`, `qwen35.cpp`, `kimi-linear.cpp`, `bailingmoe3.cpp` and
//! `lfm2.cpp` of llama.cpp.

use super::drafts::{Builder, Draft};
use super::{Change, Content, GgufPlanError, TensorSlice, names};
use crate::ftype::Category;
use kvant_model::family::{Part, RecurrentMixer, RecurrentParameter, Role};
use kvant_model::model_config::{DeltaConfig, MambaConfig};
use kvant_model::network::{Linear, TensorMeta};
use kvant_weights::weight::RowMap;

/// A tensor of the file that a layer becomes: its stem, and the runs of rows that it is put together from.
type Piece = (&'static str, Vec<RowMap>);

/// Value heads of a gated delta net, and how the file has them.
struct Heads {
    delta: DeltaConfig,
    /// Value heads of each key head.
    shared: usize,
    /// Whether those of each key head stand apart: first the first of every key head, then the second ones.
    tiled: bool,
}

impl Heads {
    /// Rows of all value heads, of so many each, behind others.
    fn values(&self, before: usize, width: usize) -> Vec<RowMap> {
        let all = RowMap::Run { first: before, count: self.delta.value_heads * width };
        if !self.tiled || self.shared == 1 {
            return vec![all];
        }
        let head = |key: usize, value: usize| before + (key * self.shared + value) * width;
        let of_value = |value| (0..self.delta.key_heads).map(move |key| (key, value));
        let order = (0..self.shared).flat_map(of_value);
        order.map(|(key, value)| RowMap::Run { first: head(key, value), count: width }).collect()
    }

    /// Rows of queries, keys and values.
    fn channels(&self) -> Vec<RowMap> {
        let keys = 2 * self.delta.key_heads * self.delta.key_dim;
        std::iter::once(RowMap::Run { first: 0, count: keys }).chain(self.values(keys, self.delta.value_dim)).collect()
    }

    /// Rows of queries, keys and values, and of gates, stored together for each key head: `[q; k; v ..; z ..]`.
    fn unfolded(&self) -> [Vec<RowMap>; 2] {
        let DeltaConfig { key_heads, key_dim, value_dim, .. } = self.delta;
        let values = self.shared * value_dim;
        let step = 2 * key_dim + 2 * values;
        let runs = |before: usize, count: usize| {
            (0..key_heads).map(move |head| RowMap::Run { first: head * step + before, count })
        };
        let channels = runs(0, key_dim).chain(runs(key_dim, key_dim)).chain(runs(2 * key_dim, values));
        [channels.collect(), runs(2 * key_dim + values, values).collect()]
    }
}

impl Builder<'_> {
    /// The gated delta net of a model, if it has one.
    fn heads(&self) -> Option<Heads> {
        let delta = self.config.delta?;
        let shared = delta.value_heads.checked_div(delta.key_heads).filter(|_| {
            delta.value_heads.is_multiple_of(delta.key_heads)
                && [delta.keys(), delta.values(), delta.channels()].iter().all(Option::is_some)
        })?;
        let mixer = self.family.recurrent?.mixer;
        let tiled = self.architecture.name != "qwen3next";
        matches!(mixer, RecurrentMixer::GatedDelta { .. }).then_some(Heads { delta, shared, tiled })
    }

    /// The layer of a recurrent mixer.
    pub(super) fn add_recurrent(&mut self, linear: &Linear) -> Result<(), GgufPlanError> {
        let size = (linear.out_features, linear.in_features);
        let pieces = self.recurrent_pieces(linear).ok_or_else(|| self.no_place(linear.weight))?;
        for (stem, rows) in pieces {
            let mut slabs = self.slabs(linear.weight, size, &rows)?;
            if linear.role == Role::Output {
                let columns = self.output_columns(linear);
                slabs.iter_mut().for_each(|slab| slab.columns = columns);
            }
            let height = rows.iter().map(|rows| rows.count()).sum();
            let name = names::in_block(linear.block, &format!("{stem}.weight"));
            self.drafts.push(Draft {
                category: Category::of_name(&name),
                name,
                shape: vec![height, size.1],
                content: Content::Slabs(self.scaled(linear, slabs)?),
                block: linear.block,
                modules: vec![linear.module.clone()],
                fixed: false,
            });
            if let Some(bias) = linear.bias {
                let slabs = self.slabs(bias, (size.0, 1), &rows)?;
                let name = names::in_block(linear.block, &format!("{stem}.bias"));
                self.add_small(name, linear.block, vec![height], slabs);
            }
        }
        Ok(())
    }

    /// The tensors that a layer becomes.
    fn recurrent_pieces(&self, linear: &Linear) -> Option<Vec<Piece>> {
        let rows = linear.out_features;
        let stems = names::recurrent_stems(self.family.recurrent?.mixer, linear.role);
        let runs = match self.heads() {
            None => vec![vec![RowMap::all(rows)]],
            Some(heads) => {
                let (keys, values) = (heads.delta.keys()?, heads.delta.values()?);
                match linear.role {
                    Role::RecurrentInputGate if rows == 2 * (keys + values) => heads.unfolded().to_vec(),
                    Role::RecurrentInput if rows == 2 * keys + values => vec![heads.channels()],
                    Role::RecurrentGate if rows == values => vec![heads.values(0, heads.delta.value_dim)],
                    Role::RecurrentDecay | Role::RecurrentStrength if rows == heads.delta.value_heads => {
                        vec![heads.values(0, 1)]
                    }
                    Role::Output | Role::RecurrentRates => vec![vec![RowMap::all(rows)]],
                    _ => return None,
                }
            }
        };
        (!stems.is_empty() && stems.len() == runs.len()).then(|| stems.iter().copied().zip(runs).collect())
    }

    /// The order of the inputs of the output layer.
    fn output_columns(&self, linear: &Linear) -> Option<RowMap> {
        let heads = self.heads().filter(|heads| heads.tiled && heads.shared > 1)?;
        let map = RowMap::Unfolded { heads: heads.delta.key_heads, parts: heads.shared, width: heads.delta.value_dim };
        (map.count() == linear.in_features).then_some(map)
    }

    /// A tensor of a recurrent mixer that is no layer; `None` where it is another parameter.
    pub(super) fn add_recurrent_parameter(&mut self, tensor: usize) -> Result<Option<()>, GgufPlanError> {
        let TensorMeta { name, shape, .. } = self.tensors[tensor].clone();
        let Some(recurrent) = self.family.recurrent else { return Ok(None) };
        let found = recurrent.parameters.iter().find_map(|(parameter, path)| {
            let (before, leaf) = name.split_once(&format!(".{path}"))?;
            let block = before.rsplit('.').next()?.parse::<usize>().ok()?;
            Some((*parameter, block, leaf.to_owned()))
        });
        let Some((parameter, block, leaf)) = found else { return Ok(None) };
        if parameter.is_optional() {
            self.drop_tensor(tensor, "computed by loaders");
            return Ok(Some(()));
        }
        let elements: usize = shape.iter().product();
        let first = shape.first().copied().unwrap_or(0);
        let others = elements.checked_div(first).unwrap_or(0);
        let is_mamba2 = matches!(recurrent.mixer, RecurrentMixer::Mamba2 { .. });
        let is_by_channel = matches!(recurrent.mixer, RecurrentMixer::ChannelDelta { .. });
        let is_bounded = recurrent.mixer == RecurrentMixer::ChannelDelta { is_bounded: true };
        let convolution = |stem| (stem, (first, others), vec![1, first, 1, others]);
        let (stem, size, shape) = match (parameter, leaf.as_str()) {
            (RecurrentParameter::Convolution, ".weight") if recurrent.mixer == RecurrentMixer::ShortConvolution => {
                ("shortconv.conv.weight", (first, others), vec![first, others])
            }
            (RecurrentParameter::Convolution, ".weight") => ("ssm_conv1d.weight", (first, others), vec![first, others]),
            (RecurrentParameter::QueryConvolution, ".weight") => convolution("ssm_conv1d_q.weight"),
            (RecurrentParameter::KeyConvolution, ".weight") => convolution("ssm_conv1d_k.weight"),
            (RecurrentParameter::ValueConvolution, ".weight") => convolution("ssm_conv1d_v.weight"),
            (RecurrentParameter::Convolution, ".bias") if recurrent.mixer != RecurrentMixer::ShortConvolution => {
                ("ssm_conv1d.bias", (first, 1), vec![first])
            }
            (RecurrentParameter::DecayLog, "") if is_bounded => ("ssm_a", (elements, 1), vec![elements, 1]),
            (RecurrentParameter::DecayLog, "") if is_by_channel => ("ssm_a", (elements, 1), vec![1, 1, elements, 1]),
            (RecurrentParameter::DecayLog, "") if is_mamba2 => ("ssm_a", (first, 1), vec![first, 1]),
            (RecurrentParameter::DecayLog, "") if shape.len() > 1 => ("ssm_a", (first, others), vec![first, others]),
            (RecurrentParameter::DecayLog, "") => ("ssm_a", (first, 1), vec![first]),
            (RecurrentParameter::StepBias, "") => ("ssm_dt.bias", (first, 1), vec![first]),
            (RecurrentParameter::Skip, "") if is_mamba2 => ("ssm_d", (first, 1), vec![first, 1]),
            (RecurrentParameter::Skip, "") => ("ssm_d", (first, 1), vec![first]),
            _ => return Err(self.no_place(tensor)),
        };
        let rows = match (parameter, self.heads()) {
            (RecurrentParameter::Convolution, Some(heads)) => heads.channels(),
            (RecurrentParameter::DecayLog | RecurrentParameter::StepBias, Some(heads)) => heads.values(0, 1),
            _ => vec![RowMap::all(size.0)],
        };
        let mut slabs = self.slabs(tensor, size, &rows)?;
        if parameter == RecurrentParameter::DecayLog {
            let change = if is_bounded { Change::Exponential } else { Change::NegatedExponential };
            slabs.iter_mut().for_each(|slab| slab.change = change);
        }
        self.add_small(names::in_block(Some(block), stem), Some(block), shape, slabs);
        Ok(Some(()))
    }

    /// The weight of a layer under the factors on what enters and leaves it, which graphs do not have (Falcon-H1).
    pub(super) fn scaled(&self, linear: &Linear, slabs: Vec<TensorSlice>) -> Result<Vec<TensorSlice>, GgufPlanError> {
        if !self.family.math.branch_multipliers {
            return Ok(slabs);
        }
        let number = |key: &str| Ok::<_, GgufPlanError>(self.config.number(key)?.unwrap_or(1.0));
        let item = |key: &str, index| self.config.item(key, index).and_then(serde_json::Value::as_f64).unwrap_or(1.0);
        let factor = match (linear.role, linear.part) {
            (Role::Query | Role::Value, Part::Attention) => number("attention_in_multiplier")?,
            (Role::Key, Part::Attention) => number("attention_in_multiplier")? * number("key_multiplier")?,
            (Role::Output, Part::Attention) => number("attention_out_multiplier")?,
            (Role::Gate, Part::Mlp) => item("mlp_multipliers", 0),
            (Role::Down, Part::Mlp) => item("mlp_multipliers", 1),
            (Role::Output, Part::Recurrent) => number("ssm_out_multiplier")?,
            (Role::Head, _) => number("lm_head_multiplier")?,
            (Role::RecurrentInputGate, Part::Recurrent) => {
                let Some(mamba) = &self.config.mamba else { return Err(self.no_place(linear.weight)) };
                let runs = self.mamba_runs(mamba).ok_or_else(|| self.no_place(linear.weight))?;
                let entering = number("ssm_in_multiplier")?;
                let Some(whole) = slabs.first() else { return Ok(slabs) };
                let of_run = |(index, rows): (usize, RowMap)| TensorSlice {
                    rows,
                    ..with(*whole, entering * item("ssm_multipliers", index))
                };
                return Ok(runs.into_iter().enumerate().map(of_run).collect());
            }
            _ => 1.0,
        };
        Ok(slabs.into_iter().map(|slab| with(slab, factor)).collect())
    }

    /// The rows of the first layer of Mamba 2: the gate, `x`, `b`, `c`, and a step for each head.
    fn mamba_runs(&self, mamba: &MambaConfig) -> Option<[RowMap; 5]> {
        let (inner, states) = (mamba.inner()?, mamba.groups.checked_mul(mamba.state)?);
        mamba.rows()?;
        let mut first = 0;
        Some([inner, inner, states, states, mamba.heads].map(|count| {
            let run = RowMap::Run { first, count };
            first += count;
            run
        }))
    }
}

/// A slab whose elements are multiplied.
pub(super) fn with(slab: TensorSlice, factor: f64) -> TensorSlice {
    if factor == 1.0 { slab } else { TensorSlice { change: Change::Scaled(factor as f32), ..slab } }
}
