//! Propagation of channels through operators that are linear in them and mix none: their positions in all tensors of a node, once they are
//! known in one.
//!
//! Channels lie along an axis, a block of them or several behind each other: the heads of an attention. A Reshape keeps them in
//! their blocks if as many elements lie behind them as before.

use std::collections::BTreeSet;

use kvant_container::onnx::NodeProto;

use super::view::View;
use crate::graph::{int_attribute, ints_attribute, is_standard, positional_input};

/// A tensor of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    Input(usize),
    Output(usize),
}

/// A tensor of a node, and the axis of its channels.
pub(super) type Lane = (Slot, usize);

/// The tensors of a node that have the channels which a tensor of it has, itself included. `None` where the operator does something
/// else with them.
pub(super) fn across(view: &View<'_>, node: &NodeProto, known: Lane, channels: usize) -> Option<Vec<Lane>> {
    if !is_standard(node) {
        return None;
    }
    let step = Step { view, node, known, channels };
    match node.op_type() {
        "Identity" | "Neg" => Some(vec![(Slot::Input(0), known.1), (Slot::Output(0), known.1)]),
        "Add" | "Sub" => step.broadcast(),
        "Mul" | "Div" => step.times_a_number(),
        "Expand" => step.aligned(&[Slot::Input(0), Slot::Output(0)]),
        "Transpose" => step.transposed(),
        "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => step.reshaped(),
        "Concat" => step.concatenated(),
        "Split" => step.split(),
        "Slice" => step.sliced(),
        "Gather" => step.gathered(),
        "ReduceMean" | "ReduceSum" => step.reduced(),
        "MatMul" => step.multiplied(),
        _ => None,
    }
}

struct Step<'a> {
    view: &'a View<'a>,
    node: &'a NodeProto,
    known: Lane,
    channels: usize,
}

impl Step<'_> {
    fn tensor(&self, slot: Slot) -> Option<&str> {
        let name = match slot {
            Slot::Input(at) => self.node.input.get(at)?,
            Slot::Output(at) => self.node.output.get(at)?,
        };
        Some(name.as_str()).filter(|name| !name.is_empty())
    }

    fn rank(&self, slot: Slot) -> Option<usize> {
        self.view.rank(self.tensor(slot)?)
    }

    fn dim(&self, (slot, axis): Lane) -> Option<usize> {
        self.view.dim(self.tensor(slot)?, axis)
    }

    /// Axes that are counted from the last one are the same in all of these tensors.
    fn aligned(&self, slots: &[Slot]) -> Option<Vec<Lane>> {
        let from_last = self.rank(self.known.0)?.checked_sub(self.known.1)?;
        slots.iter().map(|&slot| Some((slot, self.rank(slot)?.checked_sub(from_last)?))).collect()
    }

    /// Both inputs and the output have all channels: nothing is spread over them.
    fn broadcast(&self) -> Option<Vec<Lane>> {
        let lanes = self.aligned(&[Slot::Input(0), Slot::Input(1), Slot::Output(0)])?;
        let size = self.dim(self.known)?;
        lanes.iter().all(|&lane| self.dim(lane) == Some(size)).then_some(lanes)
    }

    fn times_a_number(&self) -> Option<Vec<Lane>> {
        let is_number = |at: usize| {
            let name = self.node.input.get(at)?;
            let dims = self.view.floats(name)?;
            (dims.iter().product::<usize>() == 1).then_some(())
        };
        let data = match (is_number(0), is_number(1), self.node.op_type()) {
            (None, Some(()), _) => Slot::Input(0),
            (Some(()), None, "Mul") => Slot::Input(1),
            _ => return None,
        };
        self.aligned(&[data, Slot::Output(0)])
    }

    fn transposed(&self) -> Option<Vec<Lane>> {
        let rank = self.rank(self.known.0)?;
        let reversed: Vec<i64> = (0..rank as i64).rev().collect();
        let order = ints_attribute(self.node, "perm").unwrap_or(&reversed);
        let (input, output) = match self.known {
            (Slot::Input(_), axis) => (axis, order.iter().position(|&from| from == axis as i64)?),
            (Slot::Output(_), axis) => (usize::try_from(*order.get(axis)?).ok()?, axis),
        };
        Some(vec![(Slot::Input(0), input), (Slot::Output(0), output)])
    }

    fn reshaped(&self) -> Option<Vec<Lane>> {
        let (slot, axis) = self.known;
        let other = if slot == Slot::Output(0) { Slot::Input(0) } else { Slot::Output(0) };
        let (from, to) = (self.tensor(slot)?, self.tensor(other)?);
        let behind = self.view.behind(from, axis)?;
        let fits = |at: usize| {
            let whole = self.view.dim(to, at).is_some_and(|size| size.is_multiple_of(self.channels));
            whole && self.view.behind(to, at) == Some(behind)
        };
        let found = (0..self.view.rank(to)?).rev().find(|&at| fits(at))?;
        Some(vec![self.known, (other, found)])
    }

    fn concatenated(&self) -> Option<Vec<Lane>> {
        let axis = self.known.1;
        let own = self.axis(int_attribute(self.node, "axis")?, self.rank(self.known.0)?)?;
        let inputs = (0..self.node.input.len()).map(Slot::Input);
        (own != axis).then(|| inputs.chain([Slot::Output(0)]).map(|slot| (slot, axis)).collect())
    }

    /// Along another axis, or into whole blocks.
    fn split(&self) -> Option<Vec<Lane>> {
        let axis = self.known.1;
        // Whether what is left out is a whole block cannot be told.
        let outputs: Vec<Slot> = (0..self.node.output.len()).map(Slot::Output).collect();
        outputs.iter().all(|&slot| self.tensor(slot).is_some()).then_some(())?;
        let lanes: Vec<Lane> = [Slot::Input(0)].into_iter().chain(outputs).map(|slot| (slot, axis)).collect();
        let whole = |&lane: &Lane| self.dim(lane).is_some_and(|size| size.is_multiple_of(self.channels));
        lanes.iter().all(whole).then_some(lanes)
    }

    /// Along other axes, or whole blocks that follow each other.
    fn sliced(&self) -> Option<Vec<Lane>> {
        let axis = self.known.1;
        let numbers = |at: usize| self.view.integers(positional_input(self.node, at)?);
        let starts = numbers(1)?;
        let axes = match positional_input(self.node, 3) {
            Some(_) => numbers(3)?,
            None => (0..starts.len() as i64).collect(),
        };
        let rank = self.rank(self.known.0)?;
        let cuts = axes.iter().position(|&at| self.axis(at, rank) == Some(axis));
        let steps = if positional_input(self.node, 4).is_some() { numbers(4)? } else { vec![1; starts.len()] };
        let whole = |at: usize| {
            let start = usize::try_from(*starts.get(at)?).ok()?;
            (start.is_multiple_of(self.channels) && steps.get(at) == Some(&1)).then_some(())
        };
        cuts.is_none_or(|at| whole(at).is_some()).then(|| vec![(Slot::Input(0), axis), (Slot::Output(0), axis)])
    }

    fn gathered(&self) -> Option<Vec<Lane>> {
        let rank = self.rank(Slot::Input(0))?;
        let own = self.axis(int_attribute(self.node, "axis").unwrap_or(0), rank)?;
        let indices = self.rank(Slot::Input(1))?;
        let (input, output) = match self.known {
            (Slot::Input(0), axis) if axis < own => (axis, axis),
            (Slot::Input(0), axis) => (axis, (axis + indices).checked_sub(1)?),
            (Slot::Output(0), axis) if axis < own => (axis, axis),
            (Slot::Output(0), axis) => ((axis + 1).checked_sub(indices)?, axis),
            _ => return None,
        };
        (input != own && (input < own || output >= own + indices))
            .then(|| vec![(Slot::Input(0), input), (Slot::Output(0), output)])
    }

    fn reduced(&self) -> Option<Vec<Lane>> {
        let given = match positional_input(self.node, 1) {
            Some(name) => self.view.integers(name)?,
            None => ints_attribute(self.node, "axes")?.to_vec(),
        };
        let rank = self.rank(Slot::Input(0))?;
        let axes: BTreeSet<usize> = given.iter().map(|&at| self.axis(at, rank)).collect::<Option<_>>()?;
        let keeps = int_attribute(self.node, "keepdims").unwrap_or(1) != 0;
        let made = |input: usize| input - axes.iter().filter(|&&at| !keeps && at < input).count();
        let candidates = (0..rank).filter(|input| !axes.contains(input));
        let lanes = |input: usize| vec![(Slot::Input(0), input), (Slot::Output(0), made(input))];
        (!axes.is_empty()).then(|| candidates.map(lanes).find(|lanes| lanes.contains(&self.known))).flatten()
    }

    /// Of two tensors that are no constant weight: channels pass where the sum does not run over them; where it does, both sides
    /// have them, and the sum stays what it is.
    fn multiplied(&self) -> Option<Vec<Lane>> {
        let ranks = [Slot::Input(0), Slot::Input(1), Slot::Output(0)].map(|slot| self.rank(slot));
        let [Some(left), Some(right), Some(made)] = ranks else { return None };
        if left < 2 || right < 2 || made < 2 {
            return None;
        }
        let summed = [(Slot::Input(0), left - 1), (Slot::Input(1), right - 2)];
        let rows = [(Slot::Input(0), left - 2), (Slot::Output(0), made - 2)];
        let columns = [(Slot::Input(1), right - 1), (Slot::Output(0), made - 1)];
        [summed, rows, columns].into_iter().find(|lanes| lanes.contains(&self.known)).map(Vec::from)
    }

    /// An axis as it is counted from the front.
    fn axis(&self, axis: i64, rank: usize) -> Option<usize> {
        let counted = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(counted).ok().filter(|&axis| axis < rank)
    }
}
