//! Groups of layers of a GGUF file: one for each tensor that a uniform file of 8 bits quantizes. llama.cpp fuses nothing, so that every
//! tensor has a type of its own.

use super::error::MixError;
use super::group::{GroupChoice, LayerGroup, projections};
use super::mixture::Mixture;
use super::option::MixOption;
use crate::gguf::plan::PlannedTensor;
use crate::gguf::{GgufPlan, GgufRecipe};
use crate::recipe::Settings;
use kvant_container::Checkpoint;
use kvant_container::gguf::TensorType;
use kvant_forward::evaluation::ModelStage;
use kvant_forward::forward::{Decoder, Projection, WeightOverrides};
use kvant_gguf::ftype::{FTYPES, Ftype, fitting};
use kvant_gguf::model::codec;
use kvant_numeric::ggml::{GgmlType, dequantize, first_saturated, quantize};
use kvant_numeric::simd::Isa;
use kvant_weights::weight::{Band, WeightMatrix};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Elements that one thread quantizes at a time, about.
const STRIP: usize = 128 << 10;

/// What is known of a file besides its groups.
pub(super) struct GgufMix;

impl GgufMix {
    pub(super) fn new(
        checkpoint: &Checkpoint,
        decoder: &Decoder<'_>,
        options: &[MixOption],
    ) -> Result<(Vec<LayerGroup>, GgufMix), MixError> {
        // Whatever some ftype quantizes, this one does.
        let probe = GgufPlan::new(checkpoint, GgufRecipe::plain(Ftype::Q8_0), "model.gguf")?;
        let settings = Settings {
            scheme: Some(Ftype::F16.row().name.to_owned()),
            format: Some(kvant_formats::format::OutputFormat::Gguf),
            exclude: vec!["*".to_owned()],
            ..Settings::default()
        };
        let stored = GgufRecipe::of(&settings, &Settings::default())?.ok_or(MixError::NothingFits)?;
        let stored = GgufPlan::new(checkpoint, stored, "model.gguf")?;
        let of_source: HashMap<&str, TensorType> =
            stored.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.kind)).collect();
        let places = Places::of(decoder);
        let mut groups: Vec<LayerGroup> = Vec::new();
        for tensor in probe.tensors.iter().filter(|tensor| tensor.is_quantized() && tensor.shape.len() > 1) {
            let Some(place) = places.of_tensor(tensor) else { continue };
            let stored = of_source.get(tensor.name.as_str()).copied().unwrap_or(tensor.kind);
            let group = group(tensor, stored, place, options);
            // Tensors that are parts of one layer of the source are rounded together.
            match groups.iter_mut().find(|other| other.modules.iter().any(|module| group.modules.contains(module))) {
                Some(other) => join(other, group),
                None => groups.push(group),
            }
        }
        groups.sort_by_key(|group| group.stage);
        Ok((groups, GgufMix))
    }
}

/// Where the modules of a decoder are.
struct Places<'d> {
    stages: HashMap<&'d str, ModelStage>,
    embedding: &'d str,
    head: &'d str,
}

/// The place of a tensor.
struct TensorPlace {
    stage: ModelStage,
    is_tied: bool,
    modules: Vec<String>,
}

impl<'d> Places<'d> {
    fn of(decoder: &'d Decoder<'_>) -> Places<'d> {
        let blueprint = decoder.blueprint();
        let blocks = blueprint.blocks.iter().enumerate();
        let stages = blocks.flat_map(|(index, block)| {
            block.layers().into_iter().map(move |layer| (layer.module.as_str(), ModelStage::Block(index)))
        });
        Places { stages: stages.collect(), embedding: &blueprint.embedding.module, head: &blueprint.head.module }
    }

    /// The place of a tensor whose modules the decoder all has.
    fn of_tensor(&self, tensor: &PlannedTensor) -> Option<TensorPlace> {
        let is_tied = self.embedding == self.head;
        let place = |stage, module: &str, is_tied| TensorPlace { stage, is_tied, modules: vec![module.to_owned()] };
        match tensor.name.as_str() {
            "token_embd.weight" => return Some(place(ModelStage::Embedding, self.embedding, is_tied)),
            "output.weight" => return Some(place(ModelStage::Head, self.head, false)),
            _ => {}
        }
        let stages = tensor.modules.iter().map(|module| self.stages.get(module.as_str()).copied());
        let stages = stages.collect::<Option<Vec<_>>>()?;
        Some(TensorPlace { stage: stages.into_iter().min()?, is_tied: false, modules: tensor.modules.clone() })
    }
}

fn group(tensor: &PlannedTensor, stored: TensorType, place: TensorPlace, options: &[MixOption]) -> LayerGroup {
    let (columns, weights) = (tensor.columns(), tensor.elements());
    let bytes_of = |kind: TensorType| {
        let row = codec::of(kind)?.row_bytes(columns)?;
        Some(row as u64 * (weights / columns.max(1) as u64))
    };
    let mut choices: Vec<GroupChoice> = Vec::new();
    for (option, one) in options.iter().enumerate() {
        let kind = match one {
            MixOption::Type(kind) => fitting(*kind, columns),
            _ => stored,
        };
        let Some(bytes) = bytes_of(kind) else { continue };
        // An option whose blocks do not fit is that of the type that takes its place.
        match choices.iter_mut().find(|choice| choice.kind == Some(kind)) {
            Some(same) => same.also.push(option),
            None => choices.push(GroupChoice { option, also: Vec::new(), kind: Some(kind), bytes }),
        }
    }
    let name = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name).to_owned();
    LayerGroup {
        patterns: vec![name.clone()],
        name,
        stage: place.stage,
        is_tied: place.is_tied,
        modules: place.modules,
        weights,
        source_bytes: bytes_of(stored).unwrap_or(0),
        choices,
    }
}

/// Adds a tensor to a group, with the options that both have in the same type.
fn join(group: &mut LayerGroup, other: LayerGroup) {
    let bytes = |choice: &GroupChoice| other.choices.iter().find(|one| one.kind == choice.kind).map(|one| one.bytes);
    group.choices = std::mem::take(&mut group.choices)
        .into_iter()
        .filter_map(|choice| Some(GroupChoice { bytes: choice.bytes + bytes(&choice)?, ..choice }))
        .collect();
    group.name = format!("{}, {}", group.name, other.name);
    group.weights += other.weights;
    group.source_bytes += other.source_bytes;
    group.patterns.extend(other.patterns);
    for module in other.modules {
        if !group.modules.contains(&module) {
            group.modules.push(module);
        }
    }
}

/// The mix whose most tensors have the type of an option; tensors are named one by one besides.
pub(super) fn ftype(option: &MixOption) -> Ftype {
    let MixOption::Type(kind) = option else { return Ftype::F16 };
    FTYPES.iter().find(|row| row.base == *kind).map_or(Ftype::F16, |row| row.ftype)
}

/// Adds the weights of a group in one of its choices.
pub(super) fn add_to<'a>(
    mixture: &Mixture<'a>,
    group: &LayerGroup,
    choice: &GroupChoice,
    overrides: &mut WeightOverrides<'a>,
) -> Result<(), MixError> {
    let Some(kind) = choice.kind.and_then(codec::of) else { return Ok(()) };
    let layers: HashMap<&str, &Projection> = projections(mixture.decoder);
    for module in &group.modules {
        let Some(layer) = layers.get(module.as_str()) else { continue };
        let values = in_blocks(&mixture.decoder.weight(layer), kind).map_err(|reason| MixError::Rounding {
            layer: module.clone(),
            option: kind.name().to_owned(),
            reason,
        })?;
        overrides.set_weight(module, WeightMatrix::values(Arc::new(values), layer.rows, layer.columns));
    }
    Ok(())
}

/// The values of a weight in blocks of a type.
fn in_blocks(matrix: &WeightMatrix<'_>, kind: GgmlType) -> Result<Vec<f32>, String> {
    let (isa, columns) = (Isa::best(), matrix.columns.max(1));
    let row_bytes = kind.row_bytes(columns).ok_or_else(|| format!("{columns} columns do not fill blocks"))?;
    let rows = (STRIP / columns).max(1);
    let mut values = vec![0.0; matrix.rows * columns];
    let blocks = |(index, out): (usize, &mut [f32])| {
        let (first, count) = (index * rows, out.len() / columns);
        let mut read = Vec::with_capacity(out.len());
        matrix.read(isa, &Band { rows: first..first + count, columns: 0..columns }, &mut read);
        if let Some(value) = read.iter().find(|value| !value.is_finite()) {
            return Err(format!("a weight is {value}"));
        }
        let mut bytes = vec![0; count * row_bytes];
        quantize(isa, kind, columns, &read, None, &mut bytes);
        if let Some(at) = first_saturated(kind, &read, &bytes) {
            return Err(format!("a weight is {:e}, beyond what its blocks hold", read[at]));
        }
        dequantize(isa, kind, &bytes, out);
        Ok(())
    };
    values.par_chunks_mut(rows * columns).enumerate().try_for_each(blocks)?;
    Ok(values)
}
