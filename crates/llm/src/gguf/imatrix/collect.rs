//! Measuring the importance of inputs: calibration data run through the source, in floats, while the squares of what each
//! linear layer reads are summed, experts each for itself.

use super::{ImatrixError, InputSums};
use crate::forward::ops::Ops;
use crate::forward::{Decoder, Pass, Rows, Site, Tap, chunks};
use crate::gguf::plan::{Content, GgufPlan, PlannedTensor};
use crate::plan::expert_module;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A matrix of a tensor of the file.
type Target = (String, usize);

/// The sums over the inputs of every tensor of a plan that has codes; heads and embeddings are not among them, as with
/// llama.cpp. The same at any number of threads. `watch` is told of tokens done and tokens in all.
///
/// # Errors
/// Those of the forward pass, inputs that are no numbers, and a stop.
pub fn collect(
    plan: &GgufPlan,
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    sequences: &[Vec<u32>],
    memory: u64,
    cancelled: &AtomicBool,
    mut watch: impl FnMut(u64, u64),
) -> Result<BTreeMap<String, InputSums>, ImatrixError> {
    let chunks = chunks(decoder, sequences.iter().map(Vec::as_slice));
    let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    let summer = Summer::new(plan);
    let mut pass = Pass::begin(decoder, ops, &chunks, memory, Some(&summer))?;
    let blocks = decoder.blueprint().blocks.len();
    let mut done = 0;
    for block in 0..blocks {
        for (index, chunk) in chunks.iter().enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(ImatrixError::Cancelled);
            }
            pass.block(block, index, |_| {})?;
            done += chunk.tokens.len();
            watch((done / blocks) as u64, tokens as u64);
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
        // What is turned over reads something else than its module does.
        if slabs.iter().any(|slab| slab.transposed) {
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

    fn finish(self) -> Result<BTreeMap<String, InputSums>, ImatrixError> {
        let sums = self.sums.into_iter();
        let sums = sums.map(|(name, sums)| (name, sums.into_inner().unwrap_or_else(PoisonError::into_inner)));
        let sums: BTreeMap<_, _> = sums.filter(|(_, sums)| sums.counts.iter().any(|count| *count > 0)).collect();
        match sums.iter().find(|(_, sums)| sums.squares.iter().any(|square| !square.is_finite())) {
            Some((tensor, _)) => Err(ImatrixError::NotFinite { tensor: tensor.clone() }),
            None => Ok(sums),
        }
    }
}

impl Tap for Summer {
    fn wants(&self, site: Site<'_>) -> bool {
        matches!(site, Site::Input(module) if self.targets.contains_key(module))
    }

    fn see(&self, site: Site<'_>, rows: Rows<'_>) {
        let Site::Input(module) = site else { return };
        for (tensor, matrix) in self.targets.get(module).into_iter().flatten() {
            let Some(sums) = self.sums.get(tensor) else { continue };
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            if sums.columns == rows.columns {
                sums.add(*matrix, rows.data);
            }
        }
    }
}
