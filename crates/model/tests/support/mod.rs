//! Reads the checkpoint fixtures: a config.json and the names, shapes and dtypes of the tensors that go with it.

#![allow(dead_code)] // Each test binary uses its part.

use std::fs;
use std::path::{Path, PathBuf};

use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, TensorMeta};
use serde_json::Value;

/// The headers of a checkpoint.
pub struct Checkpoint {
    pub config: Value,
    pub tensors: Vec<TensorMeta>,
}

impl Checkpoint {
    /// Reads `tests/checkpoints/{name}.txt`.
    pub fn read(name: &str) -> Checkpoint {
        let text = fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap();
        let (config, lines) = text.strip_prefix("config ").unwrap().split_once('\n').unwrap();
        Checkpoint { config: serde_json::from_str(config).unwrap(), tensors: lines.lines().flat_map(expand).collect() }
    }

    pub fn network(&self) -> Network {
        Network::recognise(&ModelConfig::from_json(&self.config).unwrap(), &self.tensors)
    }

    /// The same checkpoint with other tensor names; `None` drops a tensor.
    pub fn renamed(mut self, rename: impl Fn(&str) -> Option<String>) -> Checkpoint {
        self.tensors = self.tensors.into_iter().filter_map(|tensor| renamed(tensor, &rename)).collect();
        self
    }

    /// The same checkpoint with a further tensor.
    pub fn with(mut self, name: &str, shape: &[usize], dtype: &str) -> Checkpoint {
        self.tensors.push(TensorMeta::new(name, shape, dtype));
        self
    }

    /// The same checkpoint with another value in its config.json.
    pub fn with_config(mut self, key: &str, value: Value) -> Checkpoint {
        self.config[key] = value;
        self
    }
}

/// The names of all fixtures.
pub fn names() -> Vec<String> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let mut names: Vec<_> = texts.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/checkpoints")
}

fn renamed(tensor: TensorMeta, rename: impl Fn(&str) -> Option<String>) -> Option<TensorMeta> {
    let name = rename(&tensor.name)?;
    Some(TensorMeta { name, ..tensor })
}

/// The tensors of a line `name dtype [shape]`, where `{a-b}` in the name stands for every number from a to b.
fn expand(line: &str) -> Vec<TensorMeta> {
    let mut parts = line.splitn(3, ' ');
    let (name, dtype, shape) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let shape: Vec<usize> = serde_json::from_str(shape).unwrap();
    fill(name).into_iter().map(|name| TensorMeta::new(name, shape.clone(), dtype)).collect()
}

fn fill(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let (range, after) = rest.split_once('}').unwrap();
    let (low, high) = range.split_once('-').unwrap();
    let numbers = low.parse::<usize>().unwrap()..=high.parse().unwrap();
    numbers.flat_map(|number| fill(&format!("{before}{number}{after}"))).collect()
}
