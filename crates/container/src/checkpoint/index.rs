//! The index of a sharded checkpoint: which tensor is in which file. Parsing and path safety; the shards are not opened.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::extra::has_extension;
use crate::error::CheckpointError;
use crate::error::Error;
use crate::json::{Pairs, read_json};
use crate::limits::MAX_HEADER_LEN;

/// A checked index: every tensor once, every shard a plain relative path.
#[derive(Debug)]
pub(super) struct ShardIndex {
    pub path: PathBuf,
    /// Tensor and shard as the file has them, in file order.
    pub weight_map: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: Pairs<String>,
}

impl ShardIndex {
    /// Reads and checks an index, which may be as long as the headers it stands for.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let RawIndex { weight_map: Pairs(weight_map) } = read_json(path, MAX_HEADER_LEN)?;
        check(&weight_map).map_err(|problem| Error::Checkpoint { path: path.to_path_buf(), problem })?;
        Ok(Self { path: path.to_path_buf(), weight_map })
    }

    /// The shards, sorted, each with one of its tensors.
    pub fn shards(&self) -> BTreeMap<&str, &str> {
        self.weight_map.iter().rev().map(|(tensor, shard)| (shard.as_str(), tensor.as_str())).collect()
    }
}

fn check(weight_map: &[(String, String)]) -> Result<(), CheckpointError> {
    if weight_map.is_empty() {
        return Err(CheckpointError::EmptyIndex);
    }
    let mut seen = HashSet::with_capacity(weight_map.len());
    for (tensor, shard) in weight_map {
        let (tensor_name, shard_name) = (tensor.clone(), shard.clone());
        if !seen.insert(tensor) {
            return Err(CheckpointError::DuplicateTensor { tensor: tensor_name });
        }
        if !is_plain_path(shard) {
            return Err(CheckpointError::UnsafePath { tensor: tensor_name, shard: shard_name });
        }
        if !has_extension(shard, &["safetensors", "bin"]) {
            return Err(CheckpointError::ForeignShard { tensor: tensor_name, shard: shard_name });
        }
    }
    Ok(())
}

/// Whether a path stays inside its directory on every system: relative, `/` between parts, no `.` and `..`, no backslash,
/// drive or stream (`:`), no control character. Links are followed: caches of downloaded models are made of them.
fn is_plain_path(path: &str) -> bool {
    let forbidden = |c: char| c == '\\' || c == ':' || c.is_control();
    !path.contains(forbidden) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_accepts_plain_relative_paths_only() {
        for path in ["model.safetensors", "a/b.safetensors", "..a", "a.."] {
            assert!(is_plain_path(path), "{path}");
        }
        for path in
            ["", ".", "..", "/a", "../a", "a/../b", "a//b", "a/", "./a", "C:a", "C:\\a", "..\\a", "\\\\host\\a", "a\0"]
        {
            assert!(!is_plain_path(path), "{path:?}");
        }
    }
}
