//! Which elements of a matrix share a scale. Not how the scale is found or stored.

use super::SchemeError;
use std::fmt;
use std::num::NonZeroU32;

/// The axis of a weight matrix `[out, in]` (or of activations `[tokens, features]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Axis 0: output channels, tokens.
    Rows,
    /// Axis 1: input channels, features.
    Columns,
}

impl Axis {
    /// 0 or 1.
    pub fn index(self) -> usize {
        match self {
            Axis::Rows => 0,
            Axis::Columns => 1,
        }
    }
}

/// The elements of a matrix that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// One scale for the tensor.
    Tensor,
    /// One scale for every index of the axis: `Channel(Rows)` has one per output channel (per token in activations).
    Channel(Axis),
    /// One scale for `size` consecutive elements along the axis; `None` is the whole axis (spelled `g-1`).
    Group {
        /// The axis along which elements are consecutive.
        axis: Axis,
        /// Elements of a group.
        size: Option<NonZeroU32>,
    },
    /// One scale for every `rows x columns` tile; tiles at the edges may be smaller.
    Block {
        /// Rows of a tile.
        rows: NonZeroU32,
        /// Columns of a tile.
        columns: NonZeroU32,
    },
}

impl Granularity {
    /// Groups of `size` along the input channels, the usual choice; 0 means the whole axis.
    pub const fn group(size: u32) -> Granularity {
        Granularity::Group { axis: Axis::Columns, size: NonZeroU32::new(size) }
    }

    /// Rows and columns of the matrix of scales for a `rows x columns` weight.
    ///
    /// # Errors
    /// [`SchemeError::GroupDoesNotDivide`] where a group size does not divide its axis.
    pub fn scale_shape(self, rows: usize, columns: usize) -> Result<(usize, usize), SchemeError> {
        match self {
            Granularity::Tensor => Ok((1, 1)),
            Granularity::Channel(Axis::Rows) => Ok((rows, 1)),
            Granularity::Channel(Axis::Columns) => Ok((1, columns)),
            Granularity::Group { axis: Axis::Columns, size } => Ok((rows, groups(columns, size, "input")?)),
            Granularity::Group { axis: Axis::Rows, size } => Ok((groups(rows, size, "output")?, columns)),
            Granularity::Block { rows: r, columns: c } => {
                Ok((rows.div_ceil(r.get() as usize), columns.div_ceil(c.get() as usize)))
            }
        }
    }

    /// Rows and columns of the tile that shares a scale, in a `rows x columns` weight.
    pub fn tile(self, rows: usize, columns: usize) -> (usize, usize) {
        let length = |size: Option<NonZeroU32>, whole: usize| size.map_or(whole, |s| s.get() as usize).max(1);
        match self {
            Granularity::Tensor => (rows, columns),
            Granularity::Channel(Axis::Rows) => (1, columns),
            Granularity::Channel(Axis::Columns) => (rows, 1),
            Granularity::Group { axis: Axis::Columns, size } => (1, length(size, columns)),
            Granularity::Group { axis: Axis::Rows, size } => (length(size, rows), 1),
            Granularity::Block { rows: r, columns: c } => (r.get() as usize, c.get() as usize),
        }
    }
}

fn groups(length: usize, size: Option<NonZeroU32>, axis: &'static str) -> Result<usize, SchemeError> {
    let size = size.map_or(length, |s| s.get() as usize).max(1);
    if length.is_multiple_of(size) {
        return Ok(length / size);
    }
    Err(SchemeError::GroupDoesNotDivide { length, size, axis })
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Granularity::Tensor => f.write_str("tensor"),
            Granularity::Channel(Axis::Rows) => f.write_str("channel"),
            Granularity::Channel(Axis::Columns) => f.write_str("channel@1"),
            Granularity::Group { axis, size } => {
                match size {
                    Some(size) => write!(f, "g{size}")?,
                    None => f.write_str("g-1")?,
                }
                f.write_str(if *axis == Axis::Rows { "@0" } else { "" })
            }
            Granularity::Block { rows, columns } => write!(f, "b{rows}x{columns}"),
        }
    }
}

impl Granularity {
    /// Reads one part of a scheme's spelling; `None` where the part is not a granularity.
    pub(super) fn parse(part: &str) -> Option<Granularity> {
        match part {
            "tensor" => return Some(Granularity::Tensor),
            "channel" | "channel@0" | "token" => return Some(Granularity::Channel(Axis::Rows)),
            "channel@1" => return Some(Granularity::Channel(Axis::Columns)),
            _ => {}
        }
        if let Some(block) = part.strip_prefix('b') {
            let (rows, columns) = block.split_once('x')?;
            return Some(Granularity::Block { rows: rows.parse().ok()?, columns: columns.parse().ok()? });
        }
        let group = part.strip_prefix('g')?;
        let (size, axis) = match group.strip_suffix("@0") {
            Some(size) => (size, Axis::Rows),
            None => (group.strip_suffix("@1").unwrap_or(group), Axis::Columns),
        };
        let size = if size == "-1" { None } else { Some(size.parse().ok()?) };
        Some(Granularity::Group { axis, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granularity_spellings_round_trip() {
        for text in ["tensor", "channel", "channel@1", "g128", "g-1", "g32@0", "b128x128"] {
            assert_eq!(Granularity::parse(text).map(|g| g.to_string()).as_deref(), Some(text));
        }
        for text in ["", "g", "g0", "b1x0", "bx", "group", "f16", "bf16"] {
            assert_eq!(Granularity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn scale_shapes_of_granularities() {
        let shape = |text: &str| Granularity::parse(text).map(|g| g.scale_shape(300, 256).ok());
        assert_eq!(shape("g64"), Some(Some((300, 4))));
        assert_eq!(shape("g100"), Some(None));
        assert_eq!(shape("g100@0"), Some(Some((3, 256))));
        assert_eq!(shape("b128x128"), Some(Some((3, 2))));
        assert_eq!(shape("g-1"), Some(Some((300, 1))));
    }
}
