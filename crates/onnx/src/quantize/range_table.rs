//! The ranges of a solved model, for files of other tools.

use super::{Prepared, Solved};
use crate::error::QuantizeError;
use crate::placement::Channels;
use crate::quantization::Range;
use crate::ranges::{Codes, RangeTable, RangesError, RangesFormat, TensorRanges};
use crate::recipe::Layout;

impl Prepared {
    /// Refuses a format that does not express the types of the activations.
    ///
    /// # Errors
    /// *Unsupported*, with a tensor and its type.
    pub fn check_ranges_format(&self, format: &RangesFormat) -> Result<(), RangesError> {
        let has_range = self.placement.activations.iter().filter(|(_, a)| a.scheme.element.has_range());
        has_range.map(|(name, a)| format.check(name, a.scheme.element)).find(Result::is_err).unwrap_or(Ok(()))
    }

    /// Returns whether activations have ranges that a file can hold: not those of floats, and not those that are found as a model runs.
    pub fn has_ranges(&self) -> bool {
        let is_static = matches!(self.recipe.layout, Layout::Qdq | Layout::QOperator);
        is_static && self.placement.activations.values().any(|a| a.scheme.element.has_range())
    }

    /// The error for activations that a file of ranges does not have, where there are no data.
    pub fn refuse_missing_ranges(&self) -> Result<(), QuantizeError> {
        let tensors: Vec<String> = self.missing_ranges().into_iter().map(str::to_owned).collect();
        let file = self.recipe.ranges.as_ref().map(|file| file.path.display().to_string()).unwrap_or_default();
        if tensors.is_empty() { Ok(()) } else { Err(QuantizeError::MissingRanges { file, tensors }) }
    }
}

impl Solved {
    /// The ranges of activations and the codes of activations and constants.
    pub fn range_table(&self) -> RangeTable {
        let (placement, solution) = (&self.prepared.placement, &self.solution);
        let mut table: RangeTable =
            self.floats.iter().map(|(name, range)| (name.clone(), TensorRanges::float(*range))).collect();
        for (name, activation) in placement.activations.iter().filter(|(_, a)| a.scheme.element.has_range()) {
            let element = activation.scheme.element;
            let one = solution.activations.get(name).map(std::slice::from_ref);
            let affines = solution.channels.get(name).map(Vec::as_slice).or(one).unwrap_or_default();
            let axis = activation.channels.map(|Channels { axis, .. }| axis);
            let codes = Codes::of(element, affines, axis);
            let ranges = match self.ranges.channels.get(name).filter(|_| axis.is_some()) {
                Some(channels) => channels.clone(),
                None => self.whole_range(name).into_iter().collect(),
            };
            let of_codes = || codes.as_ref().map(Codes::ranges).unwrap_or_default();
            let ranges = if ranges.is_empty() { of_codes() } else { ranges };
            table.insert(name.clone(), TensorRanges { is_constant: false, is_float: false, ranges, codes });
        }
        for (name, weight) in placement.weights.iter().filter(|(name, _)| !solution.blocks.contains_key(*name)) {
            let affines = solution.weights.get(name).map_or(&[][..], Vec::as_slice);
            let Some(codes) = Codes::of(weight.scheme.element, affines, weight.axis) else { continue };
            let (ranges, codes) = (codes.ranges(), Some(codes));
            table.insert(name.clone(), TensorRanges { is_constant: true, is_float: false, ranges, codes });
        }
        self.add_fused(&mut table);
        table
    }

    /// Gives tensors that have no codes because a Relu or Clip follows the range behind it: other tools may quantize them.
    fn add_fused(&self, table: &mut RangeTable) {
        let sources = self.prepared.range_sources();
        let nodes = &self.prepared.model.graph.node;
        for name in nodes.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty()) {
            let source = table.get(&sources.observed(name)).filter(|_| !table.contains_key(name));
            if let Some(source) = source.filter(|source| !source.is_float && !source.is_constant) {
                table.insert(name.clone(), TensorRanges::of_ranges(source.ranges.clone()));
            }
        }
    }

    /// The range of an activation, or of the one whose scale it has.
    fn whole_range(&self, name: &str) -> Option<Range> {
        let activation = self.prepared.placement.activations.get(name)?;
        match &activation.provider {
            Some(provider) => self.whole_range(provider),
            None => activation.range.or_else(|| self.ranges.whole.get(name).copied()),
        }
    }
}
