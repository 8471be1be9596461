//! The tensors that llama.cpp's loaders of an architecture look for, where models of a family differ: biases, norms of queries and keys,
//! a head, widths of heads. A file with one that its loader does not know, or without one that it wants, does not load.
//!
//! Source: `load_arch_tensors` and `load_arch_hparams` in `src/models/` of llama.cpp.

use super::content::Content;
use super::drafts::{Builder, Draft};
use super::error::GgufPlanError;
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

/// The projections whose biases most loaders read where there are any.
const QUERIES: [&str; 4] = ["attn_q", "attn_k", "attn_v", "attn_qkv"];

const USUAL: Biases = Biases { architectures: &[], required: &[], optional: &[], has_queries: true };

/// Architectures with others than optional biases of queries, keys and values.
const BIASES: &[Biases] = &[
    Biases {
        architectures: &["llama", "granite", "granitemoe"],
        optional: &["attn_output", "ffn_gate", "ffn_up", "ffn_down"],
        ..USUAL
    },
    Biases { architectures: &["deepseek2"], optional: &["exp_probs_b"], has_queries: false, ..USUAL },
    Biases { architectures: &["glm4moe"], optional: &["exp_probs_b"], ..USUAL },
    Biases { architectures: &["minimax-m2"], required: &["exp_probs_b"], ..USUAL },
    Biases {
        architectures: &["gpt2", "gptneox"],
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
const SQUARE: [&str; 13] = [
    "command-r",
    "cohere2",
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
    "starcoder2",
];

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
        self.check_kind_of_attention()
    }

    fn expects(&self, expects: &'static str, found: String) -> GgufPlanError {
        GgufPlanError::Expects { architecture: self.architecture.name, expects, found }
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
        match config.num_kv_heads() {
            Some(keys) if name == "olmoe" && keys != heads => {
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
