//! Every family's checkpoint, as transformers saves it, is recognised whole: counts, kept layers, fused siblings, and
//! the spellings that occur in the wild.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, outside `#[test]` functions.

use std::collections::{HashMap, HashSet};

use crate::support::Checkpoint;
use kvant_model::family::{FAMILIES, NormKind, NormSite, Orientation, Part, Role, RowOrder};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{ExpertsStorage, Linear, Network, Notice, Place, Reason, Slot, TensorMeta};
use serde_json::json;

/// Fixture, family, linear layers, kept ones, sibling groups, fused expert tensors, norms, tied head.
type Row = (&'static str, &'static str, usize, usize, usize, usize, usize, bool);

/// Worked out by hand from the architectures: two blocks each, four experts where there are any.
#[rustfmt::skip]
const EXPECTED: &[Row] = &[
    ("afmoe",               "afmoe",             30,  2,  8, 0, 13, false),
    ("apertus",             "apertus",           13,  1,  2, 0,  9, false),
    ("arcee",              "arcee",            13,  1,  2, 0,  5, false),
    ("axk1",               "axk1",             30,  2,  8, 0, 10, false),
    ("bailing_hybrid",     "bailing_hybrid",   32,  6,  6, 0,  7, false),
    ("bamba",              "bamba",            13,  1,  3, 0,  6, false),
    ("bart",               "bart",              16,  0,  2, 0,  7, true),
    ("bert",               "bert",              13,  1,  2, 0,  6, true),
    ("bitnet",              "bitnet",            15,  1,  4, 0,  9, false),
    ("bloom",               "bloom",              8,  0,  0, 0,  6, true),
    ("clip_text",          "clip_text",       13,  1,  2, 0,  5, true),
    ("clip_vision",        "clip_vision",     13,  1,  2, 0,  6, true),
    ("cohere",            "cohere",           14,  0,  4, 0,  7, true),
    ("cohere2",           "cohere2",          14,  0,  4, 0,  3, true),
    ("cohere2_moe",         "cohere2_moe",       27,  1,  8, 0,  3, true),
    ("cwm",                "cwm",              15,  1,  4, 0,  5, false),
    ("dbrx",               "dbrx",             7,  3,  0, 6,  5, false),
    ("deberta_v2",         "deberta_v2",      13,  1,  2, 0,  7, true),
    ("deepseek_v2",       "deepseek_v2",      30, 12,  8, 0,  9, false),
    ("deepseek_v2_lite",  "deepseek_v2",      28, 10,  6, 0,  7, false),
    ("deepseek_v3",       "deepseek_v3",      30, 12,  8, 0,  9, false),
    ("deepseek_v32",      "deepseek_v32",     36, 18,  8, 0, 11, false),
    ("deepseek_v4",        "deepseek_v4",      51, 21, 10, 0, 12, false),
    ("deit",               "deit",            13,  1,  2, 0,  5, true),
    ("dinov2",             "dinov2",          13,  1,  2, 0,  5, true),
    ("dinov2_with_registers","dinov2_with_registers", 13,  1,  2, 0,  5, true),
    ("dinov3_vit",         "dinov3_vit",      12,  0,  2, 0,  5, true),
    ("distilbert",         "distilbert",        13,  1,  2, 0,  6, true),
    ("dots1",              "dots1",            28,  2,  8, 0,  9, false),
    ("electra",            "electra",           14,  1,  2, 0,  6, true),
    ("ernie4_5",           "ernie4_5",         14,  0,  4, 0,  5, true),
    ("ernie4_5_moe",        "ernie4_5_moe",      27,  1,  8, 0,  5, true),
    ("esm",                "esm",               14,  2,  2, 0,  6, true),
    ("exaone4",            "exaone4",          15,  1,  4, 0,  9, false),
    ("exaone_moe",          "exaone_moe",        28,  2,  8, 0,  9, false),
    ("falcon",              "falcon",             8,  0,  0, 0,  3, true),
    ("falcon_alibi",        "falcon",             8,  0,  0, 0,  5, true),
    ("falcon_groups",       "falcon",             8,  0,  0, 0,  5, true),
    ("falcon_h1",          "falcon_h1",        19,  1,  4, 0,  7, false),
    ("falcon_h1_plain",    "falcon_h1",        19,  1,  4, 0,  5, false),
    ("falcon_mamba",       "falcon_mamba",      8,  4,  0, 0,  3, true),
    ("flex_olmo",          "flex_olmo",        35,  3, 10, 0,  9, false),
    ("gemma",             "gemma",            14,  0,  4, 0,  5, true),
    ("gemma2",            "gemma2",           14,  0,  4, 0,  9, true),
    ("gemma3",            "gemma3",           14,  0,  4, 0, 13, true),
    ("gemma3_text",       "gemma3",           14,  0,  4, 0, 13, true),
    ("gemma3n_text",        "gemma3n",           59, 18,  6, 0, 36, true),
    ("gemma4_layer_inputs", "gemma4",            33,  0,  6, 0, 28, true),
    ("gemma4_moe",          "gemma4",            16,  2,  4, 4, 19, true),
    ("gemma4_text",         "gemma4",            13,  0,  4, 0, 13, true),
    ("glm",               "glm",              13,  1,  2, 0,  5, false),
    ("glm4",              "glm4",             13,  1,  2, 0,  9, false),
    ("glm4_moe",          "glm4_moe",         28, 16,  8, 0,  9, false),
    ("glm4_moe_lite",      "glm4_moe_lite",    30, 12,  8, 0,  9, false),
    ("glm_moe_dsa",       "glm_moe_dsa",      36, 21,  8, 0, 11, false),
    ("gpt2",              "gpt2",              8,  0,  0, 0,  5, true),
    ("gpt_bigcode",        "gpt_bigcode",       8,  0,  0, 0,  5, true),
    ("gpt_bigcode_heads",  "gpt_bigcode",       8,  0,  0, 0,  5, true),
    ("gpt_neox",          "gpt_neox",          9,  1,  0, 0,  5, false),
    ("gpt_oss",           "gpt_oss",          11,  3,  2, 4,  5, false),
    ("gptj",              "gptj",             13,  1,  2, 0,  3, false),
    ("granite",           "granite",          15,  1,  4, 0,  5, false),
    ("granitemoe",        "granitemoe",       11,  3,  2, 4,  5, false),
    ("granitemoehybrid",   "granitemoehybrid",  13,  3,  1, 4,  6, false),
    ("granitemoehybrid_dense", "granitemoehybrid",  11,  1,  1, 0,  6, false),
    ("helium",             "helium",           15,  1,  4, 0,  5, false),
    ("hubert",             "hubert",          13,  1,  2, 0,  8, true),
    ("hunyuan_v1_dense",  "hunyuan_v1_dense", 15,  1,  4, 0,  9, false),
    ("hunyuan_v1_moe",      "hunyuan_v1_moe",    41,  3, 12, 0,  9, false),
    ("hy_v3",               "hy_v3",             28,  2,  8, 0,  9, false),
    ("jamba",              "jamba",            25,  4,  6, 0,  8, false),
    ("kimi_k25",           "kimi_k25",         30, 18,  8, 0,  9, false),
    ("kimi_linear",        "kimi_linear",       33,  7,  6, 0,  7, false),
    ("kolibri1",           "kolibri1",         41,  3, 12, 0, 13, false),
    ("laguna",             "laguna",           30,  4,  8, 0,  9, false),
    ("lfm2",               "lfm2",             12,  2,  3, 0,  7, true),
    ("lfm2_moe",           "lfm2_moe",         22,  3,  6, 0,  7, true),
    ("lfm3",               "lfm3",             13,  3,  3, 0, 11, true),
    ("llama",             "llama",            15,  1,  4, 0,  5, false),
    ("llama4_text",         "llama4",            16,  2,  4, 2,  5, false),
    ("llama_bias",        "llama",            14,  0,  4, 0,  5, true),
    ("longcat_flash",      "longcat_flash",     34,  2, 10, 0,  9, false),
    ("mamba",              "mamba",             8,  4,  0, 0,  3, true),
    ("mamba2",             "mamba2",            5,  1,  0, 0,  5, false),
    ("marian",             "marian",            16,  0,  2, 0,  5, true),
    ("mbart",              "mbart",             16,  0,  2, 0,  9, true),
    ("mimo_v2_flash",       "mimo_v2_flash",     25,  2,  7, 0,  5, false),
    ("minimax",            "minimax",         34,  3, 10, 0,  6, false),
    ("minimax_m2",        "minimax_m2",       35, 11, 10, 0,  9, false),
    ("minimax_m3",         "minimax_m3",        30, 12,  8, 0, 11, false),
    ("minimax_m3_text",    "minimax_m3_text",      16, 12,  2, 2, 11, false),
    ("ministral",          "ministral",        15,  1,  4, 0,  5, false),
    ("ministral3",          "ministral3",        15,  1,  4, 0,  5, false),
    ("mistral",           "mistral",          15,  1,  4, 0,  5, false),
    ("mistral3",          "mistral",          14,  0,  4, 0,  5, true),
    ("mistral4",            "mistral4",          18,  2,  4, 2,  9, false),
    ("mixtral",           "mixtral",          35,  3, 10, 0,  5, false),
    ("mllama",             "mllama",           15,  1,  3, 0,  5, false),
    ("modernbert",         "modernbert",         9,  1,  0, 0,  6, true),
    ("mpnet",              "mpnet",             13,  1,  2, 0,  6, true),
    ("mpt",                 "mpt",                8,  0,  0, 0,  5, true),
    ("mt5",                "mt5",               18,  0,  4, 0,  7, true),
    ("nanochat",           "nanochat",         13,  1,  2, 0,  0, false),
    ("nemotron",          "nemotron",         13,  1,  2, 0,  5, false),
    ("nemotron_h",         "nemotron_h",       20,  2,  1, 0,  6, false),
    ("olmo",              "olmo",             15,  1,  4, 0,  0, false),
    ("olmo2",             "olmo2",            15,  1,  4, 0,  9, false),
    ("olmo3",             "olmo3",            15,  1,  4, 0,  9, false),
    ("olmo_hybrid",        "olmo_hybrid",      18,  3,  4, 0,  8, false),
    ("olmoe",             "olmoe",            35,  3, 10, 0,  9, false),
    ("opt",               "opt",              12,  0,  2, 0,  5, true),
    ("opt_350m",          "opt",              14,  0,  2, 0,  4, true),
    ("pegasus",            "pegasus",           16,  0,  2, 0,  7, true),
    ("persimmon",          "persimmon",         9,  1,  0, 0,  9, false),
    ("phi",               "phi",              13,  1,  2, 0,  7, false),
    ("phi3",              "phi3",              9,  1,  0, 0,  5, false),
    ("phimoe",            "phimoe",           35,  3, 10, 0,  5, false),
    ("qwen2",             "qwen2",            15,  1,  4, 0,  5, false),
    ("qwen2_5_vl",        "qwen2",            15,  1,  4, 0,  5, false),
    ("qwen2_moe",         "qwen2_moe",        43,  5, 12, 0,  5, false),
    ("qwen3",             "qwen3",            15,  1,  4, 0,  9, false),
    ("qwen3_5",            "qwen3_5",          16,  3,  5, 0,  8, false),
    ("qwen3_5_moe",        "qwen3_5_moe",      20, 20,  5, 4,  8, false),
    ("qwen3_5_text",       "qwen3_5",          16,  3,  5, 0,  8, false),
    ("qwen3_moe",         "qwen3_moe",        25,  2,  7, 0,  9, false),
    ("qwen3_next",         "qwen3_next",       28,  8,  7, 0,  8, false),
    ("qwen3_omni_moe",      "qwen3_omni_moe",    35,  3, 10, 0,  9, false),
    ("qwen3_vl",          "qwen3",            15,  1,  4, 0,  9, false),
    ("qwen3_vl_moe",        "qwen3_vl_moe",      11,  3,  2, 4,  9, false),
    ("roberta",            "roberta",           13,  1,  2, 0,  6, true),
    ("seed_oss",           "seed_oss",         15,  1,  4, 0,  5, false),
    ("siglip_text",        "siglip_text",     13,  1,  2, 0,  5, true),
    ("siglip_vision",      "siglip_vision",   15,  3,  2, 0,  6, true),
    ("smollm3",           "smollm3",          14,  0,  4, 0,  5, true),
    ("solar_open",         "solar_open",       41,  3, 12, 0,  5, false),
    ("stablelm",          "stablelm",         15,  1,  4, 0, 17, false),
    ("stablelm_parallel", "stablelm",         15,  1,  4, 0,  3, false),
    ("starcoder2",        "starcoder2",       12,  0,  2, 0,  5, true),
    ("t5",                 "t5",                16,  0,  2, 0,  7, true),
    ("t5_encoder",         "t5_encoder",        12,  0,  2, 0,  5, true),
    ("umt5",               "umt5",              18,  0,  4, 0,  7, true),
    ("umt5_encoder",       "umt5_encoder",      14,  0,  4, 0,  5, true),
    ("vit",                "vit",             13,  1,  2, 0,  5, true),
    ("wav2vec2",           "wav2vec2",        14,  2,  2, 0,  7, true),
    ("whisper",            "whisper",         16,  0,  2, 0,  7, true),
    ("xglm",               "xglm",             12,  0,  2, 0,  5, true),
];

fn linear<'n>(network: &'n Network, module: &str) -> &'n Linear {
    let found = network.linears().iter().find(|linear| linear.module == module);
    found.unwrap_or_else(|| panic!("no linear layer {module}"))
}

fn reason_of(checkpoint: &Checkpoint, name: &str) -> Option<Reason> {
    let at = checkpoint.tensors.iter().position(|tensor| tensor.name == name).unwrap();
    match checkpoint.network().places()[at] {
        Place::Other(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn layer_counts_match_the_architecture() {
    for &(fixture, family, linears, kept, siblings, experts, norms, tied) in EXPECTED {
        let network = Checkpoint::read(fixture).network();
        assert_eq!(network.family().map(|family| family.name), Some(family), "{fixture}");
        assert_eq!(network.linears().len(), linears, "{fixture}: linear layers");
        let kept_found = network.linears().iter().filter(|linear| linear.kept).count();
        assert_eq!(kept_found, kept, "{fixture}: kept layers");
        assert_eq!(network.siblings().len(), siblings, "{fixture}: sibling groups");
        assert_eq!(network.experts().len(), experts, "{fixture}: fused experts");
        assert_eq!(network.norms().len(), norms, "{fixture}: norms");
        assert_eq!(network.is_tied(), tied, "{fixture}: tied");
        // Of a block of one branch there are four kinds, and of blocks that share keys two of each type. A layer of a decoder that attends to
        // an encoder is two.
        let is_pair = network.family().is_some_and(|family| family.decoder_stack().is_some());
        let blocks = match fixture {
            "nemotron_h" | "gemma3n_text" | "gemma4_layer_inputs" => 4,
            _ if is_pair => 3,
            _ => 2,
        };
        assert_eq!(network.blocks(), (0..blocks).collect::<Vec<_>>(), "{fixture}: blocks");
    }
}

#[test]
fn every_fixture_is_expected_and_every_family_has_one() {
    let expected: Vec<_> = EXPECTED.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(crate::support::names(), expected);
    let covered: HashSet<_> = EXPECTED.iter().map(|row| row.1).collect();
    let missing: Vec<_> = FAMILIES.iter().map(|family| family.name).filter(|name| !covered.contains(name)).collect();
    // Kimi K2 is DeepSeek V3 but for what is kept.
    assert_eq!(missing, ["kimi_k2"]);
}

#[test]
fn only_other_modalities_are_left_unrecognised() {
    for name in crate::support::names() {
        let checkpoint = Checkpoint::read(&name);
        let network = checkpoint.network();
        for (tensor, place) in checkpoint.tensors.iter().zip(network.places()) {
            let left_over =
                matches!(place, Place::Other(reason) if !matches!(reason, Reason::Modality | Reason::Buffer));
            assert!(!left_over, "{name}: {} is {place:?}", tensor.name);
        }
        assert_eq!(network.notices(), [], "{name}");
    }
}

#[test]
fn tensor_places_and_layers_agree() {
    for name in crate::support::names() {
        let checkpoint = Checkpoint::read(&name);
        let network = checkpoint.network();
        for (at, place) in network.places().iter().enumerate() {
            match *place {
                Place::Linear(id, Slot::Weight) => assert_eq!(network.linear(id).weight, at),
                Place::Linear(id, Slot::Bias) => assert_eq!(network.linear(id).bias, Some(at)),
                Place::Norm(id, Slot::Weight) => assert_eq!(network.norm(id).weight, at),
                Place::Norm(id, Slot::Bias) => assert_eq!(network.norm(id).bias, Some(at)),
                Place::Experts(id, Slot::Bias) => assert_eq!(network.experts()[id.index()].bias, Some(at)),
                _ => {}
            }
        }
        for linear in network.linears() {
            let bias = linear.bias.map(|at| checkpoint.tensors[at].shape.clone());
            assert!(bias.is_none_or(|shape| shape == [linear.out_features]), "{name}: {}", linear.module);
        }
    }
}

#[test]
fn linear_layers_know_size_role_and_position() {
    let network = Checkpoint::read("mixtral").network();
    let down = linear(&network, "model.layers.1.block_sparse_moe.experts.3.w2");
    assert_eq!((down.role, down.part), (Role::Down, Part::Experts));
    assert_eq!((down.block, down.expert), (Some(1), Some(3)));
    assert_eq!((down.in_features, down.out_features), (96, 64));
    let router = linear(&network, "model.layers.0.block_sparse_moe.gate");
    assert_eq!((router.role, router.kept, router.expert), (Role::Router, true, None));
    assert_eq!(network.linear(network.head().unwrap()).module, "lm_head");
}

#[test]
fn gpt2_weights_are_transposed() {
    let network = Checkpoint::read("gpt2").network();
    let fused = linear(&network, "transformer.h.0.attn.c_attn");
    assert_eq!((fused.role, fused.orientation), (Role::QueryKeyValue, Orientation::InOut));
    assert_eq!((fused.in_features, fused.out_features, fused.rows), (64, 192, RowOrder::Stacked));
    assert!(fused.bias.is_some());
}

#[test]
fn gpt_oss_experts_are_one_transposed_tensor() {
    let network = Checkpoint::read("gpt_oss").network();
    let module = "model.layers.0.mlp.experts.gate_up_proj";
    let gate_up = network.experts().iter().find(|experts| experts.module == module).unwrap();
    assert_eq!((gate_up.role, gate_up.rows), (Role::GateUp, RowOrder::Interleaved));
    assert_eq!((gate_up.block, gate_up.orientation), (0, Orientation::InOut));
    assert_eq!((gate_up.experts, gate_up.in_features, gate_up.out_features), (4, 64, 192));
    assert!(gate_up.bias.is_some() && !gate_up.kept);
    assert!(matches!(gate_up.storage, ExpertsStorage::Float { .. }));
}

#[test]
fn granite_experts_are_one_tensor_with_suffix_weight() {
    let network = Checkpoint::read("granitemoe").network();
    let gate_up = &network.experts()[0];
    assert_eq!(gate_up.module, "model.layers.0.block_sparse_moe.input_linear");
    assert_eq!((gate_up.orientation, gate_up.in_features, gate_up.out_features), (Orientation::OutIn, 64, 192));
}

#[test]
fn published_gpt_oss_experts_are_mxfp4() {
    let checkpoint = Checkpoint::read("gpt_oss")
        .renamed(|name| (!name.contains("experts.gate_up_proj") || name.contains(".1.")).then(|| name.to_owned()))
        .with("model.layers.0.mlp.experts.gate_up_proj_scales", &[4, 192, 2], "U8")
        .with("model.layers.0.mlp.experts.gate_up_proj_blocks", &[4, 192, 2, 16], "U8")
        .with("model.layers.0.mlp.experts.gate_up_proj_bias", &[4, 192], "BF16");
    let network = checkpoint.network();
    assert_eq!(network.notices(), []);
    let packed = network.experts().iter().find(|experts| experts.block == 0 && experts.role == Role::GateUp).unwrap();
    assert_eq!((packed.experts, packed.in_features, packed.out_features), (4, 64, 192));
    assert_eq!(packed.orientation, Orientation::OutIn);
    let last = checkpoint.tensors.len() - 1;
    assert_eq!(packed.storage, ExpertsStorage::Mxfp4 { blocks: last - 1, scales: Some(last - 2) });
    assert_eq!(packed.bias, Some(last));
}

#[test]
fn fused_siblings_have_the_fused_name_of_engines() {
    let network = Checkpoint::read("deepseek_v2").network();
    let groups: Vec<_> = network.siblings().iter().map(|group| (group.fused.as_str(), group.members.len())).collect();
    for fused in ["model.layers.0.self_attn.fused_qkv_a_proj", "model.layers.0.mlp.gate_up_proj"] {
        assert!(groups.contains(&(fused, 2)), "{fused} not in {groups:?}");
    }
    assert!(groups.contains(&("model.layers.1.mlp.experts.2.gate_up_proj", 2)));
    assert!(groups.contains(&("model.layers.1.mlp.shared_experts.gate_up_proj", 2)));

    let network = Checkpoint::read("qwen2").network();
    let query = linear(&network, "model.layers.1.self_attn.q_proj").siblings.unwrap();
    let members = &network.siblings()[query.index()].members;
    let roles: HashSet<_> = members.iter().map(|id| network.linear(*id).role).collect();
    assert_eq!(roles, HashSet::from([Role::Query, Role::Key, Role::Value]));
    assert!(linear(&network, "model.layers.1.self_attn.o_proj").siblings.is_none());
}

#[test]
fn norms_know_their_position_and_kind() {
    let network = Checkpoint::read("gemma2").network();
    let sites: Vec<_> = network.norms().iter().filter(|norm| norm.block == Some(0)).map(|norm| norm.site).collect();
    let expected =
        [NormSite::AttentionInput, NormSite::AttentionOutput, NormSite::FeedForwardOutput, NormSite::FeedForwardInput];
    // The fixture is sorted by name: input, post_attention, post_feedforward, pre_feedforward.
    assert_eq!(sites, expected);
    assert!(network.norms().iter().all(|norm| norm.kind == NormKind::RmsUnitOffset));
}

#[test]
fn kept_modules_include_other_modalities() {
    let network = Checkpoint::read("mistral3").network();
    let kept = network.kept_modules();
    assert!(kept.contains(&"vision_tower.transformer.layers.0.attention.q_proj"), "{kept:?}");
    assert!(kept.contains(&"multi_modal_projector.linear_1"));
    assert!(!kept.iter().any(|module| module.starts_with("language_model")));

    let network = Checkpoint::read("deepseek_v2").network();
    assert!(network.kept_modules().contains(&"model.layers.0.self_attn.kv_b_proj"));
    assert!(network.kept_modules().contains(&"model.layers.1.mlp.gate"));
    assert!(!network.kept_modules().contains(&"model.layers.0.mlp.gate_proj"));
}

#[test]
fn base_model_checkpoints_lack_the_path_prefix() {
    for (fixture, prefix, trunk) in [
        ("llama", "model.", ""),
        ("gpt2", "transformer.", ""),
        ("opt", "model.", "decoder"),
        ("gpt_neox", "gpt_neox.", ""),
        ("mixtral", "model.", ""),
    ] {
        let whole = Checkpoint::read(fixture).network();
        let base = Checkpoint::read(fixture).renamed(|name| Some(name.strip_prefix(prefix)?.to_owned()));
        let network = base.network();
        assert_eq!(network.trunk(), trunk, "{fixture}");
        assert_eq!(network.family().unwrap().name, whole.family().unwrap().name);
        let heads = usize::from(whole.head().is_some());
        assert_eq!(network.linears().len(), whole.linears().len() - heads, "{fixture}");
        assert_eq!(network.norms().len(), whole.norms().len(), "{fixture}");
        assert!(!network.places().iter().any(|place| matches!(place, Place::Other(_))), "{fixture}");
        assert!(network.is_tied());
        assert_eq!(network.notices().contains(&Notice::NoHead), heads == 1, "{fixture}");
    }
}

#[test]
fn multimodal_checkpoints_nest_the_language_model_variously() {
    let old = Checkpoint::read("gemma3").network();
    let new = Checkpoint::read("gemma3").renamed(|name| {
        let name = name.replace("language_model.model.", "model.language_model.");
        Some(name.replace("vision_tower.", "model.vision_tower.").replace("multi_modal", "model.multi_modal"))
    });
    let network = new.network();
    assert_eq!((old.trunk(), network.trunk()), ("language_model.model", "model.language_model"));
    assert_eq!(network.linears().len(), old.linears().len());
    assert_eq!(network.siblings().len(), old.siblings().len());
    assert_eq!(network.notices(), []);
    let head = new.with("language_model.lm_head.weight", &[160, 64], "BF16").network();
    let head = head.linear(head.head().unwrap());
    assert!(head.kept, "a head behind a prefix is kept too");
}

#[test]
fn buffers_of_old_checkpoints_are_copied() {
    let gpt2 = Checkpoint::read("gpt2").with("transformer.h.0.attn.bias", &[1, 1, 64, 64], "U8").with(
        "transformer.h.0.attn.masked_bias",
        &[],
        "F32",
    );
    assert_eq!(reason_of(&gpt2, "transformer.h.0.attn.bias"), Some(Reason::Buffer));
    assert_eq!(reason_of(&gpt2, "transformer.h.0.attn.masked_bias"), Some(Reason::Buffer));
    let llama = Checkpoint::read("llama").with("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], "F32");
    assert_eq!(reason_of(&llama, "model.layers.0.self_attn.rotary_emb.inv_freq"), Some(Reason::Buffer));
    assert_eq!(llama.network().notices(), []);
}

#[test]
fn layers_after_the_last_block_are_kept_with_a_notice() {
    let checkpoint = Checkpoint::read("deepseek_v3")
        .with("model.layers.2.eh_proj.weight", &[64, 128], "BF16")
        .with("model.layers.2.self_attn.o_proj.weight", &[64, 48], "BF16")
        .with("model.layers.2.shared_head.head.weight", &[160, 64], "BF16")
        .with("mtp.0.lm_head.weight", &[160, 64], "BF16");
    let network = checkpoint.network();
    assert_eq!(network.blocks(), [0, 1]);
    assert_eq!(network.linears().len(), 30);
    assert_eq!(network.notices(), [Notice::ExtraLayers { tensors: 4 }]);
    assert!(network.kept_modules().contains(&"model.layers.2.eh_proj"));
}

#[test]
fn fp8_weights_are_linked_to_their_scales() {
    let mut checkpoint =
        Checkpoint::read("deepseek_v3").with("model.layers.0.mlp.up_proj.weight_scale_inv", &[1, 1], "F32");
    for tensor in &mut checkpoint.tensors {
        if tensor.name == "model.layers.0.mlp.up_proj.weight" {
            tensor.dtype = "F8_E4M3".to_owned();
        }
    }
    let network = checkpoint.network();
    assert_eq!(network.notices(), []);
    assert_eq!(linear(&network, "model.layers.0.mlp.up_proj").scale, Some(checkpoint.tensors.len() - 1));
}

#[test]
fn packed_modules_are_kept_with_a_notice() {
    let mut checkpoint = Checkpoint::read("llama").with("model.layers.0.mlp.up_proj.weight_scale", &[96, 2], "U8");
    for tensor in &mut checkpoint.tensors {
        if tensor.name == "model.layers.0.mlp.up_proj.weight" {
            (tensor.dtype, tensor.shape) = ("U8".to_owned(), vec![96, 32]);
        }
    }
    let network = checkpoint.network();
    assert_eq!(network.linears().len(), 14);
    let first = "model.layers.0.mlp.up_proj.weight".to_owned();
    assert_eq!(network.notices(), [Notice::AlreadyQuantized { tensors: 2, first }]);
}

#[test]
fn tied_head_may_still_have_a_tensor() {
    let network = Checkpoint::read("llama").with_config("tie_word_embeddings", json!(true)).network();
    assert!(network.is_tied());
    assert!(network.head().is_some());
}

#[test]
fn bias_of_a_tied_head_has_a_place_without_its_weight() {
    for (fixture, head) in [("phi", "lm_head"), ("gptj", "lm_head")] {
        let tied = || Checkpoint::read(fixture).with_config("tie_word_embeddings", json!(true));
        let weight = format!("{head}.weight");
        let without = tied().renamed(|name| (name != weight).then(|| name.to_owned()));
        let network = without.network();
        let bias = without.tensors.iter().position(|tensor| tensor.name == format!("{head}.bias")).unwrap();
        assert_eq!((network.tied_head_bias(), network.places()[bias]), (Some(bias), Place::HeadBias), "{fixture}");
        assert_eq!((network.notices(), network.head()), (&[][..], None), "{fixture}");
        let stored = tied().network();
        assert!(
            stored.is_tied() && stored.tied_head_bias().is_some(),
            "{fixture}: the head may have a tensor all the same"
        );
        assert_eq!(
            Checkpoint::read(fixture).network().tied_head_bias(),
            None,
            "{fixture}: the bias is that of a layer"
        );
        let untied = without.with_config("tie_word_embeddings", json!(false)).network();
        assert_eq!(untied.places()[bias], Place::Other(Reason::Unrecognised), "{fixture}: a shard is missing");
    }
}

#[test]
fn modules_unknown_to_the_family_are_kept_with_a_notice() {
    let checkpoint = Checkpoint::read("llama")
        .with("model.layers.0.self_attn.q_proj.lora_A.weight", &[8, 64], "BF16")
        .with("score.weight", &[2, 64], "BF16");
    let network = checkpoint.network();
    let first = "model.layers.0.self_attn.q_proj.lora_A.weight".to_owned();
    assert_eq!(network.notices(), [Notice::Unrecognised { tensors: 2, first }]);
    assert!(network.kept_modules().contains(&"score"));
}

#[test]
fn weight_of_wrong_rank_is_not_a_linear_layer() {
    let checkpoint = Checkpoint::read("llama")
        .renamed(|name| (name != "model.layers.0.mlp.up_proj.weight").then(|| name.to_owned()))
        .with("model.layers.0.mlp.up_proj.weight", &[96, 64, 1], "BF16");
    assert_eq!(checkpoint.network().linears().len(), 14);
    assert_eq!(reason_of(&checkpoint, "model.layers.0.mlp.up_proj.weight"), Some(Reason::Unrecognised));
}

#[test]
fn missing_blocks_give_a_notice() {
    let network = Checkpoint::read("llama").with_config("num_hidden_layers", json!(32)).network();
    assert_eq!(network.notices(), [Notice::BlockCount { found: 2, stated: 32 }]);
}

#[test]
fn empty_tensors_are_not_layers() {
    const MANY: usize = 4_000_000_000;
    for fixture in ["gpt_oss", "granitemoe", "llama"] {
        let mut checkpoint = Checkpoint::read(fixture);
        let whole = checkpoint.network();
        for tensor in &mut checkpoint.tensors {
            match tensor.shape.as_mut_slice() {
                [first, second] => (*first, *second) = (MANY, 0),
                [first, .., last] => (*first, *last) = (MANY, 0),
                _ => {}
            }
        }
        let network = checkpoint.network();
        assert!(whole.blocks().len() == 2 && network.experts().is_empty() && network.linears().is_empty(), "{fixture}");
        assert!(!network.places().contains(&Place::Embedding), "{fixture}");
        assert!(network.blocks().iter().all(|block| network.links(*block).is_empty()), "{fixture}");
    }
}

#[test]
fn unknown_architecture_is_recognised_by_shape_and_name() {
    for fixture in ["llama", "qwen2_moe", "mixtral", "deepseek_v2", "opt", "phi3", "gemma3_text"] {
        let known = Checkpoint::read(fixture).network();
        let strange = Checkpoint::read(fixture)
            .with_config("model_type", json!("strange"))
            .with_config("architectures", json!(["StrangeForCausalLM"]));
        let network = strange.network();
        assert!(network.family().is_none());
        let unknown =
            Notice::UnknownArchitecture { name: "strange".to_owned(), can_be_described: true, described: Vec::new() };
        assert_eq!(network.notices(), [unknown], "{fixture}");
        let modules = |network: &Network| network.linears().iter().map(|l| l.module.clone()).collect::<Vec<_>>();
        assert_eq!(modules(&network), modules(&known), "{fixture}");
        let groups = |network: &Network| network.siblings().iter().map(|s| s.fused.clone()).collect::<Vec<_>>();
        assert_eq!(groups(&network), groups(&known), "{fixture}");
        for (found, expected) in network.linears().iter().zip(known.linears()) {
            let kept_by_role = expected.role.is_kept_by_default();
            assert_eq!(found.kept, kept_by_role, "{fixture}: {}", found.module);
            assert_eq!((found.block, found.expert), (expected.block, expected.expert), "{}", found.module);
            assert_eq!(found.bias, expected.bias, "{}", found.module);
        }
        assert_eq!(network.is_tied(), known.is_tied(), "{fixture}");
        assert!(network.links(0).is_empty());
    }
}

#[test]
fn conv1d_weights_of_unknown_architectures_show_by_their_biases() {
    let network = Checkpoint::read("llama")
        .with_config("model_type", json!("strange"))
        .with_config("architectures", json!(["StrangeForCausalLM"]))
        .with("h.0.attn.c_attn.weight", &[64, 192], "F32")
        .with("h.0.attn.c_attn.bias", &[192], "F32")
        .with("h.0.attn.c_proj.weight", &[64, 64], "F32")
        .with("h.0.attn.c_proj.bias", &[64], "F32")
        .with("h.0.mlp.fc.weight", &[256, 64], "F32")
        .with("h.0.mlp.fc.bias", &[256], "F32")
        .network();
    let seen = |name: &str| {
        let linear = linear(&network, name);
        (linear.orientation, linear.out_features, linear.in_features)
    };
    assert_eq!(seen("h.0.attn.c_attn"), (Orientation::InOut, 192, 64));
    assert_eq!(seen("h.0.attn.c_proj"), (Orientation::InOut, 64, 64));
    assert_eq!(seen("h.0.mlp.fc"), (Orientation::OutIn, 256, 64));
}

#[test]
fn unknown_architecture_keeps_known_modules() {
    let network = Checkpoint::read("deepseek_v3")
        .with_config("model_type", json!("deepseek_v32"))
        .with_config("architectures", json!([]))
        .with("model.layers.0.self_attn.indexer.wq_b.weight", &[32, 24], "BF16")
        .with("model.layers.2.eh_proj.weight", &[64, 128], "BF16")
        .network();
    assert!(linear(&network, "model.layers.0.self_attn.indexer.wq_b").kept);
    assert!(linear(&network, "model.layers.1.self_attn.o_proj").kept);
    assert!(!linear(&network, "model.layers.1.mlp.experts.0.up_proj").kept);
    assert!(network.notices().contains(&Notice::ExtraLayers { tensors: 1 }), "{:?}", network.notices());
}

#[test]
fn fused_experts_of_an_unknown_architecture_are_found_by_shape_and_kept() {
    let network = Checkpoint::read("gpt_oss")
        .with_config("model_type", json!("strange"))
        .with_config("architectures", json!([]))
        .network();
    let first = "model.layers.0.mlp.experts.down_proj".to_owned();
    assert!(network.notices().contains(&Notice::KeptExperts { tensors: 4, first }), "{:?}", network.notices());
    let experts = network.experts();
    assert!(experts.iter().all(|experts| experts.kept && experts.orientation == Orientation::InOut));
    assert!(experts.iter().all(|experts| experts.bias.is_some()));
}

/// Layers of experts in an unknown architecture with a hidden size of 64: shapes of gate_up_proj and down_proj.
fn orientations_found(gate_up: [usize; 3], down: [usize; 3]) -> Vec<Orientation> {
    let network = Checkpoint::read("llama")
        .with_config("model_type", json!("strange"))
        .with_config("architectures", json!([]))
        .with("model.layers.0.mlp.experts.gate_up_proj", &gate_up, "BF16")
        .with("model.layers.0.mlp.experts.down_proj", &down, "BF16")
        .network();
    network.experts().iter().map(|experts| experts.orientation).collect()
}

#[test]
fn experts_are_found_where_their_projections_fit_each_other_in_one_orientation() {
    assert_eq!(orientations_found([4, 48, 64], [4, 64, 24]), [Orientation::OutIn; 2]);
    assert_eq!(orientations_found([4, 64, 48], [4, 24, 64]), [Orientation::InOut; 2]);
    // 32 hidden values, whose gate and up have the width of the model.
    assert_eq!(orientations_found([4, 64, 64], [4, 64, 32]), [Orientation::OutIn; 2]);
    assert_eq!(orientations_found([4, 64, 64], [4, 32, 64]), [Orientation::InOut; 2]);
    assert_eq!(
        orientations_found([4, 48, 64], [4, 64, 48]),
        [],
        "the hidden values of gate and up are not those of down"
    );
    assert_eq!(orientations_found([4, 48, 64], [5, 64, 24]), [], "other numbers of experts");
    assert_eq!(orientations_found([4, 48, 96], [4, 96, 24]), [], "another width");
}

#[test]
fn known_model_type_with_foreign_names_is_recognised_by_shape() {
    let network = Checkpoint::read("gpt2").with_config("model_type", json!("llama")).network();
    assert_eq!(network.notices()[0], Notice::ForeignNames { family: "llama", is_registered: false });
    assert_eq!(network.linears().len(), 8);
    assert!(network.family().is_none());
}

#[test]
fn strange_names_and_shapes_do_not_panic() {
    let names =
        ["", ".", "..", "a", "model.layers.", "model.layers.0", "model.layers.0.", "model.layers.99999999999.x.weight"];
    let more =
        ["model.layers.999999999.self_attn.q_proj.weight", ".weight", "é.weight", "lm_head.", "lm_head.weight.weight"];
    let shapes: [&[usize]; 5] = [&[], &[0], &[0, 0], &[usize::MAX, usize::MAX], &[1, 1, usize::MAX, 16]];
    let mut tensors = Vec::new();
    for name in names.into_iter().chain(more) {
        for shape in shapes {
            tensors.push(TensorMeta::new(name, shape, "BF16"));
            tensors.push(TensorMeta::new(name, shape, "U8"));
        }
    }
    tensors.push(TensorMeta::new("model.layers.0.mlp.experts.down_proj_blocks", [1, 1, usize::MAX, 16], "U8"));
    for model_type in FAMILIES.iter().flat_map(|family| family.model_types).chain(&["none"]) {
        for sizes in
            [json!({}), json!({"num_attention_heads": 2147483647, "head_dim": 2147483647, "num_hidden_layers": 1})]
        {
            let mut config = sizes;
            config["model_type"] = json!(model_type);
            let network = Network::recognise(&ModelConfig::from_json(&config).unwrap(), &tensors);
            assert_eq!(network.places().len(), tensors.len());
            for &block in network.blocks() {
                let _ = (network.links(block), network.stages(block));
            }
        }
    }
}

#[test]
fn layers_that_predict_further_tokens_are_kept_unless_asked_for() {
    let checkpoint = Checkpoint::read("qwen3_5_moe")
        .with("mtp.fc.weight", &[64, 128], "BF16")
        .with("mtp.norm.weight", &[64], "BF16")
        .with("mtp.layers.0.self_attn.q_proj.weight", &[256, 64], "BF16")
        .with("mtp.layers.0.self_attn.k_proj.weight", &[64, 64], "BF16")
        .with("mtp.layers.0.self_attn.v_proj.weight", &[64, 64], "BF16")
        .with("mtp.layers.0.mlp.experts.3.down_proj.weight", &[64, 32], "BF16");
    let network = checkpoint.network();
    let extra: Vec<&Linear> = network.linears().iter().filter(|linear| linear.module.starts_with("mtp.")).collect();
    assert_eq!(extra.len(), 5);
    assert!(extra.iter().all(|linear| linear.kept && linear.block.is_none() && linear.expert.is_none()));
    assert!(network.siblings().iter().any(|siblings| siblings.fused == "mtp.layers.0.self_attn.qkv_proj"));
    assert_eq!(network.blocks(), [0, 1]);
    // The norm.
    assert_eq!(network.notices(), [Notice::ExtraLayers { tensors: 1 }]);
    let next = Checkpoint::read("qwen3_next").with("mtp.layers.0.linear_attn.out_proj.weight", &[64, 48], "BF16");
    assert!(linear(&next.network(), "mtp.layers.0.linear_attn.out_proj").kept);
}

/// `qwen3_5_moe` and `qwen3_5_moe_text` are one architecture with and without its other parts.
#[test]
fn text_only_variants_keep_the_same_layers() {
    let kept = |fixture: &str, model_type: &str| {
        let checkpoint = Checkpoint::read(fixture).with_config("model_type", json!(model_type));
        let network = checkpoint.with_config("architectures", json!([])).network();
        let linears = network.linears().iter().map(|linear| (linear.module.clone(), linear.kept));
        let experts = network.experts().iter().map(|experts| (experts.module.clone(), experts.kept));
        linears.chain(experts).collect::<Vec<_>>()
    };
    let mut pairs = Vec::new();
    for fixture in crate::support::names() {
        let family = Checkpoint::read(&fixture).network().family().unwrap();
        for text in family.model_types {
            let Some(whole) = text.strip_suffix("_text").filter(|whole| family.model_types.contains(whole)) else {
                continue;
            };
            let (alone, inside) = (kept(&fixture, text), kept(&fixture, whole));
            assert!(alone.iter().any(|(_, kept)| !kept), "{fixture} as {text}");
            assert_eq!(alone, inside, "{fixture} as {text} and as {whole}");
            pairs.push(whole);
        }
    }
    assert!(pairs.contains(&"qwen3_5_moe") && pairs.contains(&"gemma3"), "{pairs:?}");
    // Two families whose blocks differ in their experts only.
    let of = |fixture: &str| -> HashMap<String, bool> {
        let network = Checkpoint::read(fixture).network();
        network.linears().iter().map(|linear| (linear.module.clone(), linear.kept)).collect()
    };
    let (dense, experts) = (of("lfm2"), of("lfm2_moe"));
    let shared: Vec<_> = dense.iter().filter(|(module, _)| experts.contains_key(*module)).collect();
    assert!(shared.len() > 4, "{dense:?} {experts:?}");
    assert!(shared.iter().all(|(module, kept)| experts[*module] == **kept), "{dense:?} {experts:?}");
}
