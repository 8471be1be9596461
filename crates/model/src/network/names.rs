//! From tensor names to entries of a family's description, and back to where the checkpoint keeps its trunk. Knows
//! the spellings of the wild (missing or added prefixes, suffixes of a module's tensors), but no shapes.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Slot, TensorMeta};
use crate::family::decoder_stack::{BLOCKS_IN_LAYER, encoder_blocks, in_part};
use crate::family::{ExpertStorage, Family, NormSite, Orientation, Part, Role, RowOrder, StackBlock, Trunk};
use crate::model_config::ModelConfig;

/// The kind of a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Entry {
    Linear {
        part: Part,
        role: Role,
        orientation: Orientation,
        rows: RowOrder,
    },
    FusedExperts {
        role: Role,
        orientation: Orientation,
        rows: RowOrder,
    },
    Norm(NormSite),
    Embedding,
    Positions,
    DecoderPositions,
    TokenTypes,
    RelativePositions,
    LayerInputs,
    /// The layer that makes rows of the patches of images.
    Patches,
    /// A convolution that reads sounds.
    SoundConvolution,
    Parameter,
}

/// A tensor's name, understood.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Named {
    pub(super) module: String,
    pub(super) entry: Entry,
    pub(super) suffix: Suffix,
    pub(super) block: Option<usize>,
    pub(super) expert: Option<usize>,
    pub(super) head: Option<usize>,
}

/// How a tensor's name continues its module's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suffix {
    Slot(Slot),
    /// `*_blocks`: MXFP4 codes.
    Blocks,
}

/// Suffixes by which a module's tensors are named. The bare name is that of a parameter.
const SUFFIXES: &[(&str, Suffix)] = &[
    (".weight", Suffix::Slot(Slot::Weight)),
    (".bias", Suffix::Slot(Slot::Bias)),
    (".weight_scale_inv", Suffix::Slot(Slot::Scale)),
    (".weight_scale", Suffix::Slot(Slot::Scale)),
    ("_bias", Suffix::Slot(Slot::Bias)),
    ("_blocks", Suffix::Blocks),
    ("_scales", Suffix::Slot(Slot::Scale)),
    ("", Suffix::Slot(Slot::Weight)),
];

/// Further suffixes of norms, which the first models of transformers had from TensorFlow.
const NORM_SUFFIXES: &[(&str, Suffix)] = &[(".gamma", Suffix::Slot(Slot::Weight)), (".beta", Suffix::Slot(Slot::Bias))];

/// Last parts of tensor names that belong to formats which are not decoded here.
const QUANTIZATION_PARAMETERS: &[&str] = &[
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "input_scale",
    "input_scale_2",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "prob_output_scale",
    "qweight",
    "qzeros",
    "biases",
    "scales",
    "g_idx",
    "_weight_qdata",
    "_weight_scale",
    "_weight_zero_point",
    "_weight_per_tensor_scale",
    "_weight_scale_and_zero",
    "absmax",
    "quant_map",
];

/// A family's names, indexed.
pub(super) struct Names {
    family: &'static Family,
    /// By path inside a block, indices of experts replaced by `{}`.
    block: HashMap<Cow<'static, str>, Entry>,
    /// By path inside a layer of a decoder that attends to an encoder: those of its two blocks.
    decoder: [HashMap<Cow<'static, str>, Entry>; BLOCKS_IN_LAYER],
    /// Blocks of the encoder before that.
    encoder_blocks: usize,
    /// Those of attention whose paths layers of a recurrent mixer have in other blocks (Kimi Linear).
    attention: HashMap<&'static str, Entry>,
    /// By path inside the trunk.
    trunk: HashMap<Cow<'static, str>, Entry>,
    /// By path inside the module of layers that predict further tokens, outside of their blocks.
    extra: HashMap<Cow<'static, str>, Entry>,
    /// What encoders have behind their blocks, by path inside the trunk or beside it.
    readouts: HashMap<Cow<'static, str>, Entry>,
}

impl Names {
    pub(super) fn new(family: &'static Family, config: &ModelConfig) -> Names {
        let parts = [StackBlock::SelfAttention, StackBlock::CrossAttention];
        Names {
            family,
            block: block_entries(family),
            decoder: parts.map(|part| decoder_entries(family, part)),
            encoder_blocks: match family.decoder_stack() {
                Some(_) => encoder_blocks(config),
                None => usize::MAX,
            },
            attention: attention_entries(family),
            trunk: trunk_entries(family),
            extra: extra_entries(family),
            readouts: readout_entries(family),
        }
    }

    /// The path of the trunk in this checkpoint: that under which most tensors of blocks are found.
    pub(super) fn find_trunk(&self, tensors: &[TensorMeta]) -> Option<String> {
        let hits = |path: &String| tensors.iter().filter(|t| self.block_tensor(path, &t.name).is_some()).count();
        let counted = trunk_paths(&self.family.trunk).into_iter().map(|path| (hits(&path), path));
        // The first of equals: `rev` because `max_by_key` returns the last.
        let candidates: Vec<_> = counted.filter(|(hits, _)| *hits > 0).collect();
        candidates.into_iter().rev().max_by_key(|(hits, _)| *hits).map(|(_, path)| path)
    }

    /// The kind of the tensor `name`, given the trunk's path.
    pub(super) fn understand(&self, trunk: &str, name: &str) -> Option<Named> {
        let of_decoder = self.block_tensor(trunk, name).or_else(|| self.trunk_tensor(trunk, name));
        let of_head = || self.head_tensor(name).or_else(|| self.readout_tensor(trunk, name));
        of_decoder.or_else(of_head).or_else(|| self.extra_tensor(name))
    }

    /// What a tensor is in a block without the recurrent mixer of the family: layers of attention may have the names of that mixer's.
    pub(super) fn without_recurrence(&self, trunk: &str, named: Named) -> Named {
        let entry = self.split_block(trunk, &named.module).and_then(|(_, path)| self.attention.get(path).copied());
        Named { entry: entry.unwrap_or(named.entry), ..named }
    }

    /// Whether blocks have a tensor of this name, numbers of experts and heads as `{}`.
    pub(super) fn have(&self, pattern: &str) -> bool {
        look_up(&self.block, pattern).is_some()
    }

    /// The names of all modules of blocks.
    pub(super) fn modules(&self) -> impl Iterator<Item = &str> {
        self.block.keys().map(AsRef::as_ref)
    }

    /// The index of the block that a name speaks of, whether or not the rest of the name is known.
    pub(super) fn block_index(&self, trunk: &str, name: &str) -> Option<usize> {
        self.split_block(trunk, name).map(|(index, _)| index)
    }

    /// The index of a block, and the path behind that of its layer. What both blocks of a layer have in common belongs to the first.
    fn split_block<'n>(&self, trunk: &str, name: &'n str) -> Option<(usize, &'n str)> {
        let rest = strip_path(trunk, name)?;
        if let Some(found) = self.split_layer_of_decoder(rest) {
            return Some(found);
        }
        let rest = strip_path(self.family.trunk.blocks, rest)?;
        let (index, rest) = rest.split_once('.')?;
        let layer = parse_index(index)?;
        if layer >= self.encoder_blocks {
            // Behind all blocks that there are.
            return Some((usize::MAX, rest));
        }
        let part = match self.family.blocks_in_layer() {
            1 => 0,
            parts => self.block_in_layer(rest).filter(|part| *part < parts).unwrap_or(0),
        };
        Some((layer * self.family.blocks_in_layer() + part, rest))
    }

    /// The same in the decoder of an encoder-decoder. What is not known belongs to the first block of its layer.
    fn split_layer_of_decoder<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        let (index, rest) = strip_path(self.family.decoder_stack()?.blocks, name)?.split_once('.')?;
        let part = self.decoder.iter().position(|entries| look_up(entries, rest).is_some()).unwrap_or(0);
        let layers = parse_index(index)?.checked_mul(BLOCKS_IN_LAYER)?;
        Some((self.encoder_blocks.checked_add(layers)?.checked_add(part)?, rest))
    }

    /// The table of a block.
    fn entries_of(&self, block: usize) -> &HashMap<Cow<'static, str>, Entry> {
        match block.checked_sub(self.encoder_blocks) {
            Some(behind) if self.encoder_blocks < usize::MAX => &self.decoder[behind % BLOCKS_IN_LAYER],
            _ => &self.block,
        }
    }

    /// The number that a path inside a layer has of the block in it; experts have numbers of their own.
    fn block_in_layer(&self, path: &str) -> Option<usize> {
        let (pattern, index) = generalise(path);
        match look_up(&self.block, &pattern)?.0 {
            Entry::Linear { part: Part::Experts, .. } => None,
            _ => index,
        }
    }

    fn block_tensor(&self, trunk: &str, name: &str) -> Option<Named> {
        let (block, rest) = self.split_block(trunk, name)?;
        let (pattern, index) = generalise(rest);
        // Numbers that are a part of a name come before those of experts and heads.
        let entries = self.entries_of(block);
        let exact = look_up(entries, rest);
        let index = if exact.is_some() { None } else { index };
        let (entry, suffix, cut) = exact.or_else(|| look_up(entries, &pattern))?;
        let in_experts = matches!(entry, Entry::Linear { part: Part::Experts, .. });
        Some(Named {
            module: name[..name.len() - cut].to_owned(),
            entry,
            suffix,
            block: Some(block),
            expert: index.filter(|_| in_experts),
            head: index.filter(|_| matches!(entry, Entry::Norm(_)) && self.family.blocks_in_layer() == 1),
        })
    }

    fn trunk_tensor(&self, trunk: &str, name: &str) -> Option<Named> {
        let (entry, suffix, cut) = look_up(&self.trunk, &generalise(strip_path(trunk, name)?).0)?;
        Some(outside(name, cut, entry, suffix))
    }

    fn readout_tensor(&self, trunk: &str, name: &str) -> Option<Named> {
        let inside = || look_up(&self.readouts, strip_path(trunk, name)?);
        let (entry, suffix, cut) = look_up(&self.readouts, name).or_else(inside)?;
        Some(outside(name, cut, entry, suffix))
    }

    /// A tensor of a linear layer that predicts further tokens. It belongs to no block of the decoder, and to none of its experts.
    fn extra_tensor(&self, name: &str) -> Option<Named> {
        let extra = self.family.extra?;
        let rest = strip_path(extra.path, name)?;
        let in_block = || {
            let (index, rest) = strip_path(extra.blocks, rest)?.split_once('.')?;
            parse_index(index)?;
            look_up(&self.block, &generalise(rest).0)
        };
        let (entry, suffix, cut) = look_up(&self.extra, rest).or_else(in_block)?;
        matches!(entry, Entry::Linear { .. }).then(|| outside(name, cut, entry, suffix))
    }

    /// Heads are outside the trunk; wrappers may put a path in front.
    fn head_tensor(&self, name: &str) -> Option<Named> {
        let (module, suffix, cut) = SUFFIXES.iter().find_map(|(text, suffix)| {
            let module = name.strip_suffix(text).filter(|_| !text.is_empty())?;
            Some((module, *suffix, text.len()))
        })?;
        let is_head = |head: &&&str| module.strip_suffix(**head).is_some_and(is_wrapper);
        self.family.trunk.heads.iter().find(is_head)?;
        let entry = Entry::Linear {
            part: Part::Trunk,
            role: Role::Head,
            orientation: Orientation::OutIn,
            rows: RowOrder::Stacked,
        };
        Some(outside(name, cut, entry, suffix))
    }
}

/// Whether `path`, with its final dot, may stand before a head's name. Heads of extra layers are none of the model's.
fn is_wrapper(path: &str) -> bool {
    let mut parts = path.trim_end_matches('.').split('.');
    path.is_empty() || path.ends_with('.') && parts.all(|part| part != "mtp" && parse_index(part).is_none())
}

fn outside(name: &str, cut: usize, entry: Entry, suffix: Suffix) -> Named {
    Named { module: name[..name.len() - cut].to_owned(), entry, suffix, block: None, expert: None, head: None }
}

fn block_entries(family: &'static Family) -> HashMap<Cow<'static, str>, Entry> {
    let linear =
        |part: Part, role: Role| Entry::Linear { part, role, orientation: family.orientation, rows: family.qkv_rows };
    let mut entries = HashMap::new();
    entries.extend(family.attention.iter().map(|&(role, path)| (path.into(), linear(Part::Attention, role))));
    entries.extend(family.mlp.iter().map(|&(role, path)| (path.into(), stacked(linear(Part::Mlp, role)))));
    entries.extend(family.norms.iter().map(|&(site, path)| (path.into(), Entry::Norm(site))));
    entries.extend(family.all_parameters().map(|path| (path.into(), Entry::Parameter)));
    let distances = family.encoder.and_then(|encoder| encoder.block_distances);
    entries.extend(distances.map(|distances| (distances.path.into(), Entry::RelativePositions)));
    if let Some(recurrent) = family.recurrent {
        let linear = |role: Role| Entry::Linear {
            part: Part::Recurrent,
            role,
            orientation: family.orientation,
            rows: recurrent.rows,
        };
        entries.extend(recurrent.linears.iter().map(|&(role, path)| (path.into(), linear(role))));
    }
    if let Some(cross) = family.cross_attention {
        let entry = stacked(linear(Part::Unknown, Role::Unknown));
        entries.extend(cross.linears.iter().map(|&path| (path.into(), entry)));
    }
    if let Some(moe) = family.moe {
        entries.extend(moe.routing.iter().map(|&(role, path)| (path.into(), linear(Part::Routing, role))));
        let shared = moe.shared.iter();
        entries.extend(shared.map(|&(role, path)| (path.into(), stacked(linear(Part::SharedExperts, role)))));
        entries.extend(split_entries(moe.experts));
        entries.extend(expert_entries(moe.experts).map(|(path, entry)| (path.into(), entry)));
    }
    entries
}

/// What a layer of a decoder has in one of its two blocks.
fn decoder_entries(family: &'static Family, part: StackBlock) -> HashMap<Cow<'static, str>, Entry> {
    let Some(decoder) = family.decoder_stack() else { return HashMap::new() };
    let linear =
        |part: Part, role: Role| Entry::Linear { part, role, orientation: family.orientation, rows: RowOrder::Stacked };
    let (of_mixer, mlp) = match part {
        StackBlock::CrossAttention => (Part::CrossAttention, decoder.mlp),
        StackBlock::Encoder | StackBlock::SelfAttention => (Part::Attention, &[][..]),
    };
    let mut entries: HashMap<Cow<'static, str>, Entry> = HashMap::new();
    entries.extend(decoder.mixer(part).iter().map(|&(role, path)| (path.into(), linear(of_mixer, role))));
    entries.extend(mlp.iter().map(|&(role, path)| (path.into(), linear(Part::Mlp, role))));
    let norms = decoder.norms.iter().filter_map(|(site, path)| Some((in_part(*site, part)?, *path)));
    entries.extend(norms.map(|(site, path)| (path.into(), Entry::Norm(site))));
    let distances = family.encoder.and_then(|encoder| encoder.block_distances);
    let distances = distances.filter(|_| part == StackBlock::SelfAttention);
    entries.extend(distances.map(|distances| (distances.path.into(), Entry::RelativePositions)));
    entries
}

/// The layers of attention whose paths are those of layers of the recurrent mixer, too.
fn attention_entries(family: &'static Family) -> HashMap<&'static str, Entry> {
    let entry = |role: Role| Entry::Linear {
        part: Part::Attention,
        role,
        orientation: family.orientation,
        rows: family.qkv_rows,
    };
    let recurs = |path: &str| family.recurrent.is_some_and(|mixer| mixer.linears.iter().any(|(_, of)| *of == path));
    family.attention.iter().filter(|(_, path)| recurs(path)).map(|&(role, path)| (path, entry(role))).collect()
}

/// Gate and up of a dense network stand one after the other, whatever the order of q, k and v.
fn stacked(entry: Entry) -> Entry {
    match entry {
        Entry::Linear { part, role, orientation, .. } => {
            Entry::Linear { part, role, orientation, rows: RowOrder::Stacked }
        }
        other => other,
    }
}

fn expert_entries(layouts: &'static [crate::family::ExpertLayout]) -> impl Iterator<Item = (&'static str, Entry)> {
    layouts.iter().flat_map(|layout| {
        let (orientation, rows) = (layout.orientation, layout.gate_up_rows);
        let entry = move |role: Role| match layout.storage {
            ExpertStorage::Separate => Entry::Linear { part: Part::Experts, role, orientation, rows },
            ExpertStorage::Fused | ExpertStorage::Stacked => Entry::FusedExperts { role, orientation, rows },
        };
        layout.linears.iter().map(move |&(role, path)| (path, entry(role)))
    })
}

/// Quantized checkpoints hold one module an expert where floats are in one tensor.
fn split_entries(layouts: &'static [crate::family::ExpertLayout]) -> impl Iterator<Item = (Cow<'static, str>, Entry)> {
    let fused = layouts.iter().filter(|layout| layout.storage != ExpertStorage::Separate);
    fused.flat_map(|layout| {
        layout.linears.iter().filter_map(move |&(role, path)| {
            let (parent, leaf) = path.rsplit_once('.')?;
            let (orientation, rows) = (Orientation::OutIn, layout.gate_up_rows);
            Some((
                format!("{parent}.{{}}.{leaf}").into(),
                Entry::Linear { part: Part::Experts, role, orientation, rows },
            ))
        })
    })
}

fn trunk_entries(family: &'static Family) -> HashMap<Cow<'static, str>, Entry> {
    let trunk = &family.trunk;
    let linear = |role: Role| Entry::Linear {
        part: Part::Trunk,
        role,
        orientation: Orientation::OutIn,
        rows: RowOrder::Stacked,
    };
    let mut entries = HashMap::new();
    let images = family.encoder.and_then(|encoder| encoder.images);
    entries.insert(trunk.embedding.into(), if images.is_some() { Entry::Patches } else { Entry::Embedding });
    if let Some(sounds) = family.encoder.and_then(|encoder| encoder.sounds) {
        entries.extend(sounds.modules().into_iter().map(|path| (path.into(), Entry::SoundConvolution)));
        entries.extend(sounds.parameters().into_iter().map(|path| (path.into(), Entry::Parameter)));
    }
    let copies = family.encoder.iter().flat_map(|encoder| encoder.embedding_copies);
    entries.extend(copies.map(|path| ((*path).into(), Entry::Embedding)));
    let learned = images.iter().flat_map(|images| images.learned).map(|token| token.path);
    let unread = images.iter().flat_map(|images| images.unread).copied();
    let of_grid = images.and_then(|images| images.grid?.positions);
    entries.extend(learned.chain(unread).map(|path| (path.into(), Entry::Parameter)));
    entries.extend(trunk.positions.into_iter().chain(of_grid).map(|path| (path.into(), Entry::Positions)));
    let encoder = family.encoder.as_ref();
    let table = |path: Option<&'static str>, entry: Entry| path.map(|path| (path.into(), entry));
    entries.extend(table(trunk.other_embedding, Entry::Embedding));
    entries.extend(trunk.parameters.iter().map(|path| ((*path).into(), Entry::Parameter)));
    entries.extend(table(encoder.and_then(|encoder| encoder.token_types), Entry::TokenTypes));
    entries.extend(table(encoder.and_then(|encoder| encoder.relative_positions), Entry::RelativePositions));
    entries.extend(table(encoder.and_then(|encoder| encoder.distance_embeddings), Entry::RelativePositions));
    if let Some(decoder) = family.decoder_stack() {
        entries.extend(decoder.positions.map(|path| (path.into(), Entry::DecoderPositions)));
        entries.extend(decoder.trunk_norms.iter().map(|&(site, path)| (path.into(), Entry::Norm(site))));
    }
    entries.extend(trunk.layer_inputs.map(|path| (path.into(), Entry::LayerInputs)));
    entries.extend(trunk.norms.iter().map(|&(site, path)| (path.into(), Entry::Norm(site))));
    entries.extend(trunk.linears.iter().map(|&(role, path)| (path.into(), linear(role))));
    entries
}

fn readout_entries(family: &'static Family) -> HashMap<Cow<'static, str>, Entry> {
    let linear = Entry::Linear {
        part: Part::Trunk,
        role: Role::Readout,
        orientation: Orientation::OutIn,
        rows: RowOrder::Stacked,
    };
    let encoder = || family.encoder.iter();
    let linears = encoder().flat_map(|encoder| encoder.linears()).map(|path| (path, linear));
    let norms = encoder().flat_map(|encoder| encoder.norms());
    let norms = norms.map(|path| (path.into(), Entry::Norm(NormSite::Readout)));
    let parameters = encoder().flat_map(|encoder| encoder.readout_parameters());
    linears.chain(norms).chain(parameters.map(|path| (path.into(), Entry::Parameter))).collect()
}

fn extra_entries(family: &'static Family) -> HashMap<Cow<'static, str>, Entry> {
    let linear = |role: Role| Entry::Linear {
        part: Part::Unknown,
        role,
        orientation: Orientation::OutIn,
        rows: RowOrder::Stacked,
    };
    let linears = family.extra.iter().flat_map(|extra| extra.linears);
    linears.map(|&(role, path)| (path.into(), linear(role))).collect()
}

/// The entry whose module the name continues, the suffix, and how many bytes of the name are suffix.
fn look_up(entries: &HashMap<Cow<'static, str>, Entry>, name: &str) -> Option<(Entry, Suffix, usize)> {
    let found = |(text, suffix): &(&str, Suffix)| {
        let entry = entries.get(name.strip_suffix(text)?)?;
        Some((*entry, *suffix, text.len()))
    };
    // A parameter may be called like the bias of a layer.
    if let Some(Entry::Parameter) = entries.get(name) {
        return Some((Entry::Parameter, Suffix::Slot(Slot::Weight), 0));
    }
    let of_norm = || NORM_SUFFIXES.iter().find_map(found).filter(|(entry, ..)| matches!(entry, Entry::Norm(_)));
    SUFFIXES.iter().find_map(found).or_else(of_norm)
}

/// Paths of the trunk in checkpoints: as in the causal language model; without the first part (base models); after or
/// before `language_model` (multimodal models of transformers 4 and 5).
fn trunk_paths(trunk: &Trunk) -> Vec<String> {
    let full = trunk.path;
    let base = full.split_once('.').map_or("", |(_, rest)| rest);
    let wrapped = [
        format!("language_model.{full}"),
        format!("{full}.language_model"),
        format!("model.language_model.{full}"),
        "language_model".to_owned(),
        "model.text_model".to_owned(),
        format!("text_model.{full}"),
        format!("thinker.{full}"),
    ];
    [full.to_owned(), base.to_owned()].into_iter().chain(wrapped).collect()
}

/// `name` without `path.` in front; all of it if the path is empty.
fn strip_path<'n>(path: &str, name: &'n str) -> Option<&'n str> {
    match path {
        "" => Some(name),
        _ => name.strip_prefix(path)?.strip_prefix('.'),
    }
}

/// Replaces parts that are numbers by `{}`; returns the first number too.
pub(super) fn generalise(name: &str) -> (String, Option<usize>) {
    let mut first = None;
    let mut pattern = String::with_capacity(name.len());
    for part in name.split('.') {
        let index = parse_index(part);
        first = first.or(index);
        pattern.push_str(if index.is_some() { "{}" } else { part });
        pattern.push('.');
    }
    pattern.pop();
    (pattern, first)
}

/// A decimal number of at most nine digits.
pub(super) fn parse_index(part: &str) -> Option<usize> {
    let is_number = !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| part.parse().ok()).flatten()
}

/// Buffers that old versions of transformers saved. Masks are named like biases, but have four dimensions or none.
pub(super) fn is_buffer(tensor: &TensorMeta) -> bool {
    let last = tensor.name.rsplit('.').next().unwrap_or_default();
    let is_mask = last == "bias" && (tensor.shape.len() == 4 || tensor.dtype == "BOOL" || tensor.dtype == "U8");
    is_mask
        || matches!(
            last,
            "inv_freq"
                | "original_inv_freq"
                | "masked_bias"
                | "position_ids"
                | "cos_cached"
                | "sin_cached"
                | "embed_scale"
        )
}

/// The part of a name that marks another modality than text: a vision tower, a projector (the connector of Idefics 3, what merges patches in
/// MiniMax M3), what speaks.
pub fn modality_part(name: &str) -> Option<&str> {
    name.split('.').find(|part| is_modality(part))
}

fn is_modality(part: &str) -> bool {
    let words = ["vision", "visual", "image", "audio", "speech", "projector"];
    part == "vit"
        || part == "patch_merge_mlp"
        || part == "talker"
        || part == "connector"
        || part.ends_with("2wav")
        || part.starts_with("mm_")
        || words.iter().any(|word| part.contains(word))
}

/// Returns whether the name is that of a scale, zero point or packed weight.
pub(super) fn is_quantization_parameter(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    QUANTIZATION_PARAMETERS.contains(&last) || last.ends_with("_scales") || last.ends_with("_blocks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::by_name;

    fn named(family: &str, trunk: &str, name: &str) -> Option<Named> {
        Names::new(by_name(family).unwrap(), &ModelConfig::default()).understand(trunk, name)
    }

    #[test]
    fn indices_become_placeholders() {
        let (pattern, first) = generalise("mlp.experts.12.w1.weight");
        assert_eq!((pattern.as_str(), first), ("mlp.experts.{}.w1.weight", Some(12)));
        assert_eq!(generalise("self_attn.q_proj"), ("self_attn.q_proj".to_owned(), None));
        assert_eq!(parse_index("99999999999999999999"), None);
        assert_eq!(parse_index(""), None);
        assert_eq!(parse_index("-1"), None);
    }

    #[test]
    fn parts_of_other_modalities_are_known_by_name() {
        let part = |name| modality_part(name);
        assert_eq!(part("model.connector.modality_projection.proj"), Some("connector"));
        assert_eq!(part("model.multi_modal_projector.linear_1"), Some("multi_modal_projector"));
        assert_eq!(part("model.layers.0.self_attn.q_proj"), None);
    }

    #[test]
    fn head_index_is_not_an_expert_index() {
        let norm = named("stablelm", "model", "model.layers.1.self_attn.q_layernorm.norms.3.weight").unwrap();
        assert_eq!((norm.block, norm.expert, norm.head), (Some(1), None, Some(3)));
        let expert = named("mixtral", "model", "model.layers.1.block_sparse_moe.experts.3.w1.weight").unwrap();
        assert_eq!((expert.block, expert.expert, expert.head), (Some(1), Some(3), None));
        assert_eq!(expert.module, "model.layers.1.block_sparse_moe.experts.3.w1");
    }

    #[test]
    fn names_similar_to_known_modules_are_not_matched() {
        for name in [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.q_proj.lora_A.weight",
            "model.layers.x.self_attn.q_proj.weight",
            "model.layers.0",
            "model.layers",
            "models.layers.0.self_attn.q_proj.weight",
            "mtp.0.lm_head.weight",
            "xlm_head.weight",
            "lm_head",
            "",
            ".",
            ".weight",
        ] {
            let found = named("llama", "model", name).filter(|named| named.suffix == Suffix::Slot(Slot::Weight));
            let is_linear = matches!(found, Some(Named { entry: Entry::Linear { .. }, .. }));
            assert!(!is_linear || name == "model.layers.0.self_attn.q_proj", "{name}: {found:?}");
        }
        assert!(named("llama", "model", "language_model.lm_head.weight").is_some());
    }
}
