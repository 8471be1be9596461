//! The positions of a layer's input and output channels in its weight.

use kvant_container::onnx::NodeProto;

use crate::graph::{int_attribute, is_standard};

/// Which channel an element of a weight belongs to. The weight is `rows x columns x inner` elements; rows come in blocks, each of
/// which has the next `columns` channels: `channel = row / block * columns + column`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelMap {
    columns: usize,
    inner: usize,
    block: usize,
    /// Number of channels.
    pub channels: usize,
}

impl ChannelMap {
    /// The channel of an element, row-major.
    pub fn channel(&self, element: usize) -> usize {
        let (row, column) = (element / (self.columns * self.inner), element / self.inner % self.columns);
        row / self.block * self.columns + column
    }

    /// The largest magnitude of each channel of a weight.
    pub fn magnitudes(&self, values: &[f32]) -> Vec<f32> {
        let mut found = vec![0f32; self.channels];
        for (row, values) in values.chunks(self.columns * self.inner).enumerate() {
            let found = &mut found[row / self.block * self.columns..];
            for (found, values) in found.iter_mut().zip(values.chunks(self.inner)) {
                *found = values.iter().fold(*found, |largest, value| largest.max(value.abs()));
            }
        }
        found
    }

    /// Changes each element of a weight by the number of its channel.
    pub fn apply(&self, values: &mut [f32], of_channels: &[f32], by: impl Fn(f32, f32) -> f32) {
        for (row, values) in values.chunks_mut(self.columns * self.inner).enumerate() {
            let numbers = &of_channels[row / self.block * self.columns..];
            if self.inner == 1 {
                values.iter_mut().zip(numbers).for_each(|(value, number)| *value = by(*value, *number));
                continue;
            }
            for (values, number) in values.chunks_mut(self.inner).zip(numbers) {
                values.iter_mut().for_each(|value| *value = by(*value, *number));
            }
        }
    }

    /// Channels along the rows.
    fn rows(shape: &[usize]) -> Option<Self> {
        let inner = shape.get(1..)?.iter().product();
        Self { columns: 1, inner, block: 1, channels: shape[0] }.checked()
    }

    /// Channels along the columns, in `groups` blocks of rows.
    fn columns(shape: &[usize], groups: usize) -> Option<Self> {
        let [rows, columns, rest @ ..] = shape else { return None };
        let block = rows.checked_div(groups).filter(|block| block * groups == *rows)?;
        let channels = columns.checked_mul(groups)?;
        Self { columns: *columns, inner: rest.iter().product(), block, channels }.checked()
    }

    fn checked(self) -> Option<Self> {
        (self.columns > 0 && self.inner > 0 && self.block > 0 && self.channels > 0).then_some(self)
    }

    /// A vector with an element for each channel.
    pub fn vector(channels: usize) -> Option<Self> {
        Self::rows(&[channels])
    }

    /// The output channels of a layer.
    pub fn outputs(node: &NodeProto, shape: &[usize]) -> Option<Self> {
        match node.op_type() {
            _ if !is_standard(node) => None,
            "Conv" => Self::rows(shape),
            "ConvTranspose" => Self::columns(shape, groups(node)?),
            "Gemm" if transposed(node) => Self::rows(shape),
            "Gemm" | "MatMul" if shape.len() == 2 => Self::columns(shape, 1),
            _ => None,
        }
    }

    /// The input channels of a layer.
    pub fn inputs(node: &NodeProto, shape: &[usize]) -> Option<Self> {
        match node.op_type() {
            _ if !is_standard(node) => None,
            "Conv" => Self::columns(shape, groups(node)?),
            "ConvTranspose" => Self::rows(shape),
            "Gemm" if int_attribute(node, "transA").unwrap_or(0) != 0 => None,
            "Gemm" if transposed(node) => Self::columns(shape, 1),
            "Gemm" | "MatMul" if shape.len() == 2 => Self::rows(shape),
            _ => None,
        }
    }
}

fn groups(node: &NodeProto) -> Option<usize> {
    usize::try_from(int_attribute(node, "group").unwrap_or(1)).ok().filter(|groups| *groups > 0)
}

fn transposed(node: &NodeProto) -> bool {
    int_attribute(node, "transB") == Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};

    fn all(map: ChannelMap, elements: usize) -> Vec<usize> {
        (0..elements).map(|element| map.channel(element)).collect()
    }

    fn layer(op_type: &str, group: i64) -> NodeProto {
        let mut made = node(op_type, "", &["x", "w"], &["y"]);
        set_attribute(&mut made, "group", group);
        made
    }

    #[test]
    fn channels_of_grouped_convolutions() {
        // Four outputs, two groups of two inputs each.
        let grouped = layer("Conv", 2);
        let map = ChannelMap::inputs(&grouped, &[4, 2, 1, 1]).unwrap();
        assert_eq!((map.channels, all(map, 8)), (4, vec![0, 1, 0, 1, 2, 3, 2, 3]));
        let map = ChannelMap::outputs(&grouped, &[4, 2, 1, 1]).unwrap();
        assert_eq!((map.channels, all(map, 8)), (4, vec![0, 0, 1, 1, 2, 2, 3, 3]));
        let depthwise = ChannelMap::inputs(&layer("Conv", 2), &[4, 1, 1, 1]).unwrap();
        assert_eq!((depthwise.channels, all(depthwise, 4)), (2, vec![0, 0, 1, 1]));
    }

    #[test]
    fn channels_of_transposed_convolutions() {
        let map = ChannelMap::outputs(&layer("ConvTranspose", 2), &[4, 2, 1]).unwrap();
        assert_eq!((map.channels, all(map, 8)), (4, vec![0, 1, 0, 1, 2, 3, 2, 3]));
        let map = ChannelMap::inputs(&layer("ConvTranspose", 2), &[4, 2, 1]).unwrap();
        assert_eq!((map.channels, all(map, 8)), (4, vec![0, 0, 1, 1, 2, 2, 3, 3]));
    }

    #[test]
    fn whole_weights_are_taken_as_their_elements_are() {
        let maps = [
            ChannelMap::inputs(&layer("Conv", 2), &[4, 3, 2, 1]),
            ChannelMap::inputs(&layer("Conv", 2), &[4, 6, 1, 1]),
            ChannelMap::outputs(&layer("Conv", 1), &[6, 2, 2, 1]),
            ChannelMap::outputs(&layer("MatMul", 1), &[4, 6]),
        ];
        let values: Vec<f32> = (0..24).map(|i| (i * 7 % 24) as f32 - 11.5).collect();
        for map in maps.map(Option::unwrap) {
            let (mut largest, numbers) = (vec![0f32; map.channels], (2..14).map(|i| i as f32).collect::<Vec<_>>());
            let mut changed = values.clone();
            for (element, value) in values.iter().enumerate() {
                let channel = map.channel(element);
                largest[channel] = largest[channel].max(value.abs());
                changed[element] *= numbers[channel];
            }
            let mut found = values.clone();
            map.apply(&mut found, &numbers, |value, number| value * number);
            assert_eq!((map.magnitudes(&values), found), (largest, changed), "{map:?}");
        }
    }

    #[test]
    fn channels_of_matrix_products() {
        let product = node("MatMul", "", &["x", "w"], &["y"]);
        assert_eq!(all(ChannelMap::inputs(&product, &[2, 3]).unwrap(), 6), [0, 0, 0, 1, 1, 1]);
        assert_eq!(all(ChannelMap::outputs(&product, &[2, 3]).unwrap(), 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(ChannelMap::outputs(&product, &[2, 2, 3]), None);
    }
}
