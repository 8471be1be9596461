//! The tensors of a checkpoint by module and suffix. Knows names, not their meaning.

use kvant_container::{Checkpoint, TensorView};
use kvant_weights::import_error::ImportError;
use std::collections::HashMap;

/// Names of parameters as they stand in Quark's modules, which some versions of its exporter leave in the file, and the
/// names they should have.
const UNTRANSLATED: &[(&str, &str)] = &[
    (".weight_quantizer.scale", ".weight_scale"),
    (".weight_quantizer.zero_point", ".weight_zero_point"),
    (".weight_quantizer.0.scale", ".weight_scale"),
    (".weight_quantizer.1.scale", ".weight_scale_2"),
    (".weight_quantizer.0.zero_point", ".weight_zero_point"),
    (".weight_quantizer.1.zero_point", ".weight_zero_point_2"),
    (".input_quantizer.scale", ".input_scale"),
    (".input_quantizer.zero_point", ".input_zero_point"),
    (".input_quantizer.0.scale", ".input_scale"),
    (".input_quantizer.1.scale", ".input_scale_2"),
    (".output_quantizer.scale", ".output_scale"),
    (".output_quantizer.zero_point", ".output_zero_point"),
];

/// All tensors of a checkpoint.
#[derive(Debug)]
pub(crate) struct Catalog<'a> {
    tensors: Vec<(String, TensorView<'a>)>,
    by_name: HashMap<String, usize>,
    /// The last parts of the names of a module's tensors.
    suffixes: HashMap<String, Vec<String>>,
}

impl<'a> Catalog<'a> {
    pub fn new(checkpoint: &'a Checkpoint) -> Catalog<'a> {
        let tensors: Vec<_> = checkpoint.tensors().map(|view| (translated(view.name()), view)).collect();
        let by_name = tensors.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect();
        let mut suffixes: HashMap<String, Vec<String>> = HashMap::new();
        for (module, suffix) in tensors.iter().filter_map(|(name, _)| name.rsplit_once('.')) {
            suffixes.entry(module.to_owned()).or_default().push(suffix.to_owned());
        }
        Catalog { tensors, by_name, suffixes }
    }

    /// All tensors in the order of the checkpoint, with their proper names.
    pub fn tensors(&self) -> &[(String, TensorView<'a>)] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'a>> {
        self.by_name.get(name).map(|index| self.tensors[*index].1)
    }

    /// A module of this name, whether or not it has tensors.
    pub fn module<'c>(&'c self, name: &'c str) -> ModuleTensors<'c, 'a> {
        ModuleTensors { catalog: self, name }
    }
}

fn translated(name: &str) -> String {
    let found = UNTRANSLATED.iter().find_map(|(end, proper)| name.strip_suffix(end).map(|module| (module, proper)));
    found.map_or_else(|| name.to_owned(), |(module, proper)| format!("{module}{proper}"))
}

/// A module: what stands before the last dot of its tensors' names.
#[derive(Clone, Copy, Debug)]
pub struct ModuleTensors<'c, 'a> {
    catalog: &'c Catalog<'a>,
    /// Its name.
    pub name: &'c str,
}

impl<'a> ModuleTensors<'_, 'a> {
    /// The full name of one of its tensors.
    pub fn tensor_name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.name)
    }

    /// The suffixes of its tensors.
    pub fn suffixes(&self) -> impl Iterator<Item = &str> {
        self.catalog.suffixes.get(self.name).into_iter().flatten().map(String::as_str)
    }

    /// One of its tensors.
    pub fn tensor(&self, suffix: &str) -> Option<TensorView<'a>> {
        self.catalog.tensor(&self.tensor_name(suffix))
    }

    /// A tensor of any module with this suffix, for what modules share.
    pub fn anywhere(&self, suffix: &str) -> Option<TensorView<'a>> {
        let is_named = |name: &str| name.rsplit('.').next() == Some(suffix);
        self.catalog.tensors.iter().find(|(name, _)| is_named(name)).map(|(_, view)| *view)
    }

    /// The tensors of all modules whose names end in a dot and this.
    pub fn ending_with<'s>(&'s self, end: &'s str) -> impl Iterator<Item = TensorView<'a>> + 's {
        let is_named = move |name: &str| name.strip_suffix(end).is_some_and(|module| module.ends_with('.'));
        self.catalog.tensors.iter().filter(move |(name, _)| is_named(name)).map(|(_, view)| *view)
    }

    /// One of its tensors, which must be there.
    ///
    /// # Errors
    /// *Invalid* where it is not.
    pub fn need(&self, suffix: &str) -> Result<TensorView<'a>, ImportError> {
        self.tensor(suffix).ok_or_else(|| ImportError::missing(self.tensor_name(suffix), "the layer"))
    }

    /// The shape of one of its tensors, which must be a matrix.
    ///
    /// # Errors
    /// *Invalid* where it is missing, or not a matrix.
    pub fn matrix_shape(&self, suffix: &str) -> Result<(usize, usize), ImportError> {
        let view = self.need(suffix)?;
        match *view.shape() {
            [rows, columns] => Ok((rows, columns)),
            _ => Err(not_a_matrix(view)),
        }
    }
}

pub(crate) fn not_a_matrix(view: TensorView<'_>) -> ImportError {
    ImportError::invalid(view.name(), format!("shape {:?} is not that of a matrix", view.shape()))
}
