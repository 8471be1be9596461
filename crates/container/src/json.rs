//! JSON files read with a size limit, and JSON objects read with their duplicate keys kept. Not a JSON parser.

use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};

use crate::error::{Error, shorten};
use crate::positioned::open_regular;
use crate::python_json;
use serde_json::Value;

/// An object as the list of its members, in file order: a key that comes twice is there twice.
pub(crate) struct Pairs<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
    type Value = Pairs<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

/// Reads and parses a whole file of at most `limit` bytes.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<T, Error> {
    let bytes = read_limited(path, limit)?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::Json { file: path.to_path_buf(), message: shorten(&e.to_string()) })
}

/// Reads and parses a whole document of at most `limit` bytes, with numbers that only Python knows.
pub(crate) fn read_python_json(path: &Path, limit: u64) -> Result<Value, Error> {
    let bytes = read_limited(path, limit)?;
    python_json::parse(&bytes).map_err(|e| Error::Json { file: path.to_path_buf(), message: shorten(&e.to_string()) })
}

/// Reads a regular file, refusing more than `limit` bytes regardless of the length it reports.
fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let (file, len) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::io("read", path, None, e))?;
    match bytes.len() as u64 > limit {
        true => Err(Error::TooLarge { file: path.to_path_buf(), len, limit }),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_json_keys_are_kept() {
        let Pairs(pairs) = serde_json::from_str::<Pairs<u8>>(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap();
        assert_eq!(pairs, [("a".into(), 1), ("b".into(), 2), ("a".into(), 3)]);
    }

    #[test]
    fn json_file_over_the_limit_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"[1, 2]").unwrap();
        assert_eq!(read_json::<Vec<u8>>(file.path(), 6).unwrap(), [1, 2]);
        let error = read_json::<Vec<u8>>(file.path(), 5).unwrap_err();
        assert!(matches!(error, Error::TooLarge { len: 6, limit: 5, .. }), "{error}");
    }
}
