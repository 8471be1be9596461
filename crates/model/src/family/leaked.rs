//! Reads what descriptions hold, which is compiled into the program for built-in families and lives as long for families from files.

use super::description::ExpertLayout;
use super::encoder::{LearnedToken, Readout, ReadoutStep};
use super::recurrent::RecurrentParameter;
use super::role::{NormSite, Role};
use serde::de::{Deserialize, DeserializeOwned, Deserializer};

/// A value that is kept until the program ends, made from an owned one.
pub(super) trait Leaked: Sized {
    type Owned: DeserializeOwned;

    fn leak(owned: Self::Owned) -> Self;
}

impl Leaked for &'static str {
    type Owned = String;

    fn leak(owned: String) -> Self {
        Box::leak(owned.into_boxed_str())
    }
}

impl<T: Leaked> Leaked for &'static [T] {
    type Owned = Vec<T::Owned>;

    fn leak(owned: Self::Owned) -> Self {
        Vec::leak(owned.into_iter().map(T::leak).collect())
    }
}

impl<T: Leaked> Leaked for Option<T> {
    type Owned = Option<T::Owned>;

    fn leak(owned: Self::Owned) -> Self {
        owned.map(T::leak)
    }
}

impl<A: Leaked, B: Leaked> Leaked for (A, B) {
    type Owned = (A::Owned, B::Owned);

    fn leak((a, b): Self::Owned) -> Self {
        (A::leak(a), B::leak(b))
    }
}

/// Values without texts are what they are.
macro_rules! plain {
    ($($type:ty),*) => {
        $(impl Leaked for $type {
            type Owned = $type;

            fn leak(owned: $type) -> $type {
                owned
            }
        })*
    };
}

plain!(bool, usize, f64, Role, NormSite, ExpertLayout, LearnedToken, RecurrentParameter, Readout, ReadoutStep);

/// For `#[serde(deserialize_with)]`: fields of a description, whose types serde can only borrow.
pub(super) fn leaked<'de, D: Deserializer<'de>, T: Leaked>(deserializer: D) -> Result<T, D::Error> {
    T::Owned::deserialize(deserializer).map(T::leak)
}
