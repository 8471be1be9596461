//! Heads that get a separate weight, in config.json.

use serde_json::Value;

/// States that the head does not share the embeddings, wherever config.json says that it does.
pub fn untie(config: &mut Value) {
    const KEY: &str = "tie_word_embeddings";
    let Some(whole) = config.as_object_mut() else { return };
    whole.insert(KEY.to_owned(), Value::Bool(false));
    for part in whole.values_mut().filter_map(Value::as_object_mut).filter(|part| part.contains_key(KEY)) {
        part.insert(KEY.to_owned(), Value::Bool(false));
    }
}
