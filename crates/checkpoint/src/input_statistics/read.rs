//! From the tensors of a file to the statistics of layers, every value checked.

use super::LayerStatistics;
use super::error::StatisticsProblem as Problem;
use kvant_container::{Dtype, TensorFile, TensorView};
use kvant_numeric::kernel::{FloatDType, Range, widen};
use kvant_numeric::simd::Isa;
use std::collections::BTreeMap;

/// The ends of names.
pub(crate) const INPUT: [&str; 2] = ["input_min", "input_max"];
pub(crate) const OUTPUT: [&str; 2] = ["output_min", "output_max"];
pub(crate) const MEAN_SQUARE: &str = "input_mean_square";
pub(crate) const HESSIAN: &str = "hessian";

const A_VECTOR: &str = "a number for each channel, or one for all";
const A_MATRIX: &str = "a square matrix";

/// The tensors of a layer by the ends of their names, with their places in the file.
type Tensors<'a> = BTreeMap<&'static str, (usize, TensorView<'a>)>;

/// The statistics of each layer; an error names the tensor.
pub(super) fn grouped(
    file: &TensorFile,
    component: Option<&str>,
) -> Result<BTreeMap<String, LayerStatistics>, (String, Problem)> {
    let mut layers: BTreeMap<&str, Tensors<'_>> = BTreeMap::new();
    for (index, tensor) in file.tensors().enumerate() {
        let name = match component {
            Some(component) => tensor.name().strip_prefix(component).and_then(|rest| rest.strip_prefix('.')),
            None => Some(tensor.name()),
        };
        let Some((layer, end)) = name.and_then(|name| name.rsplit_once('.')) else { continue };
        let known = INPUT.into_iter().chain(OUTPUT).chain([MEAN_SQUARE, HESSIAN]).find(|known| *known == end);
        if let Some(known) = known.filter(|_| !layer.is_empty()) {
            layers.entry(layer).or_default().insert(known, (index, tensor));
        }
    }
    layers.into_iter().map(|(layer, tensors)| Ok((layer.to_owned(), statistics(&tensors)?))).collect()
}

fn statistics(tensors: &Tensors<'_>) -> Result<LayerStatistics, (String, Problem)> {
    let named = |tensor: TensorView<'_>, problem| (tensor.name().to_owned(), problem);
    let of = |end: &str| tensors.get(end).copied();
    let mean_square = of(MEAN_SQUARE).map(|(_, tensor)| mean_square(tensor).map_err(|problem| named(tensor, problem)));
    let hessian = of(HESSIAN).map(|(index, tensor)| match tensor.shape() {
        [rows, columns] if rows == columns && *rows > 0 => Ok((*rows, index)),
        shape => Err(named(tensor, Problem::Shape(shape.to_vec(), A_MATRIX))),
    });
    Ok(LayerStatistics {
        input: ranges(tensors, INPUT)?,
        output: ranges(tensors, OUTPUT)?,
        mean_square: mean_square.transpose()?,
        hessian: hessian.transpose()?,
    })
}

/// The ranges between two ends.
fn ranges(tensors: &Tensors<'_>, ends: [&str; 2]) -> Result<Option<Vec<Range>>, (String, Problem)> {
    let [min, max] = ends.map(|end| tensors.get(end).map(|(_, tensor)| *tensor));
    let (min, max) = match (min, max) {
        (None, None) => return Ok(None),
        (Some(min), Some(max)) => (min, max),
        (Some(one), None) | (None, Some(one)) => {
            let missing = if min.is_some() { ends[1] } else { ends[0] };
            let layer = one.name().rsplit_once('.').map_or("", |(layer, _)| layer);
            return Err((one.name().to_owned(), Problem::OneEnd(format!("{layer}.{missing}"))));
        }
    };
    let [lows, highs] = [min, max].map(|tensor| vector(tensor).map_err(|problem| (tensor.name().to_owned(), problem)));
    let (lows, highs) = (lows?, highs?);
    let refused = |problem| Err((max.name().to_owned(), problem));
    if lows.len() != highs.len() {
        let (found, expected, other) = (highs.len(), lows.len(), min.name().to_owned());
        return refused(Problem::Lengths { found, other, expected });
    }
    if let Some(index) = lows.iter().zip(&highs).position(|(low, high)| low > high) {
        let value = format!("{}, below the minimum of {}", highs[index], lows[index]);
        return refused(Problem::Value { index, value });
    }
    Ok(Some(lows.into_iter().zip(highs).map(|(min, max)| Range { min, max }).collect()))
}

/// Mean squares in proportion to the largest: only their proportions count, and sums of errors stay within their type.
fn mean_square(tensor: TensorView<'_>) -> Result<Vec<f32>, Problem> {
    if tensor.shape().len() != 1 {
        return Err(Problem::Shape(tensor.shape().to_vec(), "a number for each channel"));
    }
    let values = vector(tensor)?;
    if let Some(index) = values.iter().position(|value| *value < 0.0) {
        return Err(Problem::Value { index, value: format!("{}, and no square is negative", values[index]) });
    }
    let largest = values.iter().copied().fold(0.0, f32::max);
    Ok(if largest > 0.0 { values.into_iter().map(|value| value / largest).collect() } else { values })
}

/// The finite numbers of a vector or a scalar.
fn vector(tensor: TensorView<'_>) -> Result<Vec<f32>, Problem> {
    let shape = tensor.shape();
    if shape.len() > 1 || shape.contains(&0) {
        return Err(Problem::Shape(shape.to_vec(), A_VECTOR));
    }
    let values = floats(tensor)?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Problem::Value { index, value: format!("{}, which is not a finite number", values[index]) }),
        None => Ok(values),
    }
}

/// A Hessian: finite and symmetric, with squares on its diagonal, which no product of two channels exceeds: `|h_ij| <= sqrt(h_ii h_jj)`.
pub(super) fn checked_hessian(tensor: TensorView<'_>, channels: usize) -> Result<Vec<f32>, Problem> {
    let values = floats(tensor)?;
    let refused = |index: usize, what: &str| Problem::Value { index, value: format!("{}, {what}", values[index]) };
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(refused(index, "which is not a finite number"));
    }
    let diagonal = |channel: usize| values[channel * channels + channel];
    if let Some(channel) = (0..channels).find(|channel| diagonal(*channel) < 0.0) {
        return Err(refused(channel * channels + channel, "and no square is negative"));
    }
    if (0..channels).all(|channel| diagonal(channel) == 0.0) {
        return Err(Problem::Zero("mean squares"));
    }
    for (row, column) in below_diagonal(channels) {
        let (index, mirrored) = (row * channels + column, values[column * channels + row]);
        let most = diagonal(row).sqrt() * diagonal(column).sqrt();
        // Sums of products in f32 or bf16 are rounded, and need not be the same in both orders.
        let tolerance = 0.01 * most;
        if (values[index] - mirrored).abs() > tolerance {
            return Err(refused(index, &format!("and the matrix is not symmetric: its mirror is {mirrored}")));
        }
        if values[index].abs() > most + tolerance {
            return Err(refused(index, &format!("and the squares of its channels allow no more than {most}")));
        }
    }
    Ok(values)
}

/// The elements below the diagonal, tile by tile: mirrored ones are in other rows, which a whole row of them would push out of the cache.
fn below_diagonal(channels: usize) -> impl Iterator<Item = (usize, usize)> {
    const TILE: usize = 64;
    let tile = move |start: usize| start..(start + TILE).min(channels);
    let tiles = (0..channels).step_by(TILE).flat_map(|top| (0..=top).step_by(TILE).map(move |left| (top, left)));
    tiles.flat_map(move |(top, left)| {
        let columns_of = move |row: usize| tile(left).start..tile(left).end.min(row);
        tile(top).flat_map(move |row| columns_of(row).map(move |column| (row, column)))
    })
}

fn floats(tensor: TensorView<'_>) -> Result<Vec<f32>, Problem> {
    let bytes = tensor.bytes();
    let source = match tensor.dtype() {
        Dtype::F32 => FloatDType::F32,
        Dtype::F16 => FloatDType::F16,
        Dtype::BF16 => FloatDType::Bf16,
        Dtype::F64 => {
            let (numbers, _) = bytes.as_chunks::<8>();
            return Ok(numbers.iter().map(|number| f64::from_le_bytes(*number) as f32).collect());
        }
        other => return Err(Problem::Type(other.to_string())),
    };
    let mut values = vec![0.0; bytes.len() / source.size()];
    widen(Isa::best(), source, bytes, &mut values);
    Ok(values)
}
