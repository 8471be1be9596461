//! Measuring the importance of inputs: calibration data run through the source, in floats, while the squares of what each
//! linear layer reads are summed, experts each for itself.

use super::kept::{Keep, Kept, Sums};
use super::{ImatrixError, InputSums};
use crate::blockwise::StreamShape;
use crate::gguf::plan::{GgufPlan, PlannedTensor};
use kvant_forward::forward::ops::Ops;
use kvant_forward::forward::{ActivationHook, ActivationPoint, Decoder, Pass, Rows, chunks};
use kvant_gguf::model::Content;
use kvant_model::network::expert_module;
use kvant_numeric::linalg::Precision;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A matrix of a tensor of the file.
type Target = (String, usize);

/// The sums over the inputs of every tensor of a plan that has codes; heads and embeddings are not among them, as with
/// llama.cpp. The same at any number of threads. `watch` receives the tokens done and the total. An interrupted run resumes
/// from the state kept by `keep`.
///
/// # Errors
/// Those of the forward pass and of the kept state, non-finite inputs, and a cancellation.
#[allow(clippy::too_many_arguments)]
pub fn collect(
    plan: &GgufPlan,
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    sequences: &[Vec<u32>],
    memory: u64,
    keep: Keep<'_>,
    cancelled: &AtomicBool,
    mut watch: impl FnMut(u64, u64),
) -> Result<Sums, ImatrixError> {
    let chunks = chunks(decoder, sequences.iter().map(Vec::as_slice));
    let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    let sizes = chunks.iter().map(|chunk| chunk.tokens.len() * decoder.width()).collect();
    let (mut kept, sums) = Kept::open(keep, StreamShape { sizes, streams: 1, precision: Precision::F32 });
    let summer = Summer::new(plan).with(sums);
    let mut pass = Pass::begin(decoder, ops, &chunks, memory, Some(&summer))?;
    for index in 0..chunks.len() {
        kept.stream(index)?.map_or(Ok(()), |x| pass.put(index, x))?;
    }
    let blocks = decoder.blueprint().blocks.len();
    let mut done = kept.blocks() * tokens;
    for block in kept.blocks()..blocks {
        decoder.check_block(block)?;
        for (index, chunk) in chunks.iter().enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(ImatrixError::Cancelled);
            }
            pass.block(block, index, |_| {})?;
            done += chunk.tokens.len();
            watch((done / blocks) as u64, tokens as u64);
        }
        if kept.is_due() {
            kept.commit(block + 1, &summer.sums(), |write| {
                (0..chunks.len()).try_for_each(|index| {
                    let written = pass.stream(index, |x| write(index, x))?;
                    written.map_err(|cause| keep.failed(cause))
                })
            })?;
        }
    }
    drop(pass);
    summer.finish()
}

/// Sums what passes.
struct Summer {
    /// The matrices that a module's input goes to.
    targets: HashMap<String, Vec<Target>>,
    sums: BTreeMap<String, Mutex<InputSums>>,
}

impl Summer {
    fn new(plan: &GgufPlan) -> Summer {
        let mut summer = Summer { targets: HashMap::new(), sums: BTreeMap::new() };
        plan.tensors.iter().filter(|tensor| tensor.block.is_some() && tensor.is_weight()).for_each(|t| summer.add(t));
        summer
    }

    fn add(&mut self, tensor: &PlannedTensor) {
        let Content::Slabs(slabs) = &tensor.content else { return };
        // Transposed slices have another input than their module, or the same in another order.
        if slabs.iter().any(|slab| slab.transposed || slab.columns.is_some()) {
            return;
        }
        let matrices = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
        for matrix in 0..matrices {
            let module = match (tensor.modules.get(matrix), tensor.modules.first()) {
                (Some(module), _) if tensor.modules.len() == matrices && matrices > 1 => module.clone(),
                (_, Some(module)) if matrices > 1 => expert_module(module, matrix),
                (_, Some(module)) => module.clone(),
                _ => return,
            };
            self.targets.entry(module).or_default().push((tensor.name.clone(), matrix));
        }
        self.sums.insert(tensor.name.clone(), Mutex::new(InputSums::new(tensor.columns(), matrices)));
    }

    /// Goes on with sums of an earlier run.
    fn with(mut self, sums: Option<Sums>) -> Summer {
        for (name, sums) in sums.into_iter().flatten() {
            let fits = self.sums.get_mut(&name).map(|own| own.get_mut().unwrap_or_else(PoisonError::into_inner));
            if let Some(own) = fits.filter(|own| (own.columns, own.counts.len()) == (sums.columns, sums.counts.len())) {
                *own = sums;
            }
        }
        self
    }

    /// The sums so far.
    fn sums(&self) -> Sums {
        let sums = self.sums.iter();
        sums.map(|(name, sums)| (name.clone(), sums.lock().unwrap_or_else(PoisonError::into_inner).clone())).collect()
    }

    fn finish(self) -> Result<Sums, ImatrixError> {
        let sums = self.sums.into_iter();
        let sums = sums.map(|(name, sums)| (name, sums.into_inner().unwrap_or_else(PoisonError::into_inner)));
        let sums: Sums = sums.filter(|(_, sums)| sums.counts.iter().any(|count| *count > 0)).collect();
        match sums.iter().find(|(_, sums)| sums.squares.iter().any(|square| !square.is_finite())) {
            Some((tensor, _)) => Err(ImatrixError::NotFinite { tensor: tensor.clone() }),
            None => Ok(sums),
        }
    }
}

impl ActivationHook for Summer {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        matches!(site, ActivationPoint::Input(module) if self.targets.contains_key(module))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        let ActivationPoint::Input(module) = site else { return };
        for (tensor, matrix) in self.targets.get(module).into_iter().flatten() {
            let Some(sums) = self.sums.get(tensor) else { continue };
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            if sums.columns == rows.columns {
                sums.add(*matrix, rows.data);
            }
        }
    }
}
