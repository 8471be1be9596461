//! Facts about the model behind a source file: nothing that the new file needs, but the names by which
//! users call its layers, and the modules whose inputs are measured.

use super::Stated;
use super::config::{architecture, restore};
use crate::model::drafts;
use kvant_container::gguf::GgufFile;
use kvant_model::model_config::ModelConfig;
use std::collections::HashMap;

/// The model behind a file.
#[derive(Debug, Default)]
pub struct Known {
    /// Its family.
    pub family: Option<&'static str>,
    /// The modules of a tensor of the file, by its name.
    pub modules: HashMap<String, Vec<String>>,
}

/// The model behind a file; `None` where its architecture is not read, or it is not as it should be.
pub fn known(file: &GgufFile) -> Option<Known> {
    let (family, ..) = architecture(&Stated::of(file).ok()?).ok()?;
    let restored = restore(file).ok()?;
    let config = ModelConfig::from_json(&restored.config).ok()?;
    let drafts = drafts(&config, &restored.metas).ok()?;
    let modules = drafts.into_iter().map(|draft| (draft.name, draft.modules)).collect();
    Some(Known { family: Some(family.name), modules })
}
