//! The description of a layer in configurations of weight-only integers: bits, group size, symmetry.

use kvant_numeric::DType;
use kvant_quant::scheme::{Axis, Granularity, LayerScheme, TensorScheme, ZeroPoint};

/// Integers in groups along the input channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Grouping {
    /// Bits of a code.
    pub bits: u32,
    /// Input channels of a group; `None` for all.
    pub size: Option<u32>,
    /// Whether zero has the middle code.
    pub symmetric: bool,
}

impl Grouping {
    /// The grouping of a layer; `None` for other schemes.
    pub fn of(scheme: &LayerScheme) -> Option<Grouping> {
        let TensorScheme::Int(int) = scheme.weight else { return None };
        let size = match int.granularity {
            Granularity::Group { axis: Axis::Columns, size } => size.map(|size| size.get()),
            Granularity::Channel(Axis::Rows) => None,
            _ => return None,
        };
        let bits = DType::Int(int.format).bits();
        Some(Grouping { bits, size, symmetric: int.zero_point == ZeroPoint::Zero })
    }

    /// The size as a number: -1 for all input channels.
    pub fn size_number(self) -> i64 {
        self.size.map_or(-1, i64::from)
    }

    /// The size in words.
    pub fn size_text(self) -> String {
        self.size.map_or_else(|| "all input channels".to_owned(), |size| size.to_string())
    }
}
