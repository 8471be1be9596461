//! Recognises embeddings by name: tables whose rows are looked up are not linear layers, although they are matrices.

use super::names::parse_index;

/// Name words that mark a module as a lookup table.
const TABLES: [&str; 12] = [
    "codebook",
    "embd",
    "embed",
    "embedding",
    "embeddings",
    "embeds",
    "emb",
    "lookup",
    "table",
    "tables",
    "wpe",
    "wte",
];

/// Last name words of linear layers that process looked-up rows.
const WORKS_ON_TABLES: [&str; 11] =
    ["dense", "fc", "in", "layer", "layers", "linear", "mapping", "out", "proj", "project", "projection"];

/// Whether a module is an embedding by its name. The last part decides, word by word: `time_text_embed.linear_1` is a linear layer.
pub fn is_embedding_name(module: &str) -> bool {
    let mut parts = module.rsplit('.');
    let leaf = parts.next().unwrap_or(module);
    // Lists of tables: `embed_tokens.0`. Other lists have layers in them: `time_embed.0`.
    if parse_index(leaf).is_some() {
        let list = parts.next().unwrap_or_default();
        return list.ends_with("embeddings") || list.ends_with("embed_tokens");
    }
    if leaf == "embed_in" {
        return true;
    }
    let last = leaf.rsplit('_').next().unwrap_or(leaf);
    let is_table = leaf.split('_').any(|word| TABLES.contains(&word)) || is_list_of_tokens(module, leaf);
    is_table && !WORKS_ON_TABLES.contains(&last)
}

/// Learned tokens, `mask_tokens`, stand outside of blocks. In them, and behind `to`, are layers that make tokens: `attn.to_tokens`.
fn is_list_of_tokens(module: &str, leaf: &str) -> bool {
    let (mut words, last) = (leaf.split('_'), leaf.rsplit('_').next());
    let is_in_block = module.split('.').any(|part| parse_index(part).is_some());
    matches!(last, Some("token" | "tokens")) && words.next() != Some("to") && !is_in_block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_name_part_separates_embeddings_from_layers() {
        for table in [
            "model.embed_tokens",
            "embeddings.word_embeddings",
            "user_table",
            "item_lookup",
            "emb",
            "decoder.freq_emb",
            "mask_decoder.mask_tokens",
            "gpt_neox.embed_in",
            "decoder.embed_tokens.2",
            "transformer.wte",
        ] {
            assert!(is_embedding_name(table), "{table}");
        }
        for layer in [
            "time_text_embed.timestep_embedder.linear_1",
            "context_embedder",
            "x_embedder",
            "time_embedding.linear_2",
            "time_embed.0",
            "down_blocks.0.resnets.0.time_emb_proj",
            "embeddings_project",
            "encoder.embedding_hidden_mapping_in",
            "remembering",
            "blocks.3.attn.to_tokens",
            "decoder.to_tokens",
            // A head.
            "embed_out",
        ] {
            assert!(!is_embedding_name(layer), "{layer}");
        }
    }
}
