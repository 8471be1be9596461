//! Names: that every block has the tensors of its kind, that the trunk is whole, and that nothing is left over.

use super::required::{self, Missing, path_of_blocks};
use crate::import::survey::ProblemKind as About;
use crate::verify::subject::CheckpointView;
use kvant_model::family::{Branches, NormSite};
use kvant_model::model_config::SPARSE_ENTRIES;
use kvant_model::network::{Place, Reason, TensorMeta};
use kvant_quant::finding::Findings;
use std::collections::{BTreeMap, BTreeSet, HashSet};

const REMAKE: &str =
    "use the weights and config.json of the same model: download what is missing, or quantize the model again";

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if subject.network.family().is_none() || subject.json.is_none() {
        return;
    }
    trunk(subject, findings);
    let reported = blocks(subject, findings);
    required_tensors(subject, &reported, findings);
    experts(subject, findings);
    leftovers(subject, findings);
}

/// The embedding, the final norm, and as many blocks as are stated.
fn trunk(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let network = &subject.network;
    // That of images or sounds is one of the tensors that the family needs.
    if !network.places().contains(&Place::Embedding) && !subject.reads_no_tokens() {
        findings.error("token embedding", "is missing", REMAKE);
    }
    let there: BTreeSet<usize> = network.blocks().iter().copied().collect();
    let blocks = network.family().and_then(|family| family.blocks_of(&subject.config));
    let stated = blocks.unwrap_or(0);
    if let Some((first, _)) = missing(&there, stated) {
        let states = match network.family().and_then(|family| family.decoder_stack()) {
            None => format!("num_hidden_layers of config.json is {stated}"),
            Some(_) => format!("config.json states {stated} blocks of both stacks"),
        };
        let reason = format!("is missing: {states}, and {} are there", there.len());
        findings.error(format!("block {first}"), reason, REMAKE);
    }
    past_the_end(subject, findings);
}

/// Blocks that config.json does not count: loaders would leave them out. Where it speaks of layers that predict further tokens, they
/// are those.
fn past_the_end(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let places = subject.survey.tensors.iter().zip(subject.network.places());
    let extra = places.filter(|(_, place)| **place == Place::Other(Reason::ExtraLayer)).map(|(tensor, _)| tensor);
    let prefix = format!("{}.", path_of_blocks(&subject.network));
    let number = |name: &str| name.strip_prefix(&prefix)?.split('.').next()?.parse::<usize>().ok();
    let blocks: BTreeSet<usize> = extra.filter_map(|tensor| number(&tensor.name)).collect();
    if let (Some(last), false) = (blocks.last(), predicts_further(subject)) {
        let stated = subject.config.num_layers.unwrap_or(0);
        let reason = format!("is past the end: num_hidden_layers of config.json is {stated}");
        findings.error(format!("block {last}"), reason, "take config.json from the model that the weights are of");
    }
}

/// Returns whether config.json speaks of layers for multi-token prediction.
fn predicts_further(subject: &CheckpointView<'_>) -> bool {
    let json = subject.json.as_ref();
    let both = [json, json.and_then(|json| json.get("text_config"))];
    let keys = both.into_iter().flatten().filter_map(|json| json.as_object()).flat_map(|object| object.keys());
    keys.into_iter().any(|key| key.contains("nextn") || key.contains("mtp"))
}

/// The first number below `count` that is not there, and how many more there are. What is there bounds the work: `count` is
/// whatever a file says.
fn missing(there: &BTreeSet<usize>, count: usize) -> Option<(usize, usize)> {
    let first = (0..count.min(there.len() + 1)).find(|number| !there.contains(number))?;
    Some((first, count - there.range(..count).count() - 1))
}

/// The paths of a block's tensors inside it, indices of experts aside.
type Parts = BTreeSet<String>;

/// What blocks may differ in: those of one kind have the same parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BlockKind {
    sparse: bool,
    sliding: bool,
    /// Whether it attends to the keys of another block.
    shares_keys: bool,
    branches: Option<Branches>,
    /// Whether it has a norm before its mixer, as far as its place and its mixer decide that.
    has_first_norm: bool,
    /// Whether an indexer chooses among the entries of tokens that it attends to, where it attends to some.
    chooses_entries: Option<bool>,
    /// Whether tokens choose its experts by themselves.
    hashes: bool,
}

/// A tensor that some blocks of a kind have must be in all of them, and without a description one that most have; the tensors that are
/// missing.
fn blocks(subject: &CheckpointView<'_>, findings: &mut Findings) -> HashSet<String> {
    let mut reported = HashSet::new();
    let mut kinds: BTreeMap<BlockKind, BTreeMap<usize, Parts>> = BTreeMap::new();
    let family = subject.network.family();
    let by_attention = family.is_some_and(|family| family.math.full_heads || family.math.sliding_has_more);
    for (block, parts) in parts_of_blocks(subject) {
        let layer_type = subject.config.layer_types.get(block).filter(|_| by_attention);
        let sizes = subject.config.compressed.as_ref();
        let own_type = subject.config.layer_types.get(block).map_or("", String::as_str);
        let kind = BlockKind {
            chooses_entries: sizes.and_then(|sizes| sizes.rate(own_type)).map(|_| own_type == SPARSE_ENTRIES),
            hashes: sizes.is_some_and(|sizes| sizes.hashes(block)),
            sparse: parts.iter().any(|part| part.contains("expert")),
            sliding: layer_type.is_some_and(|kind| kind == "sliding_attention"),
            shares_keys: family.is_some_and(|family| family.key_block(&subject.config, block) != block),
            branches: family.map(|family| family.branches(&subject.config, block)),
            has_first_norm: family
                .is_none_or(|family| family.has_norm_at(&subject.config, NormSite::AttentionInput, block)),
        };
        kinds.entry(kind).or_default().insert(block, parts);
    }
    for blocks in kinds.values() {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        blocks.values().flatten().for_each(|part| *counts.entry(part.as_str()).or_default() += 1);
        let is_described = subject.network.family().is_some();
        let is_shared = |count: usize| is_described || count * 2 > blocks.len();
        for (part, count) in counts.iter().filter(|(_, count)| **count < blocks.len() && is_shared(**count)) {
            for (block, _) in blocks.iter().filter(|(_, parts)| !parts.contains(*part)) {
                let reason = format!("is missing; {count} of {} blocks have it", blocks.len());
                let name = format!("{}.{block}.{part}", path_of_blocks(&subject.network));
                findings.error(&name, reason, REMAKE);
                reported.insert(name);
            }
        }
    }
    reported
}

/// What the family's forward pass reads; tensors that other blocks have are reported already.
fn required_tensors(subject: &CheckpointView<'_>, reported: &HashSet<String>, findings: &mut Findings) {
    let missing = required::missing(&subject.network, &subject.config, &subject.survey.tensors);
    let integers = blocks_with_integers(subject);
    let is_new = |missing: &Missing| !reported.contains(&missing.subject) && !integers.contains(&missing.subject);
    for Missing { subject, reason } in missing.into_iter().filter(is_new) {
        findings.error(subject, reason, REMAKE);
    }
}

/// The blocks with a weight that is there, but holds integers, which is reported by its name.
fn blocks_with_integers(subject: &CheckpointView<'_>) -> HashSet<String> {
    let tensors = subject.survey.tensors.iter().zip(subject.network.places());
    let prefix = format!("{}.", path_of_blocks(&subject.network));
    let block = |name: &str| Some(format!("block {}", name.strip_prefix(&prefix)?.split_once('.')?.0));
    tensors
        .filter(|(tensor, place)| is_integer_weight(tensor, **place))
        .filter_map(|(tensor, _)| block(&tensor.name))
        .collect()
}

/// Returns whether a tensor is the weight of a layer, as integers without scales.
fn is_integer_weight(tensor: &TensorMeta, place: Place) -> bool {
    place == Place::Other(Reason::Quantized) && holds_codes(tensor)
}

fn parts_of_blocks(subject: &CheckpointView<'_>) -> BTreeMap<usize, Parts> {
    let prefix = format!("{}.", path_of_blocks(&subject.network));
    let mut blocks: BTreeMap<usize, Parts> = BTreeMap::new();
    for (tensor, place) in subject.survey.tensors.iter().zip(subject.network.places()) {
        let inside = tensor.name.strip_prefix(&prefix).and_then(|rest| rest.split_once('.'));
        let Some((block, part)) = inside.and_then(|(block, part)| Some((block.parse().ok()?, part))) else { continue };
        // Which blocks have tables of biases is known of each family.
        let is_table = *place == Place::RelativePositions;
        if !is_table && !matches!(place, Place::Other(_)) || is_integer_weight(tensor, *place) {
            blocks.entry(block).or_default().insert(without_numbers(part));
        }
    }
    blocks
}

fn without_numbers(path: &str) -> String {
    let part = |part: &str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    path.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// Every expert of a block has the layers of its siblings.
fn experts(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let mut found: BTreeMap<(usize, &str), BTreeSet<usize>> = BTreeMap::new();
    for linear in subject.network.linears() {
        if let (Some(block), Some(expert)) = (linear.block, linear.expert) {
            found.entry((block, linear.role.name())).or_default().insert(expert);
        }
    }
    let config = subject.config.experts.as_ref();
    let stated = config.map(|experts| experts.count);
    // Classes create layers of experts that compute nothing, too, which nothing reads.
    let unread = config.map_or(0, |experts| experts.identities);
    for ((block, role), experts) in found {
        let count = stated.unwrap_or(experts.last().map_or(0, |last| last + 1));
        if let Some((first, more)) = missing(&experts, count) {
            let reason = match more {
                0 => format!("expert {first} has no {role} projection"),
                _ => format!("expert {first} and {more} more have no {role} projection"),
            };
            findings.error(format!("block {block}"), reason, REMAKE);
        }
        if experts.last().is_some_and(|last| *last >= count.saturating_add(unread)) {
            findings.error(
                format!("block {block}"),
                format!("has more than the {count} experts of config.json"),
                REMAKE,
            );
        }
    }
}

/// Returns whether a tensor is the integers of a weight.
fn holds_codes(tensor: &TensorMeta) -> bool {
    let leaf = tensor.name.rsplit('.').next().unwrap_or_default();
    matches!(leaf, "weight" | "weight_packed" | "qweight") && !tensor.is_float()
}

/// Tensors that belong to nothing.
fn leftovers(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let misread = subject.survey.problems.iter().any(|problem| problem.subject == About::Configuration);
    for (tensor, place) in subject.survey.tensors.iter().zip(subject.network.places()) {
        match place {
            Place::Other(Reason::Quantized) if !misread && holds_codes(tensor) => {
                let reason = format!("holds integers ({}), but no scales say what they stand for", tensor.dtype);
                findings.error(&tensor.name, reason, REMAKE);
            }
            Place::Other(Reason::Quantized) if !misread => {
                let reason = "is a quantization parameter without a quantized layer: no loader reads it";
                findings.warning(
                    &tensor.name,
                    reason,
                    "look at the name: tools have written names that loaders do not know",
                );
            }
            Place::Other(Reason::Unrecognised) => {
                findings.warning(&tensor.name, "is not part of the architecture: no loader reads it", "");
            }
            _ => {}
        }
    }
}
