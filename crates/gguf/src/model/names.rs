//! Names of roles and norms in files: derived from a tensor's role, not from its name in the source.
//!
//! Source: `TENSOR_NAMES` of gguf-py's `constants.py`.

use kvant_model::family::{NormSite, Part, RecurrentMixer, Role};

/// The stem of a linear layer's tensors inside a block: `attn_q` of `blk.3.attn_q.weight`. `None` where there is no name
/// for the role.
pub(crate) fn of_role(role: Role, part: Part) -> Option<String> {
    let stem = match role {
        Role::Query => "attn_q",
        Role::Key => "attn_k",
        Role::Value => "attn_v",
        Role::QueryKeyValue => "attn_qkv",
        Role::QueryDown => "attn_q_a",
        Role::QueryUp => "attn_q_b",
        Role::KeyValueDown => "attn_kv_a_mqa",
        Role::HeadGate => "attn_gate",
        Role::Output => "attn_output",
        Role::Gate => "ffn_gate",
        // If gate and up are one matrix, loaders look for it under the name of up.
        Role::Up | Role::GateUp => "ffn_up",
        Role::Down => "ffn_down",
        Role::Router => "ffn_gate_inp",
        Role::SharedGate => "ffn_gate_inp_shexp",
        Role::Head => return Some("output".to_owned()),
        Role::LayerInputs => return Some("per_layer_model_proj".to_owned()),
        Role::LaneInput => return Some("altup_proj".to_owned()),
        Role::LaneOutput => return Some("altup_unembd_proj".to_owned()),
        Role::LaneRouter => "altup_router",
        Role::LanePrediction => "altup_predict_coef",
        Role::LaneCorrection => "altup_correct_coef",
        Role::LowRankDown => "laurel_l",
        Role::LowRankUp => "laurel_r",
        Role::LayerInputGate => "inp_gate",
        Role::LayerInputOutput => "proj",
        Role::KeyValueUp | Role::ProjectIn | Role::ProjectOut | Role::Readout | Role::Unknown => return None,
        // See `super::recurrent`.
        Role::RecurrentInput | Role::RecurrentGate | Role::RecurrentInputGate => return None,
        Role::RecurrentDecay | Role::RecurrentStrength | Role::RecurrentRates => return None,
        Role::RecurrentChoice | Role::RecurrentStep => return None,
        Role::RecurrentSteps | Role::RecurrentDecayDown | Role::RecurrentDecayUp => return None,
        Role::RecurrentGateDown | Role::RecurrentGateUp => return None,
        Role::IndexQuery => "indexer.attn_q_b",
        Role::IndexKey => "indexer.attn_k",
        Role::IndexWeights => "indexer.proj",
        Role::IndexGate => "indexer_compressor_gate",
        Role::KeyValue => "attn_kv",
        Role::CompressedKey => "attn_compressor_kv",
        Role::CompressedGate => "attn_compressor_gate",
        Role::OutputDown => "attn_output_a",
        Role::RecurrentQuery | Role::RecurrentKey | Role::RecurrentValue => return None,
    };
    let suffix = match part {
        Part::Experts => "_exps",
        Part::SharedExperts => "_shexp",
        _ => "",
    };
    Some(format!("{stem}{suffix}"))
}

/// The stem of a norm's tensors.
pub(crate) fn of_norm(site: NormSite) -> &'static str {
    match site {
        NormSite::Embedding => "token_embd_norm",
        NormSite::AttentionInput => "attn_norm",
        NormSite::Query => "attn_q_norm",
        NormSite::Key => "attn_k_norm",
        NormSite::QueryLatent => "attn_q_a_norm",
        NormSite::KeyValueLatent => "attn_kv_a_norm",
        NormSite::CompressedKey => "attn_compressor_norm",
        NormSite::IndexQuery => "indexer.q_norm",
        NormSite::IndexKey => "indexer.k_norm",
        NormSite::Heads => "attn_sub_norm",
        NormSite::RecurrentOutput => "ssm_norm",
        NormSite::RecurrentStep => "ssm_dt_norm",
        NormSite::RecurrentWrites => "ssm_b_norm",
        NormSite::RecurrentReads => "ssm_c_norm",
        NormSite::AttentionOutput => "post_attention_norm",
        NormSite::FeedForwardInput => "ffn_norm",
        NormSite::Hidden => "ffn_sub_norm",
        NormSite::FeedForwardOutput => "post_ffw_norm",
        NormSite::DenseOutput => "post_ffw_norm_1",
        NormSite::RoutedInput => "pre_ffw_norm_2",
        NormSite::RoutedOutput => "post_ffw_norm_2",
        NormSite::LaneRouter => "altup_router_norm",
        NormSite::LowRankOutput => "laurel_post_norm",
        NormSite::LayerInputs => "per_layer_proj_norm",
        NormSite::LayerInputOutput => "post_norm",
        NormSite::Distances => "distances_norm",
        NormSite::CrossAttentionInput => "cross_attn_norm",
        NormSite::SourceEmbedding => "enc.token_embd_norm",
        NormSite::SourceFinal => "enc.output_norm",
        NormSite::Readout => "readout_norm",
        NormSite::SoundConvolution => "convolution_norm",
        NormSite::SoundFeatures => "features_norm",
        NormSite::Final => "output_norm",
    }
}

/// Returns whether dense networks of an architecture have gate and up in one matrix, under the name of up.
pub(crate) fn has_gate_in_up(architecture: &str) -> bool {
    ["chatglm", "glm4", "phi3"].contains(&architecture)
}

/// The names of small tensors of a block that belong to no layer, by the ends of their names in the source.
const PARAMETERS: [(&str, &str); 24] = [
    ("sinks", "attn_sinks.weight"),
    ("attention_sink_bias", "attn_sinks.weight"),
    ("e_score_correction_bias", "exp_probs_b.bias"),
    ("expert_bias", "exp_probs_b.bias"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("altup.correct_output_scale", "altup_correct_scale.weight"),
    ("attn_sink", "attn_sinks.weight"),
    ("indexer.compressor.ape", "indexer_compressor_ape.weight"),
    ("compressor.ape", "attn_compressor_ape.weight"),
    ("gate.bias", "exp_probs_b.bias"),
    ("hc_attn_fn", "hc_attn_fn.weight"),
    ("hc_attn_base", "hc_attn_base.weight"),
    ("hc_attn_scale", "hc_attn_scale.weight"),
    ("hc_ffn_fn", "hc_ffn_fn.weight"),
    ("hc_ffn_base", "hc_ffn_base.weight"),
    ("hc_ffn_scale", "hc_ffn_scale.weight"),
    ("hc_head_fn", "output_hc_fn.weight"),
    ("hc_head_base", "output_hc_base.weight"),
    ("hc_head_scale", "output_hc_scale.weight"),
    ("hc_head.hc_fn", "output_hc_fn.weight"),
    ("hc_head.hc_base", "output_hc_base.weight"),
    ("hc_head.hc_scale", "output_hc_scale.weight"),
];

/// The name of a small tensor of a block that belongs to no layer.
pub(crate) fn of_parameter(name: &str) -> Option<&'static str> {
    let ends = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    PARAMETERS.iter().find(|(end, _)| ends(end)).map(|(_, stem)| *stem)
}

/// Parameters that are matrices.
const MATRICES: [&str; 5] = [
    "indexer_compressor_ape.weight",
    "attn_compressor_ape.weight",
    "hc_attn_fn.weight",
    "hc_ffn_fn.weight",
    "output_hc_fn.weight",
];

/// Returns whether a parameter of this name in the file is a matrix.
pub(crate) fn is_matrix(name: &str) -> bool {
    MATRICES.contains(&name)
}

/// The stem of a layer's tensors where an architecture has another than [`of_role`] gives: the second of two output layers of DeepSeek V4, and
/// the keys of its index, which are compressed.
pub(crate) fn of_role_in(architecture: &str, role: Role, part: Part) -> Option<String> {
    match (architecture, role) {
        ("deepseek4", Role::Output) => Some("attn_output_b".to_owned()),
        ("deepseek4", Role::IndexKey) => Some("indexer_compressor_kv".to_owned()),
        _ => of_role(role, part),
    }
}

/// The stems of the tensors that a layer of a recurrent mixer becomes.
pub(crate) fn recurrent_stems(mixer: RecurrentMixer, role: Role) -> &'static [&'static str] {
    let is_delta = matches!(mixer, RecurrentMixer::GatedDelta { .. });
    match (mixer, role) {
        (RecurrentMixer::ShortConvolution, Role::RecurrentInput) => &["shortconv.in_proj"],
        (RecurrentMixer::ShortConvolution, Role::Output) => &["shortconv.out_proj"],
        (RecurrentMixer::ChannelDelta { .. }, role) => match role {
            Role::RecurrentQuery => &["attn_q"],
            Role::RecurrentKey => &["attn_k"],
            Role::RecurrentValue => &["attn_v"],
            Role::RecurrentDecayDown | Role::RecurrentSteps => &["ssm_f_a"],
            Role::RecurrentDecayUp => &["ssm_f_b"],
            Role::RecurrentStrength => &["ssm_beta"],
            Role::RecurrentGateDown | Role::RecurrentGate => &["ssm_g_a"],
            Role::RecurrentGateUp => &["ssm_g_b"],
            Role::Output => &["attn_output"],
            _ => &[],
        },
        (RecurrentMixer::Lightning { .. }, Role::Output) => &["attn_output"],
        (_, Role::Output) => &["ssm_out"],
        (_, Role::RecurrentInputGate) if is_delta => &["attn_qkv", "attn_gate"],
        (_, Role::RecurrentInputGate) => &["ssm_in"],
        (_, Role::RecurrentInput) => &["attn_qkv"],
        (_, Role::RecurrentGate) => &["attn_gate"],
        (_, Role::RecurrentRates) => &["ssm_ba"],
        (_, Role::RecurrentDecay) => &["ssm_alpha"],
        (_, Role::RecurrentStrength) => &["ssm_beta"],
        (_, Role::RecurrentChoice) => &["ssm_x"],
        (_, Role::RecurrentStep) => &["ssm_dt"],
        _ => &[],
    }
}

/// The names of norms that have no ending in the file, though they are weights.
pub(crate) fn norm_ending(architecture: &str, stem: &str) -> &'static str {
    if (architecture, stem) == ("falcon-h1", "ffn_norm") { "" } else { ".weight" }
}

/// The name of the scales that products with a tensor's matrices are multiplied with: one a matrix.
pub(crate) fn of_scale(weight: &str) -> String {
    format!("{}.scale", stem_of(weight))
}

/// The name of a weight without its last part.
pub fn stem_of(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

/// A name inside a block, or outside of all.
pub(crate) fn in_block(block: Option<usize>, name: &str) -> String {
    block.map_or_else(|| name.to_owned(), |block| format!("blk.{block}.{name}"))
}
