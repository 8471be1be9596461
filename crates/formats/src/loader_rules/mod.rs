//! Loader support. The rules are data, `loader_rules.toml`; this module reads them, defines the facts of a layer and a model that
//! they refer to, and evaluates them.

mod facts;
mod judge;
mod parallel;
mod rules;
mod written;

pub(crate) use facts::{Attention, GgufFacts, ModelFacts, Scale, Sharing, sharing_of};
pub use facts::{ExpertSchemes, LayerFacts, RotationFacts, finds_whole_experts, has_bare_towers};
pub(crate) use judge::{FLOAT_METHOD, LoaderQuery, file_refusal, judge, refusal, size_refusal};
pub use judge::{LoaderSupport, Loads, Reason, ShardShape};
pub(crate) use parallel::Sharding;
pub use parallel::fused_rows;
pub use rules::{Loader, loaders};
pub use written::{LoaderRefusal, ModelTraits, loaders as loaders_of, refusals as refusals_of};
