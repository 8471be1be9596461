//! Recognition with a family's description: every tensor's name is looked up, weights become layers, and the other
//! tensors of a module are attached to them.

use std::collections::{BTreeSet, HashMap};

use super::names::{Entry, Named, Names, Suffix};
use super::surroundings::Surroundings;
use super::{
    ExpertsId, ExpertsStorage, FusedExperts, Linear, LinearId, Network, Norm, NormId, Notice, Place, Reason, Slot,
    TensorMeta, links, siblings,
};
use crate::family::{ExpertStorage, Family, Orientation, Role};
use crate::model_config::ModelConfig;
use kvant_quant::glob::Glob;

/// The longest dimension that is believed of a tensor without data: more rows than any model has.
const MOST_WITHOUT_DATA: usize = 1 << 24;

/// The network, or `None` if no tensor is named as the family names its blocks.
pub(super) fn recognise(family: &'static Family, config: &ModelConfig, tensors: &[TensorMeta]) -> Option<Network> {
    let names = Names::new(family, config);
    let trunk = names.find_trunk(tensors)?;
    let mut builder = Builder::new(family, config, tensors);
    builder.understand(&names, &trunk);
    builder.add_weights();
    builder.attach_rest();
    Some(builder.finish(&names, trunk, config))
}

struct Builder<'t> {
    family: &'static Family,
    config: &'t ModelConfig,
    tensors: &'t [TensorMeta],
    keep: Vec<Glob>,
    layers: usize,
    surroundings: Surroundings,
    named: Vec<Result<Named, Reason>>,
    places: Vec<Place>,
    linears: Vec<Linear>,
    experts: Vec<FusedExperts>,
    norms: Vec<Norm>,
    by_module: HashMap<String, Place>,
    /// Whether the head may be the embedding.
    may_be_tied: bool,
    /// The bias of a head that has no weight.
    head_bias: Option<usize>,
}

impl<'t> Builder<'t> {
    fn new(family: &'static Family, config: &'t ModelConfig, tensors: &'t [TensorMeta]) -> Self {
        Builder {
            family,
            config,
            tensors,
            keep: family.keep.iter().map(|pattern| Glob::new(pattern)).collect(),
            layers: family.blocks_of(config).unwrap_or(usize::MAX),
            surroundings: Surroundings::of(config, tensors),
            named: Vec::with_capacity(tensors.len()),
            places: vec![Place::Other(Reason::Unrecognised); tensors.len()],
            linears: Vec::new(),
            experts: Vec::new(),
            norms: Vec::new(),
            by_module: HashMap::new(),
            may_be_tied: config.tie_word_embeddings != Some(false),
            head_bias: None,
        }
    }

    /// Looks up every name.
    fn understand(&mut self, names: &Names, trunk: &str) {
        for tensor in self.tensors {
            let past_the_end = names.block_index(trunk, &tensor.name).is_some_and(|block| block >= self.layers);
            let named = match past_the_end {
                true => Err(Reason::ExtraLayer),
                false => names.understand(trunk, &tensor.name).ok_or_else(|| self.surroundings.reason(tensor)),
            };
            self.named.push(named.map(|named| match self.recurs(&named) {
                true => named,
                false => names.without_recurrence(trunk, named),
            }));
        }
    }

    /// Returns whether the block of a tensor has a recurrent mixer.
    fn recurs(&self, named: &Named) -> bool {
        named.block.is_none_or(|block| self.family.branches(self.config, block).recurrent)
    }

    /// Turns weights into layers.
    fn add_weights(&mut self) {
        for at in 0..self.tensors.len() {
            self.places[at] = match &self.named[at] {
                Err(reason) => Place::Other(*reason),
                Ok(named) => self.add_weight(at, &named.clone()),
            };
        }
    }

    fn add_weight(&mut self, at: usize, named: &Named) -> Place {
        // With a dimension of 0 no data bound the others: rows or experts of such a tensor must not be counted.
        let shape = &self.tensors[at].shape;
        if shape.contains(&0) && shape.iter().any(|length| *length > MOST_WITHOUT_DATA) {
            return Place::Other(self.surroundings.reason(&self.tensors[at]));
        }
        let place = match (named.entry, named.suffix) {
            (Entry::Embedding, Suffix::Slot(Slot::Weight)) => return Place::Embedding,
            (Entry::Positions, Suffix::Slot(Slot::Weight)) => return Place::Positions,
            (Entry::DecoderPositions, Suffix::Slot(Slot::Weight)) => return Place::DecoderPositions,
            (Entry::TokenTypes, Suffix::Slot(Slot::Weight)) => return Place::TokenTypes,
            (Entry::RelativePositions, Suffix::Slot(Slot::Weight)) => return Place::RelativePositions,
            (Entry::LayerInputs, Suffix::Slot(Slot::Weight)) => return Place::LayerInputs,
            (Entry::Patches, Suffix::Slot(slot @ (Slot::Weight | Slot::Bias))) => return Place::Patches(slot),
            (Entry::SoundConvolution, Suffix::Slot(slot @ (Slot::Weight | Slot::Bias))) => {
                return Place::SoundConvolution(slot);
            }
            (Entry::Parameter, Suffix::Slot(Slot::Weight | Slot::Bias)) => return Place::Parameter,
            (Entry::Norm(_), Suffix::Slot(Slot::Weight)) => self.add_norm(at, named),
            (Entry::Linear { .. }, Suffix::Slot(Slot::Weight)) => self.add_linear(at, named),
            (Entry::FusedExperts { .. }, Suffix::Slot(Slot::Weight) | Suffix::Blocks) => self.add_experts(at, named),
            // Waits for its module's weight.
            _ => None,
        };
        let Some(place) = place else {
            let is_layer = matches!(named.entry, Entry::Linear { .. } | Entry::FusedExperts { .. });
            let is_weight = is_layer && named.suffix == Suffix::Slot(Slot::Weight);
            return Place::Other(match self.surroundings.reason(&self.tensors[at]) {
                // Integers of any type where a layer has its weight: no table of indices.
                Reason::Buffer if is_weight => Reason::Quantized,
                reason => reason,
            });
        };
        self.by_module.insert(named.module.clone(), place);
        place
    }

    fn add_norm(&mut self, at: usize, named: &Named) -> Option<Place> {
        let Entry::Norm(site) = named.entry else { return None };
        let site = self.family.norm_site(self.config, site, named.block);
        self.norms.push(Norm {
            module: named.module.clone(),
            site,
            kind: self.family.norm_kind_at(self.config, site),
            block: named.block,
            head: named.head,
            weight: at,
            bias: None,
        });
        Some(Place::Norm(NormId(self.norms.len() - 1), Slot::Weight))
    }

    fn add_linear(&mut self, at: usize, named: &Named) -> Option<Place> {
        let Entry::Linear { part, role, orientation, rows } = named.entry else {
            return None;
        };
        let tensor = &self.tensors[at];
        let &[first, second] = tensor.shape.as_slice() else { return None };
        if !tensor.is_float() {
            return None;
        }
        let (out_features, in_features) = oriented(orientation, first, second);
        self.linears.push(Linear {
            module: named.module.clone(),
            role,
            part,
            block: named.block,
            expert: named.expert,
            orientation,
            rows,
            in_features,
            out_features,
            siblings: None,
            weight: at,
            bias: None,
            scale: None,
            kept: self.is_kept(role, &named.module),
        });
        Some(Place::Linear(LinearId(self.linears.len() - 1), Slot::Weight))
    }

    fn add_experts(&mut self, at: usize, named: &Named) -> Option<Place> {
        let Entry::FusedExperts { role, orientation, rows } = named.entry else { return None };
        let (storage, orientation, shape) = self.experts_storage(at, role, named.suffix, orientation)?;
        let [experts, out_features, in_features] = shape;
        self.experts.push(FusedExperts {
            module: named.module.clone(),
            role,
            block: named.block?,
            experts,
            orientation,
            rows,
            in_features,
            out_features,
            storage,
            bias: None,
            kept: self.is_kept(role, &named.module),
        });
        Some(Place::Experts(ExpertsId(self.experts.len() - 1), Slot::Weight))
    }

    /// How an expert tensor is stored, and its sizes: experts, out, in.
    fn experts_storage(
        &self,
        at: usize,
        role: Role,
        suffix: Suffix,
        orientation: Orientation,
    ) -> Option<(ExpertsStorage, Orientation, [usize; 3])> {
        let tensor = &self.tensors[at];
        match (suffix, tensor.shape.as_slice()) {
            (Suffix::Slot(_), &[experts, first, second]) if tensor.is_float() => {
                let orientation = self.orientation_of(role, orientation, [first, second]);
                let (out, inner) = oriented(orientation, first, second);
                Some((ExpertsStorage::Float { weight: at }, orientation, [experts, out, inner]))
            }
            // The matrices of all experts one below the other.
            (Suffix::Slot(_), &[rows, columns]) if tensor.is_float() && self.stacks_experts() => {
                let experts = self.config.experts.as_ref()?.count;
                let of_each = rows.checked_div(experts).filter(|of_each| of_each * experts == rows)?;
                let (out, inner) = oriented(orientation, of_each, columns);
                Some((ExpertsStorage::Float { weight: at }, orientation, [experts, out, inner]))
            }
            (Suffix::Blocks, &[experts, out, groups, 16]) if tensor.dtype == "U8" => {
                let storage = ExpertsStorage::Mxfp4 { blocks: at, scales: None };
                Some((storage, Orientation::OutIn, [experts, out, groups.checked_mul(32)?]))
            }
            _ => None,
        }
    }

    /// Returns whether a family has the matrices of all experts one below the other.
    fn stacks_experts(&self) -> bool {
        let mut layouts = self.family.moe.iter().flat_map(|moe| moe.experts);
        layouts.any(|layout| layout.storage == ExpertStorage::Stacked)
    }

    /// The orientation of matrices that the family has in both. Those whose inputs and outputs are as many are `[out, in]`, as
    /// transformers reads them.
    fn orientation_of(&self, role: Role, listed: Orientation, [first, second]: [usize; 2]) -> Orientation {
        let layouts = self.family.moe.iter().flat_map(|moe| moe.experts);
        let fused = layouts.filter(|layout| layout.storage == ExpertStorage::Fused);
        let has = |wanted| fused.clone().any(|layout| layout.orientation == wanted);
        let Some(hidden) = self.config.hidden_size.filter(|_| has(Orientation::OutIn) && has(Orientation::InOut))
        else {
            return listed;
        };
        let (out_in, in_out) = if role == Role::Down { (first, second) } else { (second, first) };
        if out_in != hidden && in_out == hidden { Orientation::InOut } else { Orientation::OutIn }
    }

    fn is_kept(&self, role: Role, module: &str) -> bool {
        role.is_kept_by_default() || self.keep.iter().any(|glob| glob.matches(module))
    }

    /// Attaches biases and scales to the layers that their modules' weights became.
    fn attach_rest(&mut self) {
        for at in 0..self.tensors.len() {
            let Ok(named) = &self.named[at] else { continue };
            let Suffix::Slot(slot @ (Slot::Bias | Slot::Scale)) = named.suffix else {
                continue;
            };
            let is_head = matches!(named.entry, Entry::Linear { role: Role::Head, .. });
            match self.by_module.get(&named.module).copied() {
                Some(owner) => self.attach(at, owner, slot),
                None if is_head && slot == Slot::Bias => self.add_head_bias(at),
                None => {}
            }
        }
    }

    /// The bias of a head whose weight is the embedding, which checkpoints do not store twice. Encoders may store the bias twice, beside
    /// the head's weight and above it.
    fn add_head_bias(&mut self, at: usize) {
        let head = self.linears.iter_mut().find(|linear| linear.role == Role::Head);
        let is_encoder = self.family.encoder.is_some();
        match head {
            None if self.may_be_tied && (is_encoder || self.head_bias.is_none()) => {
                self.places[at] = Place::HeadBias;
                self.head_bias.get_or_insert(at);
            }
            Some(head) if is_encoder => {
                self.places[at] = Place::HeadBias;
                head.bias.get_or_insert(at);
            }
            _ => {}
        }
    }

    fn attach(&mut self, at: usize, owner: Place, slot: Slot) {
        let place = match owner {
            Place::Linear(id, _) => {
                let linear = &mut self.linears[id.0];
                let target = if slot == Slot::Bias { &mut linear.bias } else { &mut linear.scale };
                *target = Some(at);
                Place::Linear(id, slot)
            }
            Place::Norm(id, _) if slot == Slot::Bias => {
                self.norms[id.0].bias = Some(at);
                Place::Norm(id, slot)
            }
            Place::Experts(id, _) => {
                attach_to_experts(&mut self.experts[id.0], at, slot);
                Place::Experts(id, slot)
            }
            _ => return,
        };
        self.places[at] = place;
    }

    fn finish(mut self, names: &Names, trunk: String, config: &ModelConfig) -> Network {
        let siblings = siblings::assign(&mut self.linears);
        let (blocks, unclear) = (self.blocks(), self.unclear(names, &trunk));
        let has_head = self.linears.iter().any(|linear| linear.role == Role::Head);
        let notices = self.notices(config, blocks.len(), has_head);
        let unplaced_modules = super::unplaced_modules(self.tensors, &self.places);
        Network {
            family: Some(self.family),
            can_be_described: true,
            trunk,
            passed_over: self.passed_over(&blocks),
            sharing: blocks.iter().copied().filter(|block| self.family.key_block(config, *block) != *block).collect(),
            blocks,
            unclear,
            facts: links::Facts::of(self.family, config),
            head_bias: self.head_bias,
            tied: !has_head || config.tie_word_embeddings == Some(true),
            linears: self.linears,
            experts: self.experts,
            norms: self.norms,
            siblings,
            places: self.places,
            unplaced_modules,
            notices,
        }
    }

    fn blocks(&self) -> Vec<usize> {
        let blocks: BTreeSet<usize> = self.named.iter().filter_map(|named| named.as_ref().ok()?.block).collect();
        blocks.into_iter().collect()
    }

    /// The blocks that attend to what another modality gives.
    fn passed_over(&self, blocks: &[usize]) -> BTreeSet<usize> {
        let cross = self.family.cross_attention;
        blocks
            .iter()
            .copied()
            .filter(|block| cross.is_some_and(|cross| cross.is_in_block(self.config, *block)))
            .collect()
    }

    /// The blocks with a tensor that may be, or belong to, a layer which is not understood.
    fn unclear(&self, names: &Names, trunk: &str) -> BTreeSet<usize> {
        let both = self.tensors.iter().zip(&self.places);
        let unclear = both.filter(|(_, place)| matches!(place, Place::Other(Reason::Unrecognised | Reason::Quantized)));
        unclear.filter_map(|(tensor, _)| names.block_index(trunk, &tensor.name)).collect()
    }

    fn notices(&self, config: &ModelConfig, found: usize, has_head: bool) -> Vec<Notice> {
        let mut notices = super::common_notices(self.tensors, &self.places);
        let stated = self.family.blocks_of(config).filter(|stated| *stated != found);
        notices.extend(stated.map(|stated| Notice::BlockCount { found, stated }));
        if !has_head && config.tie_word_embeddings == Some(false) {
            notices.push(Notice::NoHead);
        }
        notices
    }
}

/// Output and input width of a matrix stored as `[first, second]`.
fn oriented(orientation: Orientation, first: usize, second: usize) -> (usize, usize) {
    match orientation {
        Orientation::OutIn => (first, second),
        Orientation::InOut => (second, first),
    }
}

fn attach_to_experts(experts: &mut FusedExperts, at: usize, slot: Slot) {
    match (slot, &mut experts.storage) {
        (Slot::Bias, _) => experts.bias = Some(at),
        (Slot::Scale, ExpertsStorage::Mxfp4 { scales, .. }) => *scales = Some(at),
        _ => {}
    }
}
