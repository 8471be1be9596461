//! The architectures that llama.cpp knows, by family: what its graphs expect beyond what a family's description says. One
//! row a family in [`ARCHITECTURES`].
//!
//! Source: `convert_hf_to_gguf.py` (`conversion/`), `src/models/` and `llama_model_rope_type` of llama.cpp.

mod extras;
mod restoration;

pub use restoration::Restoration;

use super::metadata::Facts;
use super::names;
use kvant_container::gguf::Metadata;
use kvant_model::family::{Family, NormSite, Pairing, Part, Positions};
use kvant_model::model_config::{ConfigError, ModelConfig};

/// Adds what only this architecture has to the metadata.
type Extras = fn(&Facts<'_>, &mut Metadata) -> Result<(), ConfigError>;

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Architecture {
    /// The family of the source.
    pub family: &'static str,
    /// `general.architecture`.
    pub name: &'static str,
    /// Which components of a head its rotary embedding turns together.
    pub pairing: Pairing,
    /// Whether its loader insists on a head, even one that is the embedding.
    pub needs_head: bool,
    /// Norms that its loader looks for under another name than is usual for their place.
    pub norms: &'static [(NormSite, &'static str)],
    /// Norms that its graph does not compute.
    pub lacks: &'static [NormSite],
    /// Besides attention and the head, the parts whose products its graph multiplies by a global scale.
    pub scaled: &'static [Part],
    /// Whether the first blocks of its graph may have no experts, in number as the metadata says.
    pub has_dense_prefix: bool,
    /// Whether any block of its graph may have experts or not.
    pub has_any_experts: bool,
    /// Whether the row is that of a model, where a family has several.
    pub(crate) is_of: fn(&ModelConfig) -> bool,
    pub(crate) extras: Extras,
    /// The restoration of its files; `None` if unsupported.
    pub restoration: Option<&'static Restoration>,
}

const LLAMA: Architecture = Architecture {
    family: "llama",
    name: "llama",
    pairing: Pairing::Neighbours,
    needs_head: false,
    norms: &[],
    lacks: &[],
    scaled: &[],
    has_dense_prefix: false,
    has_any_experts: false,
    is_of: |_| true,
    extras: extras::none,
    restoration: None,
};

/// Read back as Llama is.
const PLAIN: Option<&Restoration> = Some(&restoration::PLAIN);

const QWEN2: Architecture = Architecture { family: "qwen2", name: "qwen2", pairing: Pairing::Halves, ..LLAMA };

/// Every family that can be written, sorted by name.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        family: "afmoe",
        name: "afmoe",
        has_dense_prefix: true,
        extras: extras::afmoe,
        restoration: Some(&restoration::AFMOE),
        ..QWEN2
    },
    Architecture { family: "apertus", name: "apertus", needs_head: true, restoration: PLAIN, ..QWEN2 },
    Architecture { family: "arcee", name: "arcee", restoration: PLAIN, ..LLAMA },
    Architecture {
        family: "bailing_hybrid",
        name: "bailingmoe3",
        has_dense_prefix: true,
        extras: extras::bailing_hybrid,
        ..LLAMA
    },
    Architecture {
        family: "bamba",
        name: "granitehybrid",
        extras: extras::bamba,
        restoration: Some(&restoration::BAMBA),
        ..LLAMA
    },
    Architecture {
        family: "bloom",
        name: "bloom",
        extras: extras::bloom,
        restoration: Some(&restoration::BLOOM),
        ..QWEN2
    },
    Architecture {
        family: "cohere",
        name: "command-r",
        extras: extras::cohere,
        restoration: Some(&restoration::COHERE),
        ..LLAMA
    },
    Architecture {
        family: "cohere2",
        name: "cohere2",
        scaled: &[Part::Mlp],
        extras: extras::cohere2,
        restoration: Some(&restoration::COHERE),
        ..LLAMA
    },
    Architecture {
        family: "cohere2_moe",
        name: "cohere2moe",
        has_dense_prefix: true,
        extras: extras::cohere2_moe,
        ..LLAMA
    },
    Architecture {
        family: "dbrx",
        name: "dbrx",
        needs_head: true,
        norms: &[(NormSite::FeedForwardInput, "attn_output_norm")],
        extras: extras::dbrx,
        ..QWEN2
    },
    Architecture {
        family: "deepseek_v2",
        name: "deepseek2",
        has_dense_prefix: true,
        extras: extras::deepseek2,
        restoration: Some(&restoration::DEEPSEEK_V2),
        ..LLAMA
    },
    Architecture {
        family: "deepseek_v3",
        name: "deepseek2",
        has_dense_prefix: true,
        extras: extras::deepseek2,
        restoration: Some(&restoration::DEEPSEEK_V3),
        ..LLAMA
    },
    Architecture {
        family: "deepseek_v32",
        name: "deepseek32",
        has_dense_prefix: true,
        extras: extras::deepseek32,
        ..LLAMA
    },
    Architecture {
        family: "deepseek_v4",
        name: "deepseek4",
        needs_head: true,
        norms: &[(NormSite::IndexKey, "indexer_compressor_norm")],
        extras: extras::deepseek4,
        ..LLAMA
    },
    Architecture {
        family: "dots1",
        name: "dots1",
        needs_head: true,
        has_dense_prefix: true,
        extras: extras::sigmoid_routed,
        restoration: Some(&restoration::ROUTED),
        ..QWEN2
    },
    Architecture { family: "ernie4_5", name: "ernie4_5", restoration: PLAIN, ..LLAMA },
    Architecture {
        family: "ernie4_5_moe",
        name: "ernie4_5-moe",
        has_dense_prefix: true,
        extras: extras::ernie4_5_moe,
        restoration: Some(&restoration::ERNIE4_5_MOE),
        ..LLAMA
    },
    Architecture {
        family: "exaone4",
        name: "exaone4",
        extras: extras::exaone4,
        restoration: Some(&restoration::EXAONE4),
        ..QWEN2
    },
    Architecture {
        family: "exaone_moe",
        name: "exaone-moe",
        needs_head: true,
        has_dense_prefix: true,
        extras: extras::exaone_moe,
        ..QWEN2
    },
    Architecture {
        family: "falcon",
        name: "falcon",
        norms: &[(NormSite::FeedForwardInput, "attn_norm")],
        restoration: Some(&restoration::FALCON),
        ..QWEN2
    },
    Architecture {
        family: "falcon_h1",
        name: "falcon-h1",
        extras: extras::falcon_h1,
        restoration: Some(&restoration::FALCON_H1),
        ..QWEN2
    },
    Architecture { family: "falcon_mamba", name: "mamba", extras: extras::mamba, ..QWEN2 },
    Architecture { family: "gemma", name: "gemma", extras: extras::gemma, restoration: PLAIN, ..QWEN2 },
    Architecture {
        family: "gemma2",
        name: "gemma2",
        extras: extras::gemma,
        restoration: Some(&restoration::GEMMA2),
        ..QWEN2
    },
    Architecture {
        family: "gemma3",
        name: "gemma3",
        extras: extras::gemma3,
        restoration: Some(&restoration::GEMMA3),
        ..QWEN2
    },
    Architecture { family: "gemma3n", name: "gemma3n", extras: extras::gemma3n, ..QWEN2 },
    Architecture { family: "gemma4", name: "gemma4", has_any_experts: true, extras: extras::gemma4, ..QWEN2 },
    Architecture { family: "glm", name: "chatglm", ..LLAMA },
    Architecture { family: "glm4", name: "glm4", restoration: PLAIN, ..LLAMA },
    Architecture {
        family: "glm4_moe",
        name: "glm4moe",
        has_dense_prefix: true,
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        extras: extras::sigmoid_routed,
        restoration: Some(&restoration::GLM4_MOE),
        ..QWEN2
    },
    // Read back as DeepSeek V3, which computes the same.
    Architecture {
        family: "glm4_moe_lite",
        name: "deepseek2",
        has_dense_prefix: true,
        extras: extras::deepseek2,
        ..LLAMA
    },
    Architecture {
        family: "glm_moe_dsa",
        name: "glm-dsa",
        has_dense_prefix: true,
        extras: extras::deepseek32,
        ..LLAMA
    },
    Architecture { family: "gpt2", name: "gpt2", extras: extras::gpt2, restoration: Some(&restoration::GPT2), ..QWEN2 },
    Architecture { family: "gpt_bigcode", name: "starcoder", ..QWEN2 },
    Architecture {
        family: "gpt_neox",
        name: "gptneox",
        needs_head: true,
        extras: extras::parallel,
        restoration: Some(&restoration::GPT_NEOX),
        ..QWEN2
    },
    Architecture {
        family: "gpt_oss",
        name: "gpt-oss",
        needs_head: true,
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        extras: extras::gpt_oss,
        restoration: Some(&restoration::GPT_OSS),
        ..QWEN2
    },
    Architecture {
        family: "granite",
        name: "granite",
        extras: extras::granite,
        restoration: Some(&restoration::GRANITE),
        ..LLAMA
    },
    Architecture {
        family: "granitemoe",
        name: "granitemoe",
        extras: extras::granite,
        restoration: Some(&restoration::GRANITE),
        ..LLAMA
    },
    Architecture {
        family: "granitemoehybrid",
        name: "granitehybrid",
        has_any_experts: true,
        extras: extras::granite_hybrid,
        restoration: Some(&restoration::GRANITE_HYBRID),
        ..LLAMA
    },
    Architecture { family: "hunyuan_v1_dense", name: "hunyuan-dense", restoration: PLAIN, ..QWEN2 },
    Architecture {
        family: "hunyuan_v1_moe",
        name: "hunyuan-moe",
        extras: extras::hunyuan_moe,
        restoration: Some(&restoration::HUNYUAN_MOE),
        ..QWEN2
    },
    Architecture { family: "hy_v3", name: "hy_v3", has_any_experts: true, extras: extras::hy_v3, ..QWEN2 },
    Architecture { family: "jamba", name: "jamba", has_any_experts: true, extras: extras::jamba, ..QWEN2 },
    Architecture { family: "kimi_k2", name: "deepseek2", has_dense_prefix: true, extras: extras::deepseek2, ..LLAMA },
    Architecture { family: "kimi_k25", name: "deepseek2", has_dense_prefix: true, extras: extras::deepseek2, ..LLAMA },
    Architecture {
        family: "kimi_linear",
        name: "kimi-linear",
        needs_head: true,
        has_dense_prefix: true,
        extras: extras::kimi_linear,
        ..QWEN2
    },
    Architecture { family: "laguna", name: "laguna", has_dense_prefix: true, extras: extras::laguna, ..QWEN2 },
    Architecture {
        family: "lfm2",
        name: "lfm2",
        norms: &[(NormSite::Final, "token_embd_norm")],
        extras: extras::lfm2,
        restoration: Some(&restoration::LFM2),
        ..QWEN2
    },
    Architecture {
        family: "lfm2_moe",
        name: "lfm2moe",
        has_dense_prefix: true,
        norms: &[(NormSite::Final, "token_embd_norm")],
        extras: extras::lfm2_moe,
        restoration: Some(&restoration::LFM2_MOE),
        ..QWEN2
    },
    Architecture { scaled: &[Part::Mlp], restoration: Some(&restoration::LLAMA), ..LLAMA },
    Architecture { family: "llama4", name: "llama4", has_any_experts: true, extras: extras::llama4, ..LLAMA },
    Architecture { family: "mamba", name: "mamba", extras: extras::mamba, ..QWEN2 },
    Architecture {
        family: "mamba2",
        name: "mamba2",
        extras: extras::mamba2,
        restoration: Some(&restoration::MAMBA_2),
        ..QWEN2
    },
    Architecture {
        family: "mimo_v2_flash",
        name: "mimo2",
        needs_head: true,
        has_dense_prefix: true,
        extras: extras::mimo2,
        restoration: Some(&restoration::MIMO2),
        ..QWEN2
    },
    Architecture {
        family: "minimax",
        name: "minimax-01",
        norms: &[(NormSite::RecurrentOutput, "attn_norm_2")],
        extras: extras::minimax_01,
        ..QWEN2
    },
    Architecture { family: "minimax_m2", name: "minimax-m2", needs_head: true, extras: extras::minimax_m2, ..QWEN2 },
    Architecture {
        family: "ministral3",
        name: "mistral3",
        scaled: &[Part::Mlp],
        extras: extras::mistral3,
        restoration: Some(&restoration::MISTRAL3),
        ..LLAMA
    },
    Architecture { family: "mistral", scaled: &[Part::Mlp], ..LLAMA },
    Architecture { family: "mistral4", name: "mistral4", has_dense_prefix: true, extras: extras::mistral4, ..LLAMA },
    Architecture { family: "mixtral", scaled: &[Part::Experts], restoration: Some(&restoration::MIXTRAL), ..LLAMA },
    Architecture { family: "mpt", name: "mpt", extras: extras::mpt, restoration: Some(&restoration::MPT), ..QWEN2 },
    Architecture {
        family: "nemotron",
        name: "nemotron",
        needs_head: true,
        extras: extras::nemotron,
        restoration: Some(&restoration::NEMOTRON),
        ..QWEN2
    },
    Architecture {
        family: "nemotron_h",
        name: "nemotron_h",
        has_any_experts: true,
        is_of: |config| config.layer_types.iter().all(|kind| kind != "moe"),
        extras: extras::nemotron_h,
        ..QWEN2
    },
    Architecture {
        family: "nemotron_h",
        name: "nemotron_h_moe",
        has_any_experts: true,
        extras: extras::nemotron_h,
        ..QWEN2
    },
    Architecture { family: "olmo", name: "olmo", extras: extras::olmo, restoration: Some(&restoration::OLMO), ..LLAMA },
    Architecture { family: "olmo2", name: "olmo2", needs_head: true, restoration: Some(&restoration::OLMO2), ..QWEN2 },
    Architecture {
        family: "olmo3",
        name: "olmo2",
        needs_head: true,
        extras: extras::olmo3,
        restoration: Some(&restoration::OLMO3),
        ..QWEN2
    },
    Architecture { family: "olmoe", name: "olmoe", needs_head: true, restoration: PLAIN, ..QWEN2 },
    Architecture {
        family: "phi",
        name: "phi2",
        needs_head: true,
        lacks: &[NormSite::Query, NormSite::Key],
        extras: extras::phi,
        restoration: PLAIN,
        ..QWEN2
    },
    Architecture { family: "phi3", name: "phi3", extras: extras::phi3, restoration: Some(&restoration::PHI3), ..QWEN2 },
    Architecture {
        family: "phimoe",
        name: "phimoe",
        needs_head: true,
        extras: extras::phi3,
        restoration: Some(&restoration::PHIMOE),
        ..QWEN2
    },
    Architecture { restoration: PLAIN, ..QWEN2 },
    Architecture {
        family: "qwen2_moe",
        name: "qwen2moe",
        needs_head: true,
        extras: extras::qwen_moe,
        restoration: Some(&restoration::QWEN2_MOE),
        ..QWEN2
    },
    Architecture {
        family: "qwen3",
        name: "qwen3vl",
        is_of: |config| config.model_types.iter().any(|kind| kind.starts_with("qwen3_vl")),
        extras: extras::qwen3_vl,
        restoration: PLAIN,
        ..QWEN2
    },
    Architecture { family: "qwen3", name: "qwen3", scaled: &[Part::Mlp], restoration: PLAIN, ..QWEN2 },
    Architecture {
        family: "qwen3_5",
        name: "qwen35",
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        extras: extras::qwen3_5,
        restoration: Some(&restoration::QWEN3_5),
        ..QWEN2
    },
    Architecture {
        family: "qwen3_5_moe",
        name: "qwen35moe",
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        extras: extras::qwen3_5_moe,
        restoration: Some(&restoration::QWEN3_5_MOE),
        ..QWEN2
    },
    Architecture {
        family: "qwen3_moe",
        name: "qwen3moe",
        scaled: &[Part::Experts],
        extras: extras::qwen_moe,
        restoration: Some(&restoration::QWEN3_MOE),
        ..QWEN2
    },
    Architecture {
        family: "qwen3_next",
        name: "qwen3next",
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        extras: extras::qwen3_next,
        restoration: Some(&restoration::QWEN3_NEXT),
        ..QWEN2
    },
    Architecture { family: "qwen3_vl_moe", name: "qwen3vlmoe", extras: extras::qwen3_vl_moe, ..QWEN2 },
    Architecture {
        family: "seed_oss",
        name: "seed_oss",
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        restoration: PLAIN,
        ..QWEN2
    },
    Architecture { family: "smollm3", name: "smollm3", restoration: PLAIN, ..LLAMA },
    Architecture {
        family: "solar_open",
        name: "glm4moe",
        norms: &[(NormSite::FeedForwardInput, "post_attention_norm")],
        extras: extras::sigmoid_routed,
        ..QWEN2
    },
    Architecture {
        family: "stablelm",
        name: "stablelm",
        needs_head: true,
        extras: extras::parallel,
        restoration: Some(&restoration::STABLELM),
        ..QWEN2
    },
    Architecture { family: "starcoder2", name: "starcoder2", restoration: Some(&restoration::STARCODER2), ..QWEN2 },
];

impl Architecture {
    /// The architecture of a family, the first where it has several; `None` if llama.cpp lacks it, or it is not described here.
    pub fn of(family: &Family) -> Option<&'static Architecture> {
        ARCHITECTURES.iter().find(|row| row.family == family.name)
    }

    /// The architecture of a model of a family.
    pub fn of_model(family: &Family, config: &ModelConfig) -> Option<&'static Architecture> {
        ARCHITECTURES.iter().find(|row| row.family == family.name && (row.is_of)(config))
    }

    /// Returns whether files of a family can be written.
    pub fn is_known(family: &str) -> bool {
        ARCHITECTURES.iter().any(|row| row.family == family)
    }

    /// Returns whether rows of queries and keys must be interleaved: the source rotates halves of a head, and the graph
    /// neighbours.
    pub fn interleaves(&self, family: &Family) -> bool {
        let stored = match family.math.positions {
            // Over halves, if over any.
            Positions::AlibiIf(..) | Positions::RotaryIfNamed(_) => Pairing::Halves,
            Positions::Rotary { pairing, .. } => pairing,
            Positions::Learned { .. } | Positions::LearnedBehindPadding { .. } | Positions::RotaryOrLearned => {
                return false;
            }
            Positions::Alibi(_) => return false,
            Positions::RotaryIfTheta
            | Positions::LearnedIf(..)
            | Positions::RotaryOfPatches
            | Positions::RotaryOfGrid
            | Positions::Sinusoidal { .. }
            | Positions::SinusoidalOfWidth
            | Positions::None => {
                return false;
            }
        };
        (stored, self.pairing) == (Pairing::Halves, Pairing::Neighbours)
    }

    /// Returns whether its graph multiplies a tensor's product by a scale beside it.
    pub fn multiplies(&self, weight: &str) -> bool {
        const ALWAYS: [&str; 6] = ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "output"];
        let stem = names::stem_of(weight).rsplit('.').next().unwrap_or_default();
        match (stem.strip_prefix("ffn_"), stem) {
            (Some("gate" | "up" | "down"), _) => self.scaled.contains(&Part::Mlp),
            (Some("gate_exps" | "up_exps" | "down_exps"), _) => self.scaled.contains(&Part::Experts),
            (_, stem) => ALWAYS.contains(&stem),
        }
    }

    /// The stem of a norm's name, where it is not the usual one.
    pub(crate) fn norm(&self, site: NormSite) -> Option<&'static str> {
        self.norms.iter().find(|(at, _)| *at == site).map(|(_, stem)| *stem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::family::by_name;

    #[test]
    fn architecture_rows_are_sorted_known_families() {
        assert!(ARCHITECTURES.windows(2).all(|pair| pair[0].family <= pair[1].family));
        assert!(ARCHITECTURES.iter().all(|row| by_name(row.family).is_some()));
    }

    #[test]
    fn rope_rows_are_interleaved_for_graphs_that_rotate_neighbours() {
        let interleaved = |name: &str| {
            let family = by_name(name).unwrap();
            Architecture::of(family).unwrap().interleaves(family)
        };
        for name in ["llama", "mistral", "mixtral", "granite", "smollm3", "olmo", "arcee", "granitemoehybrid"] {
            assert!(interleaved(name), "{name}");
        }
        for name in ["qwen2", "gemma2", "phi3", "gpt2", "cohere", "glm4", "deepseek_v2", "olmo2", "gpt_neox"] {
            assert!(!interleaved(name), "{name}");
        }
        assert!(Architecture::of(by_name("opt").unwrap()).is_none());
    }

    #[test]
    fn architectures_of_one_family_are_told_apart_by_the_model() {
        let named = |family: &str, config: serde_json::Value| {
            let config = ModelConfig::from_json(&config).unwrap();
            Architecture::of_model(by_name(family).unwrap(), &config).unwrap().name
        };
        let of_blocks =
            |kind: &str| serde_json::json!({"model_type": "nemotron_h", "layers_block_type": ["mamba", kind]});
        assert_eq!(named("nemotron_h", of_blocks("moe")), "nemotron_h_moe");
        assert_eq!(named("nemotron_h", of_blocks("mlp")), "nemotron_h");
        assert_eq!(named("qwen3", serde_json::json!({"model_type": "qwen3"})), "qwen3");
        let images = serde_json::json!({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}});
        assert_eq!(named("qwen3", images), "qwen3vl");
    }
}
