//! Code that came with a model: which Python files its configurations name, and which of those are there. The files are read for
//! the names of what they import, and never run.

use crate::path_text::shown;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::MAX_CONFIG_LEN;
use super::extra::{has_extension, is_hidden, list_dir};
use crate::json::read_python_json;

/// The files whose `auto_map` names classes in code beside them.
const CONFIG_FILES: &[&str] = &[
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
    "image_processor_config.json",
];

/// The most bytes of a file of code that are read.
const MAX_CODE_LEN: u64 = 16 << 20;

/// The maximum nesting depth of configurations and packages.
const MAX_DEPTH: usize = 16;

/// The code of a model.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CustomCode {
    /// The files that go along with a copy, relative to the directory and sorted; none where no configuration names code.
    pub files: Vec<PathBuf>,
    /// Named but missing code.
    pub missing: Vec<MissingCode>,
}

/// A file of code that is named and is not there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingCode {
    /// The file.
    pub file: String,
    /// The configuration or code that names it.
    pub named_by: String,
}

/// Finds the code of the model in a directory.
pub(super) fn find(dir: &Path) -> CustomCode {
    let mut search = Search::new(dir);
    let mut named = false;
    for config in CONFIG_FILES {
        for module in modules_of(dir, config) {
            named = true;
            search.add(&module, Path::new(""), config);
        }
    }
    search.follow_imports();
    if named {
        // Code can find other files in more ways than its text shows.
        let names = list_dir(dir).unwrap_or_default().into_iter().filter(|name| !is_hidden(name));
        let top_level = names.map(PathBuf::from).filter(|name| is_code(name) && dir.join(name).is_file());
        search.found.extend(top_level);
    }
    CustomCode { files: search.found.into_iter().collect(), missing: search.missing.into_iter().collect() }
}

/// The modules that a configuration names.
fn modules_of(dir: &Path, config: &str) -> BTreeSet<String> {
    let path = dir.join(config);
    let mut modules = BTreeSet::new();
    if let (true, Ok(json)) = (path.is_file(), read_python_json(&path, MAX_CONFIG_LEN)) {
        collect(&json, MAX_DEPTH, &mut modules);
    }
    modules
}

/// The modules in all `auto_map` and `custom_pipelines` of a configuration and its parts.
fn collect(json: &Value, depth: usize, modules: &mut BTreeSet<String>) {
    let Some(fields) = json.as_object().filter(|_| depth > 0) else { return };
    for (key, value) in fields {
        match key.as_str() {
            "auto_map" => modules.extend(texts(value).filter_map(module_of)),
            "custom_pipelines" => {
                let pipelines = value.as_object().into_iter().flat_map(|all| all.values());
                modules.extend(pipelines.filter_map(|pipeline| module_of(pipeline.get("impl")?.as_str()?)));
            }
            _ => collect(value, depth - 1, modules),
        }
    }
}

/// The classes of an `auto_map`: texts, or lists of texts and nulls (slow and fast tokenizers).
fn texts(map: &Value) -> impl Iterator<Item = &str> {
    let values = map.as_object().into_iter().flat_map(|map| map.values()).chain(map.as_array().into_iter().flatten());
    let each = values.flat_map(|value| value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice));
    each.filter_map(Value::as_str)
}

/// The module of `module.Class`. That of `repository--module.Class` lies elsewhere.
fn module_of(class: &str) -> Option<String> {
    if class.contains("--") {
        return None;
    }
    class.rsplit_once('.').map(|(module, _)| module.to_owned())
}

struct Search<'a> {
    dir: &'a Path,
    found: BTreeSet<PathBuf>,
    missing: BTreeSet<MissingCode>,
    /// Files whose imports have not been read. A list: imports lead as deep as there are files, and the stack does not.
    unread: Vec<PathBuf>,
    /// Files and folders by the folders that they really lie in: through a link to a folder above, one file has any number of paths.
    seen: HashSet<PathBuf>,
}

impl<'a> Search<'a> {
    fn new(dir: &'a Path) -> Search<'a> {
        Search { dir, found: BTreeSet::new(), missing: BTreeSet::new(), unread: Vec::new(), seen: HashSet::new() }
    }

    /// Adds a module that is named from a package (a folder of the directory).
    fn add(&mut self, module: &str, package: &Path, named_by: &str) {
        let is_name =
            |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        let parts: Vec<&str> = module.split('.').collect();
        let plain = parts.len() <= MAX_DEPTH && parts.iter().all(|part| is_name(part));
        let path = parts.iter().fold(package.to_path_buf(), |path, part| path.join(part));
        let file = path.with_extension("py");
        if plain && self.dir.join(&file).is_file() {
            let packages = path.ancestors().skip(1).map(|package| package.join("__init__.py"));
            let packages: Vec<PathBuf> = packages.filter(|init| self.dir.join(init).is_file()).collect();
            return packages.into_iter().chain([file]).for_each(|file| self.add_file(file));
        }
        if plain && self.dir.join(&path).join("__init__.py").is_file() {
            return self.add_package(&path, MAX_DEPTH);
        }
        let file = if plain { shown(&file) } else { format!("{module}.py") };
        self.missing.insert(MissingCode { file, named_by: named_by.to_owned() });
    }

    fn add_file(&mut self, file: PathBuf) {
        let folder = self.dir.join(file.parent().unwrap_or(Path::new("")));
        // Files themselves may be links to one file: a hub cache keeps one for all that are empty.
        let place = folder.canonicalize().unwrap_or(folder).join(file.file_name().unwrap_or_default());
        if self.seen.insert(place) {
            self.found.insert(file.clone());
            self.unread.push(file);
        }
    }

    /// Adds all that the files import from beside them.
    fn follow_imports(&mut self) {
        while let Some(file) = self.unread.pop() {
            let package = file.parent().unwrap_or(Path::new("")).to_path_buf();
            let name = shown(&file);
            for module in relative_imports(&self.dir.join(&file)) {
                self.add(&module, &package, &name);
            }
        }
    }

    /// All code of a package.
    fn add_package(&mut self, package: &Path, depth: usize) {
        let folder = self.dir.join(package);
        if !self.seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone())) {
            return;
        }
        for name in list_dir(&folder).unwrap_or_default().into_iter().filter(|name| !is_hidden(name)) {
            let path = package.join(name);
            match self.dir.join(&path) {
                full if full.is_file() && is_code(&path) => self.add_file(path),
                full if full.join("__init__.py").is_file() && depth > 0 => self.add_package(&path, depth - 1),
                _ => {}
            }
        }
    }
}

fn is_code(path: &Path) -> bool {
    has_extension(&path.to_string_lossy(), &["py"])
}

/// The modules that a file imports from beside it, as transformers looks for them: `from .module import ...`. What is imported
/// from packages above is left.
fn relative_imports(file: &Path) -> BTreeSet<String> {
    let mut text = Vec::new();
    let is_read = File::open(file).and_then(|file| file.take(MAX_CODE_LEN).read_to_end(&mut text));
    let text = if is_read.is_ok() { String::from_utf8_lossy(&text).into_owned() } else { String::new() };
    let module = |line: &str| {
        let rest = line.trim_start().strip_prefix("from")?.trim_start().strip_prefix('.')?;
        let module = rest.split_whitespace().next().filter(|_| rest.starts_with(|c: char| !c.is_whitespace()))?;
        let is_import = rest[module.len()..].trim_start().starts_with("import");
        (is_import && !module.starts_with('.')).then(|| module.to_owned())
    };
    text.lines().filter_map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn dir_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn auto_map_code_and_its_imports_are_copied() {
        let config = r#"{"auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "org/other--modeling_y.Y"},
            "text_config": {"auto_map": {"AutoModel": "modeling_x.XModel"}}}"#;
        let tokenizer = r#"{"auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", null]}}"#;
        let dir = dir_with(&[
            ("config.json", config),
            ("tokenizer_config.json", tokenizer),
            ("configuration_x.py", ""),
            ("modeling_x.py", "import torch\nfrom .layers.norm import N\nfrom ..above import a\nfrom . import b\n"),
            ("tokenization_x.py", "    from .vanished import V\n"),
            ("beside.py", "from .nowhere import n\n"),
            ("layers/__init__.py", ""),
            ("layers/norm.py", "from .deep import D\n"),
            ("layers/deep.py", ""),
            ("layers/data.bin", ""),
            ("scripts/train.py", ""),
        ]);
        let code = find(dir.path());
        let files: Vec<_> = code.files.iter().map(|file| file.to_str().unwrap()).collect();
        let top = ["beside.py", "configuration_x.py"];
        assert_eq!(files[..2], top);
        assert_eq!(files[2..5], ["layers/__init__.py", "layers/deep.py", "layers/norm.py"]);
        assert_eq!(files[5..], ["modeling_x.py", "tokenization_x.py"]);
        let missing = MissingCode { file: "vanished.py".to_owned(), named_by: "tokenization_x.py".to_owned() };
        assert_eq!(code.missing, [missing]);
    }

    #[test]
    fn code_not_named_in_auto_map_is_not_copied() {
        let dir = dir_with(&[("config.json", r#"{"auto_map": {"AutoModel": "a/b--c.D"}}"#), ("train.py", "")]);
        assert_eq!(find(dir.path()), CustomCode::default());
    }

    #[test]
    fn import_chain_of_10000_files_is_followed() {
        const FILES: usize = 10_000;
        let dir = dir_with(&[("config.json", r#"{"auto_map": {"AutoModel": "m0.X"}}"#)]);
        for file in 0..FILES {
            let next = format!("from .m{} import X\n", file + 1);
            fs::write(dir.path().join(format!("m{file}.py")), next).unwrap();
        }
        let code = find(dir.path());
        assert_eq!(code.files.len(), FILES);
        assert_eq!(code.missing.len(), 1, "{:?}", code.missing.first());
        let begun = std::time::Instant::now();
        assert_eq!(super::super::extra::sort_files(dir.path(), &[]).unwrap().0.len(), FILES);
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    }

    #[cfg(unix)]
    #[test]
    fn symlink_cycles_in_imports_terminate() {
        let dir = dir_with(&[
            ("config.json", r#"{"auto_map": {"AutoConfig": "m.X", "AutoModel": "package.X"}}"#),
            ("m.py", "from .a.m import X\nfrom .b.m import X\nfrom .c.m import X\n"),
            ("package/__init__.py", ""),
            ("package/.hidden.py", ""),
            (".hidden.py", ""),
        ]);
        for name in ["a", "b", "c"] {
            std::os::unix::fs::symlink(".", dir.path().join(name)).unwrap();
            std::os::unix::fs::symlink(".", dir.path().join("package").join(name)).unwrap();
        }
        let code = find(dir.path());
        assert_eq!(code.files, ["m.py", "package/__init__.py"].map(PathBuf::from));
        assert_eq!(code.missing, []);
    }

    #[test]
    fn code_outside_the_directory_is_reported_missing() {
        let dir = dir_with(&[("in/config.json", r#"{"auto_map": {"A": "../out.X", "B": "gone.X"}}"#), ("out.py", "")]);
        let code = find(&dir.path().join("in"));
        assert!(code.files.is_empty(), "{code:?}");
        let missing: Vec<_> = code.missing.iter().map(|missing| missing.file.as_str()).collect();
        assert_eq!(missing, ["../out.py", "gone.py"]);
    }
}
