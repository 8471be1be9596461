//! Moving scales through the links of a block without changing its function: factors on rows and columns of weights, which
//! are multiplied when a weight is read, and new values of norms and biases. Not how scales are found, which is
//! [`kvant_quant::transform`], nor which layers are linked, which is [`kvant_model::network`].
//!
//! ```
//! use kvant_container::Checkpoint;
//! use kvant_checkpoint::folding::ScaleFusion;
//! use kvant_forward::forward::{Tensors, WeightOverrides};
//! use kvant_formats::import;
//! use kvant_model::model_config::ModelConfig;
//! use kvant_model::network::Network;
//! use std::path::Path;
//!
//! let checkpoint = Checkpoint::open(Path::new("../../tests/models/nano_llama"))?;
//! let tensors = Tensors::new(import::open(&checkpoint)?.into_tensors());
//! let config = ModelConfig::from_json(&checkpoint.config()?.ok_or("no config.json")?)?;
//! let network = Network::recognise(&config, tensors.meta());
//!
//! let mut foldings = ScaleFusion::new(&network, &tensors, 0, |module| module.ends_with("lm_head"));
//! let link = &network.links(0)[0];
//! let scales = vec![2.0; foldings.width(link)];
//! let applied = foldings.apply(link, &scales)?;
//! assert_eq!(applied, scales);
//!
//! let mut overlay = WeightOverrides::default();
//! foldings.add_to(&mut overlay);
//! assert!(overlay.weight("model.layers.0.self_attn.q_proj").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod changed;
mod error;
mod foldings;
mod modules;
mod norm;
mod scales;

pub use changed::ChangedTensor;
pub use error::ScaleFusionError;
pub use foldings::ScaleFusion;
