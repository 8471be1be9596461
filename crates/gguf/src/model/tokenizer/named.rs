//! Names of models for which llama.cpp looks for certain tokens, and refuses a file that lacks them.
//!
//! Source: `llama_vocab::impl::load` of `src/llama-vocab.cpp`, which knows Phi-3 by its name.

use kvant_container::gguf::{Metadata, Value};

const NAME: &str = "general.name";

/// The beginnings of the names of Phi-3, before its number.
const PHI_3: [&str; 2] = ["phi-3", "phi3"];

/// The tokens that a model of this name must have.
pub fn wanted_by_name(name: &str) -> &'static [&'static str] {
    if phi_3(name).is_some() { &["</s>", "<unk>", "<s>", "<|endoftext|>"] } else { &[] }
}

/// Where a name says Phi-3, in bytes: the beginning, and the number.
fn phi_3(name: &str) -> Option<(usize, usize)> {
    let lower = name.to_ascii_lowercase();
    let found = PHI_3.iter().filter_map(|part| Some((lower.find(part)?, part.len())));
    found.min().map(|(at, length)| (at, at + length - 1))
}

/// Gives a model whose name wants tokens that it lacks another name, and says so. Directories are named as users like.
pub fn rename(metadata: &mut Metadata) -> Option<String> {
    let name = metadata.get(NAME).and_then(Value::as_str)?.to_owned();
    let tokens = metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array)?.strings()?;
    let missing =
        wanted_by_name(&name).iter().find(|wanted| !tokens.iter().any(|token| token.to_lossy() == **wanted))?;
    let mut other = name.clone();
    while let Some((at, number)) = phi_3(&other) {
        other.replace_range(at + "phi".len()..number, "_");
    }
    metadata.set(NAME, other.as_str());
    Some(format!(
        "the model is called {other} in the file: for {name} llama.cpp looks for the token `{missing}`, which is missing"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::gguf::Array;

    #[test]
    fn models_without_the_tokens_of_phi_3_are_not_called_so() {
        let renamed = |name: &str, tokens: &[&str]| {
            let mut metadata = Metadata::default();
            metadata.set(NAME, name);
            let tokens = tokens.iter().map(|token| (*token).into()).collect();
            metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
            let note = rename(&mut metadata);
            let made = metadata.get(NAME).and_then(Value::as_str).unwrap().to_owned();
            assert_eq!(note.is_some(), made != name, "{name}");
            made
        };
        assert_eq!(renamed("phi3", &["a"]), "phi_3");
        assert_eq!(renamed("My-Phi-3-copy-of-PHI3", &["a"]), "My-Phi_3-copy-of-PHI_3");
        assert_eq!(renamed("phi3", &["<s>", "</s>", "<unk>", "<|endoftext|>"]), "phi3");
        assert_eq!(renamed("llama", &["a"]), "llama");
    }
}
