//! The Hugging Face Hub: names of models, its interface, and the cache of models that were downloaded before.

use crate::address::{Address, Credentials};
use crate::client::{Client, Object};
use crate::error::RemoteError;
use kvant_container::is_hub_name;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The address of the Hub.
const ENDPOINT: &str = "https://huggingface.co";
/// The most bytes of the description of a model.
const LONGEST_DESCRIPTION: u64 = 64 << 20;
/// Endings of files that are models: a path to one is no name.
const FILES: [&str; 6] = ["safetensors", "gguf", "onnx", "bin", "pt", "pth"];

/// Returns whether a text is a name on the Hub, `organisation/name`, and not a path to a folder or a file.
fn is_name(text: &str) -> bool {
    let end = text.rsplit_once('.').map(|(_, end)| end);
    is_hub_name(text) && !end.is_some_and(|end| FILES.iter().any(|file| end.eq_ignore_ascii_case(file)))
}

/// A model on the Hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `organisation/name`.
    pub name: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

impl HubModel {
    /// The model of `hf://organisation/name[@revision]`, or of `organisation/name[@revision]`; `None` for other texts.
    pub fn parse(text: &str) -> Option<HubModel> {
        let text = text.strip_prefix("hf://").unwrap_or(text).trim_end_matches('/');
        let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let is_revision = !revision.is_empty() && revision.chars().all(is_plain) && !revision.contains("..");
        (is_name(name) && is_revision).then(|| HubModel { name: name.to_owned(), revision: revision.to_owned() })
    }

    /// The folder of the model in the cache, and in a folder that stands for it.
    pub fn folder(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }
}

/// Settings of the environment.
#[derive(Debug)]
pub struct Environment {
    endpoint: Address,
    /// Credentials for the endpoint alone.
    pub credentials: Option<Credentials>,
    pub is_offline: bool,
    /// The folder of the cache.
    pub cache: Option<PathBuf>,
}

impl Environment {
    /// Those of `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_HUB_CACHE` and `HF_HOME`, as the Hub's own tools read them.
    ///
    /// # Errors
    /// [`RemoteError::Unsupported`] for an endpoint that is no URL.
    pub fn read() -> Result<Environment, RemoteError> {
        let given =
            |name: &str| std::env::var(name).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let folder = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let endpoint = given("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let (endpoint, of_address) = Address::parse(&endpoint).ok_or_else(|| RemoteError::Unsupported {
            what: "HF_ENDPOINT is no URL of http or https".to_owned(),
            way_out: format!("unset it, or set it to a URL such as {ENDPOINT}"),
        })?;
        let token = given("HF_TOKEN").map(|token| Credentials::bearer(&token, &endpoint));
        let is_offline = given("HF_HUB_OFFLINE")
            .is_some_and(|text| ["1", "on", "yes", "true"].iter().any(|yes| text.eq_ignore_ascii_case(yes)));
        let home = || {
            let cache = folder("XDG_CACHE_HOME")
                .or_else(|| Some(folder("HOME").or_else(|| folder("USERPROFILE"))?.join(".cache")));
            folder("HF_HOME").or_else(|| Some(cache?.join("huggingface")))
        };
        let cache = folder("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub")));
        Ok(Environment { endpoint, credentials: token.or(of_address), is_offline, cache })
    }

    /// The folder of a model that was downloaded before with all its weights.
    pub fn cached(&self, model: &HubModel) -> Option<PathBuf> {
        let folder = self.cache.as_ref()?.join(model.folder());
        let commit = std::fs::read_to_string(folder.join("refs").join(&model.revision)).ok();
        let commit = commit.map_or_else(|| model.revision.clone(), |commit| commit.trim().to_owned());
        let snapshot = folder.join("snapshots").join(commit);
        is_complete(&snapshot).then_some(snapshot)
    }

    /// The commit that a revision names, and the names of the model's files.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn resolve(&self, client: &Client, model: &HubModel) -> Result<Resolved, RemoteError> {
        let address = self.endpoint.join(&format!("api/models/{}/revision/{}", model.name, model.revision));
        let object = Object::new(address);
        // The Hub answers alike for private models and for models that do not exist.
        let missing = |status| RemoteError::Missing { object: object.name(), kind: "model", status };
        let answer = client.whole(&object, LONGEST_DESCRIPTION).map_err(|error| match error {
            RemoteError::Denied { status: 401, .. } => missing(401),
            error => error,
        })?;
        let answer: Value = answer.ok_or_else(|| missing(404)).and_then(|bytes| {
            let invalid = |error: serde_json::Error| RemoteError::Invalid {
                object: object.name(),
                problem: format!("the answer is no description of a model: {error}"),
            };
            serde_json::from_slice(&bytes).map_err(invalid)
        })?;
        let is_commit = |commit: &&str| !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let commit = answer["sha"].as_str().filter(is_commit).ok_or_else(|| RemoteError::Invalid {
            object: object.name(),
            problem: "the answer names no commit".to_owned(),
        })?;
        let names = answer["siblings"].as_array().into_iter().flatten();
        let names = names.filter_map(|file| file["rfilename"].as_str().map(str::to_owned)).collect();
        let folder = self.endpoint.join(&format!("{}/resolve/{commit}/", model.name));
        Ok(Resolved { folder, commit: commit.to_owned(), names })
    }
}

/// A model at one commit.
#[derive(Debug)]
pub struct Resolved {
    /// The address of its files.
    pub folder: Address,
    pub commit: String,
    /// The names of its files.
    pub names: Vec<String>,
}

/// Returns whether a folder of the cache has a description and weights, and all shards of its index: a download may have been stopped.
fn is_complete(snapshot: &Path) -> bool {
    let index = std::fs::read(snapshot.join("model.safetensors.index.json")).ok();
    let shards = index.and_then(|index| serde_json::from_slice::<Value>(&index).ok());
    let has_all = |index: &Value| {
        let shards = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
        shards.filter_map(Value::as_str).all(|shard| snapshot.join(shard).exists())
    };
    let has_weights = || {
        let files = std::fs::read_dir(snapshot).into_iter().flatten().flatten();
        let is_weights = |path: PathBuf| {
            path.extension().is_some_and(|ending| ending == "safetensors" || ending == "bin") && path.exists()
        };
        files.map(|file| file.path()).any(is_weights)
    };
    snapshot.join("config.json").exists() && shards.map_or_else(has_weights, |index| has_all(&index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_told_from_paths() {
        for (text, name, revision) in [
            ("hf://org/name", "org/name", "main"),
            ("org/Name-1.5_b@refs/pr/3", "org/Name-1.5_b", "refs/pr/3"),
            ("hf://org/name@abc/", "org/name", "abc"),
        ] {
            assert_eq!(
                HubModel::parse(text),
                Some(HubModel { name: name.to_owned(), revision: revision.to_owned() }),
                "{text}"
            );
        }
        for text in
            ["name", "a/b/c", "../x", "./x", "/org/name", "models/x", "org/x.gguf", "org/name@", "org/name@../x"]
        {
            assert_eq!(HubModel::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_complete_models_are_taken_from_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let model = HubModel::parse("org/name").unwrap();
        let folder = dir.path().join("models--org--name");
        let snapshot = folder.join("snapshots/c0ffee");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        std::fs::write(folder.join("refs/main"), "c0ffee").unwrap();
        let write = |name: &str, text: &str| std::fs::write(snapshot.join(name), text).unwrap();
        let (endpoint, credentials) = Address::parse(ENDPOINT).unwrap();
        let environment = Environment { endpoint, credentials, is_offline: false, cache: Some(dir.path().to_owned()) };
        let found = || environment.cached(&model);
        assert_eq!(found(), None);
        write("config.json", "{}");
        write("model.safetensors.index.json", r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#);
        write("1.safetensors", "");
        assert_eq!(found(), None, "a shard is missing");
        write("2.safetensors", "");
        assert_eq!(found(), Some(snapshot.clone()));
        let by_commit = HubModel { revision: "c0ffee".to_owned(), ..model.clone() };
        assert_eq!(environment.cached(&by_commit), Some(snapshot));
        let other = HubModel { revision: "v2".to_owned(), ..model };
        assert_eq!(environment.cached(&other), None);
    }
}
