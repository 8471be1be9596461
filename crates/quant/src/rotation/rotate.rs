//! The algorithm `rotate`: what is rotated in a model, and by which matrices. Not where a model may be rotated, nor the gradients that
//! matrices are learned from.

use super::{BlockDiagonal, Rotation};
use crate::options::{self, OptionError, OptionRow, Values};
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
    /// Decides signs and orders, and the order of batches.
    pub seed: u32,
    /// Steps by which the matrices are learned, each with the gradient of one batch; 0 keeps them as they are.
    pub steps: u32,
    /// The angle of the first step in radians, as a root mean square over the channels. Those that follow are shorter, the last one nothing.
    pub rate: f32,
}

impl Rotate {
    /// The residual stream and values, all channels.
    pub const DEFAULTS: Rotate =
        Rotate { stream: true, heads: true, down: false, size: 0, seed: 1, steps: 0, rate: 0.1 };

    /// Returns whether the matrices are learned.
    pub fn learns(&self) -> bool {
        self.steps > 0
    }

    /// The angle of step `index`.
    pub fn angle(&self, index: u32) -> f64 {
        f64::from(self.rate) * (1.0 - f64::from(index) / f64::from(self.steps.max(1)))
    }

    /// What is learned of the rotation of so many channels of the residual stream, before the first step.
    pub fn learned_of_stream(&self, channels: usize) -> Option<BlockDiagonal> {
        BlockDiagonal::identity(channels, if self.size == 0 { channels } else { self.size as usize })
    }

    /// The same of the values of a head of so many channels.
    pub fn learned_of_values(&self, channels: usize) -> Option<BlockDiagonal> {
        BlockDiagonal::identity(channels, self.group_of_values(channels))
    }

    /// Channels of a head that are mixed with each other: a group of them, where groups divide the head.
    fn group_of_values(&self, channels: usize) -> usize {
        Some(self.size as usize).filter(|size| *size > 0 && channels.is_multiple_of(*size)).unwrap_or(channels)
    }

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
        Rotation::hadamard(self.group_of_values(channels), u64::from(self.seed) ^ 0x5EED)
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

/// Steps may be left out.
const STEPS: Values = Values {
    text: "a whole number from 0 to 1000000",
    accepts: |text| text.parse().is_ok_and(|count: u32| count <= 1_000_000),
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
    OptionRow { name: "seed", values: Values::SEED, about: "decides signs and orders, and the order of batches" },
    OptionRow {
        name: "steps",
        values: STEPS,
        about: "steps that learn the matrices, each on one batch of at most 2048 tokens; 0 for none, 100 is usual",
    },
    OptionRow {
        name: "rate",
        values: Values::RATE,
        about: "how far the first step turns each channel, in radians; the last one turns it by nothing",
    },
];

/// The row.
pub fn row() -> AlgorithmRow<Rotate> {
    let about = "rotates the residual stream and values, folded into the weights, so that no channel is an outlier";
    let row = AlgorithmRow::new(NAME, about, OPTIONS, Rotate::DEFAULTS, |given| {
        let settings: Rotate = options::read(NAME, OPTIONS, &Rotate::DEFAULTS, given)?;
        let idle = |reason, remedy| Err(OptionError::Idle { algorithm: NAME, reason, remedy });
        match settings.learns() {
            false if settings.rate != Rotate::DEFAULTS.rate => {
                idle("does not use rate without steps", "give steps, such as steps=100, or leave rate out")
            }
            _ if !(settings.stream || settings.heads || settings.down) => {
                idle("has nothing to rotate with stream=off and heads=off", "leave one of them out, or give down=on")
            }
            _ => Ok(settings),
        }
    });
    row.with_aliases(&["quarot", "rotation"]).with_paper("arXiv 2404.00456")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_shorten_and_groups_have_matrices_of_their_own() {
        let rotate = Rotate { steps: 4, rate: 0.2, size: 32, ..Rotate::DEFAULTS };
        let angles: Vec<f64> = (0..4).map(|index| rotate.angle(index)).collect();
        assert!(angles.windows(2).all(|pair| pair[1] < pair[0]) && (angles[0] - 0.2).abs() < 1e-6 && angles[3] > 0.0);
        let (stream, values) = (rotate.learned_of_stream(128).unwrap(), rotate.learned_of_values(48).unwrap());
        assert_eq!((stream.size(), stream.blocks().len()), (32, 4));
        assert_eq!((values.size(), values.channels()), (48, 48));
        assert!(rotate.learned_of_stream(48).is_none() && rotate.learns() && !Rotate::DEFAULTS.learns());
    }
}
