//! The folder of a diffusers pipeline: `model_index.json`, and components in folders of their own. Opens no weights.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::MAX_CONFIG_LEN;
use super::extra::{CONFIG_FILE, FOREIGN_EXTENSIONS, LeftOutFile, LeftOutReason, has_extension, is_hidden, list_dir};
use super::sources::{PICKLE_EXTENSIONS, PIPELINE_FILE, holds_weights};
use crate::error::Error;
use crate::json::read_python_json;
use crate::manifest::MANIFEST_FILE;

/// More bytes than the largest file of a tokenizer has.
const MAX_TOKENIZER_LEN: u64 = 256 << 20;

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
    /// Whether `model_index.json` names no component at all.
    pub is_empty: bool,
    /// Components that `model_index.json` names and that lack files, sorted, each with what is wrong.
    pub missing: Vec<(String, &'static str)>,
    /// Files of components without weights that cannot be read as the JSON that their names promise, each with the reason.
    pub damaged: Vec<(PathBuf, String)>,
    /// What a copy does without, named relative to the folder: weights outside of all components, and what is not a regular file.
    pub left_out: Vec<LeftOutFile>,
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
        let mut damaged = Vec::new();
        let names = list_dir(path)?.into_iter().filter(|name| !is_hidden(name) && name != MANIFEST_FILE);
        for name in names {
            let place = path.join(&name);
            let component = name.to_str().and_then(|name| Some((name, stated(name)?)));
            match component {
                _ if place.is_file() && is_weights(&name) => {
                    left_out.push(LeftOutFile { name: name.into(), reason: LeftOutReason::OutsideComponents });
                }
                _ if place.is_file() => files.push(PathBuf::from(&name)),
                Some((name, (library, class))) if holds_weights(&place) => {
                    components.push(PipelineComponent { name: name.to_owned(), library, class });
                }
                Some((name, _)) if place.is_dir() => {
                    let inside = files_below(path, Path::new(name), false, &mut left_out)?;
                    damaged.extend(inside.iter().filter_map(|file| Some((file.clone(), json_error(path, file)?))));
                    files.extend(inside);
                }
                // Folders that the index does not name are nobody's to judge, their weights included.
                _ if place.is_dir() => files.extend(files_below(path, Path::new(&name), true, &mut left_out)?),
                _ => left_out.push(LeftOutFile { name: name.into(), reason: LeftOutReason::NotAFile }),
            }
        }
        let names = index.as_object().into_iter().flatten().map(|(name, _)| name);
        let named: Vec<&String> = names.filter(|name| stated(name).is_some()).collect();
        let lacking = named.iter().filter_map(|name| Some(((*name).clone(), lack(&path.join(name))?)));
        let mut missing: Vec<(String, &'static str)> = lacking.collect();
        missing.sort();
        let is_empty = named.is_empty();
        Ok(Pipeline { path: path.to_path_buf(), class, components, files, is_empty, missing, damaged, left_out })
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
        Ok(names) => match (names.iter().any(|name| name == CONFIG_FILE), holds_weights(folder)) {
            (true, false) => Some("its folder has a config.json and no weights"),
            (false, true) => Some("its folder has weights and no config.json"),
            _ => None,
        },
    }
}

/// Why a file that its name says is JSON cannot be read as that.
fn json_error(pipeline: &Path, file: &Path) -> Option<String> {
    if file.extension().is_none_or(|extension| extension != "json") {
        return None;
    }
    match read_python_json(&pipeline.join(file), MAX_TOKENIZER_LEN) {
        Err(Error::Json { message, .. }) => Some(format!("it is not JSON: {message}")),
        Err(error) => Some(error.to_string()),
        Ok(_) => None,
    }
}

/// The files of a folder and of those in it, but hidden ones, and weights unless they are wanted. Links to folders are not followed.
/// What is neither a file nor a folder is added to `left_out`.
fn files_below(
    root: &Path,
    folder: &Path,
    with_weights: bool,
    left_out: &mut Vec<LeftOutFile>,
) -> Result<Vec<PathBuf>, Error> {
    let (mut files, mut left) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = left.pop() {
        for name in list_dir(&root.join(&folder))?.into_iter().filter(|name| !is_hidden(name)) {
            let (file, is_wanted) = (folder.join(&name), with_weights || !is_weights(&name));
            match root.join(&file) {
                place if place.is_dir() && !place.is_symlink() => left.push(file),
                place if place.is_file() && is_wanted => files.push(file),
                place if place.is_file() => {
                    left_out.push(LeftOutFile { name: file, reason: LeftOutReason::OtherWeights })
                }
                place if place.is_dir() => left_out.push(LeftOutFile { name: file, reason: LeftOutReason::Directory }),
                _ => left_out.push(LeftOutFile { name: file, reason: LeftOutReason::NotAFile }),
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

    fn left(pipeline: &Pipeline) -> Vec<(&str, LeftOutReason)> {
        pipeline.left_out.iter().filter_map(|left| Some((left.name.to_str()?, left.reason))).collect()
    }

    #[cfg(unix)]
    #[test]
    fn broken_links_are_left_out_by_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("model_index.json"), r#"{"scheduler": ["diffusers", "S"]}"#).unwrap();
        fs::create_dir(dir.path().join("scheduler")).unwrap();
        for link in ["LICENSE", "scheduler/scheduler_config.json"] {
            std::os::unix::fs::symlink("gone", dir.path().join(link)).unwrap();
        }
        let pipeline = Pipeline::open(dir.path()).unwrap();
        let expected = ["LICENSE", "scheduler/scheduler_config.json"].map(|name| (name, LeftOutReason::NotAFile));
        assert_eq!(left(&pipeline), expected);
        assert_eq!(pipeline.files, [Path::new("model_index.json")]);
    }

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
            ("scheduler/scheduler_config.json", "{"),
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
        assert_eq!(missing, ["transformer", "unet", "vae"]);
        assert_eq!(pipeline.missing[0].1, "its folder has weights and no config.json");
        let damaged: Vec<&Path> = pipeline.damaged.iter().map(|(file, _)| file.as_path()).collect();
        assert_eq!(damaged, [Path::new("scheduler/scheduler_config.json")]);
        assert!(!pipeline.is_empty && pipeline.damaged[0].1.starts_with("it is not JSON: "), "{pipeline:?}");
        fs::write(dir.path().join("model_index.json"), r#"{"_class_name": "FluxPipeline"}"#).unwrap();
        assert!(Pipeline::open(dir.path()).unwrap().is_empty);
        assert_eq!(left(&pipeline), [("flux1-dev.safetensors", LeftOutReason::OutsideComponents)]);
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
