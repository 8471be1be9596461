//! What follows scales on graphs, where a transform asks for it: clipping thresholds of quantized weights, which make the steps of their groups finer. The search is
//! that of the other flow, [`kvant_quant::transform::Clip`].
//!
//! Weights of queries and keys are left out, as there, since their errors meet in products; so are
//! those with one scale for all outputs, whose steps a threshold of one row does not make finer.

use std::collections::{BTreeMap, BTreeSet};

use kvant_container::onnx::{Bytes, ModelProto, Spill, keep, set_contents, shape};
use kvant_quant::transform::Clip;
use serde::Serialize;

use super::found::StoredShares;
use super::row_rounding::RowRounding;
use super::weight_rows::{places, rows};
use super::{Subject, TransformedByData, failed};
use crate::algorithm::input_scaling::{Scaled, SharedInputGroup};
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::recipe::Layout;
use crate::solution::values;
use crate::writing::BlockMap;

/// The contents of weights before they were limited, by name.
pub(crate) type Unlimited = BTreeMap<String, Bytes>;

/// A weight that was limited.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitedWeight {
    /// The weight.
    pub weight: String,
    /// Groups of weights that have a limit.
    pub groups: usize,
    /// Groups in which the threshold clips values.
    pub cut: usize,
}

/// Facts about the graph for the threshold search.
pub(super) struct Search<'a> {
    pub clip: Clip,
    pub subject: &'a Subject<'a>,
    /// Weights whose outputs meet in the scores of an attention.
    pub scored: BTreeSet<String>,
}

/// The limits of a weight, as shares of the largest magnitude of each group: a factor on an output leaves them as they are.
pub(super) struct Shares {
    weight: Scaled,
    channels: usize,
    group: usize,
    /// For each output, those of its groups.
    shares: Vec<f32>,
}

impl Search<'_> {
    /// The limits of the readers' weights, that read `inputs`, rows of channels.
    pub fn shares(
        &self,
        model: &ModelProto,
        readers: &SharedInputGroup,
        inputs: Vec<f32>,
    ) -> Result<Vec<Shares>, QuantizeError> {
        let index = Index::new(&model.graph);
        let mut found = Vec::new();
        for weight in readers.weights.iter().filter(|weight| !self.scored.contains(&weight.name)) {
            let Some(rounding) = self.rounding(model, &index, weight, readers.channels)? else { continue };
            let Some(tensor) = index.constant(&model.graph, &weight.name) else { continue };
            let rows = rows(tensor, weight, readers.channels)?;
            let wrong = |error| failed(&weight.name, &error);
            let clipping = self.clip.prepare_groups(&inputs, readers.channels, rounding.group()).map_err(wrong)?;
            let limits = clipping.limits(&rows, 1, &|rows| Ok(rounding.nearest(rows))).map_err(wrong)?;
            let maxima = maxima(&rows, readers.channels, clipping.group());
            let share = |(limit, max): (f32, f32)| if max > 0.0 { limit / max } else { 1.0 };
            let shares = limits.into_iter().zip(maxima).map(share).collect();
            found.push(Shares { weight: weight.clone(), channels: readers.channels, group: clipping.group(), shares });
        }
        Ok(found)
    }

    /// The rounding of a weight; `None` if it is not rounded, or if thresholds of its outputs make no step finer.
    fn rounding(
        &self,
        model: &ModelProto,
        index: &Index,
        weight: &Scaled,
        channels: usize,
    ) -> Result<Option<RowRounding>, QuantizeError> {
        let placed = self.subject.placement.weights.get(&weight.name);
        let Some(placed) = placed.filter(|placed| placed.scheme.element.is_integer() && placed.range.is_none()) else {
            return Ok(None);
        };
        if let Layout::MatMulNBits { block, .. } = self.subject.recipe.layout {
            let reader = index.only_consumer(&weight.name).map(|position| &model.graph.node[position]);
            let tensor = index.constant(&model.graph, &weight.name);
            let (Some(reader), Some(tensor)) = (reader, tensor) else { return Ok(None) };
            if BlockMap::of(reader, &shape(tensor)?, block).is_none() {
                return Ok(None);
            }
        }
        let rounding = RowRounding::of_weight(self.subject.recipe, placed, channels);
        Ok(Some(rounding).filter(RowRounding::is_by_output))
    }
}

impl Shares {
    /// As it is kept for a run that resumes.
    pub fn stored(&self) -> StoredShares {
        let shares = self.shares.iter().map(|share| share.to_bits()).collect();
        StoredShares { weight: self.weight.name.clone(), group: self.group, shares }
    }

    /// From kept results; `None` if the readers have no such weight.
    pub fn of_stored(stored: StoredShares, readers: &SharedInputGroup) -> Option<Shares> {
        let weight = readers.weights.iter().find(|weight| weight.name == stored.weight)?.clone();
        let shares = stored.shares.into_iter().map(f32::from_bits).collect();
        (stored.group > 0).then_some(Shares { weight, channels: readers.channels, group: stored.group, shares })
    }

    /// Clips the weight at its thresholds, and keeps the original.
    pub fn apply(
        &self,
        model: &mut ModelProto,
        done: &mut TransformedByData,
        spill: Option<&Spill>,
    ) -> Result<(), QuantizeError> {
        let tensors = model.graph.as_mut().into_iter().flat_map(|graph| &mut graph.initializer);
        let Some(tensor) = tensors.into_iter().find(|tensor| tensor.name() == self.weight.name) else { return Ok(()) };
        let cut = self.shares.iter().filter(|share| **share < 1.0).count();
        let limited = LimitedWeight { weight: self.weight.name.clone(), groups: self.shares.len(), cut };
        done.limited_weights.push(limited);
        if cut == 0 {
            return Ok(());
        }
        let mut source = values(tensor)?;
        let before = bytemuck::cast_slice(&source).to_vec();
        let places = places(&self.weight, self.channels, source.len());
        let groups = self.channels.div_ceil(self.group);
        for (row, shares) in places.chunks(self.channels).zip(self.shares.chunks(groups)) {
            for (group, share) in row.chunks(self.group).zip(shares) {
                let limit = group.iter().fold(0f32, |max, &place| max.max(source[place].abs())) * share;
                group.iter().for_each(|&place| source[place] = source[place].max(-limit).min(limit));
            }
        }
        done.unlimited.insert(self.weight.name.clone(), keep(spill, before)?);
        set_contents(tensor, keep(spill, bytemuck::cast_slice(&source).to_vec())?);
        Ok(())
    }
}

/// The largest magnitude of each group of columns of each row.
fn maxima(rows: &[f32], columns: usize, group: usize) -> impl Iterator<Item = f32> {
    let groups = rows.chunks(columns.max(1)).flat_map(move |row| row.chunks(group.max(1)));
    groups.map(|group| group.iter().fold(0f32, |max, weight| max.max(weight.abs())))
}
