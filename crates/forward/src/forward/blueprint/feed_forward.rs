//! The feed-forward network of one block: dense, or a mixture of experts with its routing.

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{IntegerTable, Projection, Vector};
use kvant_model::family::{Activation, NormSite, Orientation, Part, Role, Routing, RowOrder};
use kvant_model::model_config::ExpertsConfig;
use kvant_model::network::{ExpertsStorage, FusedExperts};
use std::ops::Range;

/// A feed-forward network.
#[derive(Clone, Debug)]
pub enum FeedForward {
    /// One network for all tokens.
    Dense(Box<Mlp>),
    /// Experts.
    Mixture(Box<Mixture>),
    /// Nothing: the block has a token mixer only.
    Absent,
}

/// A dense network.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// The layers before the activation.
    pub first: FirstLayers,
    /// The activation.
    pub activation: Activation,
    /// Its parameters, where they are learned.
    pub xielu: Option<XieluLayer>,
    /// The norm of the hidden activation.
    pub hidden_norm: Option<NormLayer>,
    /// The layer behind it.
    pub down: Projection,
    /// The factors on the gate before its activation, and on the output.
    pub factors: [f32; 2],
    /// How many deviations above its mean a gate must be; what is above that passes the activation.
    pub cutoff: Option<f32>,
}

/// The learned parameters of [`Activation::Xielu`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XieluLayer {
    /// The logit of the quadratic term.
    pub alpha_p: Vector,
    /// The logit of the exponential term.
    pub alpha_n: Vector,
    /// The slope.
    pub beta: Vector,
    /// The largest argument of the exponential function.
    pub eps: Vector,
}

/// The layers before the activation.
#[derive(Clone, Debug)]
pub enum FirstLayers {
    /// `act(up(x))`.
    Plain(Projection),
    /// `act(gate(x)) * up(x)`: gate, up.
    Gated(Projection, Projection),
    /// The same from one matrix.
    Fused(Projection, RowOrder),
}

/// A mixture of experts.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Scores of the experts.
    pub router: Projection,
    /// `c` of the soft-cap `c tanh(z / c)` on the scores.
    pub score_cap: Option<f32>,
    /// The choice of experts.
    pub rule: Routing,
    /// Their number.
    pub per_token: usize,
    /// Whether weights are divided by their sum, where the rule leaves that open.
    pub normalise: bool,
    /// The factor on weights.
    pub scale: f32,
    /// Groups of experts, and how many of them a token may use.
    pub groups: (usize, usize),
    /// The least sum by which weights are divided.
    pub least_sum: f32,
    /// The order of the norm by which weights are divided, where the rule divides by one.
    pub norm_order: Option<f32>,
    /// The threshold of [`Routing::SparseMixer`].
    pub jitter: f32,
    /// The correction of scores for the choice.
    pub correction: Option<Vector>,
    /// A table with the experts of each token, where tokens choose by themselves.
    pub table: Option<IntegerTable>,
    /// Whether the weight of an expert multiplies its input; its output otherwise.
    pub weighs_inputs: bool,
    /// The experts.
    pub experts: Vec<Mlp>,
    /// Experts behind them that give what they read.
    pub identities: usize,
    /// Layers of these that the checkpoint has and nothing reads.
    pub unread: Vec<Projection>,
    /// The network that all tokens pass.
    pub shared: Option<Mlp>,
    /// The gate on it.
    pub shared_gate: Option<Projection>,
    /// The factor on the sum of all.
    pub sum_scale: f32,
    /// Factors on the weights of single experts.
    pub expert_scales: Option<Vector>,
}

/// Experts beside a dense network (Gemma 4). They read the stream behind attention through a norm of their own, the router through
/// another one. The block's feed-forward branch is the sum of both networks, each behind a norm.
#[derive(Clone, Debug)]
pub struct RoutedBranch {
    /// The norm of what the router reads.
    pub router_norm: NormLayer,
    /// The factor on that.
    pub router_scale: f32,
    /// The norm of what the experts read.
    pub input: NormLayer,
    /// The experts.
    pub mixture: Mixture,
    /// The norm of what they give.
    pub output: NormLayer,
    /// The norm of what the dense network gives.
    pub dense_output: NormLayer,
}

impl FeedForward {
    /// All its linear layers, experts' included.
    pub fn layers(&self) -> Vec<&Projection> {
        match self {
            FeedForward::Dense(mlp) => mlp.layers(),
            FeedForward::Mixture(mixture) => mixture.layers(),
            FeedForward::Absent => Vec::new(),
        }
    }
}

impl Mixture {
    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        let networks = self.experts.iter().chain(&self.shared);
        let around = std::iter::once(&self.router).chain(&self.shared_gate);
        around.chain(networks.flat_map(Mlp::layers)).chain(&self.unread).collect()
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn feed_forward(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<FeedForward, ForwardError> {
        if !self.family.branches(self.config, index).feed_forward {
            return Ok(FeedForward::Absent);
        }
        match parts.linear(Role::Router)?.filter(|_| !self.has_experts_beside() && !self.family.math.shortcut_experts) {
            Some(router) => Ok(FeedForward::Mixture(Box::new(self.mixture(parts, index, router)?))),
            None => {
                // Families with a network beside the experts have it alone where there are none.
                let dense = match self.mlp(parts, Part::Mlp, None)? {
                    None => self.mlp(parts, Part::SharedExperts, None)?,
                    dense => dense,
                };
                let dense = dense.ok_or_else(|| ForwardError::missing(parts.place(), "feed-forward network"))?;
                let hidden_norm = parts.listed_norm(NormSite::Hidden)?;
                let factor = |which| self.listed_multiplier("mlp_multipliers", which);
                let factors = [factor(0)?, factor(1)?];
                Ok(FeedForward::Dense(Box::new(Mlp {
                    hidden_norm,
                    xielu: self.xielu(parts, index)?,
                    factors,
                    cutoff: self.cutoff(index)?,
                    ..dense
                })))
            }
        }
    }

    /// Returns whether experts of the family stand beside a dense network.
    fn has_experts_beside(&self) -> bool {
        self.family.norms.iter().any(|(site, _)| *site == NormSite::RoutedInput)
    }

    /// The experts that stand beside the feed-forward network of a block.
    pub(super) fn routed(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<Option<RoutedBranch>, ForwardError> {
        let Some(router) = parts.linear(Role::Router)?.filter(|_| self.has_experts_beside()) else { return Ok(None) };
        let hidden = self.hidden()?;
        let missing = |what: &str| ForwardError::missing(parts.place(), what.to_owned());
        let norm = |site| parts.listed_norm(site)?.ok_or_else(|| missing("norm of experts beside a network"));
        let weight = self.parameter(index, "router.scale", hidden)?.ok_or_else(|| missing("scale of its router"))?;
        let kind = self.family.norm_kind_of(self.config);
        Ok(Some(RoutedBranch {
            router_norm: NormLayer { kind, weight: vec![weight], bias: Vec::new(), eps: self.eps() },
            router_scale: 1.0 / (hidden as f32).sqrt(),
            input: norm(NormSite::RoutedInput)?,
            mixture: self.mixture(parts, index, router)?,
            output: norm(NormSite::RoutedOutput)?,
            dense_output: norm(NormSite::DenseOutput)?,
        }))
    }

    /// The experts that read what the feed-forward network of a block reads, and join the stream behind the next block.
    pub(super) fn shortcut(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<Option<Mixture>, ForwardError> {
        let router = parts.linear(Role::Router)?.filter(|_| self.family.math.shortcut_experts);
        router.map(|router| self.mixture(parts, index, router)).transpose()
    }

    /// The cutoff of a block's gates: that which leaves out a share of values with a normal distribution (Gemma 3n).
    fn cutoff(&self, index: usize) -> Result<Option<f32>, ForwardError> {
        const KEY: &str = "activation_sparsity_pattern";
        let Some(share) = self.config.item(KEY, index) else { return Ok(None) };
        let share = share.as_f64().filter(|share| (0.0..1.0).contains(share));
        let share = share.ok_or_else(|| ForwardError::unsupported(format!("`{KEY}` beyond 0 and 1")))?;
        Ok((share > 0.0).then(|| normal_quantile(share) as f32))
    }

    /// The parameters of the activation, where it has some.
    fn xielu(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<Option<XieluLayer>, ForwardError> {
        if self.activation() != Activation::Xielu {
            return Ok(None);
        }
        let parameter = |end: &str| {
            let found = self.parameter(index, &format!("act_fn.{end}"), 1)?;
            found.ok_or_else(|| ForwardError::missing(parts.place(), format!("parameter `{end}` of its activation")))
        };
        Ok(Some(XieluLayer {
            alpha_p: parameter("alpha_p")?,
            alpha_n: parameter("alpha_n")?,
            beta: parameter("beta")?,
            eps: parameter("eps")?,
        }))
    }

    pub(super) fn activation(&self) -> Activation {
        self.family.math.activation.resolve(self.config)
    }

    fn mlp(&self, parts: &Parts<'_, '_, 'a>, part: Part, expert: Option<usize>) -> Result<Option<Mlp>, ForwardError> {
        let find = |role: Role| parts.linear_of(part, role, expert);
        let Some(down) = find(Role::Down)? else { return Ok(None) };
        let fused = parts.find(|l| l.part == part && l.role == Role::GateUp && l.expert == expert).map(|l| l.rows);
        let first = match (find(Role::Gate)?, find(Role::Up)?, find(Role::GateUp)?.zip(fused)) {
            (None, None, Some((layer, rows))) => FirstLayers::Fused(layer, rows),
            (Some(gate), Some(up), None) => FirstLayers::Gated(gate, up),
            (None, Some(up), None) => FirstLayers::Plain(up),
            (Some(_), None, _) => return Err(ForwardError::missing(parts.place(), "up projection for its gate")),
            _ => return Err(ForwardError::missing(parts.place(), "gate or up projection")),
        };
        let activation = self.activation();
        Mlp { first, activation, xielu: None, hidden_norm: None, down, factors: [1.0; 2], cutoff: None }
            .checked(self.hidden()?, &parts.place())
            .map(Some)
    }

    fn mixture(&self, parts: &Parts<'_, '_, 'a>, index: usize, router: Projection) -> Result<Mixture, ForwardError> {
        let moe = self.family.moe.ok_or_else(|| ForwardError::unsupported("experts in this family"))?;
        let config = self.need(self.config.experts.as_ref(), "num_experts")?;
        let per_token = self.need(config.per_token, "num_experts_per_tok")?;
        let scored = config.scored().ok_or_else(|| ForwardError::unsupported("experts beyond all numbers"))?;
        if per_token > scored {
            let allowed = format!("number of experts per token up to {scored}, but {per_token}");
            return Err(ForwardError::missing("config.json", allowed));
        }
        if router.rows != scored || router.columns != self.hidden()? {
            return Err(ForwardError::missing(parts.place(), format!("router of {scored} experts")));
        }
        let has_shared = !config.excludes_shared();
        let rule = moe.rule.resolve(self.config);
        let rule = rule.ok_or_else(|| ForwardError::unsupported("`expert_selection_fn` of config.json"))?;
        let correction = match self.parameter(index, "e_score_correction_bias", scored)? {
            None => self.parameter(index, "expert_bias", config.count)?,
            found => found,
        };
        let correction = match correction {
            None => self.parameter(index, "gate.bias", scored)?,
            found => found,
        };
        let greedy = self.json.get("topk_method").and_then(serde_json::Value::as_str) == Some("greedy");
        Ok(Mixture {
            router,
            score_cap: self.score_cap()?,
            rule,
            per_token,
            normalise: config.normalise.unwrap_or(moe.rule.normalises_by_default()),
            scale: config.scale.unwrap_or(1.0) as f32,
            groups: if greedy { (1, 1) } else { groups(config)? },
            norm_order: config.norm_order.map(|order| order as f32),
            jitter: self.config.number("router_jitter_noise")?.unwrap_or(0.01) as f32,
            least_sum: self.config.number("moe_norm_min")?.unwrap_or(1e-12) as f32,
            correction,
            table: self.expert_table(parts, index, [per_token, config.count])?,
            weighs_inputs: self.family.math.weighs_expert_inputs,
            experts: self.experts(parts, index, config.count)?,
            identities: config.identities,
            unread: unread_experts(parts, config.count..scored)?,
            shared: if has_shared { self.mlp(parts, Part::SharedExperts, None)? } else { None },
            shared_gate: if has_shared { parts.linear(Role::SharedGate)? } else { None },
            sum_scale: if has_shared { self.sum_scale()? } else { 1.0 },
            expert_scales: self.parameter(index, "per_expert_scale", config.count)?,
        })
    }

    /// The table with the experts of each token, in a block whose experts tokens choose by themselves.
    fn expert_table(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        [per_token, experts]: [usize; 2],
    ) -> Result<Option<IntegerTable>, ForwardError> {
        if !self.config.compressed.as_ref().is_some_and(|sizes| sizes.hashes(index)) {
            return Ok(None);
        }
        let found = self.parameter_at(index, "tid2eid");
        let found =
            found.ok_or_else(|| ForwardError::missing(parts.place(), "table with the experts of each token"))?;
        let vocabulary = self.need(self.config.vocab_size, "vocab_size")?;
        // The stream hands the numbers of tokens on as floats.
        if vocabulary > 1 << 24 {
            return Err(ForwardError::unsupported(format!("experts that {vocabulary} tokens choose")));
        }
        self.tensors.integers(found, (vocabulary, per_token), experts).map(Some)
    }

    /// 0 is none.
    fn score_cap(&self) -> Result<Option<f32>, ForwardError> {
        let stated = self.config.number("moe_router_logit_softcapping")?;
        Ok(stated.filter(|cap| *cap > 0.0).map(|cap| cap as f32))
    }

    /// Shared experts may count as one of two networks whose average is taken.
    fn sum_scale(&self) -> Result<f32, ForwardError> {
        const KEY: &str = "shared_expert_combination_strategy";
        match (self.config.text(KEY), self.family.math.averages_shared_experts) {
            (Some("sum"), true) | (_, false) => Ok(1.0),
            (None | Some("average"), true) => Ok(0.5),
            (Some(_), true) => Err(ForwardError::unsupported(format!("`{KEY}` of config.json"))),
        }
    }

    fn experts(&self, parts: &Parts<'_, '_, 'a>, index: usize, count: usize) -> Result<Vec<Mlp>, ForwardError> {
        let missing = |expert: usize| ForwardError::missing(parts.place(), format!("expert {expert} of {count}"));
        let fused: Vec<&FusedExperts> = self.network.experts().iter().filter(|all| all.block == index).collect();
        let expert = |expert: usize| match fused.is_empty() {
            true => self.mlp(parts, Part::Experts, Some(expert))?.ok_or_else(|| missing(expert)),
            false => self.fused_expert(&fused, (expert, count), &parts.place()),
        };
        (0..count).map(expert).collect()
    }

    fn fused_expert(&self, all: &[&FusedExperts], which: (usize, usize), place: &str) -> Result<Mlp, ForwardError> {
        let find = |role: Role| all.iter().find(|experts| experts.role == role);
        let missing = || ForwardError::missing(place, "tensor with all experts");
        let down = find(Role::Down).ok_or_else(missing)?;
        let first_layers = match (find(Role::GateUp), find(Role::Gate).zip(find(Role::Up))) {
            (Some(both), None) => FirstLayers::Fused(self.matrix_of(both, which)?, both.rows),
            (None, Some((gate, up))) => FirstLayers::Gated(self.matrix_of(gate, which)?, self.matrix_of(up, which)?),
            _ => return Err(missing()),
        };
        let (activation, down) = (self.activation(), self.matrix_of(down, which)?);
        let mlp = Mlp {
            first: first_layers,
            activation,
            xielu: None,
            hidden_norm: None,
            down,
            factors: [1.0; 2],
            cutoff: None,
        };
        mlp.checked(self.hidden()?, place)
    }

    fn matrix_of(&self, all: &FusedExperts, which: (usize, usize)) -> Result<Projection, ForwardError> {
        let ExpertsStorage::Float { weight } = all.storage else {
            return Err(ForwardError::unsupported(format!("{}: experts in MXFP4", all.module)));
        };
        let size = (all.out_features, all.in_features);
        self.tensors.slice(&all.module, (weight, all.bias), which, size, all.orientation == Orientation::InOut)
    }
}

/// The layers of experts that give what they read, which classes create nevertheless.
fn unread_experts(parts: &Parts<'_, '_, '_>, experts: Range<usize>) -> Result<Vec<Projection>, ForwardError> {
    let mut unread = Vec::new();
    for expert in experts {
        for role in [Role::Gate, Role::Up, Role::Down] {
            unread.extend(parts.linear_of(Part::Experts, role, Some(expert))?);
        }
    }
    Ok(unread)
}

impl FirstLayers {
    /// All of them.
    pub fn layers(&self) -> Vec<&Projection> {
        match self {
            FirstLayers::Plain(first) | FirstLayers::Fused(first, _) => vec![first],
            FirstLayers::Gated(gate, up) => vec![gate, up],
        }
    }
}

impl Mlp {
    /// The network, if its layers fit each other and the hidden size.
    fn checked(self, hidden: usize, place: &str) -> Result<Mlp, ForwardError> {
        let (inner, inputs) = match &self.first {
            FirstLayers::Plain(up) => (up.rows, up.columns),
            FirstLayers::Gated(gate, up) if gate.rows == up.rows && gate.columns == up.columns => (up.rows, up.columns),
            FirstLayers::Gated(..) => (0, 0),
            FirstLayers::Fused(both, _) => (both.rows / 2, both.columns),
        };
        if inner == self.down.columns && inputs == hidden && self.down.rows == hidden {
            return Ok(self);
        }
        Err(ForwardError::missing(place, format!("feed-forward network whose layers fit hidden size {hidden}")))
    }

    /// All its layers.
    pub fn layers(&self) -> Vec<&Projection> {
        self.first.layers().into_iter().chain([&self.down]).collect()
    }
}

/// The point below which a value with the standard normal distribution is with this probability, by Newton's method.
fn normal_quantile(probability: f64) -> f64 {
    let density = |z: f64| (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    // `1/2 + density (z + z^3/3 + z^5/(3 5) + ...)`.
    let below = |z: f64| {
        let terms = (1..200).scan(z, |term, at| {
            let now = *term;
            *term *= z * z / f64::from(2 * at + 1);
            Some(now)
        });
        0.5 + density(z) * terms.sum::<f64>()
    };
    (0..60).fold(0.0, |z: f64, _| (z - (below(z) - probability) / density(z)).clamp(-6.0, 6.0))
}

fn groups(config: &ExpertsConfig) -> Result<(usize, usize), ForwardError> {
    let (all, used) = (config.groups.unwrap_or(1), config.groups_per_token.unwrap_or(1));
    match config.count.is_multiple_of(all) && used <= all {
        true => Ok((all, used)),
        false => Err(ForwardError::unsupported(format!("{} experts in {all} groups, {used} per token", config.count))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (probability, expected) in
            [(0.5, 0.0), (0.95, 1.644_853_627), (0.1, -1.281_551_566), (0.999, 3.090_232_306)]
        {
            assert!((normal_quantile(probability) - expected).abs() < 1e-8, "{probability}");
        }
    }
}
