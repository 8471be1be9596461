//! Planning quantized attention: which layers own keys, values and queries, the places to observe, and the tensors for what
//! is found.

use super::build::Builder;
use super::error::PlanError;
use kvant_model::family::Role;
use kvant_model::network::{Linear, LinearId};
use kvant_quant::scheme::{ActivationScheme, AttentionScheme, MinScale, Rotary};
use kvant_weights::activation_point::Site;
use kvant_weights::parts::{AttentionSpec, CannotHold, Owner};

/// A block whose attention is quantized, and where the parameters of what is static are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAttention {
    /// The block.
    pub block: usize,
    /// Keys and values; the same place where one layer's output is both.
    pub key_value: Option<[Site; 2]>,
    /// Queries.
    pub query: Option<Site>,
    /// The output of the softmax.
    pub probabilities: Option<Site>,
}

/// The layers of a block that make queries, keys and values.
struct Owners {
    query: Linear,
    key: Linear,
    value: Linear,
}

impl Builder<'_> {
    pub(super) fn plan_attention(&mut self) -> Result<(), PlanError> {
        let scheme = self.recipe.attention();
        self.check_attention(&scheme)?;
        if scheme.is_empty() {
            return Ok(());
        }
        for block in self.network.blocks().to_vec() {
            if let Some(owners) = self.owners(block) {
                self.plan_block(block, &scheme, &owners)?;
            }
        }
        if self.attention.is_empty() {
            let reason = "its architecture has no description, or no attention that is known";
            return Err(PlanError::Attention { reason: reason.to_owned() });
        }
        Ok(())
    }

    fn check_attention(&self, scheme: &AttentionScheme) -> Result<(), PlanError> {
        let key_value = scheme.key_value.map(|key_value| key_value.scheme);
        for (place, scheme) in
            [("the KV cache", key_value), ("queries", scheme.query), ("the softmax", scheme.probabilities)]
        {
            scheme.map_or(Ok(()), |scheme| self.check_activation(place, scheme))?;
        }
        Ok(())
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

    fn plan_block(&mut self, block: usize, scheme: &AttentionScheme, owners: &Owners) -> Result<(), PlanError> {
        let site = |after: Site, owner: &Linear| match scheme.rotary {
            Rotary::Before => Site::Output(owner.module.clone()),
            Rotary::After => after,
        };
        let [key, value] = [(Site::Key(block), &owners.key), (Site::Value(block), &owners.value)]
            .map(|(after, owner)| Owner { name: self.output_name(&owner.module), site: site(after, owner) });
        // Quark quantizes queries as their layer gives them, wherever keys are.
        let query = &owners.query.module;
        let query = Owner { name: self.output_name(query), site: Site::Output(query.clone()) };
        let source = self.source_type(owners.key.weight)?;
        let module = key.name.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
        let spec = AttentionSpec {
            module,
            scheme: *scheme,
            key_value: scheme.key_value.map(|_| [key, value]),
            query: scheme.query.map(|_| query),
            probabilities: scheme.probabilities.map(|_| Site::Probabilities(block)),
            source,
        };
        let parts = self.format.attention_parts(&spec).map_err(|problem| attention_error(&spec, problem))?;
        self.declare_parameters(parts);
        self.add_attention_sites(block, &spec, owners)
    }

    fn add_attention_sites(&mut self, block: usize, spec: &AttentionSpec, owners: &Owners) -> Result<(), PlanError> {
        let (scheme, arithmetic) = (spec.scheme, spec.source.arithmetic());
        let none = (None, false, MinScale::default());
        if let (Some([key, value]), Some(cache)) = (&spec.key_value, scheme.key_value) {
            // What comes out of two layers gets one scale, as loaders of the layout expect.
            let shares = scheme.rotary == Rotary::Before && key.site != value.site;
            let kin = shares.then(|| self.kin_number(format!("key and value {block}")));
            for (owner, linear) in [(key, &owners.key), (value, &owners.value)] {
                let more = (kin, shares, cache.min_scale);
                self.add_attention_site(owner.site.clone(), cache.scheme, arithmetic, linear.out_features, more)?;
            }
        }
        if let (Some(query), Some(scheme)) = (&spec.query, scheme.query) {
            self.add_attention_site(query.site.clone(), scheme, arithmetic, owners.query.out_features, none)?;
        }
        if let (Some(site), Some(scheme)) = (&spec.probabilities, scheme.probabilities) {
            self.add_attention_site(site.clone(), scheme, arithmetic, 1, none)?;
        }
        self.attention.push(PlannedAttention {
            block,
            key_value: spec.key_value.clone().map(|owners| owners.map(|owner| owner.site)),
            query: spec.query.clone().map(|owner| owner.site),
            probabilities: spec.probabilities.clone(),
        });
        Ok(())
    }

    /// Adds a place once: one layer may make queries, keys and values.
    fn add_attention_site(
        &mut self,
        site: Site,
        scheme: ActivationScheme,
        arithmetic: kvant_numeric::Arithmetic,
        features: usize,
        more: (Option<usize>, bool, MinScale),
    ) -> Result<(), PlanError> {
        match self.sites.iter().find(|planned| planned.site == site) {
            Some(planned) if planned.scheme == scheme => {}
            Some(planned) => {
                let reason = format!("{site} would be `{}` and `{scheme}`", planned.scheme);
                return Err(PlanError::Attention { reason });
            }
            None if scheme.needs_calibration() => self.add_site(site, scheme, arithmetic, features, more),
            None => {}
        }
        Ok(())
    }
}

fn attention_error(spec: &AttentionSpec, problem: CannotHold) -> PlanError {
    let scheme = spec.scheme.key_value.map(|cache| cache.scheme).or(spec.scheme.query).or(spec.scheme.probabilities);
    let scheme = scheme.map(|scheme| scheme.to_string()).unwrap_or_default();
    PlanError::CannotHold { layer: spec.module.clone(), scheme, problem }
}
