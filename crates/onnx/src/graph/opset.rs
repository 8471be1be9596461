//! The operator sets a model imports.

use kvant_container::onnx::{ModelProto, OperatorSetIdProto};

/// The domain of the standard operators.
pub const STANDARD_DOMAIN: &str = "";

fn same(a: &str, b: &str) -> bool {
    let plain = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_owned() };
    plain(a) == plain(b)
}

/// The version imported of a domain.
pub fn opset(model: &ModelProto, domain: &str) -> Option<i64> {
    model.opset_import.iter().find(|set| same(set.domain(), domain)).map(|set| set.version())
}

/// Sees to it that a domain is imported, in `version` if it was not yet.
pub fn add_opset(model: &mut ModelProto, domain: &str, version: i64) {
    if opset(model, domain).is_none() {
        let (domain, version) = (Some(domain.to_owned()), Some(version));
        model.opset_import.push(OperatorSetIdProto { domain, version, ..OperatorSetIdProto::default() });
    }
}
