//! The tokens that end a text: where transformers looks for them, in its order.

use crate::error::Error;
use kvant_container::Checkpoint;
use kvant_data::tokenizer::ModelTokenizer;
use serde_json::Value;

/// The end tokens of generation_config.json; of config.json where that states none; else that of the tokenizer.
pub(super) fn tokens(checkpoint: &Checkpoint, tokenizer: &ModelTokenizer) -> Result<Vec<u32>, Error> {
    let generation = checkpoint.json("generation_config.json")?;
    let config = checkpoint.config()?;
    for object in [generation, config].into_iter().flatten() {
        let text = object.get("text_config").unwrap_or(&Value::Null);
        let stated: Vec<u32> = [&object, text].into_iter().flat_map(|object| stated(&object["eos_token_id"])).collect();
        if !stated.is_empty() {
            return Ok(stated);
        }
    }
    let named = checkpoint.json("tokenizer_config.json")?.unwrap_or_default();
    let name = named["eos_token"].as_str().or_else(|| named["eos_token"]["content"].as_str());
    Ok(name.and_then(|name| tokenizer.token(name)).into_iter().collect())
}

/// One number, or a list of them.
fn stated(entry: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match entry {
        Value::Array(list) => list.iter().filter_map(number).collect(),
        other => number(other).into_iter().collect(),
    }
}
