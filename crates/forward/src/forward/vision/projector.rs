//! What makes rows of the decoder's stream of a tower's hidden states: see [`Projector`].

use super::super::blueprint::{NormLayer, is_at};
use super::super::error::ForwardError;
use super::super::ops::Hidden;
use super::super::patches::PatchOrder;
use super::super::run::Run;
use super::super::spans::Spans;
use super::super::tensors::{Projection, Tensors, Vector};
use super::SECTION;
use kvant_model::family::{Activation, NormKind};
use kvant_model::model_config::ModelConfig;
use kvant_model::vision::{FurtherRows, ImageReading, Projector};
use serde_json::Value;

/// The layers of a projector.
#[derive(Clone, Debug)]
pub(super) enum ProjectorLayers {
    /// Two layers with an activation between them.
    TwoLayers { layers: Box<[Projection; 2]>, activation: Activation },
    /// A norm of each patch, or of all patches of a square; two layers with GELU between them, on all patches of a square.
    Merged {
        order: PatchOrder,
        norm: NormLayer,
        /// Elements that the norm is over.
        norm_width: usize,
        layers: Box<[Projection; 2]>,
    },
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

/// What the layers of a projector are found in.
#[derive(Clone, Copy)]
pub(super) struct ProjectorSources<'s, 'a> {
    pub(super) reading: &'s ImageReading,
    pub(super) config: &'s Value,
    pub(super) tensors: &'s Tensors<'a>,
    /// Elements of the rows that it reads.
    pub(super) width: usize,
}

/// The rows of an image that a tower gives.
#[derive(Clone, Copy)]
pub(super) enum EncoderRows {
    /// So many, with patches in this grid.
    Equal(usize, [usize; 2]),
    /// Patches of images of any size, in this order.
    Grid(PatchOrder),
}

impl ProjectorLayers {
    /// The layers that read such rows.
    pub(super) fn new(sources: ProjectorSources<'_, '_>, found: EncoderRows) -> Result<ProjectorLayers, ForwardError> {
        let ProjectorSources { reading, config, tensors, width } = sources;
        let hidden = sources.hidden()?;
        let (rows, grid) = match found {
            EncoderRows::Equal(rows, grid) => (rows, grid),
            EncoderRows::Grid(order) => {
                let Projector::Merged { norm, norm_kind, layers } = reading.projector else {
                    return Err(ForwardError::unsupported(format!(
                        "images of any size in a model like {}",
                        reading.name
                    )));
                };
                return ProjectorLayers::merged(sources, order, (norm, norm_kind, width), layers);
            }
        };
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
                let norm = sources.norm(norm, norm_kind, width)?;
                let layer = tensors.input_major(find(tensors, matrix)?, [hidden, width])?;
                Ok(ProjectorLayers::Pooled { grid, side, norm, layer: Box::new(layer) })
            }
            Projector::Merged { .. } => {
                Err(ForwardError::unsupported(format!("images of one size in a model like {}", reading.name)))
            }
        }
    }

    fn merged(
        sources: ProjectorSources<'_, '_>,
        order: PatchOrder,
        (norm, kind, norm_width): (&str, NormKind, usize),
        [first, second]: [&str; 2],
    ) -> Result<ProjectorLayers, ForwardError> {
        let (width, hidden) = (sources.width * order.square * order.square, sources.hidden()?);
        let layers =
            [linear(sources.tensors, first, [width, width])?, linear(sources.tensors, second, [hidden, width])?];
        let norm = sources.norm(norm, kind, norm_width)?;
        Ok(ProjectorLayers::Merged { order, norm, norm_width, layers: Box::new(layers) })
    }

    /// The layers that make the further rows of this number.
    pub(super) fn further(
        sources: ProjectorSources<'_, '_>,
        (rule, index): (FurtherRows, usize),
        order: PatchOrder,
    ) -> Result<ProjectorLayers, ForwardError> {
        let path = |name: &str| format!("{}.{index}.{name}", rule.projector);
        let norm_width = sources.width * order.square * order.square;
        let [first, second] = rule.linears.map(path);
        ProjectorLayers::merged(sources, order, (&path(rule.norm), rule.norm_kind, norm_width), [&first, &second])
    }

    /// Its linear layers.
    pub(super) fn layers(&self) -> Vec<&Projection> {
        match self {
            ProjectorLayers::TwoLayers { layers, .. } | ProjectorLayers::Merged { layers, .. } => {
                layers.iter().collect()
            }
            ProjectorLayers::Pooled { layer, .. } => vec![layer],
        }
    }

    /// Rows that it makes of `rows` rows of an image.
    pub(super) fn rows(&self, rows: usize) -> usize {
        match self {
            ProjectorLayers::TwoLayers { .. } => rows,
            ProjectorLayers::Merged { order, .. } => rows / (order.square * order.square),
            ProjectorLayers::Pooled { grid: [tall, wide], side, .. } => (tall / side) * (wide / side),
        }
    }

    /// The rows of an image for those of the tower; of one of any size with its patches along the height and width.
    pub(super) fn project(&self, run: &Run<'_, '_>, mut rows: Vec<f32>, grid: Option<[usize; 2]>) -> Vec<f32> {
        let whole =
            |layer: &Projection, x: &[f32]| run.linear_of(layer, x, Spans::Even(x.len() / layer.columns.max(1)));
        match self {
            ProjectorLayers::TwoLayers { layers, activation } => {
                let [first, second] = &**layers;
                let mut hidden = Vec::new();
                run.ops.activate(*activation, Hidden::Plain(&whole(first, &rows)), &mut hidden);
                whole(second, &hidden)
            }
            ProjectorLayers::Merged { order, norm, norm_width, layers } => {
                let [first, second] = &**layers;
                run.norm(norm, &mut rows, *norm_width);
                let mut hidden = Vec::new();
                run.ops.activate(Activation::Gelu, Hidden::Plain(&whole(first, &rows)), &mut hidden);
                let squares = whole(second, &hidden);
                grid.map_or_else(Vec::new, |grid| order.row_by_row(grid, &squares, second.rows))
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

impl ProjectorSources<'_, '_> {
    /// Elements of the stream of the language model.
    fn hidden(&self) -> Result<usize, ForwardError> {
        let hidden = ModelConfig::from_json(self.config)?.hidden_size;
        hidden.ok_or_else(|| ForwardError::missing("config.json", "hidden_size of the language model"))
    }

    /// The norm at a path, with the small number of the tower's.
    fn norm(&self, path: &str, kind: NormKind, width: usize) -> Result<NormLayer, ForwardError> {
        let weight = self.tensors.vector(find(self.tensors, &format!("{path}.weight"))?, Some(width))?;
        let bias = bias_of(self.tensors, path, width)?;
        let section = self.config.get(SECTION).unwrap_or(&Value::Null);
        let eps = match self.reading.described {
            Some(described) => Some(described.norm_eps),
            None => ModelConfig::from_json(section)?.norm_eps,
        };
        let eps = eps.ok_or_else(|| ForwardError::missing("config.json", "layer_norm_eps in vision_config"))?;
        Ok(NormLayer { kind, weight: vec![weight], bias: bias.into_iter().collect(), eps: eps as f32 })
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
    Ok(layer.with_bias(bias_of(tensors, path, rows)?))
}

/// The bias of the layer or norm at a path, if it has one.
fn bias_of(tensors: &Tensors<'_>, path: &str, length: usize) -> Result<Option<Vector>, ForwardError> {
    let bias = tensors.meta().iter().position(|tensor| is_at(&tensor.name, &format!("{path}.bias")));
    bias.map(|bias| tensors.vector(bias, Some(length))).transpose()
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
