//! What makes rows of the decoder's stream of a tower's hidden states: see [`Projector`].

use super::super::blueprint::{NormLayer, is_at};
use super::super::error::ForwardError;
use super::super::ops::Hidden;
use super::super::run::Run;
use super::super::spans::Spans;
use super::super::tensors::{Projection, Tensors};
use super::SECTION;
use kvant_model::family::Activation;
use kvant_model::model_config::ModelConfig;
use kvant_model::vision::{ImageReading, Projector};
use serde_json::Value;

/// The layers of a projector.
#[derive(Clone, Debug)]
pub(super) enum ProjectorLayers {
    /// Two layers with an activation between them.
    TwoLayers { layers: Box<[Projection; 2]>, activation: Activation },
    /// Means of squares of patches, a norm, a layer.
    Pooled {
        /// Patches along the height and along the width.
        grid: [usize; 2],
        /// Patches along a side of a square.
        side: usize,
        norm: NormLayer,
        layer: Box<Projection>,
    },
}

impl ProjectorLayers {
    /// The layers that read `rows` rows of `width` elements of each image.
    pub(super) fn new(
        reading: &ImageReading,
        config: &Value,
        tensors: &Tensors<'_>,
        (rows, width): (usize, usize),
        grid: [usize; 2],
    ) -> Result<ProjectorLayers, ForwardError> {
        let hidden = ModelConfig::from_json(config)?.hidden_size;
        let hidden = hidden.ok_or_else(|| ForwardError::missing("config.json", "hidden_size of the language model"))?;
        match reading.projector {
            Projector::TwoLayers { layers: [first, second], activation: (key, default) } => {
                let layers = [linear(tensors, first, [hidden, width])?, linear(tensors, second, [hidden, hidden])?];
                let named = config.get(key).and_then(Value::as_str);
                let activation = named.map_or(default, Activation::from_config_name);
                match activation {
                    Activation::Unknown | Activation::Xielu | Activation::ClampedSwiglu => {
                        Err(ForwardError::unsupported(format!("`{key}` {} of config.json", named.unwrap_or_default())))
                    }
                    activation => Ok(ProjectorLayers::TwoLayers { layers: Box::new(layers), activation }),
                }
            }
            Projector::Pooled { rows: (key, default), norm, norm_kind, matrix } => {
                let stated = config.get(key).and_then(Value::as_u64).map_or(default, |stated| stated as usize);
                let side = side_of_squares(stated, grid, rows);
                let side = side.ok_or_else(|| {
                    ForwardError::unsupported(format!("`{key}` {stated} of config.json, with patches of {grid:?}"))
                })?;
                let weight = tensors.vector(find(tensors, &format!("{norm}.weight"))?, Some(width))?;
                let eps = ModelConfig::from_json(config.get(SECTION).unwrap_or(&Value::Null))?.norm_eps;
                let eps = eps.ok_or_else(|| ForwardError::missing("config.json", "layer_norm_eps in vision_config"))?;
                let norm = NormLayer { kind: norm_kind, weight: vec![weight], bias: Vec::new(), eps: eps as f32 };
                let layer = tensors.input_major(find(tensors, matrix)?, [hidden, width])?;
                Ok(ProjectorLayers::Pooled { grid, side, norm, layer: Box::new(layer) })
            }
        }
    }

    /// Its linear layers.
    pub(super) fn layers(&self) -> Vec<&Projection> {
        match self {
            ProjectorLayers::TwoLayers { layers, .. } => layers.iter().collect(),
            ProjectorLayers::Pooled { layer, .. } => vec![layer],
        }
    }

    /// Rows that it makes of `rows` rows of an image.
    pub(super) fn rows(&self, rows: usize) -> usize {
        match self {
            ProjectorLayers::TwoLayers { .. } => rows,
            ProjectorLayers::Pooled { grid: [tall, wide], side, .. } => (tall / side) * (wide / side),
        }
    }

    /// The rows of an image for those of the tower.
    pub(super) fn project(&self, run: &Run<'_, '_>, rows: Vec<f32>) -> Vec<f32> {
        let whole =
            |layer: &Projection, x: &[f32]| run.linear_of(layer, x, Spans::Even(x.len() / layer.columns.max(1)));
        match self {
            ProjectorLayers::TwoLayers { layers, activation } => {
                let [first, second] = &**layers;
                let mut hidden = Vec::new();
                run.ops.activate(*activation, Hidden::Plain(&whole(first, &rows)), &mut hidden);
                whole(second, &hidden)
            }
            ProjectorLayers::Pooled { grid, side, norm, layer } => {
                let mut means = pooled(&rows, *grid, *side, layer.columns);
                let precision = run.ops.precision();
                means.iter_mut().for_each(|value| *value = precision.round(*value));
                run.norm(norm, &mut means, layer.columns);
                whole(layer, &means)
            }
        }
    }
}

/// The side of squares of patches, so many of which are in an image.
fn side_of_squares(count: usize, [tall, wide]: [usize; 2], patches: usize) -> Option<usize> {
    let across = count.isqrt();
    let side = tall.checked_div(across).filter(|side| *side > 0)?;
    let fits = tall == wide && patches == tall * wide && (tall / side) * (wide / side) == count;
    fits.then_some(side)
}

/// The means of squares of rows, which stand in a grid; what is left at the right and below is in no square.
fn pooled(rows: &[f32], [tall, wide]: [usize; 2], side: usize, width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() / (side * side));
    for top in (0..tall / side).map(|row| row * side) {
        for left in (0..wide / side).map(|column| column * side) {
            let mut sums = vec![0.0f32; width];
            for row in top..top + side {
                for column in left..left + side {
                    let at = (row * wide + column) * width;
                    sums.iter_mut().zip(&rows[at..at + width]).for_each(|(sum, value)| *sum += value);
                }
            }
            out.extend(sums.into_iter().map(|sum| sum / (side * side) as f32));
        }
    }
    out
}

/// The position of the tensor at this path, alone or in other modules.
fn find(tensors: &Tensors<'_>, path: &str) -> Result<usize, ForwardError> {
    let found = tensors.meta().iter().position(|tensor| is_at(&tensor.name, path));
    found.ok_or_else(|| ForwardError::missing("the model", format!("tensor `{path}`")))
}

/// The linear layer at a path.
fn linear(tensors: &Tensors<'_>, path: &str, [rows, columns]: [usize; 2]) -> Result<Projection, ForwardError> {
    let weight = find(tensors, &format!("{path}.weight"))?;
    let layer = tensors.table(weight)?;
    if (layer.rows, layer.columns) != (rows, columns) {
        return Err(tensors.shape_error(weight, &format!("{rows} outputs and {columns} inputs")));
    }
    let bias = tensors.meta().iter().position(|tensor| is_at(&tensor.name, &format!("{path}.bias")));
    let bias = bias.map(|bias| tensors.vector(bias, Some(rows))).transpose()?;
    Ok(layer.with_bias(bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_have_the_mean_of_their_patches() {
        assert_eq!(side_of_squares(4, [4, 4], 16), Some(2));
        assert_eq!(side_of_squares(4, [5, 5], 25), Some(2), "the last row and column are in no square");
        assert_eq!((side_of_squares(9, [4, 4], 16), side_of_squares(4, [4, 2], 8)), (None, None));
        let rows: Vec<f32> = (0..16).flat_map(|value| [value as f32, -1.0]).collect();
        assert_eq!(pooled(&rows, [4, 4], 2, 2), [2.5, -1.0, 4.5, -1.0, 10.5, -1.0, 12.5, -1.0]);
    }
}
