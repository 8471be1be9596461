//! Sizes that config.json must state. Where one is missing, transformers takes the default of the class, such as 32 layers, and
//! fills what the files do not hold with random numbers.

use crate::verify::subject::CheckpointView;
use kvant_model::model_config::is_multimodal;
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let Some(json) = &subject.json else { return };
    // The language model inside a multimodal one leaves out sizes that equal the defaults of its class.
    if subject.network.family().is_none() || json.get("auto_map").is_some() || is_multimodal(json) {
        return;
    }
    let config = &subject.config;
    let sizes = [
        ("hidden_size", config.hidden_size),
        ("num_hidden_layers", config.num_layers),
        ("num_attention_heads", config.num_heads),
        ("vocab_size", config.vocab_size),
    ];
    // Models of Mamba 1 mixers alone have no heads.
    let is_needed = |key: &str| key != "num_attention_heads" || config.mamba1.is_none();
    for (key, _) in sizes.iter().filter(|(key, size)| size.is_none() && is_needed(key)) {
        let reason = "is missing: transformers takes the default of the class instead, which is of another model";
        findings.error(format!("config.json: {key}"), reason, "take config.json from the original model");
    }
}
