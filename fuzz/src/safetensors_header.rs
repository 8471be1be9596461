//! The header parser on arbitrary bytes: it must not panic, and what it accepts must lie inside the file without overlap.

use kvant_container::{Header, byte_len};

/// See above.
pub fn run(bytes: &[u8]) {
    let file_len = bytes.len() as u64;
    match Header::parse(bytes, file_len) {
        Ok(header) => check(&header, file_len),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn check(header: &Header, file_len: u64) {
    let mut end = header.data_start();
    for tensor in header.tensors() {
        let range = tensor.range();
        assert!(range.start <= range.end && range.end <= file_len);
        assert_eq!(byte_len(tensor.dtype(), tensor.shape()), Ok(range.end - range.start));
        assert!(range.is_empty() || range.start >= end);
        end = end.max(range.end);
    }
}
