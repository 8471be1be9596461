//! Running a tower: all images pass it block by block, and their rows are projected and kept.

use super::super::ops::Ops;
use super::super::runner::Runner;
use super::super::streams::Streams;
use super::super::{Chunk, Decoder, ForwardOptions, Pass, chunks};
use super::axes::TurningAxes;
use super::rows::RowsKind;
use super::{ForwardError, ImageRows, TowerImages, VisionTower};
use kvant_container::{Checkpoint, ErrorKind};
use kvant_data::images::{ImagesUnread, TextImageFormat, TextImages};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

impl<'a> Decoder<'a> {
    /// No images yet, in the form in which texts of a checkpoint name them; or why they are not read. The directory `model` has the
    /// checkpoint's preprocessing.
    pub fn text_images(&self, checkpoint: &Checkpoint, model: &Path) -> TextImages {
        match self.text_image_format(checkpoint, model) {
            Ok(format) => TextImages::new(format, self.vocabulary()),
            Err(error) => {
                let why = ImagesUnread::of(&error);
                // What to do about the model does not help where it runs on text.
                let hint = why.hint.filter(|_| why.kind != ErrorKind::Unsupported);
                TextImages::unread(ImagesUnread { hint, ..why })
            }
        }
    }

    fn text_image_format(&self, checkpoint: &Checkpoint, model: &Path) -> Result<TextImageFormat, ForwardError> {
        let tower = VisionTower::open(checkpoint)?;
        let config = checkpoint.config()?.ok_or(ForwardError::NoConfig)?;
        Ok(match tower.images() {
            TowerImages::Equal { shape, rows } => {
                TextImageFormat::open(model, tower.reading(), &config, (shape, rows))?
            }
            TowerImages::AnySize(sizes) => TextImageFormat::of_any_size(model, tower.reading(), &config, sizes)?,
        })
    }

    /// Gives a decoder the images of some sequences: runs the tower of its checkpoint on those that occur, and keeps their rows for the
    /// tokens behind the vocabulary. `memory` bounds what is kept in memory, in bytes; more goes to temporary files. `watch` receives the
    /// images done and all: one that has passed one of `n` blocks is `1 / n` done. If it breaks, the run stops.
    ///
    /// # Errors
    ///
    /// Towers that are not computed, images that cannot be read, no room for temporary files; a `watch` that breaks.
    pub fn give_text_images<'s>(
        &mut self,
        checkpoint: &'a Checkpoint,
        images: &Arc<TextImages>,
        sequences: impl Iterator<Item = &'s [u32]>,
        ops: &dyn Ops,
        memory: u64,
        mut watch: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ForwardError> {
        let used: BTreeSet<usize> =
            sequences.flat_map(|sequence| images.places(sequence)).map(|(image, _)| image).collect();
        if used.is_empty() {
            self.image_rows = None;
            return Ok(());
        }
        let mut tower = VisionTower::open(checkpoint)?;
        if self.blueprint.embedding.columns != self.hidden() || !self.blueprint.stream.is_plain() {
            return Err(ForwardError::unsupported("images in a text whose embeddings are not as wide as the stream"));
        }
        let wanted: Vec<usize> = used.into_iter().collect();
        let pictures = images.pictures(&wanted).map_err(|why| ForwardError::unsupported(why.reason))?;
        let sequences = tower.encoder.give_images(Arc::new(pictures))?;
        self.quantizers.extend(std::mem::take(&mut tower.quantizers));
        let kind = RowsKind {
            width: self.hidden(),
            further: tower.further.len(),
            axes: tower.axes.as_ref().map(|axes| self.axes_of_angles(axes)).transpose()?,
            sees_whole: tower.reading.sees_whole_images,
        };
        let rows = ImageRows::new(Arc::clone(images), &wanted, kind, memory / 2)?;
        TowerRun { tower: &tower, decoder: self, ops, memory: memory / 2 }.run(&sequences, &rows, &mut watch)?;
        self.image_rows = Some(rows);
        Ok(())
    }
}

impl Decoder<'_> {
    /// The axis of each angle of the rotary embedding.
    fn axes_of_angles(&self, axes: &TurningAxes) -> Result<Vec<usize>, ForwardError> {
        let [rotary] = &self.blueprint.rotaries[..] else {
            return Err(ForwardError::unsupported("images in a text whose layers turn in several ways"));
        };
        if rotary.constant_frequencies().is_none() {
            return Err(ForwardError::unsupported("images in a text whose rotary embedding depends on its length"));
        }
        axes.of(rotary.components() / 2)
    }
}

/// One run of a tower.
struct TowerRun<'r, 'a> {
    tower: &'r VisionTower<'a>,
    decoder: &'r Decoder<'a>,
    ops: &'r dyn Ops,
    memory: u64,
}

impl TowerRun<'_, '_> {
    /// Keeps the rows of all images, whose sequences these are.
    fn run(
        &self,
        sequences: &[Vec<u32>],
        rows: &ImageRows,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ForwardError> {
        let encoder = &self.tower.encoder;
        let chunks = chunks(encoder, sequences.iter().map(Vec::as_slice));
        let blocks = encoder.blueprint.blocks.len();
        let layers = self.tower.layers.as_deref();
        let last = layers.map_or(blocks, |layers| layers.iter().copied().max().unwrap_or(0));
        let mut pass = Pass::begin(encoder, self.ops, &chunks, self.memory / 2, None)?;
        let mut passed = 0;
        let mut gathered = self.room(&chunks, layers.map_or(1, <[usize]>::len))?;
        for done in 0..=last {
            if done > 0 {
                for (index, chunk) in chunks.iter().enumerate() {
                    pass.block(done - 1, index, |_| {})?;
                    passed += chunk.tokens.len() / chunk.length;
                    if watch((passed / last) as u64, sequences.len() as u64).is_break() {
                        return Err(ForwardError::Cancelled);
                    }
                }
            }
            let wanted = layers.into_iter().flatten().enumerate().filter(|(_, layer)| **layer == done);
            self.project_further(done, &chunks, &mut pass, rows)?;
            for (at, _) in wanted {
                for chunk in 0..chunks.len() {
                    let x = pass.stream(chunk, <[f32]>::to_vec)?;
                    gathered.put(at * chunks.len() + chunk, x)?;
                }
            }
        }
        if layers.is_none() {
            for chunk in 0..chunks.len() {
                let hidden = pass.hidden(chunk)?;
                gathered.put(chunk, hidden)?;
            }
        }
        drop(pass);
        self.project(&chunks, gathered, rows)
    }

    /// Room for the hidden states behind so many blocks.
    fn room(&self, chunks: &[Chunk], layers: usize) -> Result<Streams, ForwardError> {
        let width = self.tower.encoder.hidden();
        let sizes = (0..layers).flat_map(|_| chunks).map(|chunk| chunk.tokens.len() * width);
        Streams::new(&sizes.collect::<Vec<_>>(), self.memory / 2)
    }

    /// Projects the hidden states of all images.
    fn project(&self, chunks: &[Chunk], mut gathered: Streams, rows: &ImageRows) -> Result<(), ForwardError> {
        let (runner, width) = (Runner::new(self.decoder, self.ops), self.tower.encoder.hidden());
        let layers = self.tower.layers.as_ref().map_or(1, Vec::len);
        let first = usize::from(self.tower.drops_first);
        let mut place = 0;
        for (index, chunk) in chunks.iter().enumerate() {
            let states = (0..layers).map(|layer| gathered.take(layer * chunks.len() + index));
            let states: Vec<Vec<f32>> = states.collect::<Result<_, _>>()?;
            for image in 0..chunk.tokens.len() / chunk.length {
                let tokens = image * chunk.length + first..(image + 1) * chunk.length;
                let side_by_side = tokens.flat_map(|token| {
                    states.iter().flat_map(move |states| &states[token * width..(token + 1) * width])
                });
                let read: Vec<f32> = side_by_side.copied().collect();
                let run = runner.run(ForwardOptions::default(), 1.into());
                rows.put(place, self.tower.projector.project(&run, read, grid_of(chunk)))?;
                place += 1;
            }
        }
        Ok(())
    }

    /// Keeps the further rows that are read behind `done` blocks. Images of any size are chunks of their own.
    fn project_further(
        &self,
        done: usize,
        chunks: &[Chunk],
        pass: &mut Pass<'_, '_>,
        rows: &ImageRows,
    ) -> Result<(), ForwardError> {
        let runner = Runner::new(self.decoder, self.ops);
        for (index, (_, layers)) in self.tower.further.iter().enumerate().filter(|(_, (behind, _))| *behind == done) {
            for (place, chunk) in chunks.iter().enumerate() {
                let read = pass.stream(place, <[f32]>::to_vec)?;
                let run = runner.run(ForwardOptions::default(), 1.into());
                rows.put_further(place, index, layers.project(&run, read, grid_of(chunk)))?;
            }
        }
        Ok(())
    }
}

/// Patches along the height and width of the image that a chunk is, where images have any size.
fn grid_of(chunk: &Chunk) -> Option<[usize; 2]> {
    chunk.images.first().and_then(|image| image.grid)
}
