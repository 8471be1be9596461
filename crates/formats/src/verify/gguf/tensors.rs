//! Tensors: the embedding, the final norm, and in every block what a decoder has, of the sizes that the metadata give.

use super::GgufView;
use kvant_container::gguf::{Array, TensorType, Value};
use kvant_quant::finding::Findings;
use std::collections::{BTreeMap, BTreeSet};

const HINT: &str = "convert the model again";

/// Architectures whose blocks have a token mixer or a feed-forward network, not both.
const SINGLE: [&str; 4] = ["mamba", "mamba2", "nemotron_h", "nemotron_h_moe"];

/// Architectures whose queries stand beside a gate for each, in one matrix.
const GATED: [&str; 3] = ["qwen3next", "qwen35", "qwen35moe"];

/// Tensors of a block, of which one of each row must be there.
const NEEDED: [&[&str]; 3] = [
    &[
        "attn_q.weight",
        "attn_qkv.weight",
        "attn_q_a.weight",
        "attn_q_b.weight",
        "ssm_in.weight",
        "shortconv.in_proj.weight",
    ],
    &["attn_output.weight", "attn_output_b.weight", "ssm_out.weight", "shortconv.out_proj.weight"],
    &["ffn_down.weight", "ffn_down_exps.weight"],
];

pub(super) fn run(subject: &GgufView<'_>, findings: &mut Findings) {
    // The norms of the first OLMo have no weights.
    let needed: &[&str] = match subject.architecture {
        "olmo" => &["token_embd.weight"],
        // llama.cpp looks for its last norm under this name.
        "lfm2" | "lfm2moe" => &["token_embd.weight", "token_embd_norm.weight"],
        _ => &["token_embd.weight", "output_norm.weight"],
    };
    for name in needed {
        if subject.tensor(name).is_none() {
            findings.error(*name, "is missing", HINT);
        }
    }
    blocks(subject, findings);
    shapes(subject, findings);
    experts(subject, findings);
    types(subject, findings);
}

fn blocks(subject: &GgufView<'_>, findings: &mut Findings) {
    let mut blocks: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for tensor in &subject.tensors {
        if let Some((block, part)) = place(tensor.name) {
            blocks.entry(block).or_default().insert(part);
        }
    }
    let count = subject.number("block_count").unwrap_or(0);
    // A count is hostile like all else: blocks that are there bound the work.
    if let Some(first) = (0..count.min(blocks.len() + 1)).find(|block| !blocks.contains_key(block)) {
        findings.error(format!("blk.{first}"), format!("is missing; block_count is {count}"), HINT);
    }
    if let Some(last) = blocks.keys().next_back().filter(|last| **last >= count) {
        let reason =
            format!("is past the {count} blocks of block_count: llama.cpp stops at tensors that it does not ask for");
        findings.error(format!("blk.{last}"), reason, HINT);
    }
    for (block, parts) in &blocks {
        let missing = NEEDED.iter().filter(|row| !row.iter().any(|part| parts.contains(part)));
        let is_single = SINGLE.contains(&subject.architecture) && missing.clone().count() < NEEDED.len();
        for row in missing.filter(|_| !is_single) {
            findings.error(format!("blk.{block}.{}", row[0]), "is missing, and so are its alternatives", HINT);
        }
    }
}

/// The block of a tensor, and its name in it.
fn place(name: &str) -> Option<(usize, &str)> {
    let (block, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((block.parse().ok()?, part))
}

/// Sizes that follow from the metadata, the slowest dimension first.
fn shapes(subject: &GgufView<'_>, findings: &mut Findings) {
    let hidden = subject.number("embedding_length");
    let heads = subject.number("attention.head_count");
    let width = subject.number("attention.key_length").or_else(|| Some(hidden? / heads.filter(|heads| *heads > 0)?));
    let states_shared = subject.value(&format!("{}.attention.head_count_kv", subject.architecture)).is_some();
    let times = |count: Option<usize>, size: Option<usize>| count?.checked_mul(size?);
    // Layers with windows may have heads of another width.
    let slides = subject.value(&format!("{}.attention.sliding_window_pattern", subject.architecture));
    let slides = slides.and_then(Value::as_array).and_then(Array::booleans);
    let narrow = subject.number("attention.key_length_swa");
    let width_of = |block: Option<usize>| match (slides, block) {
        (Some(slides), Some(block)) if slides.get(block) == Some(&true) => narrow.or(width),
        _ => width,
    };
    // Latent attention has other sizes.
    let is_plain = subject.number("attention.kv_lora_rank").is_none();
    for tensor in &subject.tensors {
        let (block, part) = place(tensor.name).map_or((None, tensor.name), |(block, part)| (Some(block), part));
        let shared = if states_shared { subject.number_of("attention.head_count_kv", block) } else { heads };
        let width = width_of(block);
        let own = subject.number_of("attention.head_count", block);
        let queries = times(own, width).filter(|_| !GATED.contains(&subject.architecture));
        let (keys, wide) = (times(shared, width), subject.number_of("feed_forward_length", block));
        let expected = match part {
            "token_embd.weight" | "output.weight" => (None, hidden),
            "attn_q.weight" if is_plain => (queries, hidden),
            "attn_k.weight" if is_plain => (keys, hidden),
            "attn_output.weight" if is_plain => (hidden, None),
            "ffn_gate.weight" | "ffn_up.weight" => (None, hidden),
            "ffn_down.weight" => (hidden, wide),
            _ => continue,
        };
        let [rows, columns] = *tensor.shape else { continue };
        for (found, expected, axis) in [(rows, expected.0, "rows"), (columns, expected.1, "columns")] {
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                findings.error(tensor.name, format!("has {found} {axis}; the metadata ask for {expected}"), HINT);
            }
        }
    }
}

/// The matrices of experts fit each other: a gate for every projection up, and one down of the turned shape.
fn experts(subject: &GgufView<'_>, findings: &mut Findings) {
    for up in &subject.tensors {
        let Some(stem) = up.name.strip_suffix("ffn_up_exps.weight") else { continue };
        let [experts, wide, hidden] = *up.shape else { continue };
        for (name, expected) in [("ffn_gate_exps", [experts, wide, hidden]), ("ffn_down_exps", [experts, hidden, wide])]
        {
            let name = format!("{stem}{name}.weight");
            match subject.tensor(&name) {
                Some(tensor) if *tensor.shape == expected => {}
                Some(tensor) => {
                    let reason =
                        format!("has the shape {:?}; with {} it should be {expected:?}", tensor.shape, up.name);
                    findings.error(name, reason, HINT);
                }
                // Some mixtures have no gates.
                None if name.ends_with("gate_exps.weight") && UNGATED.contains(&subject.architecture) => {}
                None => findings.error(name, format!("is missing next to {}", up.name), HINT),
            }
        }
    }
}

/// Architectures whose experts have no gates.
const UNGATED: [&str; 2] = ["nemotron_h_moe", "nomic-bert-moe"];

/// Vectors are floats of 32 bits: llama.cpp adds and multiplies no others.
fn types(subject: &GgufView<'_>, findings: &mut Findings) {
    for tensor in subject.tensors.iter().filter(|tensor| tensor.shape.len() == 1) {
        let is_known = matches!(tensor.kind, TensorType::F32 | TensorType::I32 | TensorType::I64);
        if !is_known {
            let reason = format!("is a vector of {}; llama.cpp works with vectors of F32", tensor.kind);
            findings.warning(tensor.name, reason, HINT);
        }
    }
}
