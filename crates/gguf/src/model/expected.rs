//! The tensors that llama.cpp's loaders of an architecture look for, where models of a family differ: biases, norms of queries and keys,
//! a head, widths of heads. A file with one that its loader does not know, or without one that it wants, does not load.
//!
//! Source: `load_arch_tensors` and `load_arch_hparams` in `src/models/` of llama.cpp.

use super::content::Content;
use super::drafts::{Builder, Draft};
use super::error::GgufPlanError;
use super::metadata::Facts;
use kvant_model::family::{Mamba2Norm, Positions, RecurrentBlocks, RecurrentMixer, Residual};
use kvant_model::model_config::MambaConfig;
use std::collections::BTreeSet;

/// The biases of an architecture, by the stems of their names.
struct Biases {
    architectures: &'static [&'static str],
    /// Those without which a file does not load.
    required: &'static [&'static str],
    /// Those that are read where there are any, besides those of [`QUERIES`] if it says so.
    optional: &'static [&'static str],
    /// Whether biases of queries, keys and values are optional.
    has_queries: bool,
}

/// What corrects the choice of experts.
const CORRECTION: &str = "exp_probs_b";

/// The projections whose biases most loaders read where there are any.
const QUERIES: [&str; 4] = ["attn_q", "attn_k", "attn_v", "attn_qkv"];

const USUAL: Biases = Biases { architectures: &[], required: &[], optional: &[], has_queries: true };

/// Architectures with others than optional biases of queries, keys and values.
const BIASES: &[Biases] = &[
    Biases {
        architectures: &["llama", "granite", "granitemoe", "mistral3"],
        optional: &["attn_output", "ffn_gate", "ffn_up", "ffn_down"],
        ..USUAL
    },
    Biases { architectures: &["apertus"], optional: &["attn_output"], ..USUAL },
    Biases { architectures: &["ernie4_5"], optional: &["attn_output"], ..USUAL },
    Biases { architectures: &["deepseek4"], optional: &["exp_probs_b"], has_queries: false, ..USUAL },
    Biases { architectures: &["mistral4", "dbrx", "gemma4"], has_queries: false, ..USUAL },
    Biases { architectures: &["deepseek2", "mimo2"], optional: &["exp_probs_b"], has_queries: false, ..USUAL },
    Biases { architectures: &["glm4moe", "dots1", "ernie4_5-moe", "exaone-moe"], optional: &["exp_probs_b"], ..USUAL },
    Biases {
        architectures: &["bailingmoe3", "kimi-linear"],
        required: &["exp_probs_b"],
        optional: &["ssm_dt"],
        has_queries: false,
    },
    Biases { architectures: &["minimax-m2", "afmoe", "laguna", "lfm2moe"], required: &["exp_probs_b"], ..USUAL },
    Biases { architectures: &["mamba2"], required: &["ssm_conv1d"], optional: &["ssm_dt"], has_queries: false },
    Biases {
        architectures: &["deepseek32", "glm-dsa"],
        required: &["indexer.k_norm"],
        optional: &["exp_probs_b"],
        has_queries: false,
    },
    Biases { architectures: &["mamba"], required: &["ssm_conv1d", "ssm_dt"], has_queries: false, ..USUAL },
    Biases { architectures: &["jamba"], required: &["ssm_conv1d", "ssm_dt"], ..USUAL },
    Biases {
        architectures: &["falcon-h1", "granitehybrid"],
        optional: &["attn_output", "ffn_gate", "ffn_up", "ffn_down", "ssm_conv1d", "ssm_dt"],
        ..USUAL
    },
    Biases {
        architectures: &["nemotron_h"],
        optional: &["attn_output", "ffn_up", "ffn_down", "ssm_conv1d", "ssm_dt"],
        ..USUAL
    },
    Biases {
        architectures: &["nemotron_h_moe"],
        required: &["exp_probs_b"],
        optional: &["attn_output", "ssm_conv1d", "ssm_dt"],
        ..USUAL
    },
    Biases { architectures: &["qwen3next", "qwen35", "qwen35moe"], optional: &["ssm_dt"], ..USUAL },
    Biases {
        architectures: &["bloom"],
        required: &[
            "token_embd_norm",
            "attn_norm",
            "attn_qkv",
            "attn_output",
            "ffn_norm",
            "ffn_up",
            "ffn_down",
            "output_norm",
        ],
        has_queries: false,
        ..USUAL
    },
    Biases {
        architectures: &["falcon"],
        required: &["attn_norm", "output_norm"],
        optional: &["attn_norm_2"],
        has_queries: false,
    },
    Biases {
        architectures: &["mpt"],
        optional: &["attn_norm", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm"],
        ..USUAL
    },
    Biases {
        architectures: &["gpt2", "gptneox", "starcoder"],
        required: &["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm"],
        has_queries: false,
        ..USUAL
    },
    Biases {
        architectures: &["gpt-oss"],
        required: &["attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"],
        ..USUAL
    },
    Biases {
        architectures: &["nemotron"],
        required: &["attn_norm", "ffn_norm", "output_norm"],
        optional: &["attn_output", "ffn_up", "ffn_down"],
        ..USUAL
    },
    Biases {
        architectures: &["phi2"],
        required: &["attn_norm", "attn_output", "ffn_up", "ffn_down", "output_norm", "output"],
        ..USUAL
    },
    Biases {
        architectures: &["phimoe"],
        required: &["attn_norm", "attn_output", "ffn_norm", "output_norm", "output"],
        ..USUAL
    },
    Biases { architectures: &["qwen2"], optional: &["output"], ..USUAL },
    Biases { architectures: &["stablelm"], required: &["attn_norm", "output_norm"], optional: &["ffn_norm"], ..USUAL },
    Biases {
        architectures: &["starcoder2"],
        required: &["attn_norm", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm"],
        ..USUAL
    },
];

/// Architectures whose head is always the embedding.
const WITHOUT_HEAD: [&str; 4] = ["command-r", "cohere2", "gemma", "gemma2"];

/// Architectures whose queries are as wide as the hidden states.
const SQUARE: [&str; 23] = [
    "bloom",
    "chatglm",
    "command-r",
    "cohere2",
    "dbrx",
    "exaone4",
    "falcon",
    "jamba",
    "lfm2",
    "lfm2moe",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "phi2",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2moe",
    "stablelm",
    "starcoder",
    "starcoder2",
];

/// Architectures whose graphs turn whole heads, and end the program otherwise.
const WHOLE: [&str; 12] = [
    "apertus",
    "arcee",
    "cohere2moe",
    "dbrx",
    "dots1",
    "ernie4_5",
    "ernie4_5-moe",
    "hunyuan-dense",
    "hunyuan-moe",
    "hy_v3",
    "mistral3",
    "seed_oss",
];

/// Architectures whose state-space layers have twice as many channels as hidden states.
const TWICE: [&str; 3] = ["granitehybrid", "jamba", "mamba"];

/// The least width of the keys of an index of DeepSeek V3.2.
const LEAST_INDEX: f64 = 64.0;

/// The layers of which AFMoE's graph turns all but the last.
const AFMOE_PERIOD: usize = 4;

/// The number of blocks with which EXAONE 4 has sliding windows, and no rotary embeddings in other layers.
const EXAONE4_BLOCKS: usize = 64;

/// The number of experts of the Llama 4 that has no norms of queries and keys.
const LLAMA4_WITHOUT_NORMS: usize = 128;

/// The number of blocks from which Command R has norms of queries and keys.
const BLOCKS_WITH_NORMS: usize = 64;

/// The numbers of blocks with which queries of DeepSeek have no latent. With others they have one.
const LITE: [usize; 2] = [26, 27];

/// 48 blocks with this vocabulary are the same.
const LITE_VOCABULARY: (usize, usize) = (48, 128_256);

impl Biases {
    fn of(architecture: &str) -> &'static Biases {
        BIASES.iter().find(|row| row.architectures.contains(&architecture)).unwrap_or(&USUAL)
    }

    fn knows(&self, stem: &str) -> bool {
        self.required.contains(&stem) || self.optional.contains(&stem) || self.has_queries && QUERIES.contains(&stem)
    }
}

/// The name of a tensor within its block, without its ending; and the ending.
fn parts(draft: &Draft) -> (&str, &str) {
    let local =
        draft.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(&*draft.name, |(_, name)| name);
    local.rsplit_once('.').unwrap_or((local, ""))
}

impl Builder<'_> {
    /// Refuses what the loader of the architecture does not find, or does not look for.
    pub(super) fn check_expected(&self) -> Result<(), GgufPlanError> {
        self.check_biases()?;
        self.check_widths()?;
        self.check_kind_of_attention()?;
        self.check_rules()
    }

    /// Refuses what the graph of the architecture computes in one way whatever the metadata say, and the model in another.
    fn check_rules(&self) -> Result<(), GgufPlanError> {
        let config = self.config;
        let blocks = self.network.blocks().len();
        let facts = Facts { config, family: self.family, architecture: self.architecture, blocks, vocabulary: 0 };
        let scale = config.experts.as_ref().and_then(|experts| experts.scale);
        self.check_mixers(&facts)?;
        match self.architecture.name {
            "afmoe" => {
                let usual = |(block, slides): (usize, bool)| slides != (block + 1).is_multiple_of(AFMOE_PERIOD);
                if config.sliding_window.is_none() || !facts.slides().into_iter().enumerate().all(usual) {
                    let found = "`layer_types` or `sliding_window` says otherwise".to_owned();
                    return Err(self.expects("has sliding windows in all but every fourth layer", found));
                }
                match config.flag_or("mup_enabled", false) {
                    true => Ok(()),
                    false => {
                        let found = "`mup_enabled` is not true".to_owned();
                        Err(self.expects("multiplies embeddings by the root of their width", found))
                    }
                }
            }
            "cohere2moe" if config.text("shared_expert_combination_strategy").is_some_and(|name| name != "average") => {
                let found = "`shared_expert_combination_strategy` says otherwise".to_owned();
                Err(self.expects("averages what routed and shared experts give", found))
            }
            "dbrx" if config.experts.as_ref().is_some_and(|experts| experts.norm_order != Some(1.0)) => {
                let found = "`moe_normalize_expert_weights` is not 1".to_owned();
                Err(self.expects("divides the weights of experts by their sum", found))
            }
            "deepseek32" | "glm-dsa" => match config.number("index_head_dim")? {
                Some(width) if width < LEAST_INDEX || !(width as u64).is_power_of_two() => Err(self.expects(
                    "rotates the keys of its index, whose width is a power of two from 64 on",
                    format!("`index_head_dim` is {width}"),
                )),
                _ => Ok(()),
            },
            "bailingmoe3" if !config.flag_or("kda_safe_gate", true) => {
                let found = "`kda_safe_gate` is false".to_owned();
                Err(self.expects("bounds the decays of delta nets", found))
            }
            "bailingmoe3" if config.rope.main.kind.as_deref().is_some_and(|kind| kind != "default") => {
                let found = "this model stretches them".to_owned();
                Err(self.expects("has rotary embeddings as they are", found))
            }
            "bailingmoe3" => self.check_heads_of_delta_nets(),
            "kimi-linear" => self.check_kimi_linear(&facts),
            "minimax-01" => self.check_minimax_01(),
            "deepseek4" => self.check_deepseek4(),
            "laguna" if config.number("moe_router_logit_softcapping")?.is_some_and(|cap| cap != 0.0) => {
                let found = "`moe_router_logit_softcapping` is a number".to_owned();
                Err(self.expects("has no bound on the logits of routers", found))
            }
            "gemma3n" => self.check_gemma3n(),
            "exaone4" if config.sliding_window.is_some() != (blocks == EXAONE4_BLOCKS) => Err(self.expects(
                "has sliding windows in models of 64 blocks, and none in others",
                format!(
                    "this model has {blocks} blocks and {}",
                    if config.sliding_window.is_some() { "has them" } else { "lacks them" }
                ),
            )),
            "falcon" if self.family.math.residual.resolve(config) != Residual::Parallel => {
                let found = "this model's stand one behind the other".to_owned();
                Err(self.expects("has attention and feed-forward network side by side", found))
            }
            "falcon" if matches!(self.family.math.positions.resolve(config), Positions::Alibi(_)) => {
                Err(self.expects("has rotary embeddings", "this model has biases on scores (`alibi`)".to_owned()))
            }
            "mimo2" | "lfm2moe" if scale.is_some_and(|scale| scale != 1.0) => {
                let found = "`routed_scaling_factor` is another number".to_owned();
                Err(self.expects("multiplies the weights of experts by 1", found))
            }
            "mimo2" | "lfm2moe" | "qwen3next" if facts.is_unnormalised() => {
                Err(self.expects("divides the weights of experts by their sum", "`norm_topk_prob` is false".to_owned()))
            }
            "llama4" => self.check_llama4(),
            "mpt" => match config.attention_number("softmax_scale")? {
                Some(scale)
                    if config.head_dim().is_none_or(|width| (scale * scale * width as f64 - 1.0).abs() > 1e-6) =>
                {
                    Err(self.expects("scales attention by the size of heads", format!("`softmax_scale` is {scale}")))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn expects(&self, expects: &'static str, found: String) -> GgufPlanError {
        GgufPlanError::Expects { architecture: self.architecture.name, expects, found }
    }

    /// Gemma 3n as it is published: its graph reads no other sizes.
    fn check_gemma3n(&self) -> Result<(), GgufPlanError> {
        const OWN_KEYS: usize = 20;
        const SPARSE: usize = 10;
        let (config, blocks) = (self.config, self.network.blocks().len());
        for (key, usual) in [
            ("altup_num_inputs", 4.0),
            ("altup_active_idx", 0.0),
            ("laurel_rank", 64.0),
            ("hidden_size_per_layer_input", 256.0),
            ("num_kv_shared_layers", blocks as f64 - OWN_KEYS as f64),
        ] {
            if config.number(key)?.is_some_and(|stated| stated != usual) {
                return Err(self.expects("has the sizes of the published models", format!("`{key}` is not {usual}")));
            }
        }
        let sparsity = |block: usize| config.item("activation_sparsity_pattern", block).and_then(|part| part.as_f64());
        let usual = |block: usize| if block < SPARSE { 0.95 } else { 0.0 };
        if (0..blocks).any(|block| sparsity(block).is_none_or(|part| (part - usual(block)).abs() > 1e-6)) {
            let found = "`activation_sparsity_pattern` says otherwise".to_owned();
            return Err(self.expects("leaves a twentieth of the activations of the first ten blocks", found));
        }
        match config.logit_softcap == Some(30.0) {
            true => Ok(()),
            false => Err(self.expects("bounds logits by 30", "`final_logit_softcapping` is another number".to_owned())),
        }
    }

    /// Kimi Linear as it is published: its graph has as many heads in all blocks, and queries without a latent.
    fn check_kimi_linear(&self, facts: &Facts<'_>) -> Result<(), GgufPlanError> {
        self.check_heads_of_delta_nets()?;
        if self.config.latent.as_ref().is_some_and(|latent| latent.query_rank.is_some()) {
            let found = "this model has one (`q_lora_rank`)".to_owned();
            return Err(self.expects("has queries without a latent", found));
        }
        match facts.is_unnormalised() {
            true => {
                let found = "`moe_renormalize` (or `norm_topk_prob`) is false".to_owned();
                Err(self.expects("divides the weights of experts by their sum", found))
            }
            false => Ok(()),
        }
    }

    /// MiniMax-Text-01 as it is published: its graph has one factor on all residuals, and none on branches.
    fn check_minimax_01(&self) -> Result<(), GgufPlanError> {
        let factor = |key: &str| Ok::<f64, GgufPlanError>(self.config.number(key)?.unwrap_or(1.0));
        let one = factor("mlp_alpha_factor")?;
        for (key, usual) in [
            ("full_attn_alpha_factor", one),
            ("linear_attn_alpha_factor", one),
            ("full_attn_beta_factor", 1.0),
            ("linear_attn_beta_factor", 1.0),
            ("mlp_beta_factor", 1.0),
        ] {
            if factor(key)? != usual {
                let found = format!("`{key}` is not {usual}");
                return Err(self.expects("has one factor on all residuals, and none on branches", found));
            }
        }
        Ok(())
    }

    fn check_heads_of_delta_nets(&self) -> Result<(), GgufPlanError> {
        let (delta, all) = (self.config.delta.map_or(0, |delta| delta.key_heads), self.config.num_heads.unwrap_or(0));
        match delta == all {
            true => Ok(()),
            false => {
                let found = format!("this model has {delta} and {all}");
                Err(self.expects("has as many heads in delta nets as in attention", found))
            }
        }
    }

    /// DeepSeek V4 as it is published: four streams, entries of 4 and 128 tokens, and experts that tokens choose in the first blocks.
    fn check_deepseek4(&self) -> Result<(), GgufPlanError> {
        const STREAMS: usize = 4;
        const RATES: (usize, usize) = (4, 128);
        let Some(compressed) = &self.config.compressed else { return Ok(()) };
        if compressed.streams != STREAMS {
            let found = format!("this model has {}", compressed.streams);
            return Err(self.expects("has four residual streams", found));
        }
        if (compressed.sparse_rate, compressed.heavy_rate) != RATES {
            let found = format!("this model of {} and {}", compressed.sparse_rate, compressed.heavy_rate);
            return Err(self.expects("compresses keys of 4 and of 128 tokens", found));
        }
        if compressed.index_width < LEAST_INDEX as usize || !compressed.index_width.is_power_of_two() {
            let found = format!("`index_head_dim` is {}", compressed.index_width);
            return Err(self.expects("rotates the keys of its index, whose width is a power of two from 64 on", found));
        }
        let blocks = self.network.blocks().len();
        match (1..blocks).find(|block| compressed.hashes(*block) && !compressed.hashes(block - 1)) {
            Some(block) => {
                let found = format!("so does block {block} of this model, and not the one before");
                Err(self.expects("has tokens that choose their experts in the first blocks only", found))
            }
            None => Ok(()),
        }
    }

    /// Llama 4 as it is published: chunks and growth of queries of 8192 positions, norms of queries and keys but in Maverick.
    fn check_llama4(&self) -> Result<(), GgufPlanError> {
        const LENGTH: f64 = 8192.0;
        let config = self.config;
        let is = |key: &str, usual: f64| Ok::<_, GgufPlanError>(config.number(key)?.unwrap_or(usual) == usual);
        if !is("attention_chunk_size", LENGTH)? || !is("floor_scale", LENGTH)? || !is("attn_scale", 0.1)? {
            let found = "`attention_chunk_size`, `floor_scale` or `attn_scale` says otherwise".to_owned();
            return Err(
                self.expects("has chunks of 8192 positions, and queries that grow by tenths behind each", found)
            );
        }
        if !config.flag_or("attn_temperature_tuning", true) {
            return Err(self.expects("has queries that grow", "`attn_temperature_tuning` is false".to_owned()));
        }
        let turns = (0..self.network.blocks().len()).all(|block| {
            config.item("no_rope_layers", block).is_none_or(|turns| (turns != 0) == ((block + 1) % 4 != 0))
        });
        if !turns {
            let found = "`no_rope_layers` says otherwise".to_owned();
            return Err(self.expects("has rotary embeddings in all but every fourth layer", found));
        }
        let count = config.experts.as_ref().map_or(0, |experts| experts.count);
        if config.flag_or("use_qk_norm", true) == (count == LLAMA4_WITHOUT_NORMS) {
            let found = format!("`use_qk_norm` of this model of {count} experts says otherwise");
            return Err(self.expects("has norms of queries and keys unless there are 128 experts", found));
        }
        let step = config.number("interleave_moe_layer_step")?.unwrap_or(1.0).max(1.0) as usize;
        let routed = self.network.routed_blocks();
        match (0..self.network.blocks().len()).find(|block| routed.contains(block) != (block + 1).is_multiple_of(step))
        {
            Some(block) => {
                let found = format!("block {block} of this model is another");
                Err(self.expects("has experts at the interval of `interleave_moe_layer_step`", found))
            }
            None => Ok(()),
        }
    }

    /// Refuses recurrent mixers of other sizes than those of the graph of the architecture.
    fn check_mixers(&self, facts: &Facts<'_>) -> Result<(), GgufPlanError> {
        let config = self.config;
        let hidden = config.hidden_size.unwrap_or(0);
        let inner = config.mamba.as_ref().and_then(|mamba| mamba.inner());
        let inner = inner.or(config.mamba1.as_ref().map(|mamba| mamba.inner));
        if let Some(inner) =
            inner.filter(|inner| TWICE.contains(&self.architecture.name) && hidden.checked_mul(2) != Some(*inner))
        {
            let found = format!("this model has {inner} channels, and hidden states of {hidden}");
            return Err(self.expects("has twice as many channels of state-space layers as hidden states", found));
        }
        let Some(recurrent) = self.family.recurrent else { return Ok(()) };
        let usual = |mamba: &MambaConfig| mamba.least_step <= 0.0 && mamba.largest_step.is_infinite();
        match (recurrent.mixer, &config.mamba, config.delta) {
            (RecurrentMixer::Mamba2 { norm: Mamba2Norm::AllHeads }, Some(mamba), _) if mamba.groups != 1 => {
                let found = format!("this model norms all {} of them at once", mamba.groups);
                Err(self.expects("norms each group of heads of a state-space layer", found))
            }
            (RecurrentMixer::Mamba2 { norm: Mamba2Norm::PerGroupIfAny }, Some(_), _)
                if config.flag_or("mamba_rms_norm", false) && config.flag_or("mamba_norm_before_gate", true) =>
            {
                let found = "this model norms before the gate (`mamba_norm_before_gate`)".to_owned();
                Err(self.expects("norms what state-space layers give behind their gate", found))
            }
            // The least step of Nemotron-H is next to nothing: see the notices of plans.
            (RecurrentMixer::Mamba2 { .. }, Some(mamba), _) if self.family.name != "nemotron_h" && !usual(mamba) => {
                Err(self.expects(
                    "has no bounds on the steps of state-space layers",
                    "this model has (`time_step_limit`)".to_owned(),
                ))
            }
            (RecurrentMixer::GatedDelta { .. }, _, Some(delta)) if delta.key_dim != delta.value_dim => {
                let found = format!("this model has keys of {} and values of {}", delta.key_dim, delta.value_dim);
                Err(self.expects("has heads of equal widths in gated delta nets", found))
            }
            _ if self.architecture.name == "nemotron_h_moe" && config.layer_types.iter().any(|kind| kind == "mlp") => {
                let found = "this model has dense ones beside them".to_owned();
                Err(self.expects("has experts in every feed-forward block", found))
            }
            _ if self
                .family
                .recurrent
                .is_some_and(|recurrent| recurrent.blocks != RecurrentBlocks::BesideAttention)
                && !self.family.attention.is_empty()
                && (0..facts.blocks).all(|block| !facts.is_recurrent(block)) =>
            {
                Err(self.expects("has recurrent mixers", "this model has attention in every block".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn check_biases(&self) -> Result<(), GgufPlanError> {
        let biases = Biases::of(self.architecture.name);
        let is_extra = |draft: &&Draft| match parts(draft) {
            (stem, "bias") => !biases.knows(stem),
            ("output", "weight") => WITHOUT_HEAD.contains(&self.architecture.name),
            _ => false,
        };
        if let Some(extra) = self.drafts.iter().find(is_extra) {
            return Err(match &extra.content {
                Content::Slabs(slabs) if !slabs.is_empty() => self.no_place(slabs[0].tensor),
                _ => GgufPlanError::NoPlace { tensor: extra.name.clone(), architecture: self.architecture.name },
            });
        }
        let names: BTreeSet<&str> = self.drafts.iter().map(|draft| draft.name.as_str()).collect();
        // A bias stands beside its weight or, as that of routers, is one of a block that has experts.
        let missing = self.drafts.iter().filter(|draft| draft.name.ends_with(".weight")).find(|draft| {
            let bias = draft.name.trim_end_matches("weight").to_owned() + "bias";
            biases.required.contains(&parts(draft).0) && !names.contains(bias.as_str())
        });
        // The correction of a router is a bias without a weight.
        let needs_correction = biases.required.contains(&CORRECTION);
        let routers = self.drafts.iter().filter(|draft| needs_correction && parts(draft) == ("ffn_gate_inp", "weight"));
        let uncorrected =
            |draft: &&Draft| !names.contains(draft.name.replace("ffn_gate_inp.weight", "exp_probs_b.bias").as_str());
        if missing.is_none()
            && let Some(router) = routers.clone().find(uncorrected)
        {
            let block = router.block.unwrap_or(0);
            let reason = format!("there are no biases `{CORRECTION}.bias` in block {block}");
            return Err(GgufPlanError::Form { architecture: self.architecture.name, reason });
        }
        match missing {
            Some(draft) => {
                let reason = format!("there are no biases `{}.bias`", parts(draft).0);
                Err(GgufPlanError::Form { architecture: self.architecture.name, reason })
            }
            None => Ok(()),
        }
    }

    fn check_widths(&self) -> Result<(), GgufPlanError> {
        let (config, name) = (self.config, self.architecture.name);
        let (Some(hidden), Some(heads)) = (config.hidden_size, config.num_heads) else { return Ok(()) };
        if let Some(width) =
            config.head_dim().filter(|width| SQUARE.contains(&name) && width.checked_mul(heads) != Some(hidden))
        {
            let found = format!("this model has {heads} heads of {width}, and hidden states of {hidden}");
            return Err(self.expects("has queries as wide as hidden states", found));
        }
        if let Positions::Rotary { partial, .. } = self.family.math.positions {
            let dims = config.head_dim().map(|width| (config.rope.main.turning_components(width, partial), width));
            if let Some((turning, width)) = dims.filter(|(turning, width)| WHOLE.contains(&name) && turning != width) {
                let found = format!("this model turns {turning} of {width} components");
                return Err(self.expects("turns whole heads", found));
            }
        }
        match config.num_kv_heads() {
            Some(keys) if ["dots1", "olmoe"].contains(&name) && keys != heads => {
                let found = format!("this model has {keys} and {heads}");
                Err(self.expects("has as many heads of keys as of queries", found))
            }
            _ => Ok(()),
        }
    }

    fn check_kind_of_attention(&self) -> Result<(), GgufPlanError> {
        let blocks = self.network.blocks().len();
        let has = |stem: &str| self.drafts.iter().any(|draft| parts(draft) == (stem, "weight"));
        let says = |has: bool| if has { "has" } else { "lacks" };
        match self.architecture.name {
            "command-r" if has("attn_q_norm") != (blocks >= BLOCKS_WITH_NORMS) => Err(self.expects(
                "has norms of queries and keys from 64 blocks on, and none below",
                format!("this model has {blocks} blocks and {} them", says(has("attn_q_norm"))),
            )),
            "deepseek2" => {
                let vocabulary = self
                    .drafts
                    .iter()
                    .find(|draft| draft.name == "token_embd.weight")
                    .map_or(0, |draft| draft.shape[0]);
                let is_lite = LITE.contains(&blocks) || (blocks, vocabulary) == LITE_VOCABULARY;
                match has("attn_q_a") == is_lite {
                    true => Err(self.expects(
                        "has queries without a latent (`q_lora_rank`) in models of 26 and 27 blocks, and with one in others",
                        format!("this model has {blocks} blocks and {} it", says(has("attn_q_a"))),
                    )),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}
