//! The tensors that the forward pass of a family reads, whatever the blocks of a checkpoint agree on: a model without them loads
//! with random numbers in their place, or not at all.

use kvant_model::family::{
    Family, ImageTokens, Indexer, NormSite, Part, Positions, Recurrent, RecurrentParameter, Residual, Role,
    SoundConvolutions, SoundTokens, StackBlock, leaf,
};
use kvant_model::model_config::{ModelConfig, SPARSE_ENTRIES};
use kvant_model::network::{Network, Place, Slot, TensorMeta};
use std::collections::{BTreeMap, HashSet};

/// A tensor, or a layer of a block, that is not there.
#[derive(Debug, PartialEq)]
pub(super) struct Missing {
    /// The tensor, or the block.
    pub subject: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Everything that the family's forward pass reads and the network lacks. Nothing is known of architectures without a
/// description.
pub(super) fn missing(network: &Network, config: &ModelConfig, tensors: &[TensorMeta]) -> Vec<Missing> {
    let Some(family) = network.family() else { return Vec::new() };
    let expected = Expected { family, network, config };
    let mut missing = expected.outside_blocks();
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if let Some(images) = family.encoder.and_then(|encoder| encoder.images) {
        missing.extend(expected.of_images(images, &names));
    }
    if let Some(sounds) = family.encoder.and_then(|encoder| encoder.sounds) {
        missing.extend(expected.of_sounds(sounds, &names));
    }
    for block in network.blocks() {
        missing.extend(expected.norms_of(*block));
        missing.extend(expected.layers_of(*block));
        missing.extend(expected.parameters_of(*block, &names));
    }
    missing.extend(expected.biases());
    missing
}

/// The path of the list of blocks.
pub(super) fn path_of_blocks(network: &Network) -> String {
    let blocks = network.family().map_or("layers", |family| family.trunk.blocks);
    in_trunk(network, blocks)
}

fn in_trunk(network: &Network, path: &str) -> String {
    match network.trunk() {
        "" => path.to_owned(),
        trunk => format!("{trunk}.{path}"),
    }
}

/// Biases that the classes of a family always create, or unless a boolean of config.json says otherwise.
struct BiasRule {
    families: &'static [&'static str],
    /// The layers that have one.
    roles: &'static [Role],
    /// Whether norms have one.
    norms: bool,
    /// The boolean, and its default.
    flag: Option<(&'static str, bool)>,
}

const ATTENTION: &[Role] = &[Role::Query, Role::Key, Role::Value, Role::QueryKeyValue, Role::Output];
const FEED_FORWARD: &[Role] = &[Role::Up, Role::Gate, Role::GateUp, Role::Down];
const ALL: &[Role] = &[Role::Query, Role::Key, Role::Value, Role::QueryKeyValue, Role::Output, Role::Up, Role::Down];
const ALL_BUT_KEYS: &[Role] = &[Role::Query, Role::Value, Role::Output, Role::Up, Role::Down];
const INPUTS: &[Role] = &[Role::Query, Role::Key, Role::Value];
const OUTPUT: &[Role] = &[Role::Output];
const HEAD: &[Role] = &[Role::Head];
const EXPERTS: &[Role] = &[Role::Router, Role::GateUp, Role::Down];

/// Families like ViT.
const VISION: &[&str] = &["deit", "dinov2", "dinov2_with_registers", "vit"];

const BIASES: &[BiasRule] = &[
    BiasRule { families: &["opt"], roles: ALL, norms: true, flag: Some(("enable_bias", true)) },
    BiasRule { families: &["gpt2", "gpt_bigcode", "persimmon", "phi", "xglm"], roles: ALL, norms: true, flag: None },
    BiasRule { families: &["phi", "gptj"], roles: HEAD, norms: false, flag: None },
    BiasRule { families: &["phimoe"], roles: HEAD, norms: false, flag: Some(("lm_head_bias", false)) },
    BiasRule { families: &["stablelm"], roles: INPUTS, norms: false, flag: Some(("use_qkv_bias", false)) },
    BiasRule { families: &["glm", "glm4"], roles: INPUTS, norms: false, flag: Some(("attention_bias", true)) },
    BiasRule { families: &["glm4_moe"], roles: INPUTS, norms: false, flag: Some(("attention_bias", false)) },
    BiasRule { families: &["gpt_oss"], roles: EXPERTS, norms: false, flag: None },
    BiasRule { families: &["gpt_neox", "gptj"], roles: FEED_FORWARD, norms: true, flag: None },
    BiasRule { families: &["gpt_neox"], roles: ATTENTION, norms: false, flag: Some(("attention_bias", true)) },
    BiasRule { families: &["starcoder2"], roles: ALL, norms: false, flag: Some(("use_bias", true)) },
    BiasRule {
        families: &[
            "bart",
            "bert",
            "bloom",
            "clip_text",
            "clip_vision",
            "deberta_v2",
            "distilbert",
            "electra",
            "esm",
            "hubert",
            "marian",
            "mbart",
            "mpnet",
            "pegasus",
            "roberta",
            "siglip_text",
            "siglip_vision",
            "wav2vec2",
        ],
        roles: ALL,
        norms: true,
        flag: None,
    },
    BiasRule { families: &["whisper"], roles: ALL_BUT_KEYS, norms: true, flag: None },
    BiasRule { families: VISION, roles: INPUTS, norms: true, flag: Some(("qkv_bias", true)) },
    BiasRule { families: VISION, roles: OUTPUT, norms: false, flag: None },
    BiasRule { families: VISION, roles: FEED_FORWARD, norms: false, flag: None },
    BiasRule { families: &["dinov3_vit"], roles: OUTPUT, norms: true, flag: Some(("proj_bias", true)) },
    BiasRule { families: &["dinov3_vit"], roles: FEED_FORWARD, norms: false, flag: Some(("mlp_bias", true)) },
    BiasRule { families: &["falcon"], roles: ALL, norms: false, flag: Some(("bias", false)) },
    BiasRule { families: &["falcon"], roles: &[], norms: true, flag: None },
    BiasRule {
        families: &["ernie4_5", "ernie4_5_moe"],
        roles: ATTENTION,
        norms: false,
        flag: Some(("use_bias", false)),
    },
    BiasRule { families: &["ernie4_5"], roles: FEED_FORWARD, norms: false, flag: Some(("use_bias", false)) },
    BiasRule { families: &["seed_oss"], roles: INPUTS, norms: false, flag: Some(("attention_bias", true)) },
    BiasRule { families: &["seed_oss"], roles: OUTPUT, norms: false, flag: Some(("attention_out_bias", false)) },
    BiasRule { families: &["qwen2", "qwen2_moe"], roles: INPUTS, norms: false, flag: Some(("qkv_bias", true)) },
    BiasRule { families: &["gpt_oss"], roles: ATTENTION, norms: false, flag: Some(("attention_bias", true)) },
    BiasRule {
        families: &[
            "llama",
            "arcee",
            "phimoe",
            "apertus",
            "bitnet",
            "afmoe",
            "hy_v3",
            "hunyuan_v1_moe",
            "laguna",
            "llama4",
            "nanochat",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_next",
        ],
        roles: ATTENTION,
        norms: false,
        flag: Some(("attention_bias", false)),
    },
    BiasRule {
        families: &["llama", "arcee", "seed_oss"],
        roles: FEED_FORWARD,
        norms: false,
        flag: Some(("mlp_bias", false)),
    },
    BiasRule {
        families: &["bamba", "falcon_h1", "granitemoehybrid"],
        roles: ATTENTION,
        norms: false,
        flag: Some(("attention_bias", false)),
    },
    BiasRule {
        families: &["bamba", "falcon_h1", "nemotron_h"],
        roles: FEED_FORWARD,
        norms: false,
        flag: Some(("mlp_bias", false)),
    },
    BiasRule { families: &["starcoder2", "nemotron", "phimoe", "stablelm"], roles: &[], norms: true, flag: None },
];

/// A model that is compared with its family.
struct Expected<'n> {
    family: &'static Family,
    network: &'n Network,
    config: &'n ModelConfig,
}

impl Expected<'_> {
    /// The final norm and the table of positions.
    fn outside_blocks(&self) -> Vec<Missing> {
        let mut missing = Vec::new();
        let decoder = self.family.decoder_stack();
        let norms = self.family.trunk.norms.iter().chain(decoder.iter().flat_map(|decoder| decoder.trunk_norms));
        // Encoder-decoders have all norms around their stacks.
        let is_needed = |site: NormSite| site == NormSite::Final && self.has_final_norm() || decoder.is_some();
        let listed = norms.filter(|(site, _)| is_needed(*site));
        for (_, path) in listed.filter(|(site, _)| !self.has_outside(*site)) {
            let reason = match decoder {
                None => "is missing: it is the norm after the last block",
                Some(_) => "is missing: it is a norm before or behind a stack of blocks",
            };
            missing.push(self.tensor(&in_trunk(self.network, path), reason));
        }
        let positions = self.family.math.positions.resolve(self.config);
        let learned = matches!(positions, Positions::Learned { .. } | Positions::LearnedBehindPadding { .. });
        if let (true, Some(path)) = (learned, self.family.trunk.positions)
            && !self.network.places().contains(&Place::Positions)
        {
            missing.push(self.tensor(&in_trunk(self.network, path), "is missing: it is the table of positions"));
        }
        if let (true, Some(path)) = (learned, decoder.and_then(|decoder| decoder.positions))
            && !self.network.places().contains(&Place::DecoderPositions)
        {
            let reason = "is missing: it is the table of positions of the decoder";
            missing.push(self.tensor(&in_trunk(self.network, path), reason));
        }
        if let Some(encoder) = self.family.encoder {
            let tables = [
                (
                    encoder.token_types.filter(|_| self.config.size("type_vocab_size") != Some(0)),
                    Place::TokenTypes,
                    "is missing: it is the table of token types",
                ),
                (
                    encoder.distance_embeddings,
                    Place::RelativePositions,
                    "is missing: it is the table of embeddings of distances",
                ),
                (
                    encoder.relative_positions,
                    Place::RelativePositions,
                    "is missing: it is the table of biases for distances",
                ),
            ];
            let absent = tables.into_iter().filter(|(_, place, _)| !self.network.places().contains(place));
            let paths = absent.filter_map(|(path, _, reason)| Some((path?, reason)));
            missing.extend(paths.map(|(path, reason)| self.tensor(&in_trunk(self.network, path), reason)));
        }
        if self.has_layer_inputs() {
            missing.extend(self.layer_inputs());
        }
        missing.extend(self.projections());
        missing
    }

    /// The tensors, by name, from which models of images make the rows of the stream.
    fn of_images(&self, images: ImageTokens, names: &HashSet<&str>) -> Vec<Missing> {
        let has_patches = self.network.places().contains(&Place::Patches(Slot::Weight));
        let projection = in_trunk(self.network, self.family.trunk.embedding);
        let projection = (!has_patches).then(|| self.tensor(&projection, "is missing: it reads the patches of images"));
        let learned = images.learned.iter().map(|token| in_trunk(self.network, token.path));
        let absent = learned.filter(|name| !names.contains(name.as_str()));
        let reason = "is missing: it has the learned rows before those of patches";
        let absent = absent.map(|subject| Missing { subject, reason: reason.to_owned() });
        projection.into_iter().chain(absent).collect()
    }

    /// The tensors, by name, from which models of sounds make the rows of the stream.
    fn of_sounds(&self, sounds: SoundTokens, names: &HashSet<&str>) -> Vec<Missing> {
        let modules: Vec<String> = match sounds.convolutions {
            SoundConvolutions::Spectrogram(first, second) => vec![first.to_owned(), second.to_owned()],
            SoundConvolutions::Waveform(each) => {
                let count = self.config.entries("conv_dim").unwrap_or(0);
                (0..count).map(|index| each.replace("{}", &index.to_string())).collect()
            }
        };
        let weights = modules.into_iter().map(|module| format!("{module}.weight"));
        let biases = sounds.positions.iter().map(|path| format!("{path}.bias"));
        let needed = weights.chain(biases).map(|path| in_trunk(self.network, &path));
        let absent = needed.filter(|name| !names.contains(name.as_str()));
        let reason = "is missing: it is of a convolution that reads sounds";
        absent.map(|subject| Missing { subject, reason: reason.to_owned() }).collect()
    }

    /// What the inputs of blocks are made of.
    fn layer_inputs(&self) -> Vec<Missing> {
        let trunk = &self.family.trunk;
        let places = self.network.places();
        let has_layer = self.network.linears().iter().any(|linear| linear.role == Role::LayerInputs);
        let parts = [
            (trunk.layer_inputs, places.contains(&Place::LayerInputs)),
            (trunk.linears.iter().find(|(role, _)| *role == Role::LayerInputs).map(|(_, path)| *path), has_layer),
            (
                trunk.norms.iter().find(|(site, _)| *site == NormSite::LayerInputs).map(|(_, path)| *path),
                self.has_outside(NormSite::LayerInputs),
            ),
        ];
        let lacking = parts.into_iter().filter(|(_, has)| !has).filter_map(|(path, _)| path);
        let reason = "is missing: the inputs of blocks are made with it";
        lacking.map(|path| self.tensor(&in_trunk(self.network, path), reason)).collect()
    }

    /// The layers between embeddings and blocks of another width: all of them where there is one, or where config.json states two
    /// widths.
    fn projections(&self) -> Vec<Missing> {
        let has =
            |role: Role| self.network.linears().iter().any(|linear| linear.block.is_none() && linear.role == role);
        // What makes the inputs of layers has been looked at.
        let listed = || self.family.trunk.linears.iter().filter(|(role, _)| *role != Role::LayerInputs);
        let stated = self.config.number("word_embed_proj_dim").ok().flatten().map(|width| width as usize);
        let differ = stated.is_some_and(|width| self.config.hidden_size.is_some_and(|hidden| hidden != width));
        if !differ && !listed().any(|(role, _)| has(*role)) {
            return Vec::new();
        }
        let reason = "is missing: embeddings have another width than the blocks";
        let lacking = listed().filter(|(role, _)| !has(*role));
        lacking.map(|(_, path)| self.tensor(&in_trunk(self.network, path), reason)).collect()
    }

    /// Small tensors that a block lacks. Of names with one last part, families have one or another; the corrections of a router go
    /// with routed experts.
    fn parameters_of(&self, block: usize, names: &HashSet<&str>) -> Vec<Missing> {
        let is_routed = self.roles_of(block).iter().any(|(part, _)| *part == Part::Experts);
        let full = |path: &str| self.path_in(block, path);
        let distances = self.family.encoder.and_then(|encoder| encoder.block_distances);
        let distances = distances.filter(|table| self.has_distances(block, table.is_in_every_block));
        let distances = distances.map(|table| format!("{}.weight", full(table.path)));
        let distances = distances.filter(|name| !names.contains(name.as_str()));
        let has = |name: &str| {
            let mut alike = self.family.parameters.iter().filter(|path| leaf(path) == name);
            alike.any(|path| names.contains(full(path).as_str()))
        };
        let needed = self
            .family
            .parameters
            .iter()
            .filter(|path| is_routed || !(leaf(path).ends_with("_bias") || path.starts_with("router.")))
            .filter(|path| self.family.has_parameter_at(self.config, path, block))
            .filter(|path| leaf(path) != "expert_bias" || self.config.flag_or("use_expert_bias", true));
        let is_sliding = self.config.layer_types.get(block).is_some_and(|kind| kind == "sliding_attention");
        let no_sinks = self.family.math.sliding_has_more && !is_sliding;
        let needed = needed.filter(|path| !no_sinks || !path.contains("sink"));
        let lacking: BTreeMap<&str, &str> =
            needed.rev().map(|path| (leaf(path), *path)).filter(|(name, _)| !has(name)).collect();
        let reason = format!("is missing: every such block of {} has it", self.family.name);
        let mixer = self.recurrent(block);
        let recurrent = mixer.map_or(&[][..], |recurrent| recurrent.parameters);
        let recurrent = recurrent.iter().filter(|(parameter, _)| !parameter.is_optional()).map(|(_, path)| full(path));
        let bias = mixer.filter(|recurrent| recurrent.has_convolution_bias(self.config));
        let bias = bias.and_then(|recurrent| recurrent.parameter(RecurrentParameter::Convolution));
        let recurrent = recurrent.chain(bias.map(|path| full(&format!("{path}.bias"))));
        let recurrent =
            recurrent.filter(|path| !names.contains(&**path) && !names.contains(&*format!("{path}.weight")));
        let subjects = lacking.values().map(|path| full(path)).chain(recurrent).chain(distances);
        subjects.map(|subject| Missing { subject, reason: reason.clone() }).collect()
    }

    /// The full path of what a block has under a path of the description.
    fn path_in(&self, block: usize, path: &str) -> String {
        in_trunk(self.network, &self.family.path_in_trunk(self.config, block, path))
    }

    /// Returns whether a block has a table of biases for distances: the first of each stack, or all with self-attention.
    fn has_distances(&self, block: usize, in_all: bool) -> bool {
        match self.family.stack_block(self.config, block) {
            Some(StackBlock::CrossAttention) => false,
            Some(StackBlock::SelfAttention) => in_all || Some(block) == self.config.num_layers,
            Some(StackBlock::Encoder) | None => in_all || block == 0,
        }
    }

    /// The recurrent mixer of a block that has one in place of attention.
    fn recurrent(&self, block: usize) -> Option<Recurrent> {
        self.family.recurrent.filter(|recurrent| recurrent.is_in_block(self.config, block))
    }

    fn tensor(&self, module: &str, reason: &str) -> Missing {
        Missing { subject: format!("{module}.weight"), reason: reason.to_owned() }
    }

    fn residual(&self) -> Residual {
        self.family.math.residual.resolve(self.config)
    }

    /// Returns whether norms are tensors of the checkpoint.
    fn norms_have_weights(&self) -> bool {
        self.family.norm_kind_of(self.config).has_weight() && self.config.flag_or("layer_norm_elementwise_affine", true)
    }

    fn has_final_norm(&self) -> bool {
        let removed = self.config.flag_or("_remove_final_layer_norm", false);
        self.norms_have_weights() && !removed && self.residual() != Residual::PostNorm
    }

    fn has_outside(&self, site: NormSite) -> bool {
        self.network.norms().iter().any(|norm| norm.block.is_none() && norm.site == site)
    }

    /// The norms that a block lacks.
    fn norms_of(&self, block: usize) -> Vec<Missing> {
        if !self.norms_have_weights() {
            return Vec::new();
        }
        let roles = self.roles_of(block);
        // Of several names for one norm, a block has one.
        let has_other = |site: NormSite, path: &str| {
            let mut norms = self.network.norms().iter();
            let of_heads = path.contains("{}") && self.family.blocks_in_layer() == 1;
            !of_heads && norms.any(|norm| norm.block == Some(block) && norm.site == site)
        };
        let norms = self.family.norms_of_block(self.config, block);
        let required = norms.iter();
        let required =
            required.filter(|(site, path)| self.requires_norm(*site, block, &roles) && !has_other(*site, path));
        let reason = format!("is missing: every block of {} has it", self.family.name);
        let full = |path: &str| self.path_in(block, path);
        let paths = required.flat_map(|(site, path)| self.modules_of(*site, &full(path)));
        let found: HashSet<&str> = self.network.norms().iter().map(|norm| norm.module.as_str()).collect();
        paths.filter(|path| !found.contains(path.as_str())).map(|path| self.tensor(&path, &reason)).collect()
    }

    /// The modules of a norm: one, or one for each head.
    fn modules_of(&self, site: NormSite, path: &str) -> Vec<String> {
        let heads = if site == NormSite::Key { self.config.num_kv_heads() } else { self.config.num_heads };
        match path.contains("{}") {
            // A head more than there are tensors is missing: config.json may state any number.
            true => (0..heads.unwrap_or(1).min(self.network.norms().len() + 1))
                .map(|head| path.replace("{}", &head.to_string()))
                .collect(),
            false => vec![path.to_owned()],
        }
    }

    /// Returns whether a block with layers of these roles cannot do without a norm.
    fn requires_norm(&self, site: NormSite, block: usize, roles: &HashSet<(Part, Role)>) -> bool {
        let has = |role| roles.iter().any(|(_, found)| *found == role);
        if !self.family.has_norm_at(self.config, site, block) {
            return false;
        }
        match site {
            // Families that are parallel only by choice have no second norm then.
            NormSite::FeedForwardInput => {
                !(self.family.math.residual.may_share_norm() && self.residual() == Residual::Parallel)
            }
            NormSite::Query | NormSite::Key => {
                let makes = site == NormSite::Query || self.makes_keys(block);
                let attends = self.family.branches(self.config, block).attention;
                self.family.math.has_query_key_norms(self.config) && attends && makes
            }
            NormSite::RecurrentStep | NormSite::RecurrentWrites | NormSite::RecurrentReads => {
                self.recurrent(block).is_some()
            }
            NormSite::DenseOutput | NormSite::RoutedInput | NormSite::RoutedOutput => has(Role::Router),
            NormSite::LayerInputOutput => self.has_layer_inputs(),
            NormSite::RecurrentOutput => self.recurrent(block).is_some_and(|mixer| mixer.has_norm(self.config)),
            NormSite::QueryLatent => has(Role::QueryUp),
            NormSite::IndexQuery | NormSite::IndexKey => has(Role::IndexKey),
            NormSite::CompressedKey => has(Role::CompressedKey),
            NormSite::KeyValueLatent => has(Role::KeyValueUp) || has(Role::KeyValue),
            _ => true,
        }
    }

    /// What is missing of the layers between several streams, and of those beside attention.
    fn lacking_lanes(&self, roles: &HashSet<(Part, Role)>) -> Vec<String> {
        use Role::{LaneCorrection, LanePrediction, LaneRouter, LowRankDown, LowRankUp};
        let required = [LaneCorrection, LanePrediction, LaneRouter, LowRankDown, LowRankUp];
        let listed = self.family.mlp.iter().filter(|(role, _)| required.contains(role));
        let lacking = listed.filter(|(role, _)| !roles.contains(&(Part::Mlp, *role)));
        lacking.map(|(_, path)| format!("`{path}`")).collect()
    }

    /// Returns whether a block makes the keys and values that it attends to.
    fn makes_keys(&self, block: usize) -> bool {
        self.family.key_block(self.config, block) == block
    }

    /// Returns whether blocks have inputs of their own: there is a table of them, or config.json states their width.
    fn has_layer_inputs(&self) -> bool {
        let stated = self.config.number("hidden_size_per_layer_input").ok().flatten();
        let stated = stated.is_some_and(|width| width > 0.0) && self.family.trunk.layer_inputs.is_some();
        stated || self.network.places().contains(&Place::LayerInputs)
    }

    fn roles_of(&self, block: usize) -> HashSet<(Part, Role)> {
        let linears = self.network.linears().iter().filter(|linear| linear.block == Some(block));
        let experts = self.network.experts().iter().filter(|experts| experts.block == block);
        let linears = linears.map(|linear| (linear.part, linear.role));
        linears.chain(experts.map(|experts| (Part::Experts, experts.role))).collect()
    }

    /// The linear layers that a block lacks.
    fn layers_of(&self, block: usize) -> Vec<Missing> {
        let roles = self.roles_of(block);
        let branches = self.family.branches(self.config, block);
        let mut missing = self.recurrent(block).map_or_else(Vec::new, |mixer| lacking_recurrent(&mixer, &roles));
        if branches.attention {
            missing.extend(self.attention(block, &roles));
        }
        if branches.feed_forward {
            missing.extend(self.feed_forward(&roles));
        }
        if self.has_layer_inputs() {
            missing.extend(lacking_layer_inputs(&roles));
        }
        missing.extend(self.lacking_lanes(&roles));
        let describe = |what: String| Missing {
            subject: format!("block {block}"),
            reason: format!("there is no weight for {what}"),
        };
        missing.into_iter().map(describe).collect()
    }

    fn attention(&self, block: usize, roles: &HashSet<(Part, Role)>) -> Vec<String> {
        let makes_keys = self.makes_keys(block);
        let is_sparse = self.config.layer_types.get(block).is_some_and(|kind| kind == "minimax_m3_sparse");
        use Role::{Key, KeyValue, KeyValueDown, KeyValueUp, Output, Query, QueryDown, QueryKeyValue, QueryUp, Value};
        let is_attention = |part: Part| matches!(part, Part::Attention | Part::CrossAttention);
        let has = |any: &[Role]| roles.iter().any(|(part, role)| is_attention(*part) && any.contains(role));
        let weighs = self.family.math.indexer.is_some_and(|indexer| matches!(indexer, Indexer::Keys(_)));
        let kind = self.config.layer_types.get(block).map_or("", String::as_str);
        let compresses = self.config.compressed.as_ref().is_some_and(|sizes| sizes.rate(kind).is_some());
        let weighs = weighs || kind == SPARSE_ENTRIES;
        let indexes = weighs || is_sparse;
        let needed: [(&str, bool, &[Role]); 13] = [
            ("queries", true, &[Query, QueryKeyValue, QueryUp]),
            ("keys", makes_keys, &[Key, QueryKeyValue, KeyValueUp, KeyValue]),
            ("values", makes_keys && !self.shares_values(), &[Value, QueryKeyValue, KeyValueUp, KeyValue]),
            ("the latent of queries", has(&[QueryUp]), &[QueryDown]),
            ("the latent of keys and values", has(&[KeyValueUp]), &[KeyValueDown]),
            ("the output of attention", true, &[Output]),
            ("the latents of the outputs of attention", self.family.math.compressed_keys, &[Role::OutputDown]),
            ("entries of tokens", compresses, &[Role::CompressedKey]),
            ("the scores of entries of tokens", compresses, &[Role::CompressedGate]),
            ("the scores of keys of the indexer", kind == SPARSE_ENTRIES, &[Role::IndexGate]),
            ("the queries of the indexer", indexes, &[Role::IndexQuery]),
            ("the keys of the indexer", indexes, &[Role::IndexKey]),
            ("the weights of the indexer", weighs, &[Role::IndexWeights]),
        ];
        let missing = needed.into_iter().filter(|(_, needed, any)| *needed && !has(any));
        missing.map(|(name, ..)| name.to_owned()).collect()
    }

    /// Returns whether keys may be values.
    fn shares_values(&self) -> bool {
        self.family.math.full_heads && self.config.flag_or("attention_k_eq_v", false)
    }

    /// What the feed-forward networks of a block lack: a dense one, routed experts, experts that all tokens pass.
    fn feed_forward(&self, roles: &HashSet<(Part, Role)>) -> Vec<String> {
        let is_layer = |role: &Role| FEED_FORWARD.contains(role);
        let present = |part: Part| roles.iter().any(|(of, role)| *of == part && is_layer(role));
        let mut parts = vec![(Part::Mlp, "the feed-forward network's"), (Part::Experts, "the experts'")];
        parts.push((Part::SharedExperts, "the shared experts'"));
        parts.retain(|(part, _)| present(*part));
        let is_alone = self.config.experts.is_none() && present(Part::SharedExperts);
        if !present(Part::Mlp) && !present(Part::Experts) && !is_alone {
            parts.insert(0, (Part::Mlp, "the feed-forward network's"));
        }
        let mut missing = Vec::new();
        for (part, owner) in parts {
            let has = |any: &[Role]| any.iter().any(|role| roles.contains(&(part, *role)));
            let needed: [(&str, bool, &[Role]); 3] = [
                ("down", true, &[Role::Down]),
                ("gate", self.is_gated(), &[Role::Gate, Role::GateUp]),
                ("up", true, &[Role::Up, Role::GateUp]),
            ];
            let lacking = needed.into_iter().filter(|(_, needed, any)| *needed && !has(any));
            missing.extend(lacking.map(|(name, ..)| format!("{owner} {name} projection")));
        }
        let routed = self.family.linears().any(|(role, _)| role == Role::Router) && present(Part::Experts);
        let has_any = |role: Role| roles.iter().any(|(_, found)| *found == role);
        if routed && !has_any(Role::Router) {
            missing.push("the router of the experts".to_owned());
        }
        let is_gate_listed = self.family.linears().any(|(role, _)| role == Role::SharedGate);
        if is_gate_listed && present(Part::SharedExperts) && !has_any(Role::SharedGate) {
            missing.push("the gate of the shared expert".to_owned());
        }
        missing
    }

    /// Returns whether a causal language model has a head that is the embedding, and no bias for it. Base models have no head.
    fn lacks_bias_of_tied_head(&self) -> bool {
        let is_causal = self.config.architectures.iter().any(|class| class.ends_with("ForCausalLM"));
        let is_embedding = self.config.tie_word_embeddings == Some(true) && self.network.head().is_none();
        is_causal && is_embedding && self.network.tied_head_bias().is_none()
    }

    fn is_gated(&self) -> bool {
        let lists_gate = || self.family.linears().any(|(role, _)| matches!(role, Role::Gate | Role::GateUp));
        self.family.math.is_gated(self.config).unwrap_or_else(lists_gate)
    }

    /// Biases that the family's classes create.
    fn biases(&self) -> Vec<Missing> {
        let applies = |rule: &&BiasRule| {
            let asked = rule.flag.is_none_or(|(key, default)| self.config.flag_or(key, default));
            asked && rule.families.contains(&self.family.name)
        };
        let rules: Vec<&BiasRule> = BIASES.iter().filter(applies).collect();
        let reason = format!("is missing: {} has a bias there", self.family.name);
        let bias = |module: &str| Missing { subject: format!("{module}.bias"), reason: reason.clone() };
        let with_bias = |role: &Role| rules.iter().any(|rule| rule.roles.contains(role));
        let layers = self.network.linears().iter().filter(|linear| linear.expert.is_none());
        let layers = layers.filter(|linear| linear.bias.is_none() && linear.part != Part::Recurrent);
        let layers = layers.filter(|linear| with_bias(&linear.role));
        let experts = self.network.experts().iter();
        let experts = experts.filter(|experts| experts.bias.is_none() && with_bias(&experts.role));
        let experts =
            experts.map(|experts| Missing { subject: format!("{}_bias", experts.module), reason: reason.clone() });
        let with_norms = rules.iter().any(|rule| rule.norms) && self.norms_have_weights();
        let norms = self.network.norms().iter().filter(|norm| with_norms && norm.bias.is_none());
        // Those of single heads have no bias.
        let norms = norms.filter(|norm| norm.head.is_none()).map(|norm| bias(&norm.module));
        let head = self.lacks_bias_of_tied_head() && with_bias(&Role::Head);
        let head = self.family.trunk.heads.first().filter(|_| head).map(|head| bias(head));
        layers.map(|linear| bias(&linear.module)).chain(experts).chain(norms).chain(head).collect()
    }
}

/// What is missing of the layers that a block's own input passes.
fn lacking_layer_inputs(roles: &HashSet<(Part, Role)>) -> Vec<String> {
    let layers = [
        (Role::LayerInputGate, "the gate on the block's own input"),
        (Role::LayerInputOutput, "the projection of the block's own input"),
    ];
    let lacking = layers.into_iter().filter(|(role, _)| !roles.iter().any(|(_, found)| found == role));
    lacking.map(|(_, name)| name.to_owned()).collect()
}

/// The layers that a block with a recurrent mixer lacks.
fn lacking_recurrent(recurrent: &Recurrent, roles: &HashSet<(Part, Role)>) -> Vec<String> {
    let lacking = recurrent.linears.iter().filter(|(role, _)| !roles.contains(&(Part::Recurrent, *role)));
    lacking.map(|(_, path)| format!("`{path}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::shapes::support;
    use super::*;
    use serde_json::json;

    fn found(checkpoint: &support::Checkpoint) -> Vec<Missing> {
        missing(&checkpoint.network(), &ModelConfig::from_json(&checkpoint.config).unwrap(), &checkpoint.tensors)
    }

    /// What is missed in a fixture without the tensors whose names contain one of these texts.
    fn without(fixture: &str, parts: &[&str]) -> String {
        let whole = support::Checkpoint::read(fixture);
        let lacking = whole.renamed(|name| (!parts.iter().any(|part| name.contains(part))).then(|| name.to_owned()));
        let missing = found(&lacking);
        missing.iter().map(|one| format!("{}: {}\n", one.subject, one.reason)).collect()
    }

    #[test]
    fn no_family_fixture_lacks_a_required_tensor() {
        for name in support::names() {
            assert_eq!(found(&support::Checkpoint::read(&name)), [], "{name}");
        }
    }

    #[test]
    fn norms_missing_from_all_blocks_are_reported() {
        let missing = without("qwen3", &["q_norm"]);
        assert!(missing.contains("model.layers.1.self_attn.q_norm.weight: is missing"), "{missing}");
        let missing = without("llama", &["input_layernorm"]);
        assert!(missing.contains("model.layers.0.input_layernorm.weight: is missing"), "{missing}");
        let missing = without("deepseek_v2", &["kv_a_layernorm"]);
        assert!(missing.contains("model.layers.0.self_attn.kv_a_layernorm.weight: is missing"), "{missing}");
    }

    #[test]
    fn missing_final_norm_and_position_table_are_reported() {
        assert!(without("llama", &["model.norm."]).starts_with("model.norm.weight: is missing"));
        let missing = without("opt", &["embed_positions"]);
        assert_eq!(missing, "model.decoder.embed_positions.weight: is missing: it is the table of positions\n");
        assert!(without("gpt2", &["wpe"]).contains("transformer.wpe.weight"));
        for (fixture, table) in [
            ("bert", "bert.embeddings.token_type_embeddings"),
            ("roberta", "roberta.embeddings.position_embeddings"),
            ("mpnet", "mpnet.encoder.relative_attention_bias"),
        ] {
            let missing = without(fixture, &[table]);
            assert!(missing.starts_with(&format!("{table}.weight: is missing")), "{missing}");
        }
    }

    #[test]
    fn projections_missing_from_all_blocks_are_reported() {
        for (fixture, part, expected) in [
            ("llama", "gate_proj", "block 0: there is no weight for the feed-forward network's gate projection"),
            ("llama", "up_proj", "the feed-forward network's up projection"),
            ("llama", "o_proj", "the output of attention"),
            ("mixtral", ".gate.", "the router of the experts"),
            ("qwen2_moe", "shared_expert.up_proj", "the shared experts' up projection"),
            ("deepseek_v2", "kv_a_proj", "the latent of keys and values"),
        ] {
            let missing = without(fixture, &[part]);
            assert!(missing.contains(expected), "{fixture} without {part}: {missing}");
        }
        // One of two dense blocks.
        assert!(without("llama", &["layers.1.mlp.gate_proj"]).starts_with("block 1: "));
    }

    #[test]
    fn small_tensors_that_the_forward_pass_reads_are_reported() {
        for (fixture, part, expected) in [
            ("deepseek_v3", "e_score_correction_bias", "layers.1.mlp.gate.e_score_correction_bias: is missing"),
            ("minimax_m2", "e_score_correction_bias", "layers.0.block_sparse_moe.e_score_correction_bias: is missing"),
            ("gpt_oss", "sinks", "layers.1.self_attn.sinks: is missing"),
            ("gpt_oss", "router.bias", "layers.0.mlp.router.bias: is missing"),
            ("gpt_oss", "layers.1.mlp.experts.down_proj_bias", "layers.1.mlp.experts.down_proj_bias: is missing"),
            ("qwen2_moe", "shared_expert_gate", "there is no weight for the gate of the shared expert"),
            ("opt_350m", "project_out", "model.decoder.project_out.weight: is missing"),
            ("phi", "lm_head.bias", "lm_head.bias: is missing"),
            ("phi", "layers.1.self_attn.q_layernorm.bias", "layers.1.self_attn.q_layernorm.bias: is missing"),
            ("stablelm", "model.norm.bias", "model.norm.bias: is missing"),
            ("stablelm", "layers.1.self_attn.q_layernorm.norms.3", "q_layernorm.norms.3.weight: is missing"),
            ("qwen3_5", "A_log", "layers.0.linear_attn.A_log: is missing"),
            ("qwen3_5_moe", "linear_attn.in_proj_z", "block 0: there is no weight for `linear_attn.in_proj_z`"),
            ("qwen3_next", "conv1d", "layers.0.linear_attn.conv1d: is missing"),
            ("qwen3_next", "linear_attn.norm", "layers.0.linear_attn.norm.weight: is missing"),
            ("qwen3_next", "q_norm", "layers.1.self_attn.q_norm.weight: is missing"),
            ("qwen3_next", "self_attn.k_proj", "block 1: there is no weight for keys"),
            (
                "t5_encoder",
                "relative_attention_bias",
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            ),
            ("umt5_encoder", "block.1.layer.0.SelfAttention.rel", "encoder.block.1.layer.0.SelfAttention.relative"),
            ("t5", "decoder.block.0.layer.0.SelfAttention.rel", "decoder.block.0.layer.0.SelfAttention.relative"),
            ("t5", "EncDecAttention.k", "block 2: there is no weight for keys"),
            ("t5", "encoder.final_layer_norm", "encoder.final_layer_norm.weight: is missing"),
            ("bart", "encoder_attn_layer_norm", "model.decoder.layers.0.encoder_attn_layer_norm.weight: is missing"),
            ("bart", "decoder.embed_positions", "model.decoder.embed_positions.weight: is missing"),
            ("bart", "encoder_attn.q_proj.bias", "model.decoder.layers.0.encoder_attn.q_proj.bias: is missing"),
            ("glm", "q_proj.bias", "layers.0.self_attn.q_proj.bias: is missing"),
        ] {
            let missing = without(fixture, &[part]);
            assert!(missing.contains(expected), "{fixture} without {part}: {missing}");
        }
        assert_eq!(without("deepseek_v3", &["e_score_correction_bias"]).lines().count(), 1, "block 0 is dense");
    }

    #[test]
    fn tied_heads_of_families_with_a_bias_need_one() {
        let tied = || support::Checkpoint::read("phi").with_config("tie_word_embeddings", json!(true));
        let without = |parts: &[&str]| {
            let kept = |name: &str| !parts.contains(&name);
            found(&tied().renamed(|name| kept(name).then(|| name.to_owned())))
        };
        assert_eq!(without(&["lm_head.weight"]), []);
        let missing = without(&["lm_head.weight", "lm_head.bias"]);
        assert!(missing.len() == 1 && missing[0].subject == "lm_head.bias", "{missing:?}");
    }

    #[test]
    fn biases_missing_from_all_blocks_are_reported_unless_config_json_excludes_them() {
        assert!(without("opt", &["fc1.bias"]).contains("model.decoder.layers.1.fc1.bias: is missing"));
        assert!(without("qwen2", &["k_proj.bias"]).contains("model.layers.0.self_attn.k_proj.bias: is missing"));
        assert!(without("gpt2", &["ln_1.bias"]).contains("transformer.h.0.ln_1.bias: is missing"));
        let whole = support::Checkpoint::read("opt").with_config("enable_bias", json!(false));
        assert_eq!(found(&whole.renamed(|name| (!name.contains("bias")).then(|| name.to_owned()))), []);
    }

    #[test]
    fn head_norms_that_config_json_does_not_ask_for_may_be_absent() {
        for (fixture, key) in [("stablelm", "qk_layernorm"), ("cohere", "use_qk_norm"), ("glm4_moe", "use_qk_norm")] {
            let plain = |asked: bool| {
                let stated = support::Checkpoint::read(fixture).with_config(key, json!(asked));
                stated.renamed(|name| (!(name.contains("self_attn") && name.contains("norm"))).then(|| name.to_owned()))
            };
            assert!(!found(&plain(true)).is_empty(), "{fixture}");
            assert_eq!(found(&plain(false)), [], "{fixture}");
        }
    }
}
