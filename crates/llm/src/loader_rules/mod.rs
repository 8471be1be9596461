//! What loaders take. The rules are data, `loader_rules.toml`; here is their reading, the facts of a layer and a model that
//! they speak of, and the judgement.

mod facts;
mod judge;
mod parallel;
mod rules;
mod written;

pub(crate) use facts::{Attention, LayerFacts, ModelFacts, Scale, Sharing, sharing_of};
pub(crate) use judge::{Case, ShardShape, file_refusal, judge, refusal, size_refusal};
pub use judge::{Loads, Reason, Verdict};
pub(crate) use parallel::Sharding;
pub use rules::{Loader, loaders};
pub use written::ModelTraits;
pub(crate) use written::loaders as loaders_of;
