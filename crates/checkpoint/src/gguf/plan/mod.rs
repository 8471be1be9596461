//! The plan of a GGUF file: every tensor of the source has a position or a reason to be omitted, every tensor of the file
//! its type. Determined by headers, config.json, the tokenizer's files and the recipe, never by weights. Invalid
//! requests are refused here.

mod build;
mod convert;
mod finish;
mod of_blocks;
mod of_codes;
mod of_file;
mod tensor;
mod types;

use kvant_gguf::model::{Content, GgufPlanError, TensorSlice};
use kvant_weights::weight::{RotatedWeights, RowMap};
pub use tensor::{PlannedTensor, Reason};

use super::recipe::GgufRecipe;
use crate::engine::{CompletePlan, EngineError, Form, OutputPlan, accept, refuse_errors, refuse_foreseen};
use crate::plan::{CalibrationSize, SizeOfKind};
use kvant_container::gguf::{GgufLayout, Metadata};
use kvant_container::{Checkpoint, Geometry};
use kvant_formats::verify::{self, DeclaredInGguf};
use kvant_model::network::DroppedTensor;
use kvant_quant::finding::Finding;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// A plan: everything that a run needs besides the weights.
#[derive(Debug)]
pub struct GgufPlan {
    /// The resolved request of the user.
    pub recipe: GgufRecipe,
    /// The family's name; `None` for a file derived from another one with an unsupported architecture.
    pub family: Option<&'static str>,
    /// `general.architecture`.
    pub architecture: String,
    /// The metadata.
    pub metadata: Metadata,
    /// The tensors of the file, in its order.
    pub tensors: Vec<PlannedTensor>,
    /// The tensors of the source, by name, in its order.
    pub sources: Vec<String>,
    /// Those omitted from the file.
    pub dropped: Vec<DroppedTensor>,
    /// Names, types, shapes and places of the tensors.
    pub layout: GgufLayout,
    /// Whether the output is a directory of files.
    pub in_parts: bool,
    /// Notices for the user.
    pub notices: Vec<String>,
    /// What llama.cpp's graph computes otherwise than the model: warnings for the user.
    pub departures: Vec<String>,
    /// Bytes of all tensors of the source.
    pub source_bytes: u64,
    /// Identifies source, recipe and layout: a journal of another plan is not continued.
    pub fingerprint: String,
}

impl GgufPlan {
    /// The same as a directory of files with at most `max_size` bytes of tensors each, unless a single tensor is larger; their names begin
    /// with `stem`.
    ///
    /// # Errors
    /// More files than the format counts.
    pub fn in_parts(self, stem: &str, max_size: u64) -> Result<GgufPlan, GgufPlanError> {
        let declarations = self.layout.declarations().to_vec();
        let layout = GgufLayout::in_parts(stem, &self.metadata, declarations, max_size);
        let layout = layout.map_err(kvant_container::Error::from)?;
        // Headers say which tensors are in which file.
        let mut bytes = self.fingerprint.clone().into_bytes();
        layout.files().iter().for_each(|file| bytes.extend([file.name.as_bytes(), &file.header].concat()));
        let fingerprint = format!("{:032x}", xxh3_128(&bytes));
        Ok(GgufPlan { layout, fingerprint, in_parts: true, ..self })
    }

    /// The file by which an output of this plan is opened: of several the first.
    pub fn model_in(&self, output: &Path) -> PathBuf {
        if self.in_parts { output.join(self.layout.file_name()) } else { output.to_owned() }
    }

    /// The departures and the notices.
    pub fn remarks(&self) -> impl Iterator<Item = &String> {
        self.departures.iter().chain(&self.notices)
    }

    /// The tensors in the order of the source, so that reading is sequential: their indices.
    pub fn jobs(&self) -> Vec<usize> {
        let first = |tensor: &PlannedTensor| match &tensor.content {
            Content::Slabs(slabs) => slabs.first().map_or(0, |slab| slab.tensor),
            Content::Taken(tensor) | Content::Integers(tensor) => *tensor,
            Content::Values(_) => 0,
        };
        let mut jobs: Vec<usize> = (0..self.tensors.len()).collect();
        jobs.sort_by_key(|job| first(&self.tensors[*job]));
        jobs
    }

    /// The source tensors of a tensor.
    pub fn sources_of<'p>(&'p self, tensor: &PlannedTensor) -> Vec<&'p str> {
        let mut positions: Vec<usize> = match &tensor.content {
            Content::Slabs(slabs) => slabs.iter().map(|slab| slab.tensor).collect(),
            Content::Taken(position) | Content::Integers(position) => vec![*position],
            Content::Values(_) => Vec::new(),
        };
        positions.dedup();
        positions.into_iter().map(|position| self.sources[position].as_str()).collect()
    }

    /// Bits that a weight takes on average in the tensors that have codes.
    pub fn bits_per_weight(&self) -> f64 {
        let coded = self.tensors.iter().zip(self.layout.places()).filter(|(tensor, _)| tensor.is_quantized());
        let (bytes, elements) = coded
            .fold((0u64, 0u64), |(bytes, elements), (tensor, place)| (bytes + place.len, elements + tensor.elements()));
        bytes as f64 * 8.0 / elements.max(1) as f64
    }

    /// The number of quantized tensors.
    pub fn quantized(&self) -> usize {
        self.tensors.iter().filter(|tensor| tensor.is_quantized()).count()
    }

    /// What takes the room in the file, the most first.
    pub fn sizes(&self) -> Vec<SizeOfKind> {
        let tensors = self.tensors.iter().zip(self.layout.places());
        SizeOfKind::of(tensors.map(|(tensor, place)| (tensor.name_in_block(), tensor.is_quantized(), place.len)))
    }

    /// An upper bound of the private memory of a run with so many threads, in bytes: the header with its vocabulary, and
    /// what each thread works in.
    pub fn peak_memory(&self, threads: usize) -> u64 {
        const PROGRAM: u64 = 24 << 20;
        let largest = self.tensors.iter().map(PlannedTensor::band_bytes).max().unwrap_or(0);
        // Weights of a rotated model that are kept, and those that threads are making.
        let weights = self.tensors.iter().map(|tensor| tensor.elements() * size_of::<f32>() as u64).max().unwrap_or(0);
        let rotated =
            self.recipe.algorithms().rotation.map_or(0, |_| weights * (RotatedWeights::KEPT + threads) as u64);
        let headers: usize = self.layout.files().iter().map(|file| file.header.len()).sum();
        PROGRAM + 8 * headers as u64 + rotated + largest * threads as u64
    }

    /// The same where the importance of inputs is measured first, by passing data through the source: of the stream between blocks
    /// `size.memory` bytes are kept at most, and the rest is in a file.
    pub fn measuring_memory(&self, size: CalibrationSize, threads: usize) -> u64 {
        let matrices = self.tensors.iter().filter(|tensor| tensor.block.is_some() && tensor.shape.len() > 1);
        let widest =
            matrices.flat_map(|tensor| tensor.shape.iter().rev().take(2)).max().map_or(0, |widest| *widest as u64);
        let stream = size.tokens().saturating_mul(widest * size_of::<f32>() as u64).min(size.memory);
        self.peak_memory(threads).saturating_add(size.pass_memory(widest)).saturating_add(stream)
    }

    /// The loaders of the file.
    pub fn loaders(&self) -> Vec<&'static str> {
        let tensors = self.tensors.iter().map(|tensor| tensor.name.as_str());
        verify::gguf_loaders(self.layout.file_name(), &self.metadata, tensors)
    }
}

impl OutputPlan for GgufPlan {
    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn geometry(&self) -> Geometry {
        self.layout.clone().into()
    }

    fn form(&self) -> Form {
        match self.in_parts {
            true => Form::Directory,
            false => Form::File(self.layout.file_name().to_owned()),
        }
    }

    fn preflight(&self, checkpoint: &Checkpoint) -> Result<(), EngineError> {
        refuse_foreseen(&verify::inherited(checkpoint))?;
        let tensors = self.tensors.iter();
        let declared =
            tensors.map(|PlannedTensor { name, kind, shape, .. }| DeclaredInGguf { name, kind: *kind, shape });
        refuse_foreseen(&verify::foreseen_of_gguf(&self.metadata, declared.collect()))
    }
}

impl CompletePlan for GgufPlan {
    fn accept(&self, output: &Path) -> Result<Vec<Finding>, EngineError> {
        let output = &self.model_in(output);
        let warnings = accept(output)?;
        // Other tensors were finite when they were quantized.
        let is_taken =
            |tensor: &&PlannedTensor| matches!(tensor.content, Content::Taken(_)) || tensor.carried.is_some();
        let taken: HashSet<&str> = self.tensors.iter().filter(is_taken).map(|tensor| tensor.name.as_str()).collect();
        if taken.is_empty() {
            return Ok(warnings);
        }
        refuse_errors(output, &verify::values_of_gguf(output, |name| taken.contains(name))?)?;
        Ok(warnings)
    }
}
