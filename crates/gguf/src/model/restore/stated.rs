//! The metadata of a file, by the keys of its architecture.

use kvant_container::gguf::{GgufFile, Metadata, Value, describes_imatrix};
use kvant_weights::import_error::ImportError;

/// The metadata and the names of the tensors of a file.
#[derive(Clone, Copy)]
pub struct Stated<'a> {
    /// The file.
    pub file: &'a GgufFile,
    /// `general.architecture`.
    pub architecture: &'a str,
}

impl<'a> Stated<'a> {
    /// Those of a file.
    ///
    /// # Errors
    /// *Invalid* where it states no architecture.
    pub fn of(file: &'a GgufFile) -> Result<Stated<'a>, ImportError> {
        let architecture = file.metadata().get("general.architecture").and_then(Value::as_str);
        match architecture {
            Some(architecture) => Ok(Stated { file, architecture }),
            None if describes_imatrix(file.metadata()) => Err(ImportError::unsupported(
                "general.type",
                "says that the file is an importance matrix, not a model",
                "name the model; `kvant quantize MODEL ‹imatrix› FILE` takes this file",
            )),
            None => Err(ImportError::invalid("general.architecture", "is missing: the file holds no model")),
        }
    }

    /// All metadata.
    pub fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    /// The value of a key of the architecture: `block_count` of `llama.block_count`.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.metadata().get(&format!("{}.{key}", self.architecture))
    }

    /// A whole number.
    pub fn size(&self, key: &str) -> Option<usize> {
        self.value(key)?.as_u64().and_then(|size| usize::try_from(size).ok())
    }

    /// A whole number that must be there.
    pub fn need(&self, key: &str) -> Result<usize, ImportError> {
        let missing = || ImportError::invalid(format!("{}.{key}", self.architecture), "is missing, or not a number");
        self.size(key).ok_or_else(missing)
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64().filter(|number| number.is_finite())
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.value(key)?.as_str()
    }

    /// Returns whether there is a tensor of this name, in the first block where the name is that of a tensor of blocks.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Components of a head.
    pub fn head_width(&self) -> Option<usize> {
        let divided = || self.size("embedding_length")?.checked_div(self.size("attention.head_count")?);
        self.size("attention.key_length").or_else(divided)
    }
}
