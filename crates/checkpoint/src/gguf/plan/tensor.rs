//! A tensor of the file: its name, type and source.

use crate::gguf::carried::Carried;
use kvant_container::gguf::TensorType;
use kvant_gguf::model::{Content, TensorSlice};
use kvant_weights::weight::{Band, BandAxis, bands};

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedTensor {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: TensorType,
    /// Its dimensions, the slowest first.
    pub shape: Vec<usize>,
    /// The value it has.
    pub content: Content,
    /// The reason for its type.
    pub reason: Reason,
    /// The conversion of the source's codes to blocks; `None` if values are quantized.
    pub carried: Option<Carried>,
    /// The decoder block that it belongs to.
    pub block: Option<usize>,
    /// The source modules: one, or one per expert; none for norms and similar tensors.
    pub modules: Vec<String>,
}

/// The reason for a tensor's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The ftype.
    Ftype,
    /// An override.
    Override,
    /// The type that was wanted does not divide its columns.
    FallBack {
        /// That type.
        wanted: TensorType,
    },
    /// It is kept in the type of the source.
    Excluded,
    /// It is as in the source, which is in floats there.
    Kept,
    /// It holds the codes of the source.
    Carried,
    /// No type holds the codes of the source.
    Anew,
    /// Loaders take it in this type only.
    Fixed,
}

impl Reason {
    /// It in words.
    pub fn text(self) -> String {
        match self {
            Reason::Ftype => "mix".to_owned(),
            Reason::Override => "override".to_owned(),
            Reason::FallBack { wanted } => format!("its columns are not a multiple of {}", wanted.block_elements()),
            Reason::Excluded => "excluded".to_owned(),
            Reason::Kept => "as in the source".to_owned(),
            Reason::Carried => "codes as they are".to_owned(),
            Reason::Anew => "requantized".to_owned(),
            Reason::Fixed => "always of this type".to_owned(),
        }
    }
}

/// Elements of a band, about: small enough for the second-level cache, large enough for long writes.
const BAND_ELEMENTS: usize = 1 << 17;

impl PlannedTensor {
    /// Its name without the block and without `.weight`: `ffn_up` of `blk.3.ffn_up.weight`.
    pub(super) fn name_in_block(&self) -> &str {
        let numbered = self.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let name = numbered.map_or(self.name.as_str(), |(_, name)| name);
        name.strip_suffix(".weight").unwrap_or(name)
    }

    /// Elements of a row, along which blocks are cut.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|dim| *dim as u64).product()
    }

    /// Returns whether its type is one of codes.
    pub fn is_quantized(&self) -> bool {
        self.kind.block_elements() > 1
    }

    /// Returns whether it holds the source's codes.
    pub fn keeps_codes(&self) -> bool {
        self.carried.is_some() || self.is_quantized() && matches!(self.content, Content::Taken(_))
    }

    /// Returns whether it is the weight matrix of a linear layer, of any type.
    pub fn is_weight(&self) -> bool {
        self.shape.len() > 1 && self.reason != Reason::Fixed && !self.modules.is_empty()
    }

    /// The pieces in which a slice is processed: rows of the output. They depend on the plan alone.
    pub fn bands(slab: &TensorSlice) -> Vec<Band> {
        // Transposed slices are read as a whole.
        let axis = if slab.transposed { BandAxis::Whole } else { BandAxis::Rows };
        bands(slab.out_rows(), slab.out_columns(), axis, 1, BAND_ELEMENTS)
    }

    /// An upper bound of the private memory for one band: values as read, transposed and encoded.
    pub fn band_bytes(&self) -> u64 {
        const PER_ELEMENT: u64 = 12;
        let Content::Slabs(slabs) = &self.content else { return 0 };
        let largest =
            slabs.iter().flat_map(|slab| PlannedTensor::bands(slab).into_iter().map(|band| band.len() as u64));
        largest.max().unwrap_or(0) * PER_ELEMENT
    }
}
