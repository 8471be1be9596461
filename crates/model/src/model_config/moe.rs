//! The parts of config.json that only mixtures of experts and multi-head latent attention have.

use super::ConfigError;
use super::fields::Fields;

/// The experts of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertsConfig {
    /// Routed experts per block.
    pub count: usize,
    /// Experts beside them that give what they read, and have no weights.
    pub identities: usize,
    /// Experts that a token is sent to.
    pub per_token: Option<usize>,
    /// Width of one routed expert, where it differs from the dense network's.
    pub intermediate_size: Option<usize>,
    /// Experts that all tokens pass, stored as one network.
    pub shared_count: Option<usize>,
    /// Width of the shared network, where it is stated; 0 where there is none.
    pub shared_intermediate_size: Option<usize>,
    /// The order of the norm by which the weights of the chosen experts are divided (DBRX).
    pub norm_order: Option<f64>,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalise: Option<bool>,
    /// Factor on the weights of the chosen experts.
    pub scale: Option<f64>,
    /// Groups of experts, and how many of them a token may use.
    pub groups: Option<usize>,
    /// Groups that a token may use.
    pub groups_per_token: Option<usize>,
    /// Dense blocks before the first with experts.
    pub dense_prefix: usize,
}

impl ExpertsConfig {
    /// Rows of the router.
    pub fn scored(&self) -> Option<usize> {
        self.count.checked_add(self.identities)
    }

    /// Returns whether experts that all tokens pass are ruled out. Classes still create their layers, of no width.
    pub fn excludes_shared(&self) -> bool {
        self.shared_count == Some(0) || self.shared_intermediate_size == Some(0)
    }

    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<ExpertsConfig>, ConfigError> {
        let count = fields.count(&["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])?;
        let count = count.or(fields.is_of("dbrx").then_some(4));
        let Some(count) = count.filter(|count| *count > 0) else { return Ok(None) };
        Ok(Some(ExpertsConfig {
            count,
            identities: identities(fields)?,
            per_token: per_token(fields)?,
            intermediate_size: fields.size(&["moe_intermediate_size", "expert_ffn_hidden_size"])?,
            shared_count: fields.count(&["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"])?,
            shared_intermediate_size: fields.count(&[
                "shared_expert_intermediate_size",
                "shared_intermediate_size",
                "moe_shared_expert_intermediate_size",
            ])?,
            norm_order: norm_order(fields)?,
            normalise: fields.flag(&["norm_topk_prob", "moe_renormalize"])?,
            scale: fields.number(&[
                "routed_scaling_factor",
                "route_scale",
                "router_scaling_factor",
                "moe_routed_scaling_factor",
            ])?,
            groups: fields.size(&["n_group", "num_expert_group"])?,
            groups_per_token: fields.size(&["topk_group"])?,
            dense_prefix: fields.count(&["first_k_dense_replace"])?.unwrap_or(0),
        }))
    }
}

/// Experts that a token is sent to.
fn per_token(fields: Fields<'_, '_>) -> Result<Option<usize>, ConfigError> {
    if fields.is_of("dbrx") {
        return Ok(fields.size(&["moe_top_k"])?.or(Some(1)));
    }
    fields.size(&[
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_k",
        "moe_topk",
        "experts_per_token",
        "top_k_experts",
    ])
}

/// Null is none.
fn norm_order(fields: Fields<'_, '_>) -> Result<Option<f64>, ConfigError> {
    const KEY: &str = "moe_normalize_expert_weights";
    match fields.is_of("dbrx") && !fields.states_null(KEY) {
        true => Ok(fields.positive(&[KEY])?.or(Some(1.0))),
        false => Ok(None),
    }
}

/// Other classes do not read it.
fn identities(fields: Fields<'_, '_>) -> Result<usize, ConfigError> {
    match fields.is_of("longcat_flash") {
        true => Ok(fields.count(&["zero_expert_num"])?.unwrap_or(0)),
        false => Ok(0),
    }
}

/// Multi-head latent attention (MLA): queries, keys and values come from low-rank latents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatentConfig {
    /// Width of the query latent; `None` if queries come straight from the hidden state.
    pub query_rank: Option<usize>,
    /// Width of the key/value latent.
    pub key_value_rank: usize,
    /// Components of a query or key head without positions.
    pub nope_dim: usize,
    /// Components that turn; the key's are shared by all heads.
    pub rope_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}

impl LatentConfig {
    pub(super) fn read(fields: Fields<'_, '_>) -> Result<Option<LatentConfig>, ConfigError> {
        let sizes = [
            fields.size(&["kv_lora_rank"])?,
            fields.size(&["qk_nope_head_dim"])?,
            // No part turns in GLM 5 Next.
            fields.count(&["qk_rope_head_dim"])?,
            fields.size(&["v_head_dim"])?,
        ];
        let [Some(key_value_rank), Some(nope_dim), Some(rope_dim), Some(value_dim)] = sizes else {
            return Ok(None);
        };
        Ok(Some(LatentConfig {
            query_rank: fields.size(&["q_lora_rank"])?,
            key_value_rank,
            nope_dim,
            rope_dim,
            value_dim,
        }))
    }
}
