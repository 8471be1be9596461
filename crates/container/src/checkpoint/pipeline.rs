//! The folder of a diffusers pipeline: `model_index.json`, and components in folders of their own. Opens no weights.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::MAX_CONFIG_LEN;
use super::extra::{CONFIG_FILE, FOREIGN_EXTENSIONS, MANIFEST_FILE, has_extension, is_hidden, list_dir};
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
    /// Components that `model_index.json` names and that lack files, sorted, each with what is wrong.
    pub missing: Vec<(String, &'static str)>,
    /// Weights outside of all components, which a copy does without.
    pub left_out: Vec<PathBuf>,
}

/// A component with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineComponent {
    /// The name of its folder.
    pub name: String,
    /// The library of its class, e.g. `diffusers` or `transformers`.
    pub library: String,
    /// Its class.
    pub class: String,
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
        let stated = |name: &str| {
            let stated = index.get(name)?.as_array()?;
            Some((text(stated.first())?, text(stated.get(1))?))
        };
        let (mut components, mut files, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let names = list_dir(path)?.into_iter().filter(|name| !is_hidden(name) && name != MANIFEST_FILE);
        for name in names {
            let place = path.join(&name);
            let component = name.to_str().and_then(|name| Some((name, stated(name)?)));
            match component {
                _ if place.is_file() && is_weights(&name) => left_out.push(PathBuf::from(&name)),
                _ if place.is_file() => files.push(PathBuf::from(&name)),
                Some((name, (library, class))) if holds_weights(&place) => {
                    components.push(PipelineComponent { name: name.to_owned(), library, class });
                }
                // Weights of folders that the index does not name are nobody's to judge.
                _ if place.is_dir() => files.extend(files_below(path, Path::new(&name), component.is_none())?),
                _ => {}
            }
        }
        let names = index.as_object().into_iter().flatten().map(|(name, _)| name);
        let lacking = names.filter(|name| stated(name).is_some());
        let mut missing: Vec<(String, &'static str)> =
            lacking.filter_map(|name| Some((name.clone(), lack(&path.join(name))?))).collect();
        missing.sort();
        Ok(Pipeline { path: path.to_path_buf(), class, components, files, missing, left_out })
    }
}

fn is_weights(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    has_extension(&name, &["safetensors"])
        || has_extension(&name, PICKLE_EXTENSIONS)
        || has_extension(&name, FOREIGN_EXTENSIONS)
        || name.ends_with(".safetensors.index.json")
}

/// What is wrong with the folder of a component, if anything: models have a config.json, schedulers and tokenizers have other files.
fn lack(folder: &Path) -> Option<&'static str> {
    match list_dir(folder) {
        Err(_) => Some("it has no folder"),
        Ok(names) if names.is_empty() => Some("its folder is empty"),
        Ok(names) if names.iter().any(|name| name == CONFIG_FILE) && !holds_weights(folder) => {
            Some("its folder has a config.json and no weights")
        }
        Ok(_) => None,
    }
}

/// The files of a folder and of those in it, but hidden ones, and weights unless they are wanted. Links to folders are not followed.
fn files_below(root: &Path, folder: &Path, with_weights: bool) -> Result<Vec<PathBuf>, Error> {
    let (mut files, mut left) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = left.pop() {
        for name in list_dir(&root.join(&folder))?.into_iter().filter(|name| !is_hidden(name)) {
            let (file, is_wanted) = (folder.join(&name), with_weights || !is_weights(&name));
            match root.join(&file) {
                place if place.is_dir() && !place.is_symlink() => left.push(file),
                place if place.is_file() && is_wanted => files.push(file),
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
                r#"{"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"], "x": 1,
                    "vae": ["diffusers", "AutoencoderKL"], "scheduler": ["diffusers", "S"], "unet": ["diffusers", "U"],
                    "tokenizer": ["transformers", "T"], "image_encoder": [null, null]}"#,
            ),
            ("vae/config.json", "{}"),
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
        let names: Vec<(&str, &str)> =
            pipeline.components.iter().map(|found| (found.name.as_str(), found.library.as_str())).collect();
        assert_eq!(names, [("transformer", "diffusers")]);
        let missing: Vec<&str> = pipeline.missing.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(missing, ["unet", "vae"]);
        assert_eq!(pipeline.left_out, [Path::new("flux1-dev.safetensors")]);
        let files: Vec<&str> = pipeline.files.iter().filter_map(|file| file.to_str()).collect();
        assert_eq!(
            files,
            [
                "README.md",
                "model_index.json",
                "onnx/model.onnx",
                "scheduler/scheduler_config.json",
                "tokenizer/inner/vocab.json",
                "vae/config.json",
                "x/model.safetensors"
            ]
        );
    }
}
