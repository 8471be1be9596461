//! The metadata of a file: keys and values in the order of the file. What keys mean is not known here.

use super::{ALIGNMENT_KEY, Value};

/// Keys and values, in order; a key comes once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

impl Metadata {
    /// None.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Sets a value; one of the same key is replaced where it stands.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.entries.iter_mut().find(|(known, _)| *known == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key, value)),
        }
    }

    /// Sets a value, if there is one.
    pub fn set_some(&mut self, key: impl Into<String>, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Removes an entry, if it is there.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|(known, _)| known != key);
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    /// The value of `general.alignment`.
    pub(super) fn stated_alignment(&self) -> Option<&Value> {
        self.get(ALIGNMENT_KEY)
    }

    /// All of these, whose keys are known to be distinct.
    pub(super) fn of_distinct(entries: Vec<(String, Value)>) -> Metadata {
        Metadata { entries }
    }
}
