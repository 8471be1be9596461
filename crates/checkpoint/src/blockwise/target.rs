//! A smoothing pair of the network with the modules behind its ids, and the modules inspected to judge its scales. Finds no scales.

use kvant_model::family::{NormSite, Role};
use kvant_model::network::expert_module;
use kvant_model::network::{Consumer, Input, Network, NormId, ScaleSource, SmoothingPair};

/// The outputs compared to judge the scales of a smoothing pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inspected {
    /// The branches of a block that read a norm.
    Branches { attention: bool, feed_forward: bool },
    /// The layers themselves: one, or that of each expert.
    Layers,
}

/// A link with the modules behind its ids.
#[derive(Clone, Debug)]
pub(super) struct ResolvedPair<'l> {
    pub(super) link: &'l SmoothingPair,
    /// The module or norm whose outputs are divided.
    pub(super) from: String,
    /// The modules whose columns are multiplied; those of experts one by one.
    pub(super) modules: Vec<String>,
    pub(super) inspected: Inspected,
}

impl<'l> ResolvedPair<'l> {
    pub(super) fn new(network: &Network, link: &'l SmoothingPair) -> ResolvedPair<'l> {
        let modules: Vec<String> = link.into.iter().flat_map(|consumer| modules_of(network, *consumer)).collect();
        let from = match &link.from {
            ScaleSource::Norm(id) => network.norm(*id).module.clone(),
            ScaleSource::Linear { linear, .. } => network.linear(*linear).module.clone(),
            ScaleSource::Experts { experts, .. } => network.experts()[experts.index()].module.clone(),
        };
        let inspected = match link.from {
            ScaleSource::Norm(id) if is_read_alone(network, id) => Inspected::Layers,
            ScaleSource::Norm(_) => branches(network, link),
            _ => Inspected::Layers,
        };
        ResolvedPair { link, from, modules, inspected }
    }

    /// Returns whether the compared outputs depend on whole sequences.
    pub(super) fn inspects_attention(&self) -> bool {
        matches!(self.inspected, Inspected::Branches { attention: true, .. })
    }

    /// The modules whose inputs are observed: one, or each expert's.
    pub(super) fn sites(&self) -> &[String] {
        match self.inspected {
            Inspected::Branches { .. } => &self.modules[..self.modules.len().min(1)],
            Inspected::Layers => &self.modules,
        }
    }
}

fn modules_of(network: &Network, consumer: Consumer) -> Vec<String> {
    match consumer {
        Consumer::Linear(id) => vec![network.linear(id).module.clone()],
        Consumer::Experts(id) => {
            let all = &network.experts()[id.index()];
            (0..all.experts).map(|expert| expert_module(&all.module, expert)).collect()
        }
    }
}

/// Returns whether what reads a norm is no branch that can run alone: experts beside a dense network, and queries that meet keys of another
/// block or of an encoder.
fn is_read_alone(network: &Network, norm: NormId) -> bool {
    let norm = network.norm(norm);
    let shares = || norm.block.is_some_and(|block| network.shares_keys(block) || network.attends_to_encoder(block));
    norm.site == NormSite::RoutedInput || norm.site == NormSite::AttentionInput && shares()
}

/// The branches that read what the link scales; latents, heads and hidden activations are read by single layers.
fn branches(network: &Network, link: &SmoothingPair) -> Inspected {
    let (mut attention, mut feed_forward) = (false, false);
    for consumer in &link.into {
        let Consumer::Linear(id) = consumer else {
            feed_forward = true;
            continue;
        };
        let single = [
            Input::QueryLatent,
            Input::KeyValueLatent,
            Input::StepLatent,
            Input::Heads,
            Input::RecurrentHeads,
            Input::Hidden,
        ];
        if network.input(*id).is_some_and(|input| single.contains(&input)) {
            return Inspected::Layers;
        }
        match is_of_mixer(network.linear(*id).role) {
            true => attention = true,
            false => feed_forward = true,
        }
    }
    Inspected::Branches { attention, feed_forward }
}

/// Returns whether layers of this role are the first of attention or of a recurrent mixer.
fn is_of_mixer(role: Role) -> bool {
    use Role::{
        HeadGate, Key, KeyValueDown, Query, QueryDown, QueryKeyValue, RecurrentDecayDown, RecurrentGate,
        RecurrentGateDown, RecurrentInput, RecurrentInputGate, RecurrentKey, RecurrentQuery, RecurrentValue, Value,
    };
    let attends = matches!(role, Query | Key | Value | QueryKeyValue | QueryDown | KeyValueDown | HeadGate);
    let recurs = matches!(role, RecurrentInput | RecurrentGate | RecurrentInputGate) || role.is_rate();
    let narrows = matches!(role, RecurrentDecayDown | RecurrentGateDown | Role::RecurrentSteps);
    let chooses = matches!(role, Role::IndexQuery | Role::IndexKey | Role::IndexGate | Role::IndexWeights);
    let compresses = matches!(role, Role::KeyValue | Role::CompressedKey | Role::CompressedGate);
    attends
        || chooses
        || compresses
        || recurs
        || narrows
        || matches!(role, RecurrentQuery | RecurrentKey | RecurrentValue)
}
