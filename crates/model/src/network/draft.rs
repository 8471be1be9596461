//! A first description of an unknown architecture: the family whose names come nearest, and the differences that tensor names show.
//! What names do not show, the rules of the forward pass above all, is left to whoever completes it.

use super::names::{Names, generalise, parse_index};
use super::tables::is_embedding_name;
use super::{Network, Place, Reason, TensorMeta};
use super::{by_name, by_shape};
use crate::family::{self, Family, Math, NormKind, NormSite, Orientation, Part, QueryKeyNorm, Role, leaf};
use crate::model_config::ModelConfig;
use serde::Serialize;
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};

/// A description to be completed.
#[derive(Clone, Debug)]
pub struct FamilyDraft {
    /// The TOML text, with a comment for whatever is open. [`family::parse`] reads it, but for `qkv_rows = "?"` where that is open.
    pub text: String,
    /// The built-in family that it is like.
    pub like: &'static str,
    /// The family that describes the architecture already.
    pub described: Option<&'static str>,
    /// Tensors of the decoder that the draft gives no place, indices as `{}`, each with its shape in the first block.
    pub open: Vec<String>,
}

/// A module of blocks.
struct Module {
    /// Its path inside its block, indices of experts as `{}`.
    path: String,
    shape: Vec<usize>,
}

impl FamilyDraft {
    /// The draft for a checkpoint, or `None` if none is of use: descriptions are for models that read tokens in one stack of numbered
    /// blocks, unlike encoder-decoders and models of pictures or sound, and blocks whose layers all have unknown names show nothing.
    pub fn new(config: &ModelConfig, tensors: &[TensorMeta]) -> Option<FamilyDraft> {
        if config.flag_or("is_encoder_decoder", false) {
            return None;
        }
        let list = list_of_blocks(tensors)?;
        let (trunk, blocks) = list.rsplit_once('.').unwrap_or(("", &list));
        let modules = modules_in(&list, tensors);
        let like = nearest(&modules, &Evidence::of(config, &modules, tensors))?;
        let mut text = String::new();
        let described = family::of_config(config).map(|family| family.name);
        let name = config.model_types.last().map_or("my_model", String::as_str);
        let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        write_value(&mut text, "name", &format!("my-{}", name.chars().map(legal).collect::<String>()));
        write_value(&mut text, "like", &like.name);
        write_value(&mut text, "model_types", &[name]);
        write_value(&mut text, "architectures", &config.architectures);
        write_linears(&mut text, "attention", &modules, like, Part::Attention);
        write_linears(&mut text, "mlp", &modules, like, Part::Mlp);
        write_norms(&mut text, &modules, like);
        write_trunk(&mut text, like, trunk, blocks, config, tensors);
        let network = network_of(&text, config, tensors)?;
        let has_layers = network.linears().iter().any(|linear| linear.block.is_some());
        if !has_layers || !network.places().contains(&Place::Embedding) {
            return None;
        }
        let open = open_tensors(&network, tensors);
        write_order(&mut text, &network, like);
        write_open(&mut text, &open, &modules, like);
        Some(FamilyDraft { text, like: like.name, described, open })
    }
}

/// A line of TOML. Strings and lists of JSON are those of TOML.
fn write_value(text: &mut String, key: impl Display, value: &impl Serialize) {
    let value = serde_json::to_string(value).unwrap_or_default();
    let _ = writeln!(text, "{key} = {}", value.replace(",", ", "));
}

/// The path under which most tensors are numbered, as `model.layers`.
fn list_of_blocks(tensors: &[TensorMeta]) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in tensors {
        let mut at = 0;
        for part in tensor.name.split('.') {
            if parse_index(part).is_some() && at > 0 {
                *counts.entry(&tensor.name[..at - 1]).or_default() += 1;
                break;
            }
            at += part.len() + 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(path, _)| path.to_owned())
}

/// The modules of all blocks, each once.
fn modules_in(list: &str, tensors: &[TensorMeta]) -> Vec<Module> {
    let mut seen = BTreeSet::new();
    let mut modules = Vec::new();
    for tensor in tensors {
        let rest = tensor.name.strip_prefix(list).and_then(|rest| rest.strip_prefix('.')?.split_once('.'));
        let Some((_, rest)) = rest.filter(|(index, _)| parse_index(index).is_some()) else { continue };
        let (path, _) = generalise(rest.strip_suffix(".weight").unwrap_or(rest));
        if !path.ends_with(".bias") && seen.insert(path.clone()) {
            modules.push(Module { path, shape: tensor.shape.clone() });
        }
    }
    modules
}

/// The family that knows most of the modules; of several the one whose norms are like these, with the fewest unusual rules that nothing shows,
/// that names the fewest other modules, and whose rules read most keys of config.json.
fn nearest(modules: &[Module], evidence: &Evidence<'_>) -> Option<&'static Family> {
    let present: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).collect();
    let rating = |family: &&'static Family| {
        let names = Names::new(family, &ModelConfig::default());
        let known = present.iter().filter(|path| names.have(path)).count();
        let others = names.modules().filter(|path| !present.contains(path)).count();
        let fits = norms_fit(family, modules, evidence.config)
            && evidence.norms.fit(family.norm_kind)
            && orientation_fits(family, modules, evidence.config);
        let has_experts = |path: &&str| path.contains("experts");
        // Dense networks are like dense families.
        let lacks_experts = names.modules().any(|path| has_experts(&path)) && !present.iter().any(has_experts);
        // What a family has in every such block.
        let absent = family.all_parameters().filter(|path| !present.contains(path)).count();
        let (unfounded, stated) = evidence.of_rules(family);
        let is_usual = family.name == family::USUAL;
        (known, fits, !lacks_experts, Reverse(absent), Reverse(unfounded), Reverse(others), stated, is_usual)
    };
    // Of families that are equal in all of this, those that others are derived from come first.
    let of_one_stack = family::all().into_iter().filter(|family| family.decoder_stack().is_none());
    of_one_stack.rev().max_by_key(rating)
}

/// What a checkpoint shows of the rules of its architecture, besides the names of its layers.
struct Evidence<'c> {
    config: &'c ModelConfig,
    norms: NormEvidence,
}

/// What a checkpoint shows of the formula of its norms.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NormEvidence {
    /// They have no tensors.
    Plain,
    /// They subtract the mean: they have biases, or config.json calls their epsilon so.
    Centred,
    /// Neither.
    Scaled,
}

impl NormEvidence {
    fn fit(self, kind: NormKind) -> bool {
        self == match kind {
            NormKind::LayerNormPlain | NormKind::RmsPlain => NormEvidence::Plain,
            NormKind::LayerNorm | NormKind::LayerNormUnitOffset => NormEvidence::Centred,
            NormKind::Rms | NormKind::RmsUnitOffset => NormEvidence::Scaled,
        }
    }
}

impl<'c> Evidence<'c> {
    fn of(config: &'c ModelConfig, modules: &[Module], tensors: &[TensorMeta]) -> Evidence<'c> {
        let is_norm = |path: &str| ["norm", "ln"].iter().any(|word| leaf(path).to_lowercase().contains(word));
        // Whatever its name, a vector as wide as the hidden states is the weight of a norm.
        let is_wide = |module: &Module| config.hidden_size.is_some_and(|hidden| module.shape == [hidden]);
        let of_norm = |module: &Module| is_wide(module) || module.shape.len() == 1 && is_norm(&module.path);
        let has_norms = modules.iter().any(of_norm);
        let has_biases = tensors.iter().any(|tensor| tensor.name.strip_suffix(".bias").is_some_and(is_norm));
        let is_centred = || ["layer_norm_eps", "layer_norm_epsilon"].iter().any(|key| config.states(key));
        let norms = match has_norms {
            false => NormEvidence::Plain,
            true if has_biases || (is_centred() && !config.states("rms_norm_eps")) => NormEvidence::Centred,
            true => NormEvidence::Scaled,
        };
        Evidence { config, norms }
    }

    /// The number of the family's rules that differ from the usual ones without a key of config.json to show for it, and the number of
    /// keys that its rules name and config.json states.
    fn of_rules(&self, family: &Family) -> (usize, usize) {
        let fields = |math: Math| match serde_json::to_value(math) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let (rules, usual) = (fields(family.math), fields(Math::LLAMA));
        let differing = rules.iter().filter(|(name, rule)| usual.get(*name) != Some(rule));
        let unfounded = differing.filter(|(_, rule)| self.stated(rule) == 0).count();
        let recurrent = serde_json::to_value(family.recurrent).unwrap_or_default();
        (unfounded, rules.values().chain([&recurrent]).map(|rule| self.stated(rule)).sum())
    }

    /// The number of keys that a rule names and config.json states.
    fn stated(&self, rule: &Value) -> usize {
        let mut names = BTreeSet::new();
        collect_texts(rule, &mut names);
        names.into_iter().filter(|name| self.config.states(name)).count()
    }
}

/// Returns whether norms of queries and keys have the width that the family's have: that of a head, or of all heads.
fn norms_fit(family: &Family, modules: &[Module], config: &ModelConfig) -> bool {
    let Some(head) = config.head_dim() else { return true };
    let widths = |wanted: NormSite, count: Option<usize>| {
        let paths = family.norms.iter().filter(|(site, _)| *site == wanted).map(|(_, path)| *path).collect::<Vec<_>>();
        let mut found = modules.iter().filter(|module| paths.contains(&module.path.as_str()));
        let is_whole = family.math.query_key_norm == QueryKeyNorm::AllHeads;
        let width = if is_whole { count.and_then(|count| count.checked_mul(head)) } else { Some(head) };
        found.all(|norm| width.is_none_or(|width| norm.shape == [width]))
    };
    widths(NormSite::Query, config.num_heads) && widths(NormSite::Key, config.num_kv_heads())
}

/// Returns whether the layers that widen the hidden states are stored the way round that the family's are.
fn orientation_fits(family: &Family, modules: &[Module], config: &ModelConfig) -> bool {
    let Some(hidden) = config.hidden_size else { return true };
    let paths: Vec<&str> = family.mlp.iter().filter(|(role, _)| *role == Role::Up).map(|(_, path)| *path).collect();
    let mut found = modules.iter().filter(|module| paths.contains(&module.path.as_str()));
    found.all(|module| match module.shape[..] {
        [rows, columns] if rows != columns => {
            hidden == if family.orientation == Orientation::InOut { rows } else { columns }
        }
        _ => true,
    })
}

/// All texts in a value.
fn collect_texts<'v>(value: &'v Value, texts: &mut BTreeSet<&'v str>) {
    match value {
        Value::String(text) => drop(texts.insert(text)),
        Value::Array(list) => list.iter().for_each(|value| collect_texts(value, texts)),
        Value::Object(fields) => fields.values().for_each(|value| collect_texts(value, texts)),
        _ => {}
    }
}

/// Usual last parts of the names of layers whose role is clear in a block alone.
const MORE_LEAVES: &[(Role, &[&str])] = &[
    (Role::Output, &["dense", "c_proj"]),
    (Role::Up, &["dense_h_to_4h", "fc1", "fc_in", "c_fc"]),
    (Role::Down, &["dense_4h_to_h", "fc2", "fc_out"]),
];

/// A list of linear layers, where the checkpoint has others than the family. Without the layer that every list ends with it is a comment.
fn write_linears(text: &mut String, key: &str, modules: &[Module], like: &'static Family, part: Part) {
    let (base, last) = if part == Part::Attention { (like.attention, Role::Output) } else { (like.mlp, Role::Down) };
    let known = |path: &str| base.iter().find(|(_, listed)| *listed == path).map(|(role, _)| *role);
    let names = Names::new(like, &ModelConfig::default());
    let role_of = |leaf: &str| {
        let more = || MORE_LEAVES.iter().find(|(_, leaves)| leaves.contains(&leaf)).map(|(role, _)| *role);
        by_shape::role_of_leaf(leaf).or_else(more)
    };
    let guessed = |module: &Module| {
        let role = role_of(leaf(&module.path)).filter(|_| module.shape.len() == 2)?;
        let is_here = by_shape::part(&module.path, role) == part && !module.path.contains("{}");
        (is_here && !names.have(&module.path)).then_some(role)
    };
    let found = modules.iter().filter_map(|module| {
        let role = known(&module.path).or_else(|| guessed(module))?;
        Some((role, module.path.as_str()))
    });
    let mut found: Vec<(Role, &str)> = found.collect();
    found.sort();
    // A mixture may have no dense network.
    if found.is_empty() || base.iter().all(|row| found.contains(row)) && found.len() == base.len() {
        return;
    }
    let has_last = found.iter().any(|(role, _)| *role == last);
    write_value(text, if has_last { key.to_owned() } else { format!("# {key}") }, &found);
}

/// The norms of a block, where the checkpoint has others than the family.
fn write_norms(text: &mut String, modules: &[Module], like: &'static Family) {
    let known = |path: &str| like.norms.iter().find(|(_, listed)| *listed == path).map(|(site, _)| *site);
    let found = modules.iter().filter_map(|module| {
        let site = known(&module.path).or_else(|| norm_site(module))?;
        Some((site, module.path.as_str()))
    });
    let mut found: Vec<(NormSite, &str)> = found.collect();
    found.sort();
    if !like.norms.iter().all(|row| found.contains(row)) || found.len() != like.norms.len() {
        write_value(text, "norms", &found);
    }
}

/// Parts of names that show the place of a norm. The first that occurs decides.
const SITES: &[(NormSite, &[&str])] = &[
    (NormSite::Query, &["q_norm", "query_norm", "q_layernorm", "query_layernorm"]),
    (NormSite::Key, &["k_norm", "key_norm", "k_layernorm", "key_layernorm"]),
    (
        NormSite::FeedForwardInput,
        &["post_attention", "ffn", "mlp", "feedforward", "feed_forward", "ln_2", "norm2", "ln2"],
    ),
    (NormSite::AttentionInput, &["input", "attn", "attention", "ln_1", "norm1", "ln1"]),
];

/// The place of a norm, if its name shows it.
fn norm_site(module: &Module) -> Option<NormSite> {
    let name = leaf(&module.path).to_lowercase();
    let is_norm = module.shape.len() == 1 && ["norm", "ln"].iter().any(|word| name.contains(word));
    let shows = |(_, parts): &&(NormSite, &[&str])| parts.iter().any(|part| name.contains(part));
    SITES.iter().find(shows).filter(|_| is_norm).map(|(site, _)| *site)
}

/// Where the checkpoint keeps its blocks, embedding, final norm and head, if not where the family does.
fn write_trunk(
    text: &mut String,
    like: &Family,
    trunk: &str,
    blocks: &str,
    config: &ModelConfig,
    tensors: &[TensorMeta],
) {
    let mut rows = String::new();
    let path = trunk.strip_suffix(".language_model").or(trunk.strip_prefix("language_model.")).unwrap_or(trunk);
    if path != like.trunk.path && !path.is_empty() {
        write_value(&mut rows, "path", &path);
    }
    if blocks != like.trunk.blocks {
        write_value(&mut rows, "blocks", &blocks);
    }
    let is_numbered = |name: &str| name.split('.').any(|part| parse_index(part).is_some());
    let outside = tensors.iter().filter(|tensor| !is_numbered(&tensor.name));
    let weights: Vec<_> = outside.filter_map(|t| Some((t.name.strip_suffix(".weight")?, t.shape.as_slice()))).collect();
    let local = |name: &str| name.strip_prefix(trunk).map(|rest| rest.trim_start_matches('.').to_owned());
    let tables = weights.iter().filter(|(name, shape)| shape.len() == 2 && is_embedding_name(name));
    // Positions have a table too, which may be the longer one.
    let embedding = tables
        .max_by_key(|(_, shape)| (Some(shape[0]) == config.vocab_size, shape[0]))
        .and_then(|(name, _)| local(name));
    if let Some(name) = embedding.filter(|name| name != like.trunk.embedding) {
        write_value(&mut rows, "embedding", &name);
    }
    let norms: Vec<String> =
        weights.iter().filter(|(_, shape)| shape.len() == 1).filter_map(|(n, _)| local(n)).collect();
    let is_final = |name: &str| like.trunk.norms.contains(&(NormSite::Final, name));
    if let [norm] = norms.as_slice()
        && !is_final(norm)
    {
        write_value(&mut rows, "norms", &[(NormSite::Final, norm)]);
    }
    let heads = weights.iter().filter(|(name, shape)| shape.len() == 2 && by_shape::is_head(name));
    if let Some((head, _)) = heads.into_iter().find(|(name, _)| !like.trunk.heads.contains(name)) {
        write_value(&mut rows, "heads", &[head]);
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n[trunk]\n{rows}");
    }
}

/// The network that a draft describes.
fn network_of(text: &str, config: &ModelConfig, tensors: &[TensorMeta]) -> Option<Network> {
    let family = family::parse(text, "draft".as_ref()).ok()?;
    by_name::recognise(Box::leak(Box::new(family)), config, tensors)
}

/// The tensors that have no place in the network.
fn open_tensors(network: &Network, tensors: &[TensorMeta]) -> Vec<String> {
    let is_open = |at: usize| network.places()[at] == Place::Other(Reason::Unrecognised);
    let mut open = BTreeMap::new();
    for (_, tensor) in tensors.iter().enumerate().filter(|(at, _)| is_open(*at)) {
        open.entry(generalise(&tensor.name).0).or_insert_with(|| format!("{:?}", tensor.shape));
    }
    open.into_iter().map(|(name, shape)| format!("{} {shape}", name.escape_debug())).collect()
}

/// The order of the rows of a layer for queries, keys and values, which names do not show, as a value that is none: whoever completes the
/// draft has to say it, since another order computes something else.
fn write_order(text: &mut String, network: &Network, like: &Family) {
    let is_fused = |role| role == Role::QueryKeyValue;
    if like.attention.iter().any(|(role, _)| is_fused(*role)) {
        return;
    }
    let Some(fused) = network.linears().iter().find(|linear| is_fused(linear.role)) else { return };
    let order = format!(
        "# In which order does {} hold queries, keys and values? Names do not show it: stacked (all queries first), per-head or\n\
         # per-group. A checkpoint with any other order has to be changed.\nqkv_rows = \"?\"\n",
        generalise(&fused.module).0.escape_debug()
    );
    // Before the first table.
    let place = text.find("model_types").unwrap_or(0);
    text.insert_str(place, &order);
}

/// What names do not show, as comments.
fn write_open(text: &mut String, open: &[String], modules: &[Module], like: &'static Family) {
    let mut comments = Vec::new();
    if !open.is_empty() {
        comments.push("These tensors have no place yet: name them above, or leave them in float.".to_owned());
        comments.extend(open.iter().map(|tensor| format!("  {tensor}")));
    }
    // Packed weights have more after the layer's path than `.weight`.
    let present = |path: &str| {
        let is_of = |module: &Module| {
            module.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        modules.iter().any(is_of)
    };
    let listed = like.attention.iter().map(|(_, path)| *path).chain(like.norms.iter().map(|(_, path)| *path));
    let absent: Vec<&str> = listed.filter(|path| !present(path)).collect();
    if !absent.is_empty() {
        comments.push(format!(
            "{} has these layers and norms, which are absent here: {}",
            like.name,
            absent.join(", ")
        ));
    }
    comments.push(format!(
        "The rules of the forward pass ([math], [moe]) and the formula of norms (norm_kind) are those of {}. Compare logits with the original.",
        like.name
    ));
    text.push('\n');
    for comment in comments {
        let _ = writeln!(text, "# {comment}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn draft(tensors: &[(&str, &[usize])]) -> FamilyDraft {
        drafted(tensors).unwrap()
    }

    fn drafted(tensors: &[(&str, &[usize])]) -> Option<FamilyDraft> {
        let config = ModelConfig::from_json(&json!({
            "model_type": "Novel.2", "architectures": ["NovelForCausalLM"], "vocab_size": 32,
        }));
        let metas: Vec<_> = tensors.iter().map(|(name, shape)| TensorMeta::new(*name, *shape, "BF16")).collect();
        FamilyDraft::new(&config.unwrap(), &metas)
    }

    #[test]
    fn models_of_which_a_draft_would_show_nothing_have_none() {
        let table: (&str, &[usize]) = ("model.embed_tokens.weight", &[32, 8]);
        let unknown: (&str, &[usize]) = ("model.layers.0.time_mix.weight", &[8, 8]);
        assert!(drafted(&[table, ("model.layers.0.self_attn.q_proj.weight", &[8, 8])]).is_some());
        assert!(drafted(&[table, unknown]).is_none(), "no layer is known");
        let tower =
            ["q_proj", "k_proj", "v_proj"].map(|name| format!("vision_model.encoder.layers.0.self_attn.{name}.weight"));
        let mut tensors: Vec<(&str, &[usize])> = tower.iter().map(|name| (name.as_str(), &[8, 8][..])).collect();
        tensors.extend([("text_model.embed_tokens.weight", &[32, 8][..]), unknown]);
        assert!(drafted(&tensors).is_none(), "the blocks read no tokens");
    }

    #[test]
    fn the_order_of_fused_layers_is_named_as_open() {
        let table: (&str, &[usize]) = ("model.embed_tokens.weight", &[32, 8]);
        let draft = draft(&[
            table,
            ("model.layers.0.self_attn.qkv_proj.weight", &[24, 8]),
            ("model.layers.0.self_attn.q_norm.weight", &[8]),
            ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
            ("model.layers.0.mlp.gate_proj.weight", &[8, 8]),
            ("model.layers.0.mlp.up_proj.weight", &[8, 8]),
            ("model.layers.0.mlp.down_proj.weight", &[8, 8]),
        ]);
        assert!(draft.text.contains("order does model.layers.{}.self_attn.qkv_proj hold"), "{}", draft.text);
        let read = |text: &str| family::parse(text, "draft".as_ref());
        assert!(read(&draft.text).unwrap_err().to_string().contains("stacked"), "{}", draft.text);
        assert!(read(&draft.text.replace("\"?\"", "\"per-head\"")).is_ok(), "{}", draft.text);
    }

    #[test]
    fn families_whose_parameters_are_absent_are_not_like_it() {
        let weight = |name: &&str| format!("model.layers.0.{name}.weight");
        let expert = |name: &&str| format!("model.layers.0.mlp.experts.0.{name}.weight");
        let attention =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| format!("model.layers.0.self_attn.{name}.weight"));
        let experts: Vec<String> = ["gate_proj", "up_proj", "down_proj"].iter().map(expert).collect();
        let matrix = |name: &String| TensorMeta::new(name.as_str(), [8, 8], "BF16");
        let vector = |name: String, width: usize| TensorMeta::new(name, [width], "BF16");
        let mut tensors: Vec<TensorMeta> = attention.iter().chain(&experts).map(matrix).collect();
        tensors.push(TensorMeta::new("model.layers.0.mlp.gate.weight", [4, 8], "BF16"));
        tensors.push(TensorMeta::new("model.embed_tokens.weight", [32, 8], "BF16"));
        tensors.extend(["self_attn.q_norm", "self_attn.k_norm"].iter().map(|name| vector(weight(name), 4)));
        tensors.extend(["input_layernorm", "post_attention_layernorm"].iter().map(|name| vector(weight(name), 8)));
        // As in transformers' configurations of Qwen3-MoE.
        let config = ModelConfig::from_json(&json!({
            "model_type": "novel", "architectures": ["NovelForCausalLM"], "vocab_size": 32, "hidden_size": 8, "head_dim": 4,
            "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
            "moe_intermediate_size": 8, "rms_norm_eps": 1e-6, "hidden_act": "silu", "num_hidden_layers": 1,
        }));
        assert_eq!(FamilyDraft::new(&config.unwrap(), &tensors).unwrap().like, "qwen3_moe");
    }

    #[test]
    fn the_embedding_is_the_table_of_all_tokens() {
        let draft = draft(&[
            ("model.embed_positions.weight", &[90, 8]),
            ("model.tok_embeddings.weight", &[32, 8]),
            ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ]);
        assert!(draft.text.contains("embedding = \"tok_embeddings\""), "{}", draft.text);
    }

    #[test]
    fn known_names_are_not_repeated() {
        let draft = draft(&[
            ("model.embed_tokens.weight", &[32, 8]),
            ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
            ("model.layers.0.self_attn.k_proj.weight", &[8, 8]),
            ("model.layers.0.self_attn.v_proj.weight", &[8, 8]),
            ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
            ("model.layers.0.self_attn.q_norm.weight", &[8]),
            ("model.layers.0.self_attn.k_norm.weight", &[8]),
            ("model.layers.0.mlp.gate_proj.weight", &[16, 8]),
            ("model.layers.0.mlp.up_proj.weight", &[16, 8]),
            ("model.layers.0.mlp.down_proj.weight", &[8, 16]),
            ("model.layers.0.input_layernorm.weight", &[8]),
            ("model.layers.0.post_attention_layernorm.weight", &[8]),
            ("model.norm.weight", &[8]),
            ("lm_head.weight", &[32, 8]),
        ]);
        let start = "name = \"my-novel-2\"\nlike = \"qwen3\"\nmodel_types = [\"Novel.2\"]\narchitectures = [\"NovelForCausalLM\"]\n\n# The rules";
        assert!(draft.text.starts_with(start), "{}", draft.text);
        assert_eq!((draft.like, draft.described, draft.open.len()), ("qwen3", None, 0));
    }

    #[test]
    fn other_names_are_written_and_strange_ones_reported() {
        let draft = draft(&[
            ("decoder.tok_embeddings.weight", &[32, 8]),
            ("decoder.h.0.attention.wq.weight", &[8, 8]),
            ("decoder.h.0.attention.wk.weight", &[8, 8]),
            ("decoder.h.0.attention.wv.weight", &[8, 8]),
            ("decoder.h.0.attention.wo.weight", &[8, 8]),
            ("decoder.h.0.attention.whatever", &[8, 3]),
            ("decoder.h.1.attention.whatever", &[8, 3]),
            ("decoder.h.0.feed_forward.w1.weight", &[16, 8]),
            ("decoder.h.0.feed_forward.w3.weight", &[16, 8]),
            ("decoder.h.0.feed_forward.w2.weight", &[8, 16]),
            ("decoder.h.0.attention_norm.weight", &[8]),
            ("decoder.h.0.ffn_norm.weight", &[8]),
            ("decoder.final.weight", &[8]),
            ("output.weight", &[32, 8]),
        ]);
        let family = family::parse(&draft.text, "draft".as_ref()).unwrap();
        let query = (Role::Query, "attention.wq");
        assert_eq!((family.attention[0], family.attention.len(), family.mlp.len()), (query, 4, 3));
        let trunk = family.trunk;
        assert_eq!(
            (trunk.path, trunk.blocks, trunk.embedding, trunk.heads),
            ("decoder", "h", "tok_embeddings", &["output"][..])
        );
        assert_eq!(trunk.norms, [(NormSite::Final, "final")]);
        let norms = [(NormSite::AttentionInput, "attention_norm"), (NormSite::FeedForwardInput, "ffn_norm")];
        assert_eq!(family.norms, norms);
        assert_eq!(draft.open, ["decoder.h.{}.attention.whatever [8, 3]"]);
        assert!(draft.text.contains("#   decoder.h.{}.attention.whatever [8, 3]\n"));
    }

    #[test]
    fn hostile_names_stay_in_their_comment() {
        let draft = draft(&[
            ("model.embed_tokens.weight", &[32, 8]),
            ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
            ("model.layers.0.x\nname = \"evil\"", &[8]),
        ]);
        assert_eq!(draft.text.lines().filter(|line| line.starts_with("name")).count(), 1);
        let nothing = [TensorMeta::new("weight", [3], "F32")];
        assert!(FamilyDraft::new(&ModelConfig::default(), &nothing).is_none());
    }
}
