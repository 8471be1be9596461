//! The point in a block up to which weights are final, with its activations, from which runs of later subsets continue
//! ([`StartFrom`]), so that each layer is computed once. In files without names, for the time of the block.

use super::error::BlockwiseError;
use super::streams::{StreamFile, StreamShape};
use kvant_forward::forward::blueprint::Block;
use kvant_forward::forward::{ActivationHook, ActivationPoint, Rows, StartFrom, StopAt};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The state after a partial run.
#[derive(Debug)]
pub(super) struct PartialForward {
    depth: StopAt,
    /// The stream behind attention; before it, that which the block reads is used.
    stream: Option<Arc<StreamFile>>,
    /// Whether the stream is not yet written.
    is_new: bool,
    /// The inputs of the layers of this depth, by module.
    inputs: Option<(String, StreamFile)>,
}

impl PartialForward {
    /// Files for the results of runs up to `depth` that continue from `before`, for chunks of so many tokens, of which a block changes so many
    /// rows; `None` if no run can continue from there.
    pub(super) fn begin(
        dir: &Path,
        (block, width): (&Block, usize),
        depth: StopAt,
        before: Option<&PartialForward>,
        [tokens, changed]: [&StreamShape; 2],
    ) -> Result<Option<PartialForward>, BlockwiseError> {
        if !block.resumes_at(depth) || before.is_some_and(|before| before.depth >= depth) {
            return Ok(None);
        }
        let file = |rows: &StreamShape, columns: usize| {
            let sizes = rows.sizes.iter().map(|rows| rows * columns).collect();
            StreamFile::temporary(dir, StreamShape { sizes, ..*rows }).map_err(BlockwiseError::streams("make room for"))
        };
        let same = before.and_then(|before| before.stream.clone());
        let is_new = same.is_none() && depth >= StopAt::FeedForward;
        let stream = if is_new { Some(Arc::new(file(tokens, width)?)) } else { same };
        let inputs = match block.resumed_layer(depth) {
            Some(layer) => Some((layer.module.clone(), file(changed, layer.columns)?)),
            None => None,
        };
        Ok(Some(PartialForward { depth, stream, is_new, inputs }))
    }

    /// The stream, where it is not that which the block reads.
    pub(super) fn stream(&self) -> Option<&StreamFile> {
        self.stream.as_deref()
    }

    /// The file of the inputs of the layers of this depth.
    pub(super) fn inputs(&self) -> Option<&StreamFile> {
        self.inputs.as_ref().map(|(_, file)| file)
    }

    /// The point to continue from, with these inputs.
    pub(super) fn resume<'v>(&self, inputs: &'v [f32]) -> Option<StartFrom<'v>> {
        match self.depth {
            StopAt::Heads => Some(StartFrom::Heads(inputs)),
            StopAt::FeedForward => Some(StartFrom::FeedForward),
            StopAt::Hidden => Some(StartFrom::Hidden(inputs)),
            StopAt::AttentionInput | StopAt::QueryLatent | StopAt::KeyValueLatent => None,
            StopAt::LowRankLatent
            | StopAt::Convolved
            | StopAt::StepLatent
            | StopAt::DecayLatent
            | StopAt::GateLatent
            | StopAt::LayerInput
            | StopAt::LayerInputHidden => None,
        }
    }
}

/// Records activations while a chunk of a stream runs, together with another hook.
pub(super) struct Recording<'t> {
    reached: &'t PartialForward,
    lane: usize,
    chunk: usize,
    tap: Option<&'t dyn ActivationHook>,
    written: Mutex<io::Result<()>>,
}

impl<'t> Recording<'t> {
    pub(super) fn new(
        reached: &'t PartialForward,
        lane: usize,
        chunk: usize,
        tap: Option<&'t dyn ActivationHook>,
    ) -> Recording<'t> {
        Recording { reached, lane, chunk, tap, written: Mutex::new(Ok(())) }
    }

    /// Keeps the stream with which the run has ended.
    pub(super) fn finish(self, x: &[f32]) -> io::Result<()> {
        self.written.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        match &self.reached.stream {
            Some(stream) if self.reached.is_new => stream.write(self.lane, self.chunk, x),
            _ => Ok(()),
        }
    }

    fn file(&self, site: ActivationPoint<'_>) -> Option<&StreamFile> {
        let inputs = self.reached.inputs.as_ref();
        inputs.filter(|(module, _)| site == ActivationPoint::Input(module)).map(|(_, file)| file)
    }
}

impl ActivationHook for Recording<'_> {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        self.file(site).is_some() || self.tap.is_some_and(|tap| tap.wants(site))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        if let Some(file) = self.file(site) {
            let written = file.write(self.lane, self.chunk, rows.data);
            let mut all = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            *all = std::mem::replace(&mut *all, Ok(())).and(written);
        }
        if let Some(tap) = self.tap.filter(|tap| tap.wants(site)) {
            tap.see(site, rows);
        }
    }
}
