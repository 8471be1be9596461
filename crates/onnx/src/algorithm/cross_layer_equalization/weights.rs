//! The weights and biases of all pairs, in memory while they are scaled.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, Spill, keep, set_contents};

use super::pair::{Pair, Side};
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::solution::values;

/// Scales of all rounds together beyond this, or below its inverse, would move all of a channel's precision into one layer.
const LARGEST: f32 = 1e4;

/// Constants by name.
pub(super) struct Weights(BTreeMap<String, Vec<f32>>);

impl Weights {
    /// Reads those of all pairs.
    pub fn read(graph: &GraphProto, pairs: &[Pair]) -> Result<Self, QuantizeError> {
        let names = pairs.iter().flat_map(|p| [&p.head.weight, &p.tail.weight].into_iter().chain(&p.biases));
        let mut found = BTreeMap::new();
        let index = Index::new(graph);
        for name in names {
            if let Some(tensor) = index.constant(graph, name).filter(|_| !found.contains_key(name)) {
                found.insert(name.clone(), values(tensor)?);
            }
        }
        Ok(Self(found))
    }

    /// Puts them back.
    pub fn write(self, graph: &mut GraphProto, spill: Option<&Spill>) -> Result<(), QuantizeError> {
        for (name, values) in self.0 {
            let contents = keep(spill, bytemuck::cast_slice(&values).to_vec())?;
            if let Some(tensor) = graph.initializer.iter_mut().find(|t| t.name() == name) {
                set_contents(tensor, contents);
            }
        }
        Ok(())
    }

    /// Scales one pair, which earlier rounds have scaled by `so_far`. Returns the scales of this round.
    pub fn equalize(&mut self, pair: &Pair, so_far: &[f32], with_bias: bool) -> Vec<f32> {
        let head = self.ranges(&pair.head);
        let tail = self.ranges(&pair.tail);
        let head = if with_bias { self.with_biases(head, pair) } else { head };
        let scale = |((r0, r1), so_far): ((&f32, &f32), &f32)| {
            let usable = *r0 > 0.0 && *r1 > 0.0 && r0.is_finite() && r1.is_finite();
            let scale = if usable { (r1.sqrt() / r0.sqrt()).clamp(1.0 / LARGEST, LARGEST) } else { 1.0 };
            if (1.0 / LARGEST..=LARGEST).contains(&(so_far * scale)) { scale } else { 1.0 }
        };
        let scales: Vec<f32> = head.iter().zip(&tail).zip(so_far).map(scale).collect();
        self.scale(&pair.head, &scales, |value, s| value * s);
        self.scale(&pair.tail, &scales, |value, s| value / s);
        for bias in &pair.biases {
            let values = self.0.get_mut(bias).into_iter().flatten();
            values.zip(&scales).for_each(|(b, s)| *b *= s);
        }
        scales
    }

    /// The largest range of a channel over the smallest that is not zero, the worse of both weights.
    pub fn spread(&self, pair: &Pair) -> f32 {
        let spread = |side: &Side| {
            let ranges = self.ranges(side);
            let (low, high) =
                ranges.iter().filter(|r| **r > 0.0).fold((f32::MAX, 0f32), |(l, h), &r| (l.min(r), h.max(r)));
            if high > 0.0 { high / low } else { 1.0 }
        };
        spread(&pair.head).max(spread(&pair.tail))
    }

    /// Largest magnitude of each channel.
    fn ranges(&self, side: &Side) -> Vec<f32> {
        side.map.magnitudes(self.0.get(&side.weight).map_or(&[], Vec::as_slice))
    }

    /// Lets biases count, in the measure in which the largest of them is to the largest weight.
    fn with_biases(&self, ranges: Vec<f32>, pair: &Pair) -> Vec<f32> {
        let largest = |values: &[f32]| values.iter().fold(0f32, |m, v| m.max(v.abs()));
        pair.biases.iter().filter_map(|name| self.0.get(name)).fold(ranges, |ranges, bias| {
            let measure = largest(&ranges) / largest(bias).max(f32::MIN_POSITIVE);
            if bias.len() != ranges.len() || !measure.is_finite() {
                return ranges;
            }
            ranges.iter().zip(bias).map(|(range, b)| range.max(b.abs() * measure)).collect()
        })
    }

    fn scale(&mut self, side: &Side, scales: &[f32], by: impl Fn(f32, f32) -> f32) {
        if let Some(values) = self.0.get_mut(&side.weight) {
            side.map.apply(values, scales, by);
        }
    }
}
