//! AMD Quark's `quantization_config`, as Quark 0.13 writes it and as vLLM, SGLang and transformers read it. Writing is
//! [`quantization_config`], reading is [`QuarkConfig::read`].

mod attention;
mod document;
mod observer;
mod read;
mod tensor_spec;
mod write;

pub use attention::{AttentionModules, describe_attention};
pub use document::QuarkConfig;
pub use write::{WeightFormat, layer_config, quantization_config};
