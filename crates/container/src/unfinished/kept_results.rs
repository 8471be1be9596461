//! Results of expensive stages, kept beside an unfinished output so that a resumed run does not recompute them. What the
//! results are is up to the callers.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// A directory of results of one plan. It is created with the first of them.
#[derive(Clone, Debug)]
pub struct KeptResults {
    directory: PathBuf,
    plan: String,
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    kvant_result: u32,
    plan: String,
    name: String,
    /// Bytes of the value, which are followed by those of the codes.
    value: usize,
    /// The xxh3 hash of all bytes behind this line.
    hash: u64,
}

/// The version of the files' meaning.
const VERSION: u32 = 1;

impl KeptResults {
    /// The results of a plan in a directory; those of other plans are as good as not there.
    pub fn new(directory: &Path, plan: &str) -> KeptResults {
        KeptResults { directory: directory.to_owned(), plan: plan.to_owned() }
    }

    /// Returns whether there are none, of this plan or another.
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.directory).map_or(true, |mut entries| entries.next().is_none())
    }

    /// A result and the bytes that were kept with it, if it is there and its bytes have the recorded hash.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<(T, Vec<u8>)> {
        let mut bytes = fs::read(self.directory.join(name)).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        let mut rest = bytes.split_off(end + 1);
        let is_ours = head.kvant_result == VERSION && head.plan == self.plan && head.name == name;
        if !is_ours || head.value > rest.len() || xxh3_64(&rest) != head.hash {
            return None;
        }
        let codes = rest.split_off(head.value);
        Some((serde_json::from_slice(&rest).ok()?, codes))
    }

    /// Keeps a result, which appears under its name when it is complete. Floats in `value` must be given as their bits: not all of
    /// them are JSON numbers.
    ///
    /// # Errors
    /// System errors.
    pub fn put(&self, name: &str, value: &impl Serialize, codes: &[u8]) -> io::Result<()> {
        let mut rest = serde_json::to_vec(value)?;
        let length = rest.len();
        rest.extend_from_slice(codes);
        let (plan, name) = (self.plan.clone(), name.to_owned());
        let head = Head { kvant_result: VERSION, plan, name: name.clone(), value: length, hash: xxh3_64(&rest) };
        fs::create_dir_all(&self.directory)?;
        let unfinished = self.directory.join(format!("{name}.unfinished"));
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(&head)?)?;
        file.write_all(b"\n")?;
        file.write_all(&rest)?;
        drop(file);
        fs::rename(&unfinished, self.directory.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_results_require_matching_plan_name_and_hash() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptResults::new(&dir.path().join("kept"), "plan");
        assert!(kept.get::<Vec<u32>>("a").is_none());
        kept.put("a", &vec![f32::NAN.to_bits(), 2], b"codes\n").unwrap();
        assert_eq!(kept.get::<Vec<u32>>("a").unwrap(), (vec![f32::NAN.to_bits(), 2], b"codes\n".to_vec()));
        let path = dir.path().join("kept/a");
        fs::copy(&path, dir.path().join("kept/b")).unwrap();
        assert!(kept.get::<Vec<u32>>("b").is_none(), "another result's");
        assert!(KeptResults::new(&dir.path().join("kept"), "other").get::<Vec<u32>>("a").is_none());
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..10], b""] {
            fs::write(&path, damaged).unwrap();
            assert!(kept.get::<Vec<u32>>("a").is_none());
        }
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(&path, changed).unwrap();
        assert!(kept.get::<Vec<u32>>("a").is_none());
    }
}
