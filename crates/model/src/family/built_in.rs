//! The families that are built in: descriptions in files like those of users, compiled into the program.

use super::description::Family;
use super::file::complete;
use std::sync::LazyLock;

/// The files of these names, each with its text.
macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("built_in/", $name, ".toml")))),*] };
}

/// Every file, sorted by name. A new family is one file and one line here.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = files![
    "afmoe"
    "apertus"
    "arcee"
    "axk1"
    "bailing_hybrid"
    "bamba"
    "bart"
    "bert"
    "bitnet"
    "bloom"
    "clip_text"
    "clip_vision"
    "cohere"
    "cohere2"
    "cohere2_moe"
    "cwm"
    "dbrx"
    "deberta_v2"
    "deepseek_v2"
    "deepseek_v3"
    "deepseek_v32"
    "deepseek_v4"
    "deit"
    "dinov2"
    "dinov2_with_registers"
    "dinov3_vit"
    "distilbert"
    "dots1"
    "electra"
    "ernie4_5"
    "ernie4_5_moe"
    "esm"
    "exaone4"
    "exaone_moe"
    "falcon"
    "falcon_h1"
    "falcon_mamba"
    "flex_olmo"
    "gemma"
    "gemma2"
    "gemma3"
    "gemma3n"
    "gemma4"
    "glm"
    "glm4"
    "glm4_moe"
    "glm4_moe_lite"
    "glm_moe_dsa"
    "gpt2"
    "gpt_bigcode"
    "gpt_neox"
    "gpt_oss"
    "gptj"
    "granite"
    "granitemoe"
    "granitemoehybrid"
    "helium"
    "hubert"
    "hunyuan_v1_dense"
    "hunyuan_v1_moe"
    "hy_v3"
    "jamba"
    "kimi_k2"
    "kimi_k25"
    "kimi_linear"
    "kolibri1"
    "laguna"
    "lfm2"
    "lfm2_moe"
    "lfm3"
    "llama"
    "llama4"
    "longcat_flash"
    "mamba"
    "mamba2"
    "marian"
    "mbart"
    "mimo_v2_flash"
    "minimax"
    "minimax_m2"
    "minimax_m3"
    "minimax_m3_text"
    "ministral"
    "ministral3"
    "mistral"
    "mistral4"
    "mixtral"
    "mllama"
    "modernbert"
    "mpnet"
    "mpt"
    "mt5"
    "nanochat"
    "nemotron"
    "nemotron_h"
    "olmo"
    "olmo2"
    "olmo3"
    "olmo_hybrid"
    "olmoe"
    "opt"
    "pegasus"
    "persimmon"
    "phi"
    "phi3"
    "phimoe"
    "qwen2"
    "qwen2_moe"
    "qwen3"
    "qwen3_5"
    "qwen3_5_moe"
    "qwen3_moe"
    "qwen3_next"
    "qwen3_omni_moe"
    "qwen3_vl_moe"
    "roberta"
    "seed_oss"
    "siglip_text"
    "siglip_vision"
    "smollm3"
    "solar_open"
    "stablelm"
    "starcoder2"
    "t5"
    "t5_encoder"
    "umt5"
    "umt5_encoder"
    "vit"
    "wav2vec2"
    "whisper"
    "xglm"
];

/// Every family that is built in, sorted by name. That each file can be read is tested.
pub static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| complete(FILES));

#[cfg(test)]
mod tests {
    use super::super::file::check;
    use super::*;

    #[test]
    fn every_file_describes_the_family_of_its_name() {
        let files: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        let read: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(read, files);
        assert!(files.is_sorted());
        for family in FAMILIES.iter() {
            assert_eq!(check(family), Ok(()), "{}", family.name);
        }
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/family/built_in");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), FILES.len(), "files without a line");
    }
}
