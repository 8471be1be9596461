//! The tokens that begin and end a text: where transformers looks for them, in its order.

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
    Ok(named(checkpoint, tokenizer, "eos_token")?.into_iter().collect())
}

/// The token that begins texts: the tokenizer's, or that of config.json where the tokenizer states none.
pub(crate) fn begin_token(checkpoint: &Checkpoint, tokenizer: &ModelTokenizer) -> Result<Option<u32>, Error> {
    if let Some(token) = named(checkpoint, tokenizer, "bos_token")? {
        return Ok(Some(token));
    }
    // A tokenizer that states nothing has no such token.
    if checkpoint.json("tokenizer_config.json")?.is_some() {
        return Ok(None);
    }
    Ok(checkpoint.config()?.and_then(|config| stated(&config["bos_token_id"]).first().copied()))
}

/// The token that tokenizer_config.json states under a name, as text or as an object with it.
fn named(checkpoint: &Checkpoint, tokenizer: &ModelTokenizer, name: &str) -> Result<Option<u32>, Error> {
    let config = checkpoint.json("tokenizer_config.json")?.unwrap_or_default();
    let text = config[name].as_str().or_else(|| config[name]["content"].as_str());
    Ok(text.and_then(|text| tokenizer.token(text)))
}

/// One number, or a list of them.
fn stated(entry: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match entry {
        Value::Array(list) => list.iter().filter_map(number).collect(),
        other => number(other).into_iter().collect(),
    }
}
