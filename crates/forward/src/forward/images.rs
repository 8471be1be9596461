//! The stream before the first block of a model of images: learned rows and those of patches, positions included; and the rows of images in
//! the stream of a model of text.

use super::blueprint::{GridLayers, ImageLayers};
use super::error::ForwardError;
use super::layout::ImageSpan;
use super::patches::nearest;
use super::run::Run;
use super::spans::Spans;
use kvant_data::images::Images;
use std::ops::Range;

/// Images of any size: the patches of each, one image after the other, are the tokens of the model that reads them.
#[derive(Clone, Debug)]
pub(super) struct ImageGrids {
    images: Vec<ImageGrid>,
}

#[derive(Clone, Copy, Debug)]
struct ImageGrid {
    /// Height and width.
    size: [usize; 2],
    /// Patches along both.
    grid: [usize; 2],
    /// Patches of all images before it.
    before: usize,
}

impl ImageGrid {
    fn patches(self) -> usize {
        self.grid[0] * self.grid[1]
    }
}

impl ImageGrids {
    /// The grids of images.
    ///
    /// # Errors
    ///
    /// Images that patches do not fill.
    pub(super) fn of(images: &Images, layers: &GridLayers) -> Result<ImageGrids, ForwardError> {
        let (mut found, mut before) = (Vec::new(), 0);
        for [channels, height, width] in images.shapes() {
            let factor = layers.factor();
            if channels != layers.channels || !height.is_multiple_of(factor) || !width.is_multiple_of(factor) {
                let read = format!("{} channels and sides that are multiples of {factor}", layers.channels);
                let image = format!("images of {:?} in a model that reads {read}", [channels, height, width]);
                return Err(ForwardError::unsupported(image));
            }
            let image = ImageGrid { size: [height, width], grid: layers.grid([height, width]), before };
            before += image.patches();
            found.push(image);
        }
        Ok(ImageGrids { images: found })
    }

    /// The tokens of each image; `None` where numbers of tokens do not reach so far.
    pub(super) fn sequences(&self) -> Option<Vec<Vec<u32>>> {
        let tokens = |image: &ImageGrid| {
            let end = u32::try_from(image.before + image.patches()).ok()?;
            Some((image.before as u32..end).collect())
        };
        self.images.iter().map(tokens).collect()
    }

    /// The image whose patches a sequence is.
    pub(super) fn span(&self, sequence: &[u32]) -> Option<ImageSpan> {
        let first = *sequence.first()? as usize;
        let image = self.images.partition_point(|image| image.before <= first).checked_sub(1)?;
        let found = self.images[image];
        let (start, rows) = (found.before, found.patches());
        let whole = sequence.len() == rows && sequence.iter().copied().eq(start as u32..(start + rows) as u32);
        whole.then_some(ImageSpan { rows: 0..rows, image, grid: Some(found.grid) })
    }
}

impl Run<'_, '_> {
    /// Rows of the stream for the tokens of images: see [`ImageLayers`].
    pub(super) fn embed_images(&self, layers: &ImageLayers, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        let images = self.decoder.images.as_deref().ok_or(ForwardError::NoImages)?;
        let learned = self.learned_rows(layers);
        let width = self.decoder.hidden();
        let mut x = Vec::with_capacity(tokens.len() * width);
        for sequence in tokens.chunks(self.length.max(1)) {
            let foreign =
                || ForwardError::Token { token: sequence.last().copied().unwrap_or(0), vocabulary: images.len() };
            let image = layers.image_of(sequence).ok_or_else(foreign)?;
            let mut pixels = images.pixels(image)?;
            let precision = self.ops.precision();
            pixels.iter_mut().for_each(|value| *value = precision.round(*value));
            x.extend_from_slice(&learned);
            let patches = layers.patches_of(&pixels);
            x.extend(self.linear_of(&self.blueprint().embedding, &patches, Spans::Even(layers.patches())));
        }
        self.add_image_positions(layers, &mut x);
        if let Some(norm) = &self.blueprint().embedding_norm {
            self.norm(norm, &mut x, width);
        }
        Ok(x)
    }

    /// Rows of the stream for the patches of an image of any size: see [`GridLayers`].
    pub(super) fn embed_grid(&self, layers: &GridLayers, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        let (images, grids) =
            self.decoder.images.as_deref().zip(self.decoder.grids.as_deref()).ok_or(ForwardError::NoImages)?;
        let foreign = || ForwardError::Token { token: tokens.last().copied().unwrap_or(0), vocabulary: images.len() };
        let [ImageSpan { image, rows, .. }] = self.images else { return Err(foreign()) };
        if *rows != (0..tokens.len()) {
            return Err(foreign());
        }
        let ImageGrid { size, grid, .. } = grids.images[*image];
        let (mut pixels, precision) = (images.pixels(*image)?, self.ops.precision());
        pixels.iter_mut().for_each(|value| *value = precision.round(*value));
        let patches = layers.patches_of(&pixels, size);
        let mut x = self.linear_of(&self.blueprint().embedding, &patches, Spans::Even(tokens.len()));
        if let Some((table, side)) = &layers.positions {
            let mut learned = Vec::new();
            (0..table.rows).for_each(|row| self.read_row(table, row, &mut learned));
            let mut added = Vec::with_capacity(x.len());
            for [row, column] in layers.order.places(grid) {
                let (down, across) = (nearest(row, grid[0], *side), nearest(column, grid[1], *side));
                let start = added.len();
                added.resize(start + table.columns, 0.0f32);
                for ((row, high), (column, wide)) in down.iter().flat_map(|down| across.map(|across| (*down, across))) {
                    let from = (row * side + column) * table.columns;
                    let values = &learned[from..from + table.columns];
                    added[start..].iter_mut().zip(values).for_each(|(sum, value)| *sum += value * (high * wide));
                }
            }
            added.iter_mut().for_each(|value| *value = precision.round(*value));
            self.ops.join(&mut x, &added, 1.0);
        }
        Ok(x)
    }

    /// Adds to the stream behind block `index` what the tower gives for it. Rows that can no longer be read are NaN.
    pub(super) fn add_further_rows(&self, index: usize, x: &mut [f32]) {
        let width = self.decoder.hidden();
        for (rows, added) in self.further_rows(index) {
            self.ops.join(&mut x[rows.start * width..rows.end * width], &added, 1.0);
        }
    }

    /// What the tower gives for the stream behind block `index`, with its places.
    pub(super) fn further_rows(&self, index: usize) -> Vec<(Range<usize>, Vec<f32>)> {
        let Some(source) = self.decoder.image_rows.as_ref().filter(|source| index < source.further()) else {
            return Vec::new();
        };
        let of_image = |span: &ImageSpan| {
            let count = span.rows.len() * self.decoder.hidden();
            let read = source.further_rows(span.image, index).ok().filter(|rows| rows.len() == count);
            (span.rows.clone(), read.unwrap_or_else(|| vec![f32::NAN; count]))
        };
        self.images.iter().map(of_image).collect()
    }

    /// Puts the rows of the images of a text in their places.
    pub(super) fn place_images(&self, x: &mut [f32]) -> Result<(), ForwardError> {
        let width = self.decoder.hidden();
        for ImageSpan { rows, image, .. } in self.images {
            let source = self.decoder.image_rows.as_ref().ok_or(ForwardError::NoImages)?;
            let place = &mut x[rows.start * width..rows.end * width];
            place.copy_from_slice(&source.rows(*image)?);
        }
        Ok(())
    }

    fn learned_rows(&self, layers: &ImageLayers) -> Vec<f32> {
        let mut rows = Vec::new();
        for learned in &layers.learned {
            (0..learned.table.rows).for_each(|row| self.read_row(&learned.table, row, &mut rows));
        }
        let precision = self.ops.precision();
        rows.iter_mut().for_each(|value| *value = precision.round(*value));
        rows
    }

    /// Adds its position to each row of every image that has one.
    fn add_image_positions(&self, layers: &ImageLayers, x: &mut [f32]) {
        let Some(table) = &layers.positions else { return };
        let mut positions = Vec::new();
        (0..table.rows).for_each(|row| self.read_row(table, row, &mut positions));
        let width = table.columns;
        for image in x.chunks_mut(layers.tokens() * width) {
            let (mut row, mut position) = (0, 0);
            for learned in &layers.learned {
                let count = learned.table.rows;
                if learned.has_positions {
                    let added = &positions[position * width..(position + count) * width];
                    self.ops.join(&mut image[row * width..(row + count) * width], added, 1.0);
                    position += count;
                }
                row += count;
            }
            self.ops.join(&mut image[row * width..], &positions[position * width..], 1.0);
        }
    }
}
