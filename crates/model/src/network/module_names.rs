//! Names of modules that differ from those in the checkpoint: in memory, and of experts that are one tensor there.

use crate::family::Family;

/// A module's name as transformers has it in memory, which AMD Quark writes and reads.
pub fn in_memory_module(family: &Family, module: &str) -> String {
    let names = family.in_memory;
    let rename = |part| names.iter().find(|(disk, _)| *disk == part).map_or(part, |(_, memory)| *memory);
    module.split('.').map(rename).collect::<Vec<_>>().join(".")
}

/// A module's name as it is on disk, whichever it has.
pub fn on_disk_module(family: &Family, module: &str) -> String {
    let names = family.in_memory;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::by_name;

    #[test]
    fn only_families_that_transformers_renames_have_other_names_in_memory() {
        let disk = "model.layers.0.block_sparse_moe.experts.3.w2";
        let [mixtral, phimoe, neox] = ["mixtral", "phimoe", "gpt_neox"].map(|name| by_name(name).unwrap());
        assert_eq!(in_memory_module(mixtral, disk), "model.layers.0.mlp.experts.3.down_proj");
        assert_eq!(on_disk_module(mixtral, "model.layers.0.mlp.experts.3.down_proj"), disk);
        assert_eq!(in_memory_module(phimoe, disk), disk);
        assert_eq!([in_memory_module(neox, "embed_out"), on_disk_module(neox, "lm_head")], ["lm_head", "embed_out"]);
    }
}
