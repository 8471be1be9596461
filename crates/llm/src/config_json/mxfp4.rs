//! The `quantization_config` of gpt-oss as it is published.

use serde_json::{Value, json};

/// The whole object. Experts are what is quantized; `exclude` names what is not.
pub fn quantization_config(exclude: &[&str]) -> Value {
    json!({"modules_to_not_convert": exclude, "quant_method": "mxfp4"})
}
