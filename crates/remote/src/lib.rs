//! Checkpoints that are not on this machine: folders behind HTTP, and models on the Hugging Face Hub. Headers and small files are downloaded
//! into a folder that stands for the model; the bytes of tensors are fetched with range requests when they are about to be read, and
//! removed when nobody needs them any more. What tensors mean is not known here.

mod address;
mod client;
mod error;
mod hub;
mod listing;
mod model;
mod ranges;
mod shard;

pub use error::RemoteError;
pub use model::{Opened, RemoteModel, open};

use std::path::Path;

/// Returns whether a text names a model elsewhere whatever files there are: a URL.
pub fn is_url(model: &Path) -> bool {
    model.to_str().is_some_and(|text| {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    })
}

/// Returns whether a text names a model elsewhere: a URL, or `organisation/name` where there is no such path.
pub fn is_remote(model: &Path) -> bool {
    let is_name = || model.to_str().is_some_and(|text| hub::HubModel::parse(text).is_some());
    is_url(model) || (is_name() && model.try_exists().is_ok_and(|exists| !exists))
}
