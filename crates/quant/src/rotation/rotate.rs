//! The algorithm `rotate`: what is rotated in a model, and by which matrices. Not where a model may be rotated.

use super::Rotation;
use crate::options::{OptionRow, Values};
use crate::registry::AlgorithmRow;
use serde::{Deserialize, Serialize};

/// The name.
pub const NAME: &str = "rotate";

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rotate {
    /// Rotates the residual stream (R1).
    pub stream: bool,
    /// Rotates the values of attention in their heads (R2).
    pub heads: bool,
    /// Rotates the inputs of down projections (R4), which loaders must do while the model runs.
    #[serde(default)]
    pub down: bool,
    /// Channels that are mixed with each other; 0 for all.
    pub size: u32,
    /// Decides signs and orders.
    pub seed: u32,
}

impl Rotate {
    /// The residual stream and values, all channels.
    pub const DEFAULTS: Rotate = Rotate { stream: true, heads: true, down: false, size: 0, seed: 1 };

    /// The rotation of so many channels of the residual stream, which keeps the mean over them if asked. Fewer channels than all are
    /// mixed by one matrix that all groups of so many share. `None` where there is no such matrix, or groups do not divide the channels.
    pub fn of_stream(&self, channels: usize, keeps_mean: bool) -> Option<Rotation> {
        let size = match self.size as usize {
            0 => channels,
            size if channels.is_multiple_of(size) => size,
            _ => return None,
        };
        match keeps_mean {
            true => Rotation::mean_keeping(size, u64::from(self.seed)),
            false => Rotation::hadamard(size, u64::from(self.seed)),
        }
    }

    /// The rotation of the values of a head of so many channels: of groups of them, where the groups divide the head.
    pub fn of_values(&self, channels: usize) -> Option<Rotation> {
        let groups = Some(self.size as usize).filter(|size| *size > 0 && channels.is_multiple_of(*size));
        Rotation::hadamard(groups.unwrap_or(channels), u64::from(self.seed) ^ 0x5EED)
    }

    /// The rotation of the inputs of all down projections, which have so many channels each: of groups of [`Rotate::size`] of them, without
    /// a size of the largest power of two that divides all the numbers. Engines compute no other rotation than [`Rotation::sylvester`],
    /// so it has no seed. `None` where there is none of at least four channels, and for no projections.
    pub fn of_down(&self, channels: impl IntoIterator<Item = usize>) -> Option<Rotation> {
        let all: Vec<usize> = channels.into_iter().collect();
        let common = all.iter().map(|channels| channels.trailing_zeros()).min()?;
        let size = if self.size == 0 { 1usize.checked_shl(common)? } else { self.size as usize };
        let divides = all.iter().all(|channels| *channels > 0 && channels.is_multiple_of(size));
        Rotation::sylvester(size).filter(|_| divides && size >= FEWEST)
    }
}

/// Fewer channels are hardly mixed.
const FEWEST: usize = 4;

const SIZE: Values = Values {
    text: "0, or a whole number from 4 to 1048576",
    accepts: |text| text.parse().is_ok_and(|size: u32| size == 0 || (4..=1 << 20).contains(&size)),
};

const OPTIONS: &[OptionRow] = &[
    OptionRow { name: "stream", values: Values::SWITCH, about: "whether the residual stream is rotated (R1)" },
    OptionRow {
        name: "heads",
        values: Values::SWITCH,
        about: "whether the values of attention are rotated in each head (R2)",
    },
    OptionRow {
        name: "down",
        values: Values::SWITCH,
        about: "whether the inputs of down projections are rotated (R4), which loaders do while the model runs",
    },
    OptionRow {
        name: "size",
        values: SIZE,
        about: "channels that are mixed with each other, such as 32 for MX formats; 0 for all",
    },
    OptionRow { name: "seed", values: Values::SEED, about: "decides signs and orders" },
];

/// The row.
pub fn row() -> AlgorithmRow<Rotate> {
    let about = "rotates the residual stream and values, folded into the weights, so that no channel is an outlier";
    let row = AlgorithmRow::of_settings(NAME, about, OPTIONS, Rotate::DEFAULTS, |settings| settings);
    row.with_aliases(&["quarot", "rotation"]).with_paper("arXiv 2404.00456")
}
