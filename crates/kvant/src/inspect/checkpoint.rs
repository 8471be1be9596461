//! The contents of a checkpoint: architecture, tensors, sizes and quantization, from headers and config.json alone.

use super::quantization::{self, Quantization};
use crate::error::{Error, ErrorKind};
use crate::job;
use crate::json::path as path_json;
use crate::text::shown;
use kvant_container::{Checkpoint, TensorView};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, Notice, TensorMeta};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Facts about a checkpoint.
pub struct CheckpointInspection {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// `None` without a config.json.
    config: Option<ModelConfig>,
    /// Its layers.
    pub network: Network,
    /// The quantization it has already.
    pub quantization: Option<Quantization>,
}

/// Tensors of one type.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypeShare {
    /// Their number.
    pub tensors: usize,
    /// Their elements.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl CheckpointInspection {
    pub(crate) fn read(model: &Path) -> Result<CheckpointInspection, Error> {
        let checkpoint = job::open_whole(model)?;
        let json = checkpoint.config()?;
        let (config, metas) = headers(&checkpoint)?;
        let network = Network::recognise(config.as_ref().unwrap_or(&ModelConfig::default()), &metas);
        let quantization = quantization::find(&checkpoint, json.as_ref());
        Ok(CheckpointInspection { checkpoint, config, network, quantization })
    }

    /// The architecture that config.json names.
    pub fn architecture(&self) -> Option<&str> {
        let config = self.config.as_ref()?;
        config.architectures.first().or(config.model_types.first()).map(String::as_str)
    }

    /// The family of the architecture.
    pub fn family(&self) -> Option<&'static str> {
        self.network.family().map(|family| family.name)
    }

    /// Returns whether head and embedding share a weight; not known without a configuration.
    pub fn tied(&self) -> Option<bool> {
        self.config.as_ref().map(|_| self.network.is_tied())
    }

    /// Without a config.json there is nothing to compare names with; quantization has its own place.
    pub fn notices(&self) -> Vec<String> {
        let is_reported =
            |notice: &&Notice| self.config.is_some() && !matches!(notice, Notice::AlreadyQuantized { .. });
        self.network.notices().iter().filter(is_reported).map(ToString::to_string).collect()
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.checkpoint.tensors().map(|tensor| tensor.byte_len()).sum()
    }

    /// Tensors by type.
    pub fn shares(&self) -> BTreeMap<String, TypeShare> {
        let mut shares: BTreeMap<String, TypeShare> = BTreeMap::new();
        for tensor in self.checkpoint.tensors() {
            let share = shares.entry(tensor.dtype().to_string()).or_default();
            share.tensors += 1;
            share.elements += elements(&tensor);
            share.bytes += tensor.byte_len();
        }
        shares
    }

    /// Tensors by type, as JSON.
    pub(crate) fn types_json(&self) -> BTreeMap<String, Value> {
        let share =
            |share: TypeShare| json!({"tensors": share.tensors, "elements": share.elements, "bytes": share.bytes});
        self.shares().into_iter().map(|(dtype, of_type)| (dtype, share(of_type))).collect()
    }

    pub(crate) fn to_json(&self) -> Value {
        let files: Vec<_> = self.checkpoint.shards().iter().map(|shard| shown(shard.path())).collect();
        json!({
            "model": path_json(self.checkpoint.path()),
            "architecture": self.architecture(),
            "family": self.family(),
            "tied": self.tied(),
            "bytes": self.bytes(),
            "files": files,
            "metadata": self.checkpoint.metadata(),
            "quantization": self.quantization,
            "types": self.types_json(),
            "notices": self.notices(),
        })
    }

    pub(crate) fn tensors_json(&self) -> impl Iterator<Item = Value> {
        self.checkpoint.tensors().map(|tensor: TensorView<'_>| {
            json!({
                "name": tensor.name(), "dtype": tensor.dtype().to_string(), "shape": tensor.shape(),
                "bytes": tensor.byte_len(), "file": path_json(tensor.file()),
            })
        })
    }
}

/// The configuration and the tensors of a checkpoint.
pub(crate) fn headers(checkpoint: &Checkpoint) -> Result<(Option<ModelConfig>, Vec<TensorMeta>), Error> {
    let config = checkpoint.config()?.map(|json| ModelConfig::from_json(&json)).transpose();
    let config = config.map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    let meta = |tensor: TensorView<'_>| TensorMeta::new(tensor.name(), tensor.shape(), tensor.dtype().to_string());
    Ok((config, checkpoint.tensors().map(meta).collect()))
}

fn elements(tensor: &TensorView<'_>) -> u64 {
    // The header's check bounds the product by the file's length.
    tensor.byte_len().saturating_mul(8) / tensor.dtype().bitsize() as u64
}
