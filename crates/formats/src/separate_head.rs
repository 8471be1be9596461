//! A checkpoint whose head shares the embeddings, opened with the head as a separate tensor, so that it can be quantized while the
//! embeddings stay as they are.

use crate::import;
use kvant_container::Checkpoint;
use kvant_model::model_config::{ModelConfig, untie};
use kvant_model::network::{Network, Place, TensorMeta};
use kvant_weights::import_error::ImportError;

/// What a caller decides on: a head that shares the embeddings.
#[derive(Debug)]
pub struct SharedHead<'n> {
    /// The module of the head in its family, e.g. `lm_head`.
    pub module: &'n str,
    /// The linear layers of the model.
    pub network: &'n Network,
}

/// The model with a separate head where `wanted` asks for it, and the model as it is otherwise, also where its head is separate.
///
/// # Errors
/// *Unsupported* for GGUF files and beside adapters; errors of the import.
pub fn open(model: Checkpoint, wanted: impl FnOnce(&SharedHead<'_>) -> bool) -> Result<Checkpoint, ImportError> {
    let Some(config) = model.config()? else { return Ok(model) };
    let separate = {
        let tensors = import::open(&model)?.into_tensors();
        let stated = ModelConfig::from_json(&config);
        let stated = stated.map_err(|error| ImportError::invalid("config.json", error.to_string()))?;
        let metas: Vec<TensorMeta> = tensors.into_iter().map(|tensor| tensor.meta).collect();
        let network = Network::recognise(&stated, &metas);
        let module = network.family().and_then(|family| family.trunk.heads.first().copied());
        let embeddings = network.places().iter().position(|place| *place == Place::Embedding);
        match (module, embeddings) {
            (Some(module), Some(embeddings))
                if network.is_tied()
                    && network.head().is_none()
                    && wanted(&SharedHead { module, network: &network }) =>
            {
                Some((metas[embeddings].name.clone(), module.to_owned()))
            }
            _ => None,
        }
    };
    let Some((embeddings, module)) = separate else { return Ok(model) };
    if model.gguf().is_some() || !model.adapters().is_empty() {
        let source = if model.gguf().is_some() { "a GGUF file" } else { "a model with adapters" };
        let reason = format!("shares the embeddings, and is not separated from them in {source}");
        let hint = "leave the override out, or convert the source with `kvant convert ‹to› float` first";
        return Err(ImportError::unsupported(&module, reason, hint));
    }
    let mut config = config;
    untie(&mut config);
    Ok(model.with_separate_head(&embeddings, &format!("{module}.weight"), config)?)
}
