//! Folders of a model that is a pipeline: `modules.json` of sentence-transformers names them (`1_Pooling`), and without them the model
//! computes something else.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::MAX_CONFIG_LEN;
use super::extra::{is_hidden, list_dir};
use crate::json::read_python_json;

const MODULES_FILE: &str = "modules.json";

/// The files in the folders that `modules.json` names, relative to the directory and sorted; none where there is no such file.
pub(super) fn find(dir: &Path) -> Vec<PathBuf> {
    let path = dir.join(MODULES_FILE);
    let modules = if path.is_file() { read_python_json(&path, MAX_CONFIG_LEN).ok() } else { None };
    let modules = modules.as_ref().and_then(Value::as_array).into_iter().flatten();
    let folders = modules.filter_map(|module| folder(module.get("path")?.as_str()?));
    // A folder is copied once, however often it is named and regardless of links to it: a file may name it a million times.
    let mut seen = HashSet::new();
    let folders = folders.filter(|folder| dir.join(folder).canonicalize().is_ok_and(|real| seen.insert(real)));
    let mut files: Vec<PathBuf> = folders.flat_map(|folder| files_in(dir, &folder)).collect();
    files.sort();
    files.dedup();
    files
}

/// A path below the directory, nothing of which is hidden (`.git`); the model itself has an empty one.
fn folder(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let is_seen = |part: Component<'_>| matches!(part, Component::Normal(name) if !is_hidden(name));
    (path.components().all(is_seen) && path.components().next().is_some()).then(|| path.to_path_buf())
}

fn files_in(dir: &Path, folder: &Path) -> Vec<PathBuf> {
    let names = list_dir(&dir.join(folder)).unwrap_or_default();
    let seen = names.into_iter().filter(|name| !is_hidden(name));
    seen.map(|name| folder.join(name)).filter(|file| dir.join(file).is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn module_folders_are_copied_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "1_Pooling/config.json",
            "1_Pooling/.hidden",
            "2_Dense/model.safetensors",
            "logs/x",
            ".git/config",
            "2_Dense/.cache/x",
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        }
        assert!(find(dir.path()).is_empty());
        let modules = r#"[{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}, {"path": "../logs"}, {"path": 3}, {"path": ".git"}, {"path": "2_Dense/.cache"}, {"path": "2_Dense/"}]"#;
        fs::write(dir.path().join(MODULES_FILE), modules).unwrap();
        let files: Vec<String> = find(dir.path()).iter().map(|file| file.display().to_string()).collect();
        assert_eq!(files, ["1_Pooling/config.json", "2_Dense/model.safetensors"]);
        let (extra, left_out) = super::super::extra::sort_files(dir.path(), &[]).unwrap();
        assert!(extra.contains(&PathBuf::from("1_Pooling/config.json")), "{extra:?}");
        let left_out: Vec<_> = left_out.into_iter().map(|file| file.name).collect();
        assert_eq!(left_out, [".git", "logs"].map(PathBuf::from));
    }
}
