//! mT5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::math::{LogitScale, Math};
use super::t5;

/// The description.
pub const FAMILY: Family = Family {
    name: "mt5",
    summary: "mT5: T5 whose logits are not scaled",
    model_types: &["mt5"],
    architectures: &["MT5ForConditionalGeneration"],
    math: Math { logit_scale: LogitScale::One, ..t5::FAMILY.math },
    ..t5::FAMILY
};
