//! The stream before the first block of a model of images: learned rows and those of patches, positions included; and the rows of images in
//! the stream of a model of text.

use super::blueprint::ImageLayers;
use super::error::ForwardError;
use super::layout::ImageSpan;
use super::run::Run;
use super::spans::Spans;

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

    /// Puts the rows of the images of a text in their places.
    pub(super) fn place_images(&self, x: &mut [f32]) -> Result<(), ForwardError> {
        let width = self.decoder.hidden();
        for ImageSpan { rows, image } in self.images {
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
