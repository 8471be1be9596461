//! Descriptions in TOML files: a family that Kvant does not know, by the ways in which it differs from one that it knows.

use super::description::{ExpertLayout, ExpertStorage, Family, Linears};
use super::recurrent::RecurrentBlocks;
use super::role::{NormSite, Role};
use super::{all, by_name};
use kvant_container::{Diagnostic, ErrorKind};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toml::de::DeTable;
use toml::{Table, Value};

/// The family that others are usually like.
pub const USUAL: &str = "llama";

/// What `like` names in files that state all fields.
const NOTHING: &str = "nothing";

/// Tables whose keys replace those of the known family one by one. All other values replace theirs as a whole.
const TABLES: &[&str] = &["trunk", "recurrent", "moe", "extra", "cross_attention", "encoder", "math"];

/// Keys that say what the family is, which no other family can say for it.
const OWN: &[&str] = &["name", "summary", "model_types", "architectures"];

/// What keeps a file from being a description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {problem}", file.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
pub struct FamilyFileError {
    /// The file.
    pub file: PathBuf,
    /// The line of the field that is wrong, from 1 on; `None` where the file does not have it.
    pub line: Option<usize>,
    /// What is wrong with which field.
    pub problem: String,
}

impl Diagnostic for FamilyFileError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Usage
    }

    fn hint(&self) -> Option<String> {
        Some(
            "docs/guide/new-architectures.md explains the fields; built-in descriptions are in crates/model/src/family/built_in"
                .to_owned(),
        )
    }
}

/// The text of a file, in which the lines of its fields are found.
struct Source<'s> {
    file: &'s Path,
    text: &'s str,
}

/// What is wrong with a field of a description, whose path is `math.activation` or the like.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    field: &'static str,
    problem: String,
}

impl Source<'_> {
    fn error(&self, line: Option<usize>, problem: String) -> FamilyFileError {
        FamilyFileError { file: self.file.to_owned(), line, problem }
    }

    /// The error of text that is no TOML, or of a value, without the text itself, of which a line may be long.
    fn of_toml(&self, line: Option<usize>, error: &toml::de::Error) -> FamilyFileError {
        self.error(line, brief(&error.message().lines().collect::<Vec<_>>().join(", ")))
    }

    /// The error of a field. Its name is added where the problem does not have it.
    fn of_field(&self, field: &str, problem: String) -> FamilyFileError {
        let name = format!("`{}`", field.rsplit('.').next().unwrap_or(field));
        let problem = if problem.contains(&name) { problem } else { format!("`{field}`: {problem}") };
        let mut fields = self.fields();
        // A table that does not have the field, or a field inside of it.
        let line = fields.find(|(known, _)| known == field).map(|(_, line)| line);
        self.error(line, problem)
    }

    fn line_at(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }

    /// The fields of the file, those of tables whose fields replace others one by one with the table before them; each with its line.
    fn fields(&self) -> impl Iterator<Item = (String, usize)> {
        let table = DeTable::parse(self.text).map(|table| table.into_inner()).unwrap_or_default();
        let mut fields = Vec::new();
        for (key, value) in &table {
            let name = key.get_ref().to_string();
            match value.get_ref().as_table().filter(|_| TABLES.contains(&name.as_str())) {
                Some(inner) => fields.extend(
                    inner.keys().map(|key| (format!("{name}.{}", key.get_ref()), self.line_at(key.span().start))),
                ),
                None => fields.push((name, self.line_at(key.span().start))),
            }
        }
        fields.sort_by_key(|(_, line)| *line);
        fields.into_iter()
    }

    /// The first field that a description cannot have so, with the problem; `None` if each may stand alone.
    fn wrong_field(&self, base: &Table, own: &Table) -> Option<FamilyFileError> {
        self.fields().find_map(|(field, line)| {
            // A table that the base does not have stands or falls as a whole.
            let table = field.split_once('.').map(|(table, _)| table.to_owned());
            let field = table.filter(|table| base.get(table).is_none()).unwrap_or(field);
            let mut alone = base.clone();
            merge(&mut alone, only(own, &field)?);
            let error = Family::deserialize(alone).err()?;
            let problem = self.of_toml(Some(line), &error).problem;
            Some(FamilyFileError { line: Some(line), ..self.of_field(&field, problem) })
        })
    }
}

/// A message without the middle of a long value.
fn brief(message: &str) -> String {
    const EITHER_END: usize = 300;
    let characters: Vec<char> = message.chars().collect();
    match characters.len() > 2 * EITHER_END {
        true => {
            let (start, end) = (&characters[..EITHER_END], &characters[characters.len() - EITHER_END..]);
            format!("{}...{}", String::from_iter(start), String::from_iter(end))
        }
        false => message.to_owned(),
    }
}

/// A table of one field of another.
fn only(table: &Table, field: &str) -> Option<Table> {
    let (outer, inner) = field.split_once('.').map_or((field, None), |(outer, inner)| (outer, Some(inner)));
    let value = match (table.get(outer)?, inner) {
        (Value::Table(nested), Some(inner)) => {
            Value::Table(Table::from_iter([(inner.to_owned(), nested.get(inner)?.clone())]))
        }
        (value, _) => value.clone(),
    };
    Some(Table::from_iter([(outer.to_owned(), value)]))
}

/// The family that a file describes. Beside the fields of [`Family`], the file names in `like` the family that supplies the fields it
/// leaves out (`llama` unless named; `nothing` if it states all of them), except what transformers renames. Roles, norm sites and other choices are spelled in lower case with hyphens.
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
    let source = Source { file, text };
    let no_toml = |error: toml::de::Error| {
        let line = error.span().map(|span| source.line_at(span.start));
        source.of_toml(line, &error)
    };
    let mut own: Table = text.parse().map_err(no_toml)?;
    let like = match own.remove("like") {
        None => USUAL.to_owned(),
        Some(Value::String(name)) => name,
        Some(other) => {
            let problem = format!("`like` must be the name of a family, found {}", other.type_str());
            return Err(source.of_field("like", problem));
        }
    };
    if like == NOTHING {
        return of_tables(&source, Table::new(), inherited(Table::new()), own);
    }
    let base = by_name(&like).ok_or_else(|| {
        let rated = all().into_iter().map(|family| (strsim::damerau_levenshtein(&like, family.name), family.name));
        let guess = rated.min().filter(|(distance, _)| *distance <= 2);
        let guess = guess.map(|(_, name)| format!(", did you mean `{name}`?")).unwrap_or_default();
        source.of_field("like", format!("`like`: no family is called `{like}`{guess}"))
    })?;
    let whole = Table::try_from(base).map_err(|error| source.error(None, error.to_string()))?;
    let mut merged = inherited(whole.clone());
    let config_like = base.config_like.or(base.model_types.first().copied()).unwrap_or_default();
    merged.insert("config_like".to_owned(), Value::String(config_like.to_owned()));
    merged.insert("summary".to_owned(), Value::String(format!("Described in a file, like {like}")));
    of_tables(&source, whole, merged, own)
}

/// The family of a file's own fields and those that it has from the one it is like, whose fields are `base`.
fn of_tables(source: &Source<'_>, base: Table, mut merged: Table, own: Table) -> Result<Family, FamilyFileError> {
    merge(&mut merged, own.clone());
    let family = Family::deserialize(merged)
        .map_err(|error| source.wrong_field(&base, &own).unwrap_or_else(|| source.of_toml(None, &error)))?;
    check(&family).map_err(|Flaw { field, problem }| source.of_field(field, problem))?;
    Ok(family)
}

/// The fields that a family has from another one that it is like.
fn inherited(mut base: Table) -> Table {
    OWN.iter().chain(&["config_like"]).for_each(|key| drop(base.remove(*key)));
    // What transformers renames is decided by the class of the model, whatever its layers are like.
    for key in ["architectures", "in_memory"] {
        base.insert(key.to_owned(), Value::Array(Vec::new()));
    }
    base
}

/// The families of files that are like each other, each file with its name. Those that cannot be read are left out.
pub(crate) fn complete(files: &[(&'static str, &str)]) -> Vec<Family> {
    let parsed = files.iter().filter_map(|(name, text)| Some(((*name).to_owned(), text.parse().ok()?)));
    let mut tables = FamilyTables { unread: parsed.collect(), bases: BTreeMap::new() };
    let likes = tables.unread.values().filter_map(|own: &Table| own.get("like")?.as_str());
    let likes: BTreeSet<String> = likes.map(str::to_owned).collect();
    likes.iter().for_each(|name| tables.add_base(name));
    files.iter().filter_map(|(name, _)| tables.take(name)).filter_map(|table| Family::deserialize(table).ok()).collect()
}

/// The tables of families that are like each other.
struct FamilyTables {
    /// What files state.
    unread: BTreeMap<String, Table>,
    /// All fields of those that others are like.
    bases: BTreeMap<String, Table>,
}

impl FamilyTables {
    /// Completes a family that others are like. Files that are like each other in a circle are left out.
    fn add_base(&mut self, name: &str) {
        if let Some(table) = self.unread.remove(name).and_then(|own| self.completed(own)) {
            self.bases.insert(name.to_owned(), table);
        }
    }

    /// All fields of a family.
    fn take(&mut self, name: &str) -> Option<Table> {
        match self.unread.remove(name) {
            Some(own) => self.completed(own),
            None => self.bases.get(name).cloned(),
        }
    }

    /// What a file states and what its family has from another one.
    fn completed(&mut self, mut own: Table) -> Option<Table> {
        let like = own.remove("like")?;
        let like = like.as_str()?;
        if like != NOTHING {
            self.add_base(like);
        }
        let base = if like == NOTHING { Table::new() } else { self.bases.get(like)?.clone() };
        let mut table = inherited(base);
        merge(&mut table, own);
        Some(table)
    }
}

/// The error of a description whose name is taken, or cannot be spelled.
pub fn name_error(text: &str, file: &Path, problem: String) -> FamilyFileError {
    Source { file, text }.of_field("name", problem)
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
pub(super) fn check(family: &Family) -> Result<(), Flaw> {
    let flaw = |field: &'static str, problem: &str| Err(Flaw { field, problem: problem.to_owned() });
    let need = |holds: bool, field: &'static str, what: &str| if holds { Ok(()) } else { flaw(field, what) };
    need(
        !family.model_types.is_empty(),
        "model_types",
        "`model_types` is empty: no config.json would mean this family",
    )?;
    let predicts = !family.trunk.heads.is_empty() || family.encoder.is_some();
    need(predicts, "trunk.heads", "`trunk.heads` names no output head")?;
    let sites = |site| family.trunk.norms.iter().any(|(listed, _)| *listed == site);
    let ends_in_norm = sites(NormSite::Final) || family.encoder.is_some();
    if let Some(decoder) = family.decoder_stack() {
        let ends = |linears: Linears| linears.last().is_some_and(|(role, _)| *role == Role::Output);
        let has_down = decoder.mlp.iter().any(|(role, _)| *role == Role::Down);
        let is_whole = ends(decoder.attention) && ends(decoder.cross_attention) && has_down;
        let whole = "`encoder.decoder` needs both kinds of attention, each with its `output` last, and a `down` layer";
        need(is_whole, "encoder.decoder", whole)?;
    }
    need(ends_in_norm, "trunk.norms", "`trunk.norms` has no `final` norm")?;
    let ends_in_output = |mixer: Linears| mixer.last().is_none_or(|(role, _)| *role == Role::Output);
    let recurrent = family.recurrent.map_or(&[][..], |recurrent| recurrent.linears);
    need(ends_in_output(family.attention), "attention", "the last layer of `attention` must be its `output`")?;
    let last = "the last layer of `recurrent.linears` must be its `output`";
    need(ends_in_output(recurrent), "recurrent.linears", last)?;
    let mixes = !family.attention.is_empty() || !recurrent.is_empty();
    need(mixes, "attention", "neither `attention` nor `recurrent` mixes tokens")?;
    // Keys that are values have no scales of a cache.
    let has_cache = family.attention.iter().any(|(role, _)| *role == Role::KeyValue);
    let has_cache = has_cache || family.attention.is_empty() || !family.kv_globs().is_empty();
    need(has_cache, "attention", "`attention` has no layer that makes keys and values")?;
    let has_down = |linears: Linears| linears.iter().any(|(role, _)| *role == Role::Down);
    let experts = family.moe.iter().flat_map(|moe| moe.experts);
    let some_have_down = experts.clone().any(|layout| has_down(layout.linears));
    // Layouts of stacked experts are parts of one, others are spellings of the same.
    let is_whole =
        |layout: &ExpertLayout| has_down(layout.linears) || layout.storage == ExpertStorage::Stacked && some_have_down;
    let experts_have_down = family.moe.is_some() && experts.clone().all(is_whole);
    // State-space layers alone need no network behind them.
    let feeds = family.attention.is_empty() || has_down(family.mlp) || experts_have_down;
    need(feeds, "mlp", "neither `mlp` nor the experts of `moe` have a `down` layer")?;
    for layout in experts {
        let wanted = usize::from(layout.storage == ExpertStorage::Separate);
        let indices = |path: &str| path.split('.').filter(|part| *part == "{}").count();
        if let Some((_, path)) = layout.linears.iter().find(|(_, path)| indices(path) != wanted) {
            let problem = format!("`{path}`: names of separate experts have one `{{}}`, those of one tensor none");
            return flaw("moe.experts", &problem);
        }
    }
    let mut roles = BTreeMap::new();
    let beside = family.recurrent.is_some_and(|mixer| mixer.blocks == RecurrentBlocks::BesideAttention);
    // Where blocks have one mixer, those of attention may have the names of the other's layers.
    let of_mixers = |path: &str| {
        let has = |linears: Linears| linears.iter().any(|(_, listed)| *listed == path);
        !beside && has(family.attention) && has(recurrent)
    };
    for (role, path) in family.linears() {
        if roles.insert(path, role).is_some_and(|other| other != role) && !of_mixers(path) {
            return flaw(field_of(family, path), &format!("`{path}` has two roles"));
        }
    }
    match family.norms.iter().find(|(_, norm)| roles.contains_key(norm)) {
        Some((_, norm)) => flaw("norms", &format!("`{norm}` is a norm and a linear layer")),
        None => Ok(()),
    }
}

/// The field that names a linear layer: the last of several.
fn field_of(family: &Family, path: &str) -> &'static str {
    let has = |linears: Linears| linears.iter().any(|(_, listed)| *listed == path);
    let moe = family.moe.as_ref();
    let fields = [
        ("moe.shared", moe.is_some_and(|moe| has(moe.shared))),
        ("moe.routing", moe.is_some_and(|moe| has(moe.routing))),
        ("moe.experts", moe.is_some_and(|moe| moe.experts.iter().any(|layout| has(layout.linears)))),
        ("trunk.linears", has(family.trunk.linears)),
        ("mlp", has(family.mlp)),
        ("recurrent.linears", family.recurrent.is_some_and(|recurrent| has(recurrent.linears))),
    ];
    fields.into_iter().find(|(_, has)| *has).map_or("attention", |(field, _)| field)
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
        for family in FAMILIES.iter() {
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
    }

    #[test]
    fn mistakes_in_files_have_their_line_and_field_and_no_more_text() {
        let start = "name = \"mine\"\nmodel_types = [\"mine\"]\n";
        let long = "x".repeat(5000);
        for (text, line, problem) in [
            ("attention = 3", Some(3), "`attention`: invalid type: integer `3`"),
            ("[math]\nclips = true\nvalue_norm = \"yes\"", Some(5), "`math.value_norm`: invalid type: string"),
            ("[trunk]\npath = \"a\"\nheads = []", Some(5), "`trunk.heads` names no output head"),
            ("mlp = [[\"gate\", \"a\"], [\"up\", \"a\"], [\"down\", \"b\"]]", Some(3), "`mlp`: `a` has two roles"),
            ("like = 3", Some(3), "`like` must be the name of a family, found integer"),
            ("norm_kind = \"rms", Some(3), "invalid basic string"),
            (&format!("norms = \"{long}\""), Some(3), "`norms`: invalid type: string"),
        ] {
            let error = parse(&format!("{start}{text}"), "f.toml".as_ref()).unwrap_err();
            assert!(error.problem.contains(problem) && error.problem.len() < 1000, "{error}");
            assert_eq!(error.line, line, "{error}");
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        let missing = parse("name = \"mine\"", "f.toml".as_ref()).unwrap_err();
        assert_eq!(missing.to_string(), "f.toml: missing field `model_types`");
        let taken = name_error(start, "f.toml".as_ref(), "the name `mine` is taken".to_owned());
        assert_eq!(taken.to_string(), "f.toml, line 1: `name`: the name `mine` is taken");
    }
}
