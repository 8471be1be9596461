//! Planning quantized attention: which layers own keys, values and queries, the places to observe, and the tensors for what
//! is found.

use super::activation_points::{Kin, SiteDraft};
use super::draft::{self, Draft};
use super::error::PlanError;
use super::recognised::Recognised;
use kvant_formats::format::OutputFormat;
use kvant_model::family::{Part, Role};
use kvant_model::network::{Linear, LinearId, Place, Reason};
use kvant_quant::scheme::{ActivationScheme, AttentionScheme, MinScale, Rotary};
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::parts::{AttentionSpec, CannotHold, Owner, ParameterPart};
use std::collections::{BTreeMap, BTreeSet};

/// A block whose attention is quantized, and where the parameters of what is static are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAttention {
    /// The block.
    pub block: usize,
    /// Keys and values; the same place where one layer's output is both.
    pub key_value: Option<[ActivationPoint; 2]>,
    /// Queries.
    pub query: Option<ActivationPoint>,
    /// The output of the softmax.
    pub probabilities: Option<ActivationPoint>,
}

/// The layers of a block that make queries, keys and values.
struct Owners {
    query: Linear,
    key: Linear,
    value: Linear,
}

/// What quantized attention takes.
#[derive(Default)]
pub(super) struct AttentionDrafts {
    pub(super) blocks: Vec<PlannedAttention>,
    pub(super) parts: Vec<ParameterPart>,
    /// The places to observe that no layer has.
    pub(super) sites: Vec<SiteDraft>,
}

/// The same of one block; places may be those of others.
struct BlockDraft {
    planned: PlannedAttention,
    parts: Vec<ParameterPart>,
    sites: Vec<SiteDraft>,
}

impl Recognised<'_> {
    /// What quantized attention takes besides these layers.
    pub(super) fn attention(&self, layers: &[Draft]) -> Result<AttentionDrafts, PlanError> {
        let scheme = self.recipe.attention();
        self.check_attention(&scheme)?;
        if scheme.is_empty() {
            return Ok(AttentionDrafts::default());
        }
        let of_layers =
            draft::layers(layers).flat_map(|layer| &layer.activations).filter_map(|draft| draft.site.as_ref());
        let mut known: BTreeMap<ActivationPoint, ActivationScheme> =
            of_layers.map(|planned| (planned.site.clone(), planned.scheme)).collect();
        let mut drafts = AttentionDrafts::default();
        self.check_cache_names(&scheme)?;
        for block in self.network.blocks() {
            let Some(owners) = self.owners(*block) else { continue };
            let BlockDraft { planned, parts, sites } = self.attention_of_block(*block, &scheme, &owners)?;
            drafts.parts.extend(parts);
            for site in sites {
                if is_new(&mut known, &site)? {
                    drafts.sites.push(site);
                }
            }
            drafts.blocks.push(planned);
        }
        if drafts.blocks.is_empty() {
            let reason = "its architecture has no description, or no attention that is known";
            return Err(PlanError::Attention { reason: reason.to_owned() });
        }
        Ok(drafts)
    }

    fn check_attention(&self, scheme: &AttentionScheme) -> Result<(), PlanError> {
        let key_value = scheme.key_value.map(|key_value| key_value.scheme);
        if key_value.is_some() && self.network.family().is_some_and(|family| family.encoder.is_some()) {
            return Err(PlanError::Attention { reason: "an encoder has no KV cache".to_owned() });
        }
        for (place, scheme) in
            [("the KV cache", key_value), ("queries", scheme.query), ("the softmax", scheme.probabilities)]
        {
            scheme.map_or(Ok(()), |scheme| self.check_activation(place, scheme, true))?;
        }
        Ok(())
    }

    /// Quark names what the cache stores by the ends of names, which other layers must not share: those of delta nets, of indexers and of towers
    /// for pictures and sound do.
    fn check_cache_names(&self, scheme: &AttentionScheme) -> Result<(), PlanError> {
        if self.format != OutputFormat::QUARK || scheme.key_value.is_none() {
            return Ok(());
        }
        let leaf = |module: &str| module.rsplit('.').next().unwrap_or(module).to_owned();
        let owners: BTreeSet<LinearId> =
            self.network.blocks().iter().flat_map(|block| self.network.kv_owners(*block)).collect();
        let owners: BTreeSet<&str> = owners.iter().map(|id| self.network.linear(*id).module.as_str()).collect();
        let leaves: BTreeSet<String> = owners.iter().map(|module| leaf(module)).collect();
        let is_other = |linear: &&Linear| linear.part == Part::Recurrent || linear.role == Role::IndexKey;
        let recurrent = self.network.linears().iter().filter(is_other);
        let tensors = self.tensors.iter().zip(self.network.places());
        let of_towers = tensors.filter(|(_, place)| **place == Place::Other(Reason::Modality));
        let of_towers =
            of_towers.filter_map(|(tensor, _)| tensor.stored_name().strip_suffix(".weight").map(str::to_owned));
        let mut others = recurrent.map(|linear| linear.module.clone()).chain(of_towers);
        let alike = |module: &str| leaves.iter().find(|own| leaf(module).ends_with(own.as_str())).cloned();
        match others.find_map(|module| Some((alike(&module)?, module))) {
            None => Ok(()),
            Some((own, other)) => {
                let reason = format!(
                    "in Quark's layout every layer whose name ends in `{own}` would count as one whose output the cache stores, and `{other}` is none"
                );
                Err(PlanError::Attention { reason })
            }
        }
    }

    fn owners(&self, block: usize) -> Option<Owners> {
        let of_block = || self.network.linears().iter().filter(|linear| linear.block == Some(block));
        let find = |roles: &[Role]| of_block().find(|linear| roles.contains(&linear.role)).cloned();
        let stored: Vec<LinearId> = self.network.kv_owners(block);
        let owned = |role: Role| {
            let own = stored.iter().map(|id| self.network.linear(*id)).find(|linear| linear.role == role);
            own.or_else(|| stored.first().map(|id| self.network.linear(*id))).cloned()
        };
        let query = find(&[Role::Query, Role::QueryUp, Role::QueryKeyValue])?;
        Some(Owners { query, key: owned(Role::Key)?, value: owned(Role::Value)? })
    }

    fn attention_of_block(
        &self,
        block: usize,
        scheme: &AttentionScheme,
        owners: &Owners,
    ) -> Result<BlockDraft, PlanError> {
        let site = |after: ActivationPoint, owner: &Linear| match scheme.rotary {
            Rotary::Before => ActivationPoint::Output(owner.module.clone()),
            Rotary::After => after,
        };
        let [key, value] = [(ActivationPoint::Key(block), &owners.key), (ActivationPoint::Value(block), &owners.value)]
            .map(|(after, owner)| Owner { name: self.output_name(&owner.module), site: site(after, owner) });
        // Quark quantizes queries as their layer gives them, wherever keys are.
        let query = &owners.query.module;
        let query = Owner { name: self.output_name(query), site: ActivationPoint::Output(query.clone()) };
        let source = self.source_type(owners.key.weight)?;
        let module = key.name.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
        let spec = AttentionSpec {
            module,
            scheme: *scheme,
            key_value: scheme.key_value.map(|_| [key, value]),
            query: scheme.query.map(|_| query),
            probabilities: scheme.probabilities.map(|_| ActivationPoint::Probabilities(block)),
            source,
        };
        let parts = self.format.attention_parts(&spec).map_err(|problem| attention_error(&spec, problem))?;
        let sites = attention_sites(block, &spec, owners);
        let planned = PlannedAttention {
            block,
            key_value: spec.key_value.map(|owners| owners.map(|owner| owner.site)),
            query: spec.query.map(|owner| owner.site),
            probabilities: spec.probabilities,
        };
        Ok(BlockDraft { planned, parts, sites })
    }
}

/// The places of a block that calibration would observe.
fn attention_sites(block: usize, spec: &AttentionSpec, owners: &Owners) -> Vec<SiteDraft> {
    let scheme = spec.scheme;
    let of_site = |site: &ActivationPoint, scheme: ActivationScheme, features: usize| SiteDraft {
        site: site.clone(),
        scheme,
        arithmetic: spec.source.arithmetic(),
        features,
        scale_group: None,
        shares: false,
        min_scale: MinScale::default(),
    };
    let mut sites = Vec::new();
    if let (Some([key, value]), Some(cache)) = (&spec.key_value, scheme.key_value) {
        // What comes out of two layers gets one scale, as loaders of the layout expect.
        let shares = scheme.rotary == Rotary::Before && key.site != value.site;
        let scale_group = shares.then_some(Kin::KeyValue(block));
        sites.extend([(key, &owners.key), (value, &owners.value)].map(|(owner, linear)| SiteDraft {
            scale_group: scale_group.clone(),
            shares,
            min_scale: cache.min_scale,
            ..of_site(&owner.site, cache.scheme, linear.out_features)
        }));
    }
    if let (Some(query), Some(scheme)) = (&spec.query, scheme.query) {
        sites.push(of_site(&query.site, scheme, owners.query.out_features));
    }
    if let (Some(site), Some(scheme)) = (&spec.probabilities, scheme.probabilities) {
        sites.push(of_site(site, scheme, 1));
    }
    sites
}

/// Returns whether a place is to be observed that is not known yet: one layer may make queries, keys and values.
fn is_new(known: &mut BTreeMap<ActivationPoint, ActivationScheme>, draft: &SiteDraft) -> Result<bool, PlanError> {
    let SiteDraft { site, scheme, .. } = draft;
    match known.get(site) {
        Some(planned) if planned == scheme => Ok(false),
        Some(planned) => Err(PlanError::Attention { reason: format!("{site} would be `{planned}` and `{scheme}`") }),
        None if scheme.needs_calibration() => {
            known.insert(site.clone(), *scheme);
            Ok(true)
        }
        None => Ok(false),
    }
}

fn attention_error(spec: &AttentionSpec, problem: CannotHold) -> PlanError {
    let scheme = spec.scheme.key_value.map(|cache| cache.scheme).or(spec.scheme.query).or(spec.scheme.probabilities);
    let scheme = scheme.map(|scheme| scheme.to_string()).unwrap_or_default();
    PlanError::CannotHold { layer: spec.module.clone(), scheme, problem }
}
