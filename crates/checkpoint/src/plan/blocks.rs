//! The blocks of a plan, for algorithms that need calibration: which layers are rounded together, in which order, and
//! through which links scales may be moved. Derived from roles; decides nothing.

use super::LayerId;
use super::declared::Declared;
use kvant_forward::forward::StopAt;
use kvant_model::family::{Residual, Role};
use kvant_model::network::expert_module;
use kvant_model::network::{Consumer, Input, ScaleSource, SmoothingPair, Subset};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A decoder block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBlock {
    /// Its place among the blocks.
    pub index: usize,
    /// The layers whose codes are chosen, in the order of the forward pass.
    pub stages: Vec<PlannedStage>,
    /// The pairs through which scales may be moved, kept layers among their consumers included.
    pub links: Vec<SmoothingPair>,
    /// The cost of running it.
    pub work: BlockWork,
}

impl PlannedBlock {
    /// The layers of all stages.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> + '_ {
        self.stages.iter().flat_map(|stage| stage.layers.iter().copied())
    }
}

/// What running a block takes, kept layers included, for each token. Multiplications of experts count by the share of the
/// tokens that they get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockWork {
    /// Features of what the block reads and puts out.
    pub width: usize,
    /// Features of all heads' outputs.
    pub heads: usize,
    /// Multiplications by the weights of layers, by the depth of what they read.
    pub multiplications: BTreeMap<StopAt, u64>,
    /// Multiplications of one trial of scales on every link whose scales are judged by attention, for each token.
    pub trial_of_attention: u64,
    /// The same of all other links.
    pub trial_of_rows: u64,
    /// Experts that a token is sent to, and how many there are; one of one where there are none.
    pub routed: (usize, usize),
    /// The depths from which a run can go on that another has ended at.
    pub resumes: Vec<StopAt>,
}

impl BlockWork {
    /// Multiplications for each token of a run that ends before the layers that read what is known at `until`, or of a whole
    /// run; those of attention are for sequences of `length` tokens, half of which a token sees.
    pub fn of_run(&self, until: Option<StopAt>, length: u64) -> u64 {
        let layers = self.multiplications.iter().filter(|(depth, _)| until.is_none_or(|until| **depth < until));
        let attends = until.is_none_or(|until| until >= StopAt::Heads);
        layers.map(|(_, count)| count).sum::<u64>() + if attends { self.heads as u64 * length } else { 0 }
    }
}

/// Layers of a block that read the same activation; experts read their own rows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// Their input.
    pub input: Input,
    /// Where in the block that is known.
    pub depth: StopAt,
    /// The layers.
    pub layers: Vec<LayerId>,
}

impl PlannedStage {
    /// Returns whether only some tokens get here.
    pub fn is_routed(&self) -> bool {
        matches!(self.input, Input::Routed(_) | Input::RoutedHidden(_))
    }
}

impl Declared<'_> {
    /// The blocks with the layers that are planned.
    pub(super) fn blocks(&self) -> Vec<PlannedBlock> {
        let planned: HashMap<&str, LayerId> =
            self.chosen().map(|layer| (self.layers[layer.index()].module.as_str(), layer)).collect();
        let block = |(index, number): (usize, &usize)| PlannedBlock {
            index,
            stages: self.stages(*number, &planned),
            links: self.links(*number),
            work: self.work(*number),
        };
        self.source.network.blocks().iter().enumerate().map(block).collect()
    }

    /// The links of a block that change no weight whose codes are taken over, and through which nothing is rotated.
    fn links(&self, block: usize) -> Vec<SmoothingPair> {
        let recoded: HashSet<usize> =
            self.layers.iter().filter(|layer| layer.is_recoded()).map(|layer| layer.source.position).collect();
        let network = &self.source.network;
        let weight = |consumer: Consumer| match consumer {
            Consumer::Linear(id) => network.linear(id).weight,
            Consumer::Experts(id) => network.experts()[id.index()].weight(),
        };
        let is_recoded = |consumer: Consumer| recoded.contains(&self.source.tensors[weight(consumer)].position);
        let is_rotated = |consumer: Consumer| {
            let module = match consumer {
                Consumer::Linear(id) => network.linear(id).module.clone(),
                Consumer::Experts(id) => expert_module(&network.experts()[id.index()].module, 0),
            };
            self.source.input_rotations.contains_key(&module)
        };
        let is_free = |consumer: Consumer| !is_recoded(consumer) && !is_rotated(consumer);
        let from = |link: &SmoothingPair| match link.from {
            ScaleSource::Norm(_) => None,
            ScaleSource::Linear { linear, .. } => Some(Consumer::Linear(linear)),
            ScaleSource::Experts { experts, .. } => Some(Consumer::Experts(experts)),
        };
        let links = network.links(block).into_iter();
        links.filter(|link| link.into.iter().copied().chain(from(link)).all(is_free)).collect()
    }

    fn stages(&self, block: usize, planned: &HashMap<&str, LayerId>) -> Vec<PlannedStage> {
        let stages = self.source.network.stages(block).into_iter().map(|stage| PlannedStage {
            input: stage.input,
            depth: depth(stage.input),
            layers: self.modules(&stage).iter().filter_map(|module| planned.get(module.as_str()).copied()).collect(),
        });
        let mut stages: Vec<PlannedStage> = stages.filter(|stage| !stage.layers.is_empty()).collect();
        stages.sort_by_key(|stage| stage.depth);
        stages
    }

    fn work(&self, block: usize) -> BlockWork {
        let stages = self.source.network.stages(block);
        let mut work = BlockWork { routed: self.routed(), resumes: self.resumes(&stages), ..BlockWork::default() };
        for stage in &stages {
            let count = stage.linears.iter().map(|id| self.multiplications(Consumer::Linear(*id)));
            let experts = stage.experts.iter().map(|id| self.multiplications(Consumer::Experts(*id)));
            *work.multiplications.entry(depth(stage.input)).or_default() += count.chain(experts).sum::<u64>();
            let features = stage.linears.first().map_or(0, |id| self.source.network.linear(*id).in_features);
            match stage.input {
                Input::Heads | Input::RecurrentHeads => work.heads = work.heads.max(features),
                Input::Attention | Input::Recurrent => work.width = features,
                _ => {}
            }
        }
        for link in self.links(block) {
            let (attention, trial) = self.trial(&link, &work);
            let total = if attention { &mut work.trial_of_attention } else { &mut work.trial_of_rows };
            *total += trial;
        }
        work
    }

    fn resumes(&self, stages: &[Subset]) -> Vec<StopAt> {
        let residual = self.source.network.family().map(|family| family.math.residual.resolve(&self.source.config));
        let mixture = stages.iter().any(|stage| matches!(stage.input, Input::Routed(_)));
        // Blocks of one branch have less, and two mixers have no common output projection.
        let reads = |input: Input| stages.iter().any(|stage| stage.input == input);
        let both = reads(Input::Heads) && reads(Input::RecurrentHeads);
        let has = |wanted: &StopAt| {
            stages.iter().any(|stage| depth(stage.input) == *wanted) && !(both && *wanted == StopAt::Heads)
        };
        let lanes = self.source.network.linears().iter().any(|linear| linear.role == Role::LaneRouter)
            || self.source.network.family().is_some_and(|family| family.math.hyper_connections);
        let resumed: &[StopAt] = match (residual, mixture) {
            _ if lanes => &[],
            (Some(Residual::Parallel), _) => &[],
            (_, true) => &[StopAt::Heads, StopAt::FeedForward],
            (_, false) => &[StopAt::Heads, StopAt::FeedForward, StopAt::Hidden],
        };
        resumed.iter().copied().filter(has).collect()
    }

    /// Experts that a token is sent to, and how many there are.
    fn routed(&self) -> (usize, usize) {
        let experts = self.source.config.experts.as_ref();
        experts.map_or((1, 1), |experts| (experts.per_token.unwrap_or(1).min(experts.count), experts.count))
    }

    /// Weights of a layer, or of that of all experts.
    fn weights(&self, layer: Consumer) -> u64 {
        match layer {
            Consumer::Linear(id) => {
                let linear = self.source.network.linear(id);
                linear.in_features as u64 * linear.out_features as u64
            }
            Consumer::Experts(id) => {
                let all = &self.source.network.experts()[id.index()];
                all.in_features as u64 * all.out_features as u64 * all.experts as u64
            }
        }
    }

    /// Multiplications for each token that passes the block.
    fn multiplications(&self, layer: Consumer) -> u64 {
        let (per_token, count) = self.routed();
        let is_routed = match layer {
            Consumer::Linear(id) => self.source.network.linear(id).expert.is_some(),
            Consumer::Experts(_) => true,
        };
        let weights = self.weights(layer);
        if is_routed { weights * per_token as u64 / count.max(1) as u64 } else { weights }
    }

    /// Multiplications of a trial of scales: of all that is behind a norm up to the end of its branch, or of the layers
    /// themselves, each expert on rows of its own; and whether that is attention.
    fn trial(&self, link: &SmoothingPair, work: &BlockWork) -> (bool, u64) {
        let ScaleSource::Norm(_) = link.from else {
            return (false, link.into.iter().map(|consumer| self.weights(*consumer)).sum());
        };
        let first = link.into.first().and_then(|consumer| match consumer {
            Consumer::Linear(id) => self.source.network.input(*id),
            Consumer::Experts(_) => Some(Input::Routed(None)),
        });
        let feeds_forward = first.map(depth) == Some(StopAt::FeedForward);
        let branch = work.multiplications.iter().filter(|(depth, _)| (**depth >= StopAt::FeedForward) == feeds_forward);
        (!feeds_forward, branch.map(|(_, count)| count).sum())
    }

    /// The modules of a stage, experts of one tensor one by one.
    fn modules(&self, stage: &Subset) -> Vec<String> {
        let linears = stage.linears.iter().map(|id| self.source.network.linear(*id).module.clone());
        let experts = stage.experts.iter().map(|id| &self.source.network.experts()[id.index()]);
        let experts = experts.flat_map(|all| (0..all.experts).map(|expert| expert_module(&all.module, expert)));
        linears.chain(experts).collect()
    }
}

/// Where in a block an activation is known.
fn depth(input: Input) -> StopAt {
    match input {
        Input::Attention | Input::Recurrent | Input::EncoderStates => StopAt::AttentionInput,
        Input::QueryLatent => StopAt::QueryLatent,
        Input::KeyValueLatent => StopAt::KeyValueLatent,
        Input::Convolved => StopAt::Convolved,
        Input::StepLatent => StopAt::StepLatent,
        Input::DecayLatent => StopAt::DecayLatent,
        Input::GateLatent => StopAt::GateLatent,
        Input::LowRankLatent => StopAt::LowRankLatent,
        Input::Heads | Input::RecurrentHeads => StopAt::Heads,
        Input::FeedForward | Input::Router | Input::Routed(_) => StopAt::FeedForward,
        Input::Hidden | Input::SharedHidden | Input::RoutedHidden(_) => StopAt::Hidden,
        Input::LayerInput => StopAt::LayerInput,
        Input::LayerInputHidden => StopAt::LayerInputHidden,
    }
}
