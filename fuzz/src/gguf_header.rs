//! Any bytes as a GGUF file: refused or read, never a panic, and no tensor outside of the file.

use kvant_container::gguf::GgufFile;
use std::io::Write;

/// See above.
pub fn run(bytes: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if file.write_all(bytes).is_err() {
        return;
    }
    if let Ok(file) = GgufFile::open(file.path()) {
        let total: usize = file.tensors().map(|tensor| tensor.bytes().len()).sum();
        assert!(total <= bytes.len());
    }
}
