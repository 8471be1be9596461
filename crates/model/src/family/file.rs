//! Descriptions in TOML files: a family that Kvant does not know, by the ways in which it differs from one that it knows.

use super::description::{ExpertStorage, Family, Linears};
use super::role::{NormSite, Role};
use super::{all, by_name};
use kvant_container::{Diagnostic, ErrorKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The family that others are usually like.
pub const USUAL: &str = "llama";

/// Tables whose keys replace those of the known family one by one. All other values replace theirs as a whole.
const TABLES: &[&str] = &["trunk", "recurrent", "moe", "extra", "math"];

/// Keys that say what the family is, which no other family can say for it.
const OWN: &[&str] = &["name", "summary", "model_types", "architectures"];

/// What keeps a file from being a description; always *invalid*.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct FamilyFileError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

impl Diagnostic for FamilyFileError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        Some(
            "docs/guide/new-architectures.md explains the fields; built-in descriptions are in crates/model/src/family"
                .to_owned(),
        )
    }
}

/// The family that a file describes. Beside the fields of [`Family`], the file names in `like` the family that supplies the fields it
/// leaves out (`llama` unless named), except what transformers renames. Roles, norm sites and other choices are spelled in lower case with hyphens.
///
/// ```
/// let text = r#"
///     name = "my-model"
///     like = "qwen3"
///     model_types = ["my_model"]
///     mlp = [["gate", "ffn.w1"], ["up", "ffn.w3"], ["down", "ffn.w2"]]
/// "#;
/// let family = kvant_model::family::parse(text, "my_model.toml".as_ref())?;
/// assert_eq!((family.name, family.mlp.len(), family.attention.len()), ("my-model", 3, 4));
/// # Ok::<(), kvant_model::family::FamilyFileError>(())
/// ```
///
/// # Errors
/// [`FamilyFileError`] for text that is no TOML, for unknown fields and values, and for descriptions that lack a part.
pub fn parse(text: &str, file: &Path) -> Result<Family, FamilyFileError> {
    let failed = |problem: String| FamilyFileError { file: file.to_owned(), problem };
    let mut table: Table =
        text.parse().map_err(|error: toml::de::Error| failed(error.to_string().trim().to_owned()))?;
    let like = match table.remove("like") {
        None => USUAL.to_owned(),
        Some(Value::String(name)) => name,
        Some(other) => return Err(failed(format!("`like` must be the name of a family, found {}", other.type_str()))),
    };
    let base = by_name(&like).ok_or_else(|| {
        let rated = all().into_iter().map(|family| (strsim::damerau_levenshtein(&like, family.name), family.name));
        let guess = rated.min().filter(|(distance, _)| *distance <= 2);
        let guess = guess.map(|(_, name)| format!(", did you mean `{name}`?")).unwrap_or_default();
        failed(format!("`like`: no family is called `{like}`{guess}"))
    })?;
    let mut merged = Table::try_from(base).map_err(|error| failed(error.to_string()))?;
    for key in OWN {
        merged.remove(*key);
    }
    merged.insert("summary".to_owned(), Value::String(format!("Described in a file, like {like}")));
    // What transformers renames is decided by the class of the model, whatever its layers are like.
    for key in ["architectures", "in_memory"] {
        merged.insert(key.to_owned(), Value::Array(Vec::new()));
    }
    merge(&mut merged, table);
    let family: Family = merged.try_into().map_err(|error: toml::de::Error| failed(error.message().to_owned()))?;
    check(&family).map_err(failed)?;
    Ok(family)
}

fn merge(base: &mut Table, own: Table) {
    for (key, value) in own {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(own)) if TABLES.contains(&key.as_str()) => base.extend(own),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// What every description must have, and what none may have.
pub(super) fn check(family: &Family) -> Result<(), String> {
    let need = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
    need(!family.model_types.is_empty(), "`model_types` is empty: no config.json would mean this family")?;
    need(!family.trunk.heads.is_empty(), "`trunk.heads` names no output head")?;
    let sites = |site| family.trunk.norms.iter().any(|(listed, _)| *listed == site);
    need(sites(NormSite::Final), "`trunk.norms` has no `final` norm")?;
    let ends_in_output = |mixer: Linears| mixer.last().is_none_or(|(role, _)| *role == Role::Output);
    let recurrent = family.recurrent.map_or(&[][..], |recurrent| recurrent.linears);
    need(ends_in_output(family.attention), "the last layer of `attention` must be its `output`")?;
    need(ends_in_output(recurrent), "the last layer of `recurrent.linears` must be its `output`")?;
    need(!family.attention.is_empty() || !recurrent.is_empty(), "neither `attention` nor `recurrent` mixes tokens")?;
    let has_cache = family.attention.is_empty() || !family.kv_globs().is_empty();
    need(has_cache, "`attention` has no layer that makes keys and values")?;
    let has_down = |linears: Linears| linears.iter().any(|(role, _)| *role == Role::Down);
    let experts = family.moe.iter().flat_map(|moe| moe.experts);
    let experts_have_down = family.moe.is_some() && experts.clone().all(|layout| has_down(layout.linears));
    // State-space layers alone need no network behind them.
    let feeds = family.attention.is_empty() || has_down(family.mlp) || experts_have_down;
    need(feeds, "neither `mlp` nor the experts of `moe` have a `down` layer")?;
    for layout in experts {
        let wanted = usize::from(layout.storage == ExpertStorage::Separate);
        let indices = |path: &str| path.split('.').filter(|part| *part == "{}").count();
        if let Some((_, path)) = layout.linears.iter().find(|(_, path)| indices(path) != wanted) {
            return Err(format!("`{path}`: names of separate experts have one `{{}}`, those of one tensor none"));
        }
    }
    let mut roles = BTreeMap::new();
    for (role, path) in family.linears() {
        if roles.insert(path, role).is_some_and(|other| other != role) {
            return Err(format!("`{path}` has two roles"));
        }
    }
    match family.norms.iter().find(|(_, norm)| roles.contains_key(norm)) {
        Some((_, norm)) => Err(format!("`{norm}` is a norm and a linear layer")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::FAMILIES;
    use crate::family::math::{Positions, Residual};

    fn problem(text: &str) -> String {
        parse(text, "f.toml".as_ref()).unwrap_err().problem
    }

    #[test]
    fn built_in_families_survive_a_file() {
        for family in FAMILIES {
            let table = Table::try_from(family).unwrap();
            let read: Family = table.try_into().unwrap();
            assert_eq!(format!("{read:?}"), format!("{family:?}"));
        }
    }

    #[test]
    fn file_states_differences_from_a_known_family() {
        let text = r#"
            name = "mine"
            like = "mixtral"
            model_types = ["mine"]
            [trunk]
            path = "transformer"
            [math]
            residual = { parallel-if = ["parallel", true] }
            positions = { learned = { offset = 2 } }
        "#;
        let family = parse(text, "f.toml".as_ref()).unwrap();
        assert_eq!((family.trunk.path, family.trunk.blocks), ("transformer", "layers"));
        assert_eq!(family.math.residual, Residual::ParallelIf("parallel", true));
        assert_eq!(family.math.positions, Positions::Learned { offset: 2 });
        assert!(family.moe.is_some() && family.architectures.is_empty());
        assert!(by_name("mixtral").unwrap().in_memory.len() > family.in_memory.len());
    }

    #[test]
    fn mistakes_in_files_are_named() {
        let start = "name = \"mine\"\nmodel_types = [\"mine\"]\n";
        assert!(problem("name = \"mine\"").contains("missing field `model_types`"));
        assert!(problem(&format!("{start}like = \"lama\"")).contains("did you mean `llama`"));
        assert!(problem(&format!("{start}atention = []")).contains("unknown field `atention`"));
        assert!(problem(&format!("{start}attention = [[\"query\", \"q\"]]")).contains("must be its `output`"));
        assert!(problem(&format!("{start}attention = [[\"querry\", \"q\"]]")).contains("unknown variant `querry`"));
        assert!(problem(&format!("{start}[math]\nclip = true")).contains("unknown field `clip`"));
        assert!(
            problem(&format!("{start}norms = [[\"query\", \"mlp.up_proj\"]]")).contains("a norm and a linear layer")
        );
        assert!(problem("name = ").contains("TOML parse error"));
    }
}
