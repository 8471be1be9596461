//! AMD Quark's `quantization_config`, as Quark 0.13 writes it and as vLLM, SGLang and transformers read it. Writing is
//! [`quantization_config`], reading is [`QuarkConfig::read`] for recipes,
//! [`StoredQuark::read`] for checkpoints.

mod algorithms;
mod attention;
mod document;
mod observer;
mod read;
mod stored;
mod tensor_spec;
mod write;

pub use algorithms::{algo_config, read_algorithms};
pub use attention::{AttentionModules, describe_attention};
pub use document::QuarkConfig;
pub use stored::StoredQuark;
pub use write::{WeightFormat, layer_config, quantization_config};
