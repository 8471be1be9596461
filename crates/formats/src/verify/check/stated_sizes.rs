//! Sizes that config.json must state, and that must fit each other. Where one is missing, transformers takes the default of the class,
//! such as 32 layers, and fills what the files do not hold with random numbers.

use crate::verify::subject::CheckpointView;
use kvant_model::family::{Part, Role};
use kvant_model::model_config::is_multimodal;
use kvant_quant::counts::number;
use kvant_quant::finding::Findings;

const HINT: &str = "take config.json from the original model";

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let Some(json) = &subject.json else { return };
    if subject.network.family().is_none() || json.get("auto_map").is_some() {
        return;
    }
    contradictions(subject, findings);
    // The language model inside a multimodal one leaves out sizes that equal the defaults of its class.
    if is_multimodal(json) {
        return;
    }
    let config = &subject.config;
    let sizes = [
        ("hidden_size", config.hidden_size),
        ("num_hidden_layers", config.num_layers),
        ("num_attention_heads", config.num_heads),
        ("vocab_size", config.vocab_size),
    ];
    // Models of Mamba 1 mixers alone have no heads, and models of images or sounds no vocabulary.
    let is_needed = |key: &str| match key {
        "num_attention_heads" => config.mamba1.is_none(),
        "vocab_size" => !subject.reads_no_tokens(),
        _ => true,
    };
    for (key, _) in sizes.iter().filter(|(key, size)| size.is_none() && is_needed(key)) {
        let reason = "is missing: transformers takes the default of the class instead, which is of another model";
        findings.error(format!("config.json: {key}"), reason, HINT);
    }
}

/// Sizes that cannot belong to one model: transformers refuses it, or fails when it runs.
fn contradictions(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let config = &subject.config;
    let mut say = |key: &str, reason: String| findings.error(format!("config.json: {key}"), reason, HINT);
    let attends = subject
        .network
        .linears()
        .iter()
        .any(|linear| matches!(linear.role, Role::Query | Role::QueryKeyValue) && linear.part == Part::Attention);
    if let (Some(hidden), Some(heads), None, None) =
        (config.hidden_size, config.num_heads, config.head_dim(), config.latent.as_ref())
        && attends
    {
        say(
            "num_attention_heads",
            format!("is {heads}, which does not divide hidden_size {hidden}; no head_dim is stated"),
        );
    }
    if let (Some(layers), Some(types)) = (config.num_layers, config.entries("layer_types"))
        && layers != types
    {
        say("layer_types", format!("has {types} entries for {}", number(layers, "layer")));
    }
    // Bamba's and its successors' mixers state their heads apart from their width.
    let size = |key: &str| config.size(key);
    if let (Some(heads), Some(width)) = (size("mamba_n_heads"), size("mamba_d_head")) {
        let inner = size("mamba_d_ssm").or_else(|| size("mamba_expand")?.checked_mul(config.hidden_size?));
        if let Some(inner) = inner.filter(|inner| heads.checked_mul(width) != Some(*inner)) {
            say("mamba_n_heads", format!("is {heads}, with heads of {width}, and the mixers are {inner} wide"));
        }
    }
    if let Some(experts) = &config.experts
        && let Some(chosen) = experts.per_token.filter(|chosen| experts.count > 1 && *chosen > experts.count)
    {
        say("num_experts_per_tok", format!("is {chosen}, and there are {}", number(experts.count, "expert")));
    }
}
