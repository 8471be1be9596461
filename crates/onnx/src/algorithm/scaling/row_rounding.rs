//! How a recipe rounds a weight whose rows are outputs, and what it meets. No graph.

use crate::algorithm::layer::Grid;
use crate::calibration_method::{WeightMethod, weight_parameters};
use crate::placement::Weight;
use crate::recipe::{Layout, Recipe};
use crate::writing::{BlockMap, Blocks, block_parameters};

/// How a weight of rows of outputs is rounded.
#[derive(Clone, Copy)]
pub(super) struct RowRounding {
    columns: usize,
    blocks: Option<Blocks>,
    method: WeightMethod,
    per_channel: bool,
}

impl RowRounding {
    /// As a recipe rounds weights of `columns` inputs, unless it has other words for one.
    pub fn of(recipe: &Recipe, columns: usize) -> Self {
        let blocks = blocks(recipe);
        let scheme = recipe.products.map_or(recipe.weight, |products| products.weight);
        Self { columns, blocks, method: scheme.into(), per_channel: scheme.per_channel }
    }

    /// As a recipe rounds the inputs of products, if it does, unless it has other words for one. All channels share a scale.
    pub fn of_inputs(recipe: &Recipe, columns: usize) -> Option<Self> {
        let scheme = recipe.products.map(|products| products.activation).or(recipe.activation)?;
        Some(Self { columns, blocks: None, method: scheme.into(), per_channel: false })
    }

    /// As a weight of `columns` inputs is placed.
    pub fn of_weight(recipe: &Recipe, weight: &Weight, columns: usize) -> Self {
        let per_channel = weight.axis.is_some();
        Self { columns, blocks: blocks(recipe), method: weight.method(), per_channel }
    }

    /// Inputs of an output that share a scale.
    pub fn group(&self) -> usize {
        self.blocks.map_or(self.columns, |blocks| blocks.block.min(self.columns))
    }

    /// Returns whether the scales of an output are its own.
    pub fn is_by_output(&self) -> bool {
        self.blocks.is_some() || self.per_channel
    }

    /// `Q(W)`.
    pub fn nearest(&self, weight: &[f32]) -> Vec<f32> {
        self.grid(weight).map_or_else(|| weight.to_vec(), |grid| grid.values(&grid.nearest(weight)))
    }

    /// `Q(W s)`.
    pub fn scaled(&self, weight: &[f32], scales: &[f32]) -> Vec<f32> {
        let scaled: Vec<f32> = weight.iter().zip(scales.iter().cycle()).map(|(w, s)| w * s).collect();
        self.nearest(&scaled)
    }

    /// `Q(W s) / s`.
    pub fn rounded(&self, weight: &[f32], scales: &[f32]) -> Vec<f32> {
        let rounded = self.scaled(weight, scales);
        rounded.iter().zip(scales.iter().cycle()).map(|(w, s)| w / s).collect()
    }

    fn grid(&self, scaled: &[f32]) -> Option<Grid> {
        let (inputs, outputs) = (self.columns, scaled.len() / self.columns.max(1));
        if let Some(blocks) = self.blocks {
            let map = BlockMap { inputs, outputs, transposed: true, block: blocks.block };
            let element = blocks.element();
            return Some(Grid::in_blocks(
                element,
                element.full_range()?,
                map,
                block_parameters(scaled, None, map, blocks),
            ));
        }
        let (shape, axis) = ([outputs, inputs], self.per_channel.then_some(0));
        let parameters = weight_parameters(scaled, &shape, axis, self.method);
        Some(Grid::new(self.method.element, self.method.used_codes()?, &shape, axis, parameters))
    }
}

fn blocks(recipe: &Recipe) -> Option<Blocks> {
    match recipe.layout {
        Layout::MatMulNBits { bits, block, accuracy } => Some(Blocks::of(recipe, bits, block, accuracy)),
        _ => None,
    }
}
