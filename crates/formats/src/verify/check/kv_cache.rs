//! Scales of keys and values: for every block, where config.json promises them.

use super::DAMAGED;
use super::layout::said;
use crate::import::survey::ProblemKind as About;
use crate::verify::statement::QuantConfig;
use crate::verify::subject::CheckpointView;
use kvant_quant::finding::{Findings, Severity};
use std::collections::BTreeSet;

/// The last parts of the names of tensors with scales of keys and values.
const OF_CACHE: [&str; 3] = [".k_scale", ".v_scale", ".kv_scale"];
/// Modules whose outputs are keys, values or both.
const MAKERS: [&str; 5] = ["k_proj", "v_proj", "qkv_proj", "query_key_value", "kv_b_proj"];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Attention) {
        let (place, reason) = said(&problem.error, &problem.module);
        findings.error(place, reason, DAMAGED);
    }
    if !subject.statement.as_ref().is_some_and(QuantConfig::promises_cache) {
        return;
    }
    let with: BTreeSet<usize> = subject
        .survey
        .parameters
        .iter()
        .filter(|(name, _)| is_of_cache(name))
        .filter_map(|(name, _)| block(name))
        .collect();
    // Blocks without attention keep no keys and values, nor do those that attend to another one's.
    let family = subject.network.family();
    let keeps = |block: usize| {
        family.is_none_or(|family| {
            family.branches(&subject.config, block).attention && family.key_block(&subject.config, block) == block
        })
    };
    let blocks = subject.network.blocks().iter().copied().filter(|block| keeps(*block));
    let without: Vec<usize> = blocks.filter(|block| !with.contains(block)).collect();
    let Some(first) = without.first() else { return };
    // Engines take 1 where there is none at all; where some are missing, the file is not whole.
    let severity = if with.is_empty() { Severity::Warning } else { Severity::Error };
    let reason = format!(
        "has no scales of keys and values, as {} more blocks, and config.json promises them",
        without.len() - 1
    );
    findings.add(
        severity,
        format!("block {first}"),
        reason,
        "calibrate the cache, or take its scheme out of config.json",
    );
}

fn is_of_cache(name: &str) -> bool {
    let made = name.strip_suffix(".output_scale").and_then(|module| module.rsplit('.').next());
    OF_CACHE.iter().any(|suffix| name.ends_with(suffix)) || made.is_some_and(|leaf| MAKERS.contains(&leaf))
}

/// The first number of a name.
fn block(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}
