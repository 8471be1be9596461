//! What follows from roles: pairs for smoothing, order of rounding, owners of the KV cache. Expected pairs are those
//! of AMD Quark's per-family lists where it has them, completed by the routers that read the same norm.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, outside `#[test]` functions.

use crate::support::Checkpoint;
use kvant_model::family::Role;
use kvant_model::network::{Consumer, Input, LinearId, Network, PairPath, ScaleSource, SmoothingPair};
use serde_json::json;

/// The path inside block `block`.
fn inside(module: &str, block: usize) -> &str {
    let at = module.find(&format!(".{block}.")).unwrap();
    &module[at + 3..]
}

fn source_name<'n>(network: &'n Network, link: &SmoothingPair) -> &'n str {
    match &link.from {
        ScaleSource::Norm(id) => &network.norm(*id).module,
        ScaleSource::Linear { linear, .. } => &network.linear(*linear).module,
        ScaleSource::Experts { experts, .. } => &network.experts()[experts.index()].module,
    }
}

fn consumer_name(network: &Network, consumer: Consumer) -> &str {
    match consumer {
        Consumer::Linear(id) => &network.linear(id).module,
        Consumer::Experts(id) => &network.experts()[id.index()].module,
    }
}

/// Each link of a block as `source -> consumer consumer`.
fn links_of(network: &Network, block: usize) -> Vec<String> {
    let links = network.links(block);
    let text = links.iter().map(|link| {
        let into: Vec<_> = link.into.iter().map(|consumer| inside(consumer_name(network, *consumer), block)).collect();
        format!("{} -> {}", inside(source_name(network, link), block), into.join(" "))
    });
    text.collect()
}

fn assert_links(fixture: &str, block: usize, expected: &[&str]) {
    assert_eq!(links_of(&Checkpoint::read(fixture).network(), block), expected, "{fixture}");
}

const LLAMA: &[&str] = &[
    "input_layernorm -> self_attn.k_proj self_attn.q_proj self_attn.v_proj",
    "self_attn.v_proj -> self_attn.o_proj",
    "post_attention_layernorm -> mlp.gate_proj mlp.up_proj",
    "mlp.up_proj -> mlp.down_proj",
];

#[test]
fn llama_like_families_have_four_smoothing_pairs() {
    for fixture in ["llama", "mistral", "mistral3", "qwen2", "qwen3", "gemma", "granite", "smollm3", "stablelm"] {
        assert_links(fixture, 1, LLAMA);
    }
}

#[test]
fn sandwich_norms_pair_from_the_inner_norm() {
    let gemma = [LLAMA[0], LLAMA[1], "pre_feedforward_layernorm -> mlp.gate_proj mlp.up_proj", LLAMA[3]];
    for fixture in ["gemma2", "gemma3", "gemma3_text"] {
        assert_links(fixture, 0, &gemma);
    }
    let fused = ["post_attention_layernorm -> mlp.gate_up_proj", "mlp.gate_up_proj -> mlp.down_proj"];
    assert_links("glm4", 0, &[LLAMA[0], LLAMA[1], fused[0], fused[1]]);
}

#[test]
fn fused_matrices_are_smoothed_by_their_rows() {
    let phi3 = [
        "input_layernorm -> self_attn.qkv_proj",
        "self_attn.qkv_proj -> self_attn.o_proj",
        "post_attention_layernorm -> mlp.gate_up_proj",
        "mlp.gate_up_proj -> mlp.down_proj",
    ];
    assert_links("phi3", 0, &phi3);
    let network = Checkpoint::read("phi3").network();
    let links = network.links(0);
    // 4 query heads and 2 key/value heads of 16: values are the last 32 of 128 rows.
    let values = vec![96..112, 112..128];
    assert!(matches!(&links[1].from, ScaleSource::Linear { rows, .. } if *rows == values), "{:?}", links[1]);
    assert_eq!(links[1].through, PairPath::Heads { head_dim: 16, repeat: 2 });
    let ScaleSource::Linear { rows, .. } = &links[3].from else { panic!("{links:?}") };
    assert_eq!((rows.len(), &rows[0]), (1, &(96..192)));
    assert_eq!(links[3].through, PairPath::Product);
}

#[test]
fn per_head_order_selects_every_third_row_range() {
    let network = Checkpoint::read("gpt_neox").network();
    let link = &network.links(0)[1];
    let values = vec![32..48, 80..96, 128..144, 176..192];
    assert!(matches!(&link.from, ScaleSource::Linear { rows, .. } if *rows == values), "{link:?}");
}

#[test]
fn scale_passes_relu_but_not_gelu() {
    let opt = [
        "self_attn_layer_norm -> self_attn.k_proj self_attn.q_proj self_attn.v_proj",
        "self_attn.v_proj -> self_attn.out_proj",
        "final_layer_norm -> fc1",
        "fc1 -> fc2",
    ];
    assert_links("opt", 0, &opt);
    assert_eq!(Checkpoint::read("opt").network().links(0)[3].through, PairPath::Relu);
    let gelu = Checkpoint::read("opt").with_config("activation_function", json!("gelu"));
    assert_eq!(links_of(&gelu.network(), 0), opt[..3]);
    let gpt2 = ["ln_1 -> attn.c_attn", "attn.c_attn -> attn.c_proj", "ln_2 -> mlp.c_fc"];
    assert_links("gpt2", 0, &gpt2);
    // Squared ReLU squares the scale.
    assert_links("nemotron", 0, &[LLAMA[0], LLAMA[1], "post_attention_layernorm -> mlp.up_proj"]);
}

#[test]
fn norms_read_by_the_residual_stream_are_not_smoothed() {
    assert_links("opt_350m", 0, &["self_attn.v_proj -> self_attn.out_proj", "fc1 -> fc2"]);
    assert_links("olmo2", 0, &[LLAMA[1], LLAMA[3]]);
}

#[test]
fn norms_without_weights_are_not_smoothed() {
    assert_links("olmo", 0, &[LLAMA[1], LLAMA[3]]);
}

#[test]
fn one_norm_balances_both_branches_of_a_parallel_block() {
    let cohere = "input_layernorm -> mlp.gate_proj mlp.up_proj self_attn.k_proj self_attn.q_proj self_attn.v_proj";
    for fixture in ["cohere", "cohere2", "stablelm_parallel"] {
        assert_links(fixture, 0, &[cohere, LLAMA[1], LLAMA[3]]);
    }
    let phi = "input_layernorm -> mlp.fc1 self_attn.k_proj self_attn.q_proj self_attn.v_proj";
    assert_links("phi", 0, &[phi, "self_attn.v_proj -> self_attn.dense"]);
    let neox = [
        "input_layernorm -> attention.query_key_value",
        "attention.query_key_value -> attention.dense",
        "post_attention_layernorm -> mlp.dense_h_to_4h",
    ];
    assert_links("gpt_neox", 0, &neox);
}

#[test]
fn routers_and_all_experts_are_balanced_with_the_norm() {
    let found = links_of(&Checkpoint::read("mixtral").network(), 1);
    let norm = found.iter().find(|link| link.starts_with("post_attention_layernorm")).unwrap();
    assert!(norm.contains("-> block_sparse_moe.gate "), "{norm}");
    for expert in 0..4 {
        assert!(norm.contains(&format!("experts.{expert}.w1")) && norm.contains(&format!("experts.{expert}.w3")));
        let pair = format!("block_sparse_moe.experts.{expert}.w3 -> block_sparse_moe.experts.{expert}.w2");
        assert!(found.contains(&pair), "{found:?}");
    }
    assert_eq!(found.len(), 3 + 4);
}

#[test]
fn shared_experts_and_their_gate_are_balanced_with_the_norm() {
    let found = links_of(&Checkpoint::read("qwen2_moe").network(), 0);
    let norm = found.iter().find(|link| link.starts_with("post_attention_layernorm")).unwrap();
    for reader in ["mlp.gate", "mlp.shared_expert_gate", "mlp.shared_expert.up_proj", "mlp.experts.3.gate_proj"] {
        assert!(norm.split(' ').any(|name| name == reader), "{reader}: {norm}");
    }
    assert!(found.contains(&"mlp.shared_expert.up_proj -> mlp.shared_expert.down_proj".to_owned()));
}

#[test]
fn latent_attention_pairs_through_its_own_norms() {
    let expected = [
        "input_layernorm -> self_attn.kv_a_proj_with_mqa self_attn.q_a_proj",
        "self_attn.q_a_layernorm -> self_attn.q_b_proj",
        "self_attn.kv_a_layernorm -> self_attn.kv_b_proj",
        "self_attn.kv_b_proj -> self_attn.o_proj",
        LLAMA[2],
        LLAMA[3],
    ];
    assert_links("deepseek_v2", 0, &expected);
    let network = Checkpoint::read("deepseek_v2").network();
    let link = &network.links(0)[3];
    // Per head 16 rows of keys, then 12 of values.
    let values = vec![16..28, 44..56, 72..84, 100..112];
    assert!(matches!(&link.from, ScaleSource::Linear { rows, .. } if *rows == values), "{link:?}");
    assert_eq!(link.through, PairPath::Heads { head_dim: 12, repeat: 1 });
}

#[test]
fn fused_experts_pair_only_where_the_activation_is_linear_in_up() {
    let granite = links_of(&Checkpoint::read("granitemoe").network(), 0);
    assert!(granite.contains(&"block_sparse_moe.input_linear -> block_sparse_moe.output_linear".to_owned()));
    let gpt_oss = links_of(&Checkpoint::read("gpt_oss").network(), 0);
    let norm = "post_attention_layernorm -> mlp.router mlp.experts.gate_up_proj";
    assert_eq!(gpt_oss, [LLAMA[0], LLAMA[1], norm]);
}

#[test]
fn clipped_values_are_not_smoothed() {
    let clipped = Checkpoint::read("olmo").with_config("clip_qkv", json!(8.0)).network();
    assert_eq!(links_of(&clipped, 0), [LLAMA[3]]);
}

#[test]
fn block_with_unknown_tensors_has_no_smoothing_pairs() {
    let adapted =
        Checkpoint::read("llama").with("model.layers.0.mlp.gate_proj.lora_A.weight", &[8, 64], "BF16").network();
    assert!(adapted.links(0).is_empty());
    assert_eq!(links_of(&adapted, 1), LLAMA);
    let buffer = Checkpoint::read("llama").with("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], "F32").network();
    assert_eq!(links_of(&buffer, 0), LLAMA);
}

#[test]
fn smoothing_pairs_have_matching_widths() {
    for name in crate::support::names() {
        let network = Checkpoint::read(&name).network();
        for link in network.blocks().iter().flat_map(|block| network.links(*block)) {
            let Consumer::Linear(first) = link.into[0] else { continue };
            let repeat = if let PairPath::Heads { repeat, .. } = link.through { repeat } else { 1 };
            if let ScaleSource::Linear { rows, .. } = &link.from {
                let width: usize = rows.iter().map(ExactSizeIterator::len).sum();
                assert_eq!(width * repeat, network.linear(first).in_features, "{name}: {link:?}");
            }
        }
    }
}

#[test]
fn every_layer_of_a_block_is_in_one_subset() {
    for name in crate::support::names() {
        let network = Checkpoint::read(&name).network();
        for &block in network.blocks() {
            let stages = network.stages(block);
            if name == "mllama" && block == 1 {
                assert!(stages.is_empty(), "text passes it over");
                continue;
            }
            assert!(stages.is_sorted_by(|a, b| a.input < b.input), "{name}");
            let mut staged: Vec<LinearId> = stages.iter().flat_map(|stage| stage.linears.clone()).collect();
            staged.sort();
            // What mixes several streams is kept, and reads them twice. Outputs in groups read other inputs by group.
            let mixes = |role| {
                matches!(role, Role::LaneRouter | Role::LanePrediction | Role::LaneCorrection | Role::OutputDown)
            };
            let in_block = network.linears().iter().filter(|linear| linear.block == Some(block) && !mixes(linear.role));
            let in_block = in_block.count();
            assert_eq!(staged.len(), in_block, "{name}");
            staged.dedup();
            assert_eq!(staged.len(), in_block, "{name}");
        }
    }
}

#[test]
fn subsets_follow_the_forward_pass() {
    let stages_of = |fixture: &str, block: usize| {
        let network = Checkpoint::read(fixture).network();
        let stages = network.stages(block).into_iter();
        let sizes = stages.map(|stage| (stage.input, stage.linears.len() + stage.experts.len()));
        sizes.collect::<Vec<_>>()
    };
    let llama = [(Input::Attention, 3), (Input::Heads, 1), (Input::FeedForward, 2), (Input::Hidden, 1)];
    assert_eq!(stages_of("llama", 0), llama);
    // The parallel block's first layers share an input, hence a Hessian.
    assert_eq!(stages_of("phi", 0), [(Input::Attention, 4), (Input::Heads, 1), (Input::Hidden, 1)]);
    let latent = [
        (Input::Attention, 2),
        (Input::QueryLatent, 1),
        (Input::KeyValueLatent, 1),
        (Input::Heads, 1),
        (Input::FeedForward, 2),
        (Input::Hidden, 1),
    ];
    assert_eq!(stages_of("deepseek_v3", 0), latent);
    let gpt_oss = [
        (Input::Attention, 3),
        (Input::Heads, 1),
        (Input::FeedForward, 1),
        (Input::Routed(None), 1),
        (Input::RoutedHidden(None), 1),
    ];
    assert_eq!(stages_of("gpt_oss", 0), gpt_oss);
    let qwen = stages_of("qwen2_moe", 0);
    assert!(qwen.contains(&(Input::Routed(Some(2)), 2)) && qwen.contains(&(Input::RoutedHidden(Some(2)), 1)));
    assert!(qwen.contains(&(Input::FeedForward, 4)) && qwen.contains(&(Input::SharedHidden, 1)));
}

#[test]
fn every_block_has_kv_cache_owners() {
    let owners = |fixture: &str| {
        let network = Checkpoint::read(fixture).network();
        let ids = network.kv_owners(1).into_iter();
        ids.map(|id| inside(&network.linear(id).module, 1).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(owners("llama"), ["self_attn.k_proj", "self_attn.v_proj"]);
    assert_eq!(owners("phi3"), ["self_attn.qkv_proj"]);
    assert_eq!(owners("deepseek_v2"), ["self_attn.kv_b_proj"]);
    assert_eq!(owners("gpt2"), ["attn.c_attn"]);
}

#[test]
fn recurrent_blocks_are_smoothed_behind_their_norms_and_into_their_output() {
    let mlp = ["post_attention_layernorm -> mlp.gate_proj mlp.up_proj", "mlp.up_proj -> mlp.down_proj"];
    let inputs =
        "input_layernorm -> linear_attn.in_proj_a linear_attn.in_proj_b linear_attn.in_proj_qkv linear_attn.in_proj_z";
    let delta = [inputs, "linear_attn.norm -> linear_attn.out_proj", mlp[0], mlp[1]];
    for fixture in ["qwen3_5", "qwen3_5_text"] {
        assert_links(fixture, 0, &delta);
        // The gate on what the heads give does not mix channels.
        assert_links(fixture, 1, LLAMA);
    }
    let network = Checkpoint::read("qwen3_5").network();
    let link = network.links(0).remove(1);
    assert_eq!(link.through, PairPath::Heads { head_dim: 8, repeat: 6 });
    assert_eq!(network.kv_owners(0), []);
    let inputs = "input_layernorm -> linear_attn.in_proj_ba linear_attn.in_proj_qkvz";
    let next = links_of(&Checkpoint::read("qwen3_next").network(), 0);
    assert_eq!(next[..2], [inputs, delta[1]]);
}

#[test]
fn short_convolutions_and_state_space_layers_are_smoothed_where_that_is_exact() {
    let network = Checkpoint::read("lfm2").network();
    let convolution = [
        "operator_norm -> conv.in_proj",
        "conv.in_proj -> conv.out_proj",
        "ffn_norm -> feed_forward.w1 feed_forward.w3",
        "feed_forward.w3 -> feed_forward.w2",
    ];
    assert_eq!(links_of(&network, 0), convolution);
    let link = network.links(0).remove(1);
    let ScaleSource::Linear { rows, .. } = link.from else { panic!("{link:?}") };
    // What multiplies the output of the convolution.
    assert_eq!((rows.first(), rows.len(), link.through), (Some(&(64..128)), 1, PairPath::Product));
    let bamba = links_of(&Checkpoint::read("bamba").network(), 0);
    assert_eq!(bamba[..2], ["input_layernorm -> mamba.in_proj", "mamba.norm -> mamba.out_proj"]);
    let granite = links_of(&Checkpoint::read("granitemoehybrid_dense").network(), 0);
    assert_eq!(
        granite[2..],
        ["post_attention_layernorm -> shared_mlp.input_linear", "shared_mlp.input_linear -> shared_mlp.output_linear"]
    );
    // Squared ReLU passes no scale, and in a block of one branch its norm feeds that.
    let nemotron = Checkpoint::read("nemotron_h").network();
    assert_eq!(links_of(&nemotron, 0), ["norm -> mixer.in_proj", "mixer.norm -> mixer.out_proj"]);
    assert_eq!(links_of(&nemotron, 3), ["norm -> mixer.up_proj"]);
    assert!(
        links_of(&nemotron, 1)[0].contains("mixer.gate") && links_of(&nemotron, 1)[0].contains("experts.3.up_proj")
    );
    assert_eq!(nemotron.kv_owners(3), []);
}

#[test]
fn recurrent_inputs_that_engines_fuse_are_siblings() {
    let network = Checkpoint::read("qwen3_5").network();
    let fused: Vec<&str> = network.siblings().iter().map(|siblings| inside(&siblings.fused, 0)).take(2).collect();
    assert_eq!(fused, ["linear_attn.in_proj_ba", "linear_attn.in_proj_qkvz"]);
}

#[test]
fn blocks_without_own_keys_have_no_owners_of_the_cache() {
    let network = Checkpoint::read("gemma4_layer_inputs").network();
    assert_eq!([0, 1, 2, 3].map(|block| network.kv_owners(block).len()), [2, 2, 0, 0]);
    assert_eq!([0, 1, 2, 3].map(|block| network.shares_keys(block)), [false, false, true, true]);
    assert_eq!(links_of(&network, 2)[0], "input_layernorm -> self_attn.q_proj");
    let last = network.stages(2).into_iter().map(|stage| stage.input).skip(4).collect::<Vec<_>>();
    assert_eq!(last, [Input::LayerInput, Input::LayerInputHidden]);
}

#[test]
fn experts_beside_a_network_are_smoothed_by_their_own_norm() {
    let network = Checkpoint::read("gemma4_moe").network();
    let links = links_of(&network, 0);
    assert!(links.contains(&"pre_feedforward_layernorm -> mlp.gate_proj mlp.up_proj".to_owned()), "{links:?}");
    assert!(links.contains(&"pre_feedforward_layernorm_2 -> experts.gate_up_proj".to_owned()), "{links:?}");
    assert!(links.iter().all(|link| !link.contains("router")), "{links:?}");
    assert!(network.stages(0).iter().any(|stage| stage.input == Input::Router && stage.linears.len() == 1));
}

#[test]
fn norms_whose_output_joins_the_stream_are_not_scaled() {
    let network = Checkpoint::read("gemma3n_text").network();
    let links = links_of(&network, 0);
    assert!(links.iter().all(|link| !link.starts_with("input_layernorm")), "{links:?}");
    assert!(links.contains(&"pre_feedforward_layernorm -> mlp.gate_proj mlp.up_proj".to_owned()), "{links:?}");
}

#[test]
fn selective_state_space_layers_are_smoothed_behind_their_norms() {
    let jamba = links_of(&Checkpoint::read("jamba").network(), 0);
    assert_eq!(jamba[..2], ["input_layernorm -> mamba.in_proj", "mamba.dt_layernorm -> mamba.dt_proj"]);
    assert_eq!(links_of(&Checkpoint::read("mamba").network(), 0), ["norm -> mixer.in_proj"]);
}

#[test]
fn indexers_read_what_attention_reads() {
    let links = links_of(&Checkpoint::read("deepseek_v32").network(), 0);
    let attention = "input_layernorm -> self_attn.indexer.weights_proj self_attn.indexer.wk self_attn.kv_a_proj_with_mqa self_attn.q_a_proj";
    assert_eq!(links[..2], [attention, "self_attn.q_a_layernorm -> self_attn.indexer.wq_b self_attn.q_b_proj"]);
}

#[test]
fn norms_of_hybrids_stand_where_their_mixers_need_them() {
    let network = Checkpoint::read("olmo_hybrid").network();
    let delta = links_of(&network, 0);
    assert!(delta[0].starts_with("attention_layer_norm -> linear_attn.a_proj"), "{delta:?}");
    assert!(delta.contains(&"feedforward_layer_norm -> mlp.gate_proj mlp.up_proj".to_owned()), "{delta:?}");
    // Behind attention the same name is that of a norm before the residual stream.
    assert!(links_of(&network, 1).iter().all(|link| !link.contains("layer_norm")));
}

#[test]
fn blocks_that_text_passes_over_are_left_alone() {
    let network = Checkpoint::read("mllama").network();
    assert!(!network.stages(0).is_empty() && !network.links(0).is_empty());
    assert!(network.stages(1).is_empty() && network.links(1).is_empty());
    assert!(network.residual_stream().is_err());
}

#[test]
fn values_reach_as_many_heads_as_their_block_has() {
    let network = Checkpoint::read("laguna").network();
    for block in [0, 1] {
        let links = links_of(&network, block);
        assert!(links.contains(&"self_attn.v_proj -> self_attn.o_proj".to_owned()), "{block}: {links:?}");
    }
}

#[test]
fn computed_positions_are_not_rotated() {
    let refused = Checkpoint::read("xglm").network().residual_stream().unwrap_err();
    assert!(refused.to_string().contains("positions are computed"), "{refused}");
    assert!(Checkpoint::read("nanochat").network().residual_stream().is_ok());
}

#[test]
fn layers_of_kimi_linear_are_those_of_the_mixer_of_their_block() {
    let expected = [
        "input_layernorm -> self_attn.b_proj self_attn.f_a_proj self_attn.g_a_proj self_attn.k_proj self_attn.q_proj self_attn.v_proj",
        "self_attn.o_norm -> self_attn.o_proj",
        "post_attention_layernorm -> block_sparse_moe.gate_proj block_sparse_moe.up_proj",
        "block_sparse_moe.up_proj -> block_sparse_moe.down_proj",
    ];
    assert_links("kimi_linear", 0, &expected);
    let network = Checkpoint::read("kimi_linear").network();
    assert_eq!(
        links_of(&network, 1)[..3],
        [
            "input_layernorm -> self_attn.kv_a_proj_with_mqa self_attn.q_proj",
            "self_attn.kv_a_layernorm -> self_attn.kv_b_proj",
            "self_attn.kv_b_proj -> self_attn.o_proj",
        ]
    );
    let roles = |block: usize| {
        let mut queries = network.linears().iter().filter(|linear| linear.module.ends_with("self_attn.q_proj"));
        queries.find(|linear| linear.block == Some(block)).map(|linear| linear.role)
    };
    assert_eq!([roles(0), roles(1)], [Some(Role::RecurrentQuery), Some(Role::Query)]);
}

#[test]
fn norm_before_experts_that_give_what_they_read_is_no_source() {
    let sources = |checkpoint: Checkpoint, block: usize| -> Vec<String> {
        let network = checkpoint.network();
        network.links(block).iter().map(|link| source_name(&network, link).to_owned()).collect()
    };
    let read = || Checkpoint::read("longcat_flash");
    let [first, second] = [0, 1].map(|part| format!("model.layers.0.post_attention_layernorm.{part}"));
    assert!(!sources(read(), 0).contains(&first) && sources(read(), 1).contains(&second));
    assert!(sources(read().with_config("zero_expert_num", json!(0)), 0).contains(&first));
}
