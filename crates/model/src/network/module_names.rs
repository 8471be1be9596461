//! Names of modules that differ from those in the checkpoint: in memory, and of experts that are one tensor there.

use crate::family::Family;

/// Names that transformers gives modules in memory where they differ from those on disk, by family. AMD Quark writes and
/// reads the former.
const IN_MEMORY: &[(&str, &[(&str, &str)])] = &[
    ("gpt_neox", &[("embed_out", "lm_head")]),
    ("mixtral", &[("block_sparse_moe", "mlp"), ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")]),
];

/// A module's name as transformers has it in memory.
pub fn in_memory_module(family: &Family, module: &str) -> String {
    let Some((_, names)) = IN_MEMORY.iter().find(|(name, _)| *name == family.name) else {
        return module.to_owned();
    };
    let rename = |part| names.iter().find(|(disk, _)| *disk == part).map_or(part, |(_, memory)| *memory);
    module.split('.').map(rename).collect::<Vec<_>>().join(".")
}

/// A module's name as it is on disk, whichever it has.
pub fn on_disk_module(family: &Family, module: &str) -> String {
    let Some((_, names)) = IN_MEMORY.iter().find(|(name, _)| *name == family.name) else {
        return module.to_owned();
    };
    let rename = |part| names.iter().find(|(_, memory)| *memory == part).map_or(part, |(disk, _)| *disk);
    module.split('.').map(rename).collect::<Vec<_>>().join(".")
}

/// The module of one expert: `experts.gate_up_proj` becomes `experts.3.gate_up_proj`.
pub fn expert_module(module: &str, expert: usize) -> String {
    match module.rsplit_once('.') {
        Some((parent, leaf)) => format!("{parent}.{expert}.{leaf}"),
        None => format!("{expert}.{module}"),
    }
}
