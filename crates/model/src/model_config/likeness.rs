//! Values of `model_type` that nobody but a description knows: their config.json is read as that of the architecture which they are like.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// By `model_type`, that which it is read like.
static LIKE: RwLock<BTreeMap<String, String>> = RwLock::new(BTreeMap::new());

/// From now on, config.json of `model_type` is read as that of `like`: the same keys count, with the same names and defaults.
pub(crate) fn read_like(model_type: &str, like: &str) {
    LIKE.write().unwrap_or_else(PoisonError::into_inner).insert(model_type.to_owned(), like.to_owned());
}

/// The `model_type` whose rules config.json of a `model_type` is read by.
pub(super) fn rules_of(model_type: &str) -> String {
    let like = LIKE.read().unwrap_or_else(PoisonError::into_inner);
    like.get(model_type).map_or(model_type, String::as_str).to_owned()
}
