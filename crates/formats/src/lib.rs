//! Checkpoint formats, and what loads them.
//!
//! * [`format`](mod@format): one file or folder for each checkpoint format, written and read, [`algorithm`]: what their configurations say of
//!   algorithms,
//! * [`import`]: checkpoints that are quantized already, seen as if their weights were floats; with LoRA adapters ([`adapter`]);
//!   [`experts`]: all experts of a block in one tensor, seen one by one,
//! * [`transcode`]: codes from one format to another,
//! * [`loader_rules`], [`loader_names`]: what loaders accept; [`verify`]: whether a finished checkpoint loads, and is sane.

pub mod adapter;
pub mod algorithm;
pub mod experts;
pub mod format;
pub mod import;
pub mod loader_names;
pub mod loader_rules;
pub mod lora;
pub mod rotated;
pub mod rotation;
pub mod separate_head;
pub mod transcode;
pub mod verify;
