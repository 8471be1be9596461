//! The directory of a file.

use std::path::Path;

/// The directory of a model that is named by its directory or by one of its files.
pub fn model_directory(model: &Path) -> &Path {
    if model.is_file() { directory_of(model) } else { model }
}

/// The directory of a file, which is `.` where the path is a name alone.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_bare_file_name_is_dot() {
        let of = |path: &str| directory_of(Path::new(path)).to_str().unwrap().to_owned();
        assert_eq!(["model.onnx", "out/model.onnx", "/model.onnx"].map(of), [".", "out", "/"]);
    }
}
