//! Shapes: what config.json's sizes give for every layer whose size follows from them.

use crate::verify::subject::CheckpointView;
use kvant_model::family::{Part, Positions, RecurrentMixer, RecurrentParameter, Role};
use kvant_model::model_config::{CompressedConfig, ModelConfig};
use kvant_model::network::{FusedExperts, Linear, Network, Place, TensorMeta};
use kvant_quant::finding::Findings;

const HINT: &str = "config.json is of another model, or the file is: take both from one";

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if subject.json.is_none() || subject.network.family().is_none() {
        return;
    }
    mismatches(&subject.config, &subject.network, &subject.survey.tensors, findings);
}

fn mismatches(config: &ModelConfig, network: &Network, tensors: &[TensorMeta], findings: &mut Findings) {
    let sizes = Sizes {
        config,
        projects: network.linears().iter().any(|linear| linear.role == Role::ProjectIn),
        query_parts: network.family().map_or(1, |family| family.math.head_gate.query_parts()),
        recurrent: network.family().and_then(|family| family.recurrent).map(|recurrent| recurrent.mixer),
    };
    for linear in network.linears().iter().filter(|linear| linear.out_features > 0 && linear.in_features > 0) {
        let found = (linear.out_features, linear.in_features);
        let expected = match (linear.role, sizes.linear(linear)) {
            (Role::Head, (vocabulary, width)) => {
                report_vocabulary(&linear.module, found.0, vocabulary, 0, findings);
                (None, width)
            }
            (_, expected) => expected,
        };
        report(&linear.module, found, expected, findings);
    }
    for experts in network.experts() {
        let found = (experts.out_features, experts.in_features);
        report(&experts.module, found, sizes.experts(experts), findings);
        if let Some(count) = config.experts.as_ref().map(|e| e.count).filter(|count| *count != experts.experts) {
            let reason = format!("holds {} experts, config.json states {count}", experts.experts);
            findings.error(&experts.module, reason, HINT);
        }
    }
    let positions = sizes.positions(network);
    for (tensor, place) in tensors.iter().zip(network.places()) {
        if let (Place::Positions, &[rows, columns]) = (place, tensor.shape.as_slice()) {
            if let Some(expected) = positions.filter(|expected| *expected != rows) {
                let reason = format!("has {rows} rows for positions; config.json asks for {expected}");
                findings.error(&tensor.name, reason, HINT);
            }
            report(&tensor.name, (rows, columns), (None, sizes.embedding().1), findings);
        }
        if let (Place::Embedding, &[rows, columns]) = (place, tensor.shape.as_slice()) {
            let (vocabulary, width) = sizes.embedding();
            report_vocabulary(&tensor.name, rows, vocabulary, config.further_tokens, findings);
            report(&tensor.name, (rows, columns), (None, width), findings);
        }
    }
    if let Some(kernel) = sizes.kernel() {
        convolutions(kernel, network, tensors, findings);
    }
}

/// The convolutions of recurrent mixers, `[channels, 1, kernel]`.
fn convolutions(kernel: usize, network: &Network, tensors: &[TensorMeta], findings: &mut Findings) {
    const PARAMETERS: [RecurrentParameter; 4] = [
        RecurrentParameter::Convolution,
        RecurrentParameter::QueryConvolution,
        RecurrentParameter::KeyConvolution,
        RecurrentParameter::ValueConvolution,
    ];
    let Some(recurrent) = network.family().and_then(|family| family.recurrent) else { return };
    let weights: Vec<String> = PARAMETERS
        .into_iter()
        .filter_map(|parameter| recurrent.parameter(parameter))
        .map(|path| format!(".{path}.weight"))
        .collect();
    for tensor in tensors.iter().filter(|tensor| weights.iter().any(|weight| tensor.name.ends_with(weight))) {
        if let &[_, 1, found] = tensor.shape.as_slice()
            && found != kernel
        {
            let reason = format!("is a convolution over {found} tokens; config.json asks for {kernel}");
            findings.error(&tensor.name, reason, HINT);
        }
    }
}

/// Output and input channels that are expected; `None` where config.json does not tell.
type Expected = (Option<usize>, Option<usize>);

fn report(place: &str, found: (usize, usize), expected: Expected, findings: &mut Findings) {
    let mut say = |found: usize, expected: Option<usize>, what: &str| {
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            findings.error(place, format!("has {found} {what}; config.json asks for {expected}"), HINT);
        }
    };
    say(found.0, expected.0, "output channels");
    say(found.1, expected.1, "input channels");
}

fn report_vocabulary(place: &str, rows: usize, stated: Option<usize>, further: usize, findings: &mut Findings) {
    if let Some(stated) = stated.filter(|stated| stated.checked_add(further) != Some(rows)) {
        let beside = if further == 0 { String::new() } else { format!(", beside {further} tokens that are only read") };
        findings.error(place, format!("has {rows} rows; vocab_size of config.json is {stated}{beside}"), HINT);
    }
}

/// Sizes that follow from config.json.
struct Sizes<'a> {
    config: &'a ModelConfig,
    /// Whether embeddings have another width than the blocks.
    projects: bool,
    /// How many times the rows of a query the query projection has.
    query_parts: usize,
    /// The recurrent mixer of the family.
    recurrent: Option<RecurrentMixer>,
}

impl Sizes<'_> {
    fn hidden(&self) -> Option<usize> {
        self.config.hidden_size
    }

    fn heads(&self, heads: Option<usize>, width: Option<usize>) -> Option<usize> {
        heads?.checked_mul(width?)
    }

    fn queries(&self) -> Option<usize> {
        self.heads(self.config.num_heads, self.config.head_dim()).filter(|_| !self.heads_vary())
    }

    /// Returns whether layers have heads of different widths.
    fn heads_vary(&self) -> bool {
        ["per_layer_config", "global_head_dim"].iter().any(|key| self.config.states(key))
            || !self.config.heads_by_layer.is_empty()
    }

    /// Of models whose layers have different numbers of key heads, none is stated for all.
    fn keys(&self) -> Option<usize> {
        self.heads(self.config.num_kv_heads(), self.config.head_dim())
            .filter(|_| self.config.stated_value_dim.is_none() && !self.heads_vary())
    }

    fn heads_outputs(&self) -> Option<usize> {
        self.heads(self.config.num_heads, self.config.value_dim()).filter(|_| !self.heads_vary())
    }

    /// Rows of a table of learned positions.
    fn positions(&self, network: &Network) -> Option<usize> {
        let offset = match network.family()?.math.positions {
            Positions::Learned { offset } => offset,
            Positions::LearnedBehindPadding { .. } => 0,
            _ => return None,
        };
        self.config.max_positions?.checked_add(offset)
    }

    /// Tokens that the convolution of a recurrent mixer sees.
    fn kernel(&self) -> Option<usize> {
        match self.recurrent? {
            RecurrentMixer::GatedDelta { .. } | RecurrentMixer::ChannelDelta { .. } => {
                self.config.delta.map(|delta| delta.kernel)
            }
            RecurrentMixer::Lightning { .. } => None,
            RecurrentMixer::ShortConvolution => self.number("conv_L_cache"),
            RecurrentMixer::Mamba1 { .. } => self.config.mamba1.map(|mamba| mamba.kernel),
            RecurrentMixer::Mamba2 { .. } => self.config.mamba.map(|mamba| mamba.kernel),
        }
    }

    fn embedding(&self) -> Expected {
        (self.config.vocab_size, self.hidden().filter(|_| !self.projects))
    }

    fn linear(&self, linear: &Linear) -> Expected {
        if linear.part == Part::Recurrent {
            return self.recurrent(linear.role);
        }
        let wide = self.intermediate(linear.part, linear.block);
        match linear.part == Part::Experts && self.config.states("moe_latent_size") {
            // Experts of Nemotron 3 may work in a latent.
            true => self.of_expert_in_latent(linear.role, wide),
            false => self.of_role(linear.role, wide),
        }
    }

    fn experts(&self, experts: &FusedExperts) -> Expected {
        self.of_role(experts.role, self.intermediate(Part::Experts, Some(experts.block)))
    }

    fn of_role(&self, role: Role, wide: Option<usize>) -> Expected {
        let hidden = self.hidden();
        if self.config.latent.is_some() && !self.is_without_latents(role) {
            return self.latent(role);
        }
        if let Some(sizes) = self.config.compressed.as_ref().filter(|_| !self.is_without_latents(role)) {
            return self.compressed(role, sizes);
        }
        match role {
            Role::Query => (self.queries().and_then(|rows| rows.checked_mul(self.query_parts)), hidden),
            Role::Key | Role::Value => (self.keys(), hidden),
            Role::QueryKeyValue => {
                let both = self.queries().zip(self.keys());
                (both.and_then(|(q, k)| k.checked_mul(2)?.checked_add(q)), hidden)
            }
            Role::Output => (hidden, self.heads_outputs()),
            Role::Gate | Role::Up => (wide, hidden),
            Role::GateUp => (wide.and_then(|wide| wide.checked_mul(2)), hidden),
            Role::Down => (hidden, wide),
            Role::Router => (self.config.experts.as_ref().and_then(|experts| experts.scored()), hidden),
            Role::Head => self.embedding(),
            Role::LayerInputs => {
                let both = self.config.num_layers.zip(self.layer_input());
                (both.and_then(|(layers, width)| layers.checked_mul(width)), hidden)
            }
            Role::IndexQuery => {
                let index = self.config.block_index;
                (index.and_then(|index| index.heads.checked_mul(index.width)), hidden)
            }
            Role::IndexKey => (self.config.block_index.map(|index| index.width), hidden),
            Role::LaneInput | Role::LaneOutput => (hidden, hidden),
            Role::LaneRouter => (self.lanes(), hidden),
            Role::LanePrediction => (self.lanes().and_then(|lanes| lanes.checked_mul(lanes)), self.lanes()),
            Role::LaneCorrection => (self.lanes(), self.lanes()),
            Role::LowRankDown => (self.number("laurel_rank"), hidden),
            Role::LowRankUp => (hidden, self.number("laurel_rank")),
            Role::LayerInputGate => (self.layer_input(), hidden),
            Role::LayerInputOutput => (hidden, self.layer_input()),
            _ => (None, None),
        }
    }

    /// Width of the input that a block has of its own.
    fn layer_input(&self) -> Option<usize> {
        self.number("hidden_size_per_layer_input")
    }

    /// Residual streams side by side.
    fn lanes(&self) -> Option<usize> {
        self.number("altup_num_inputs")
    }

    fn number(&self, key: &str) -> Option<usize> {
        self.config.number(key).ok().flatten().map(|number| number as usize)
    }

    fn of_expert_in_latent(&self, role: Role, wide: Option<usize>) -> Expected {
        let stated = self.config.number("moe_latent_size").ok().flatten().map(|width| width as usize);
        let width = stated.or(self.hidden());
        match role {
            Role::Down => (width, wide),
            _ => (wide, width),
        }
    }

    fn is_without_latents(&self, role: Role) -> bool {
        matches!(role, Role::Gate | Role::Up | Role::GateUp | Role::Down | Role::Router | Role::Head)
    }

    /// Attention to entries of tokens.
    fn compressed(&self, role: Role, sizes: &CompressedConfig) -> Expected {
        let (hidden, rank) = (self.hidden(), Some(sizes.query_rank));
        let latents = sizes.output_groups.checked_mul(sizes.output_rank);
        match role {
            Role::QueryDown => (rank, hidden),
            Role::QueryUp => (self.queries(), rank),
            Role::KeyValue => (self.config.head_dim(), hidden),
            Role::CompressedKey | Role::CompressedGate | Role::IndexKey | Role::IndexGate => (None, hidden),
            Role::IndexQuery => (sizes.index_heads.checked_mul(sizes.index_width), rank),
            Role::IndexWeights => (Some(sizes.index_heads), hidden),
            Role::OutputDown => (latents, self.queries().and_then(|rows| rows.checked_div(sizes.output_groups))),
            Role::Output => (hidden, latents),
            _ => (None, None),
        }
    }

    /// Multi-head latent attention.
    fn latent(&self, role: Role) -> Expected {
        let Some(latent) = &self.config.latent else { return (None, None) };
        let heads = |width: usize| self.heads(self.config.num_heads, Some(width));
        let query = heads(latent.nope_dim.saturating_add(latent.rope_dim));
        match role {
            Role::Query => (query, self.hidden()),
            Role::QueryDown => (latent.query_rank, self.hidden()),
            Role::QueryUp => (query, latent.query_rank),
            Role::KeyValueDown => (latent.key_value_rank.checked_add(latent.rope_dim), self.hidden()),
            Role::KeyValueUp => (heads(latent.nope_dim.saturating_add(latent.value_dim)), Some(latent.key_value_rank)),
            Role::IndexQuery => {
                (self.heads(self.number("index_n_heads"), self.number("index_head_dim")), latent.query_rank)
            }
            Role::IndexKey => (self.number("index_head_dim"), self.hidden()),
            Role::IndexWeights => (self.number("index_n_heads"), self.hidden()),
            Role::Output => (self.hidden(), heads(latent.value_dim)),
            _ => (None, None),
        }
    }

    /// Recurrent mixers.
    fn recurrent(&self, role: Role) -> Expected {
        let hidden = self.hidden();
        match (self.recurrent, role) {
            (Some(RecurrentMixer::GatedDelta { .. } | RecurrentMixer::ChannelDelta { .. }), _) => self.delta(role),
            (Some(RecurrentMixer::Lightning { .. }), Role::RecurrentInput) => {
                (self.queries().and_then(|rows| rows.checked_mul(3)), hidden)
            }
            (Some(RecurrentMixer::Lightning { .. }), Role::RecurrentGate) => (self.queries(), hidden),
            (Some(RecurrentMixer::Lightning { .. }), Role::Output) => (hidden, self.queries()),
            (Some(RecurrentMixer::ShortConvolution), Role::RecurrentInput) => {
                (hidden.and_then(|hidden| hidden.checked_mul(3)), hidden)
            }
            (Some(RecurrentMixer::ShortConvolution), Role::Output) => (hidden, hidden),
            (Some(RecurrentMixer::Mamba1 { .. }), _) => self.mamba1(role),
            (Some(RecurrentMixer::Mamba2 { .. }), Role::RecurrentInputGate) => {
                (self.config.mamba.and_then(|mamba| mamba.rows()), hidden)
            }
            (Some(RecurrentMixer::Mamba2 { .. }), Role::Output) => {
                (hidden, self.config.mamba.and_then(|mamba| mamba.inner()))
            }
            _ => (None, None),
        }
    }

    /// Mamba mixers.
    fn mamba1(&self, role: Role) -> Expected {
        let Some(sizes) = &self.config.mamba1 else { return (None, None) };
        let (hidden, inner) = (self.hidden(), Some(sizes.inner));
        match role {
            Role::RecurrentInputGate => (sizes.rows(), hidden),
            Role::RecurrentChoice => (sizes.chosen(), inner),
            Role::RecurrentStep => (inner, Some(sizes.rank)),
            Role::Output => (hidden, inner),
            _ => (None, None),
        }
    }

    /// Gated delta nets.
    fn delta(&self, role: Role) -> Expected {
        let Some(delta) = &self.config.delta else { return (None, None) };
        let (hidden, values) = (self.hidden(), delta.values());
        match role {
            Role::RecurrentInput => (delta.channels(), hidden),
            Role::RecurrentQuery | Role::RecurrentKey | Role::RecurrentSteps => (delta.keys(), hidden),
            Role::RecurrentValue => (values, hidden),
            Role::RecurrentGate => (values, hidden),
            Role::RecurrentInputGate => {
                (delta.channels().zip(values).and_then(|(channels, values)| channels.checked_add(values)), hidden)
            }
            Role::RecurrentDecay | Role::RecurrentStrength => (Some(delta.value_heads), hidden),
            Role::RecurrentDecayDown | Role::RecurrentGateDown => (Some(delta.value_dim), hidden),
            Role::RecurrentDecayUp => (delta.keys(), Some(delta.value_dim)),
            Role::RecurrentGateUp => (values, Some(delta.value_dim)),
            Role::RecurrentRates => (delta.value_heads.checked_mul(2), hidden),
            Role::Output => (hidden, values),
            _ => (None, None),
        }
    }

    /// Width of a feed-forward network.
    fn intermediate(&self, part: Part, block: Option<usize>) -> Option<usize> {
        let experts = self.config.experts.as_ref();
        let dense = match self.config.intermediate_sizes[..] {
            [one] => Some(one),
            ref many => block.and_then(|block| many.get(block)).copied(),
        };
        match part {
            Part::Mlp => self.config.dense_intermediate_size.or(dense),
            Part::Experts => experts.and_then(|experts| experts.intermediate_size).or(dense),
            Part::SharedExperts => {
                let experts = experts?;
                let each = || experts.intermediate_size?.checked_mul(experts.shared_count?);
                experts.shared_intermediate_size.or_else(each)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // Helpers of tests.
#[path = "../../../../model/tests/support/mod.rs"]
pub(super) mod support;

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_quant::finding::Finding;
    use serde_json::json;

    fn found(checkpoint: &support::Checkpoint) -> Vec<Finding> {
        let config = ModelConfig::from_json(&checkpoint.config).unwrap();
        let mut findings = Findings::of("shapes");
        mismatches(&config, &checkpoint.network(), &checkpoint.tensors, &mut findings);
        findings.into_vec()
    }

    #[test]
    fn every_family_fixture_has_the_shapes_of_its_config() {
        for name in support::names() {
            assert_eq!(found(&support::Checkpoint::read(&name)), [], "{name}");
        }
    }

    #[test]
    fn shapes_of_another_model_are_reported() {
        let other = |key: &str, value| found(&support::Checkpoint::read("llama").with_config(key, json!(value)));
        for (key, value) in
            [("vocab_size", 100), ("hidden_size", 8), ("intermediate_size", 7), ("num_attention_heads", 1)]
        {
            assert!(!other(key, value).is_empty(), "{key}");
        }
        for key in ["linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "head_dim"] {
            let delta = support::Checkpoint::read("qwen3_next").with_config(key, json!(10));
            assert!(!found(&delta).is_empty(), "{key}");
        }
        let kernels = [
            ("lfm2", "conv_L_cache"),
            ("qwen3_next", "linear_conv_kernel_dim"),
            ("olmo_hybrid", "linear_conv_kernel_dim"),
            ("mamba", "conv_kernel"),
            ("falcon_h1", "mamba_d_conv"),
        ];
        for (name, key) in kernels {
            let other = found(&support::Checkpoint::read(name).with_config(key, json!(7)));
            assert!(other.iter().any(|finding| finding.reason.contains("over")), "{name}");
        }
        let experts = support::Checkpoint::read("gpt_oss").with_config("num_local_experts", json!(3));
        assert!(found(&experts).iter().any(|finding| finding.reason.contains("experts")));
    }
}
