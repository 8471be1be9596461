//! What models of images of any size have in place of a table of tokens: a layer that makes a row of each patch, and learned positions that are
//! stretched over each image.

use super::{Positions, Sources};
use crate::forward::error::ForwardError;
use crate::forward::patches::PatchOrder;
use crate::forward::tensors::Projection;
use kvant_model::family::PatchGrid;
use kvant_model::network::Place;

/// The parts that make rows of the stream of an image of any size.
#[derive(Clone, Debug)]
pub struct GridLayers {
    /// Channels of an image.
    pub channels: usize,
    /// Equal frames that a still image counts as.
    pub frames: usize,
    /// Pixels along a side of a patch.
    pub patch: usize,
    /// The order of patches.
    pub order: PatchOrder,
    /// The rows of a square grid, and those along its side.
    pub positions: Option<(Projection, usize)>,
}

impl GridLayers {
    /// Patches along the height and width of an image of this size.
    pub fn grid(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        [height / self.patch, width / self.patch]
    }

    /// Pixels along a side of a square of patches, of which sides of images are multiples.
    pub fn factor(&self) -> usize {
        self.patch * self.order.square
    }

    /// Pixels `[channels, height, width]` as patches in their order: a row for each, in the order in which the weight of a convolution has its
    /// elements, channel by channel and frame by frame.
    pub fn patches_of(&self, pixels: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
        let side = self.patch;
        let places = self.order.places(self.grid([height, width]));
        let mut patches = Vec::with_capacity(places.len() * self.channels * self.frames * side * side);
        for [row, column] in places {
            for channel in 0..self.channels {
                for _ in 0..self.frames {
                    for y in row * side..(row + 1) * side {
                        let start = (channel * height + y) * width + column * side;
                        patches.extend_from_slice(&pixels[start..start + side]);
                    }
                }
            }
        }
        patches
    }
}

impl Sources<'_, '_> {
    /// What a model of images of any size has; `None` for others.
    pub(super) fn grids(&self) -> Result<Option<GridLayers>, ForwardError> {
        let Some(grid) = self.patch_grid() else { return Ok(None) };
        let sizes = ["num_channels", "temporal_patch_size", "patch_size", "spatial_merge_size"];
        let [channels, frames, patch, square] = sizes.map(|key| self.positive(key));
        let (channels, frames, patch, square) = (channels?, frames?, patch?, square?);
        let window = match grid.windows {
            false => None,
            true => {
                let pixels = self.positive("window_size")?;
                let squares = pixels / square / patch;
                if squares == 0 {
                    let found =
                        format!("windows of {pixels} pixels, with squares of {square}x{square} patches of {patch}");
                    return Err(ForwardError::unsupported(found));
                }
                Some(squares)
            }
        };
        let positions = grid.positions.map(|path| self.grid_positions(path)).transpose()?;
        Ok(Some(GridLayers { channels, frames, patch, order: PatchOrder { square, window }, positions }))
    }

    pub(super) fn patch_grid(&self) -> Option<PatchGrid> {
        self.family.encoder?.images?.grid
    }

    /// A size that is not 0, with both sides alike where it has two.
    pub(super) fn positive(&self, key: &str) -> Result<usize, ForwardError> {
        let [height, width] = self.need(self.config.height_and_width(key), key)?;
        match height == width && height > 0 {
            true => Ok(height),
            false => Err(ForwardError::unsupported(format!("`{key}` {height}x{width} of config.json"))),
        }
    }

    fn grid_positions(&self, path: &str) -> Result<(Projection, usize), ForwardError> {
        let at = self.network.places().iter().position(|place| *place == Place::Positions);
        let at = at.ok_or_else(|| ForwardError::missing("the model", format!("table of positions `{path}`")))?;
        let table = self.tensors.rows_of_width(at, self.hidden()?)?;
        let side = table.rows.isqrt();
        match side > 0 && side * side == table.rows {
            true => Ok((table, side)),
            false => Err(self.tensors.shape_error(at, "rows of a square grid")),
        }
    }

    /// Whether patches of a block see those of their window only.
    pub(super) fn is_windowed(&self, index: usize) -> bool {
        /// Those of Qwen2.5-VL where config.json is silent.
        const WHOLE: [usize; 4] = [7, 15, 23, 31];
        let sees_all = || self.config.lists("fullatt_block_indexes", index).unwrap_or(WHOLE.contains(&index));
        self.patch_grid().is_some_and(|grid| grid.windows) && !sees_all()
    }

    /// Returns whether heads turn by the place of patches in a grid.
    pub(super) fn turns_by_grid(&self) -> bool {
        self.positions_rule() == Positions::RotaryOfGrid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_repeat_their_frame_channel_by_channel() {
        let order = PatchOrder { square: 2, window: None };
        let layers = GridLayers { channels: 2, frames: 2, patch: 1, order, positions: None };
        let pixels: Vec<f32> = (0..2 * 2 * 4).map(|value| value as f32).collect();
        let patches = layers.patches_of(&pixels, [2, 4]);
        assert_eq!((layers.grid([2, 4]), layers.factor(), patches.len()), ([2, 4], 2, 8 * 4));
        assert_eq!(patches[..8], [0.0, 0.0, 8.0, 8.0, 1.0, 1.0, 9.0, 9.0]);
        assert_eq!(patches[8..12], [4.0, 4.0, 12.0, 12.0], "the second row of the first square");
    }
}
