//! Removal that tolerates missing files.

use std::io;

/// The result of a removal, for which nothing to remove is as good as removed.
///
/// # Errors
/// Whatever else the system says.
pub fn or_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_a_missing_file_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        assert!(or_gone(std::fs::remove_file(dir.path().join("none"))).is_ok());
        std::fs::create_dir(dir.path().join("full")).unwrap();
        std::fs::write(dir.path().join("full/file"), "").unwrap();
        assert!(or_gone(std::fs::remove_dir(dir.path().join("full"))).is_err());
    }
}
