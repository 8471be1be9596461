//! What models of images have in place of a table of tokens: learned rows, and a layer that makes a row of each patch.
//!
//! Tokens of such a model are numbers too: those of its learned rows, then those of the patches of all images that it is given, image after
//! image. The sequence of an image is all learned rows and its own patches.

use super::{Positions, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::ImageTokens;
use kvant_model::network::{Place, Slot};

/// The parts that make rows of the stream of an image.
#[derive(Clone, Debug)]
pub struct ImageLayers {
    /// Channels, height and width of an image.
    pub shape: [usize; 3],
    /// Height and width of a patch.
    pub patch: [usize; 2],
    /// The rows before those of the patches.
    pub learned: Vec<LearnedRows>,
    /// The rows that are added to those with a position.
    pub positions: Option<Projection>,
}

/// Learned rows of the stream.
#[derive(Clone, Debug)]
pub struct LearnedRows {
    /// The rows.
    pub table: Projection,
    /// Whether a position is added to each.
    pub has_positions: bool,
}

impl ImageLayers {
    /// Rows before those of the patches.
    pub fn learned_rows(&self) -> usize {
        self.learned.iter().map(|learned| learned.table.rows).sum()
    }

    /// Patches along the height and along the width.
    pub fn grid(&self) -> [usize; 2] {
        let [_, height, width] = self.shape;
        [height / self.patch[0], width / self.patch[1]]
    }

    /// Patches of an image.
    pub fn patches(&self) -> usize {
        self.grid().iter().product()
    }

    /// Tokens of an image.
    pub fn tokens(&self) -> usize {
        self.learned_rows() + self.patches()
    }

    /// The tokens of an image: see the module's documentation. `None` where numbers of tokens do not reach so far.
    pub fn sequence(&self, image: usize) -> Option<Vec<u32>> {
        let learned = self.learned_rows();
        let first = image.checked_mul(self.patches())?.checked_add(learned)?;
        let last = u32::try_from(first.checked_add(self.patches())?).ok()?;
        Some((0..learned as u32).chain(first as u32..last).collect())
    }

    /// The image whose sequence this is.
    pub fn image_of(&self, sequence: &[u32]) -> Option<usize> {
        let first = usize::try_from(*sequence.get(self.learned_rows())?).ok()?;
        let image = first.checked_sub(self.learned_rows())? / self.patches().max(1);
        (self.sequence(image)? == sequence).then_some(image)
    }

    /// Pixels `[channels, height, width]` as patches: a row for each, in the order in which the weight of a convolution has its elements,
    /// channel by channel.
    pub fn patches_of(&self, pixels: &[f32]) -> Vec<f32> {
        let ([channels, height, width], [tall, wide], [rows, columns]) = (self.shape, self.patch, self.grid());
        let mut patches = Vec::with_capacity(rows * columns * channels * tall * wide);
        for patch in 0..rows * columns {
            let (top, left) = (patch / columns * tall, patch % columns * wide);
            for channel in 0..channels {
                for y in top..top + tall {
                    let start = (channel * height + y) * width + left;
                    patches.extend_from_slice(&pixels[start..start + wide]);
                }
            }
        }
        patches
    }
}

impl Sources<'_, '_> {
    /// What a model of images has; `None` for others.
    pub(super) fn images(&self) -> Result<Option<ImageLayers>, ForwardError> {
        let images = self.family.encoder.and_then(|encoder| encoder.images).filter(|images| images.grid.is_none());
        let Some(images) = images else { return Ok(None) };
        let sizes = |key: &str| self.need(self.config.height_and_width(key), key);
        let ([height, width], patch) = (sizes("image_size")?, sizes("patch_size")?);
        let channels = self.need(self.config.size("num_channels"), "num_channels")?;
        let [tall, wide] = patch;
        // What a convolution without padding leaves at the right and below is not computed here.
        if tall == 0 || wide == 0 || channels == 0 || height < tall || width < wide {
            return Err(ForwardError::unsupported(format!("patches of {tall}x{wide} in images of {height}x{width}")));
        }
        if images.must_be_square && height != width {
            return Err(ForwardError::unsupported(format!(
                "images of {height}x{width}, whose positions are interpolated"
            )));
        }
        let mut layers =
            ImageLayers { shape: [channels, height, width], patch, learned: self.learned(images)?, positions: None };
        layers.positions = self.image_positions(&layers)?;
        Ok(Some(layers))
    }

    fn learned(&self, images: ImageTokens) -> Result<Vec<LearnedRows>, ForwardError> {
        let hidden = self.hidden()?;
        let mut learned = Vec::new();
        for token in images.learned {
            let trunk = self.network.trunk();
            let name = if trunk.is_empty() { token.path.to_owned() } else { format!("{trunk}.{}", token.path) };
            let at = self.tensors.meta().iter().position(|tensor| tensor.name == name);
            let at = at.ok_or_else(|| ForwardError::missing("the model", format!("rows `{name}`")))?;
            if self.tensors.meta()[at].shape.contains(&0) {
                continue;
            }
            let table = self.tensors.rows_of_width(at, hidden)?;
            learned.push(LearnedRows { table, has_positions: token.has_positions });
        }
        Ok(learned)
    }

    fn image_positions(&self, layers: &ImageLayers) -> Result<Option<Projection>, ForwardError> {
        if !matches!(self.positions_rule(), Positions::Learned { .. }) {
            return Ok(None);
        }
        let at = self.network.places().iter().position(|place| *place == Place::Positions);
        let at = at.ok_or_else(|| ForwardError::missing("the model", "table of positions"))?;
        let placed = layers.learned.iter().filter(|learned| learned.has_positions);
        let expected = layers.patches() + placed.map(|learned| learned.table.rows).sum::<usize>();
        let table = self.tensors.rows_of_width(at, self.hidden()?)?;
        match table.rows == expected {
            true => Ok(Some(table)),
            false => {
                let [_, height, width] = layers.shape;
                let expected = format!("{expected} positions, which images of {height}x{width} have");
                Err(self.tensors.shape_error(at, &expected))
            }
        }
    }

    /// The layer that makes a row of each patch.
    pub(super) fn patch_projection(&self) -> Result<Projection, ForwardError> {
        let find = |slot| self.network.places().iter().position(|place| *place == Place::Patches(slot));
        let weight = find(Slot::Weight);
        let weight = weight.ok_or_else(|| ForwardError::missing("the model", "layer that reads patches"))?;
        let size = |key: &str| self.need(self.config.height_and_width(key), key);
        let [tall, wide] = size("patch_size")?;
        let channels = self.need(self.config.size("num_channels"), "num_channels")?;
        let frames = if self.patch_grid().is_some() { Some(self.positive("temporal_patch_size")?) } else { None };
        let sizes: Vec<usize> = [channels].into_iter().chain(frames).chain([tall, wide]).collect();
        let columns = sizes.iter().copied().fold(1, usize::saturating_mul);
        let projection = self.tensors.rows_of_width(weight, columns)?;
        let shape = &self.tensors.meta()[weight].shape;
        if projection.rows != self.hidden()? || shape[1..] != sizes[..] {
            let expected = format!("{channels} channels of patches of {tall}x{wide} and the hidden size");
            return Err(self.tensors.shape_error(weight, &expected));
        }
        let rows = projection.rows;
        let bias = find(Slot::Bias).map(|bias| self.tensors.vector(bias, Some(rows))).transpose()?;
        Ok(projection.with_bias(bias))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> ImageLayers {
        ImageLayers { shape: [2, 4, 7], patch: [2, 3], learned: Vec::new(), positions: None }
    }

    #[test]
    fn patches_have_the_order_of_a_convolution() {
        let pixels: Vec<f32> = (0..2 * 4 * 7).map(|value| value as f32).collect();
        let patches = layers().patches_of(&pixels);
        assert_eq!((layers().grid(), patches.len()), ([2, 2], 4 * 12), "the last column is in no patch");
        assert_eq!(patches[..12], [0.0, 1.0, 2.0, 7.0, 8.0, 9.0, 28.0, 29.0, 30.0, 35.0, 36.0, 37.0]);
        assert_eq!(patches[12..15], [3.0, 4.0, 5.0]);
        assert_eq!(patches[24..27], [14.0, 15.0, 16.0]);
    }

    #[test]
    fn sequences_name_their_image() {
        let layers = layers();
        assert_eq!(layers.sequence(2), Some(vec![8, 9, 10, 11]));
        assert_eq!(layers.image_of(&[8, 9, 10, 11]), Some(2));
        assert_eq!(layers.image_of(&[9, 10, 11, 12]), None);
        assert_eq!(layers.sequence(1 << 30), None, "beyond 32 bits");
    }
}
