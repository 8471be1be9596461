//! The blocks of a plan, for algorithms that need calibration: which layers are rounded together, in which order, and
//! through which links scales may be moved. Derived from roles; decides nothing.

use super::build::Builder;
use super::expert_module;
use crate::forward::Depth;
use crate::network::{Input, Link, Stage};
use std::collections::HashMap;

/// A decoder block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBlock {
    /// Its place among the blocks.
    pub index: usize,
    /// The layers that are quantized, in the order of the forward pass.
    pub stages: Vec<PlannedStage>,
    /// The pairs through which scales may be moved, kept layers among their consumers included.
    pub links: Vec<Link>,
}

/// Layers of a block that read the same activation; experts read their own rows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// What they read.
    pub input: Input,
    /// Where in the block that is known.
    pub depth: Depth,
    /// Indices into the plan's layers.
    pub layers: Vec<usize>,
}

impl Builder<'_> {
    /// The blocks with the layers that are planned.
    pub(super) fn blocks(&self) -> Vec<PlannedBlock> {
        let planned: HashMap<&str, usize> =
            self.layers.iter().enumerate().map(|(index, layer)| (layer.module.as_str(), index)).collect();
        let block = |(index, number): (usize, &usize)| PlannedBlock {
            index,
            stages: self.stages(*number, &planned),
            links: self.network.links(*number),
        };
        self.network.blocks().iter().enumerate().map(block).collect()
    }

    fn stages(&self, block: usize, planned: &HashMap<&str, usize>) -> Vec<PlannedStage> {
        let stages = self.network.stages(block).into_iter().map(|stage| PlannedStage {
            input: stage.input,
            depth: depth(stage.input),
            layers: self.modules(&stage).iter().filter_map(|module| planned.get(module.as_str()).copied()).collect(),
        });
        let mut stages: Vec<PlannedStage> = stages.filter(|stage| !stage.layers.is_empty()).collect();
        stages.sort_by_key(|stage| stage.depth);
        stages
    }

    /// The modules of a stage, experts of one tensor one by one.
    fn modules(&self, stage: &Stage) -> Vec<String> {
        let linears = stage.linears.iter().map(|id| self.network.linear(*id).module.clone());
        let experts = stage.experts.iter().map(|id| &self.network.experts()[id.index()]);
        let experts = experts.flat_map(|all| (0..all.experts).map(|expert| expert_module(&all.module, expert)));
        linears.chain(experts).collect()
    }
}

/// Where in a block an activation is known.
fn depth(input: Input) -> Depth {
    match input {
        Input::Attention => Depth::AttentionInput,
        Input::QueryLatent => Depth::QueryLatent,
        Input::KeyValueLatent => Depth::KeyValueLatent,
        Input::Heads => Depth::Heads,
        Input::FeedForward | Input::Routed(_) => Depth::FeedForward,
        Input::Hidden | Input::SharedHidden | Input::RoutedHidden(_) => Depth::Hidden,
    }
}
