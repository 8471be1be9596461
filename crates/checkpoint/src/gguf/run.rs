//! Doing what the plan says: tensor after tensor, in parallel, one band at a time, every finished tensor recorded. No
//! decisions: those are the plan's.

use super::carried::{Carried, blocks};
use super::plan::{GgufPlan, PlannedTensor, Reason};
use super::source::{SourceTensors, read};
use crate::engine::{Done, EngineError, Output, Progress, file_of, refuse_changed, refuse_lost, take_turns};
use kvant_container::Checkpoint;
use kvant_container::unfinished::{Entry, Written};
use kvant_gguf::model::codec;
use kvant_gguf::model::{Content, TensorSlice};
use kvant_numeric::ggml::{GgmlType, first_saturated, quantize};
use kvant_numeric::simd::Isa;
use kvant_weights::weight::PackedMatrix;
use kvant_weights::weight::{Band, WeightMatrix};
use rayon::prelude::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that are copied at a time.
const PIECE: usize = 4 << 20;

thread_local! {
    /// Values and blocks of a band, kept from band to band.
    static SCRATCH: RefCell<(Vec<f32>, Vec<u8>)> = RefCell::default();
}

/// Executes a plan into a started output.
///
/// # Errors
/// See [`EngineError`]. After an error, a cancellation or a kill the same call resumes with the remaining jobs.
pub fn run(
    plan: &GgufPlan,
    checkpoint: &Checkpoint,
    output: &Output,
    threads: usize,
    cancelled: &AtomicBool,
    progress: &dyn Progress,
) -> Result<Done, EngineError> {
    let jobs = plan.jobs();
    let left: Vec<usize> = jobs.iter().copied().filter(|job| !output.is_finished(*job)).collect();
    let resumed = jobs.iter().filter(|job| output.is_adopted(**job)).count();
    let bytes = |all: &mut dyn Iterator<Item = usize>| all.map(|job| plan.tensors[job].elements()).sum::<u64>();
    let done = bytes(&mut jobs.iter().copied().filter(|job| output.is_adopted(*job)));
    progress.begin(done + bytes(&mut left.iter().copied()), done);
    let tensors = SourceTensors::open(checkpoint)?;
    let columns = plan.tensors.iter().map(PlannedTensor::columns).max().unwrap_or(0);
    let uniform = vec![1.0; if plan.recipe.searches_scales() { columns } else { 0 }];
    let work = TensorWork { plan, checkpoint, output, cancelled, tensors, uniform, isa: Isa::best() };
    let finished = take_turns(threads, &left, |job| {
        let pieces = work.tensor(job)?;
        refuse_lost(checkpoint)?;
        output.record(&Entry { job, pieces })?;
        progress.advance(&plan.tensors[job].name, plan.tensors[job].elements());
        Ok(())
    });
    refuse_changed(checkpoint)?;
    refuse_lost(checkpoint)?;
    finished?;
    Ok(Done { jobs: jobs.len(), resumed })
}

fn vanished(what: &str) -> EngineError {
    EngineError::TensorVanished(what.to_owned())
}

/// A weight that cannot be stored, in words.
fn weight_in_words(task: &TensorSliceTask<'_>, band: &Band, values: &[f32], at: usize) -> String {
    let columns = task.slab.out_columns().max(1);
    if task.tensor.shape.len() < 2 {
        return format!("the value at [{at}] is {:e}", values[at]);
    }
    let (row, column) = (band.rows.start + at / columns, at % columns);
    format!("the weight of output {row}, input {column} is {:e}", values[at])
}

/// Data shared by all tensors.
struct TensorWork<'a> {
    plan: &'a GgufPlan,
    checkpoint: &'a Checkpoint,
    output: &'a Output,
    cancelled: &'a AtomicBool,
    tensors: SourceTensors<'a>,
    /// A weight for each column where all weigh the same and scales are searched for; otherwise empty.
    uniform: Vec<f32>,
    isa: Isa,
}

/// A slab on its way into the file.
struct TensorSliceTask<'t> {
    tensor: &'t PlannedTensor,
    index: usize,
    slab: &'t TensorSlice,
    matrix: WeightMatrix<'t>,
    kind: GgmlType,
    /// Bytes of a row.
    row_bytes: usize,
    /// Its offset in the tensor.
    offset: usize,
    importance: Option<&'t [f32]>,
}

impl TensorWork<'_> {
    fn tensor(&self, index: usize) -> Result<Vec<Written>, EngineError> {
        let tensor = &self.plan.tensors[index];
        let slabs = match &tensor.content {
            Content::Slabs(slabs) => slabs,
            Content::Taken(position) => return self.take(index, *position),
            Content::Values(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                return Ok(vec![self.write(index, 0, &bytes)?]);
            }
            Content::Integers(position) => return self.integers(index, *position),
        };
        let kind = codec::of(tensor.kind).ok_or_else(|| vanished(tensor.kind.name()))?;
        let mut written = Vec::new();
        let mut offset = 0;
        for (number, slab) in slabs.iter().enumerate() {
            let matrix = self.tensors.matrix(slab).ok_or_else(|| vanished(self.tensors.name(slab)))?;
            let row_bytes = kind.row_bytes(slab.out_columns()).ok_or_else(|| vanished(&tensor.name))?;
            let importance = self.importance(tensor, number, slab);
            let task = TensorSliceTask { tensor, index, slab, matrix, kind, row_bytes, offset, importance };
            let bands = PlannedTensor::bands(slab);
            let pieces = bands.par_iter().map(|band| self.band(&task, band)).collect::<Result<Vec<_>, _>>()?;
            written.extend(pieces);
            self.tensors.release(slab);
            offset += row_bytes * slab.out_rows();
        }
        Ok(written)
    }

    /// Writes the integers of a tensor in 32 bits.
    fn integers(&self, index: usize, position: usize) -> Result<Vec<Written>, EngineError> {
        let name = &self.plan.tensors[index].name;
        let numbers = self.tensors.integers(position).ok_or_else(|| vanished(name))?;
        let bytes: Option<Vec<[u8; 4]>> =
            numbers.into_iter().map(|number| i32::try_from(number).ok().map(i32::to_le_bytes)).collect();
        let bytes = bytes.ok_or_else(|| {
            let tensor = self.plan.sources[position].clone();
            let file = file_of(self.checkpoint, &tensor, None);
            EngineError::Weight {
                tensor,
                excludable: None,
                file,
                reason: "an integer needs more than 32 bits".to_owned(),
            }
        })?;
        Ok(vec![self.write(index, 0, bytes.as_flattened())?])
    }

    /// Takes over the bytes of a tensor of the source file.
    fn take(&self, index: usize, position: usize) -> Result<Vec<Written>, EngineError> {
        let tensor = self.checkpoint.gguf().and_then(|file| file.tensors().nth(position));
        let tensor = tensor.ok_or_else(|| vanished(&self.plan.tensors[index].name))?;
        let piece = |(number, bytes): (usize, &[u8])| {
            if self.cancelled.load(Ordering::Relaxed) {
                return Err(EngineError::Cancelled);
            }
            let start = number * PIECE;
            let written = self.write(index, start, bytes)?;
            tensor.release_part(start..start + bytes.len());
            Ok(written)
        };
        tensor.bytes().par_chunks(PIECE).enumerate().map(piece).collect()
    }

    /// The importance of a slice's inputs, if it is known and the slice is not transposed. All the same where scales are to be
    /// searched for without.
    fn importance(&self, tensor: &PlannedTensor, number: usize, slab: &TensorSlice) -> Option<&[f32]> {
        let importance = self.plan.recipe.importance().filter(|_| !slab.transposed);
        let known = importance.and_then(|importance| importance.of_matrix(&tensor.name, number, slab.out_columns()));
        known.or(self.uniform.get(..slab.out_columns()))
    }

    fn band(&self, task: &TensorSliceTask<'_>, band: &Band) -> Result<Written, EngineError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(EngineError::Cancelled);
        }
        if let Some((carried, matrix)) = task.tensor.carried.zip(self.tensors.packed(task.slab)) {
            return self.carried(task, band, carried, matrix);
        }
        SCRATCH.with_borrow_mut(|(values, bytes)| {
            read(self.isa, &task.matrix, task.slab, band, values);
            let magnitude = self.magnitude(task, band, values)?;
            bytes.clear();
            bytes.resize(band.rows.len() * task.row_bytes, 0);
            quantize(self.isa, task.kind, task.slab.out_columns(), values, task.importance, bytes);
            if magnitude >= task.kind.safe_magnitude() {
                self.refuse_saturated(task, band, values, bytes)?;
            }
            self.write(task.index, task.offset + band.rows.start * task.row_bytes, bytes)
        })
    }

    /// Writes a band from the source's codes.
    fn carried(
        &self,
        task: &TensorSliceTask<'_>,
        band: &Band,
        carried: Carried,
        matrix: &PackedMatrix<'_>,
    ) -> Result<Written, EngineError> {
        let mut bytes = vec![0; band.rows.len() * task.row_bytes];
        blocks(self.isa, matrix, task.slab, band, carried, &mut bytes)
            .map_err(|error| self.weight_error(task, error.to_string()))?;
        self.write(task.index, task.offset + band.rows.start * task.row_bytes, &bytes)
    }

    /// The largest magnitude of values. Non-finite values have no code, and are refused.
    fn magnitude(&self, task: &TensorSliceTask<'_>, band: &Band, values: &[f32]) -> Result<f32, EngineError> {
        // Without its sign a float's bits rise with its size, infinity and NaN last: a maximum of integers vectorises.
        const MAGNITUDE: u32 = 0x7fff_ffff;
        let magnitude = f32::from_bits(values.iter().map(|value| value.to_bits() & MAGNITUDE).max().unwrap_or(0));
        if magnitude.is_finite() {
            return Ok(magnitude);
        }
        let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
        Err(self.weight_error(task, weight_in_words(task, band, values, at)))
    }

    /// Refuses blocks that do not hold their values: a scale saturates.
    fn refuse_saturated(
        &self,
        task: &TensorSliceTask<'_>,
        band: &Band,
        values: &[f32],
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let Some(at) = first_saturated(task.kind, values, bytes) else { return Ok(()) };
        let (tensor, file) = self.source_of(task);
        let what = match task.kind {
            GgmlType::F16 | GgmlType::Bf16 => "value",
            _ => "scale",
        };
        let (kind, name) = (task.kind, &task.tensor.name);
        let reason = format!(
            "{}, which needs a {what} beyond the largest that {kind} can store",
            weight_in_words(task, band, values, at)
        );
        let way_out = format!(
            "store the tensor in another type, with ‹override› '{name}=BF16', or keep that of the source, with \
             ‹exclude› '{name}'"
        );
        Err(EngineError::TooLarge { tensor, file, reason, way_out })
    }

    /// The source tensor of a slice, and its file.
    fn source_of(&self, task: &TensorSliceTask<'_>) -> (String, String) {
        let tensor = self.tensors.name(task.slab).to_owned();
        let part = self.tensors.packed(task.slab).and_then(PackedMatrix::tensor_name);
        let file = file_of(self.checkpoint, &tensor, part);
        (tensor, file)
    }

    fn weight_error(&self, task: &TensorSliceTask<'_>, reason: String) -> EngineError {
        let (tensor, file) = self.source_of(task);
        // A type that a recipe or its mix chose can be left to the source, of which blocks are copied. Values of a checkpoint are not.
        let chosen = matches!(task.tensor.reason, Reason::Ftype | Reason::Override | Reason::FallBack { .. });
        let chosen = chosen && self.checkpoint.gguf().is_some();
        EngineError::Weight { tensor, excludable: chosen.then(|| task.tensor.name.clone()), file, reason }
    }

    fn write(&self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<Written, EngineError> {
        self.output.writer().write_at(tensor, offset as u64, bytes)?;
        Ok(Written { tensor, offset: offset as u64, length: bytes.len() as u64, hash: xxh3_64(bytes) })
    }
}
