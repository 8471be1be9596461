//! What loaders take. The rules are data, `loader_rules.toml`; here is their reading, the facts of a layer and a model that
//! they speak of, and the judgement.

mod facts;
mod judge;
mod parallel;
mod rules;
mod written;

pub use facts::LayerFacts;
pub(crate) use facts::{Attention, ModelFacts, Scale, Sharing, sharing_of};
pub(crate) use judge::{Case, file_refusal, judge, refusal, size_refusal};
pub use judge::{Loads, Reason, ShardShape, Verdict};
pub(crate) use parallel::Sharding;
pub use rules::{Loader, loaders};
pub use written::ModelTraits;
pub use written::loaders as loaders_of;
