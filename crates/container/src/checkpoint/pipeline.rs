//! The folder of a diffusers pipeline: `model_index.json`, and components in folders of their own. Opens no weights.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::MAX_CONFIG_LEN;
use super::extra::{FOREIGN_EXTENSIONS, MANIFEST_FILE, has_extension, is_hidden, list_dir};
use super::sources::{PICKLE_EXTENSIONS, PIPELINE_FILE, holds_weights};
use crate::error::Error;
use crate::json::read_python_json;

/// A pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Its folder.
    pub path: PathBuf,
    /// The class of the pipeline, if `model_index.json` names it.
    pub class: Option<String>,
    /// The components that have weights, by name.
    pub components: Vec<PipelineComponent>,
    /// The files of a copy besides those of these components: of the folder itself and of components without weights, relative to the
    /// folder.
    pub files: Vec<PathBuf>,
    /// Components that `model_index.json` names and that have no folder, sorted.
    pub missing: Vec<String>,
}

/// A component with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineComponent {
    /// The name of its folder.
    pub name: String,
    /// The library of its class, `diffusers` or `transformers`; `None` if `model_index.json` does not name the component.
    pub library: Option<String>,
    /// Its class.
    pub class: Option<String>,
}

impl Pipeline {
    /// Returns whether a folder is a pipeline.
    pub fn is_at(path: &Path) -> bool {
        path.join(PIPELINE_FILE).is_file()
    }

    /// Reads the index and the names of files.
    ///
    /// # Errors
    ///
    /// [`Error::Json`], [`Error::TooLarge`], [`Error::Io`].
    pub fn open(path: &Path) -> Result<Pipeline, Error> {
        let index = read_python_json(&path.join(PIPELINE_FILE), MAX_CONFIG_LEN)?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let class = text(index.get("_class_name"));
        let (mut components, mut files) = (Vec::new(), Vec::new());
        let names = list_dir(path)?.into_iter().filter(|name| !is_hidden(name) && name != MANIFEST_FILE);
        for name in names {
            let place = path.join(&name);
            if place.is_file() {
                files.extend((!is_weights(&name)).then(|| PathBuf::from(&name)));
            } else if let Some(name) = name.to_str().filter(|_| holds_weights(&place)) {
                let stated = index.get(name);
                let part = |at: usize| text(stated.and_then(|stated| stated.get(at)));
                components.push(PipelineComponent { name: name.to_owned(), library: part(0), class: part(1) });
            } else if place.is_dir() {
                files.extend(files_below(path, Path::new(&name))?);
            }
        }
        let is_component = |stated: &Value| stated.as_array().is_some_and(|stated| stated.iter().all(Value::is_string));
        let stated = index.as_object().into_iter().flatten().filter(|(_, stated)| is_component(stated));
        let missing = stated.map(|(name, _)| name.clone()).filter(|name| !path.join(name).is_dir()).collect();
        Ok(Pipeline { path: path.to_path_buf(), class, components, files, missing })
    }
}

fn is_weights(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    has_extension(&name, &["safetensors"])
        || has_extension(&name, PICKLE_EXTENSIONS)
        || has_extension(&name, FOREIGN_EXTENSIONS)
        || name.ends_with(".safetensors.index.json")
}

/// The files of a folder and of those in it, but weights and hidden ones. Links to folders are not followed.
fn files_below(root: &Path, folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let (mut files, mut left) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = left.pop() {
        for name in list_dir(&root.join(&folder))?.into_iter().filter(|name| !is_hidden(name)) {
            let (file, is_weights) = (folder.join(&name), is_weights(&name));
            match root.join(&file) {
                place if place.is_dir() && !place.is_symlink() => left.push(file),
                place if place.is_file() && !is_weights => files.push(file),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn components_are_folders_with_weights_and_other_files_go_along() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            (
                "model_index.json",
                r#"{"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"], "x": 1}"#,
            ),
            ("README.md", ""),
            ("flux1-dev.safetensors", ""),
            (".gitattributes", ""),
            ("scheduler/scheduler_config.json", "{}"),
            ("tokenizer/inner/vocab.json", "{}"),
            ("onnx/model.onnx", ""),
            ("transformer/diffusion_pytorch_model.safetensors", ""),
            ("x/model.safetensors", ""),
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert!(Pipeline::is_at(dir.path()) && !Pipeline::is_at(&dir.path().join("x")));
        let pipeline = Pipeline::open(dir.path()).unwrap();
        assert_eq!(pipeline.class.as_deref(), Some("FluxPipeline"));
        let names: Vec<(&str, Option<&str>)> =
            pipeline.components.iter().map(|found| (found.name.as_str(), found.library.as_deref())).collect();
        assert_eq!(names, [("transformer", Some("diffusers")), ("x", None)]);
        let files: Vec<&str> = pipeline.files.iter().filter_map(|file| file.to_str()).collect();
        assert_eq!(
            files,
            ["README.md", "model_index.json", "scheduler/scheduler_config.json", "tokenizer/inner/vocab.json"]
        );
    }
}
