//! Applies rotations, gains and biases to the constants of a graph, and removes nodes left without effect.
//!
//! With `x' = x R` replacing a stream's `x`: its producers become `W R`, `b R`; a layer behind a normalization with gain `g` and bias
//! `c`, which computed `(n g + c) W + b`, becomes `n' (R^T diag(g) W) + (b + c W)`. Along the channels every one of them is a vector
//! times `R`. A constant that others read too is copied.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kvant_container::onnx::{DataType, GraphProto, Spill, keep, set_contents, shape, tensor};

use super::RotatedStream;
use super::affine::Reader;
use super::plan::Planned;
use super::turn::Turn;
use super::view::View;
use crate::error::QuantizeError;
use crate::graph::{Edit, Index, Names, float_attribute, is, node, positional_input};
use crate::solution::values;

/// A constant by the node and the input that it is read at.
type Place = (usize, usize);

/// The change of a constant.
#[derive(Default)]
struct Change<'p> {
    /// Added first.
    addition: Option<Vec<f64>>,
    turns: Vec<Turn<'p>>,
}

/// All changes, in the order of the graph.
#[derive(Default)]
pub(super) struct Changes<'p> {
    constants: BTreeMap<Place, Change<'p>>,
    /// Layers that get a bias which they had not, with the axis of their weight's outputs.
    biases: BTreeMap<usize, (usize, Vec<f64>)>,
    /// Nodes that go, with the place of the input that stays.
    bypassed: Vec<Place>,
    /// Normalizations whose gains become ones and whose biases go.
    whole: Vec<usize>,
}

/// Reads what the plan takes; changes nothing yet.
pub(super) fn changes<'p>(view: &View<'_>, planned: &'p [Planned]) -> Result<Changes<'p>, QuantizeError> {
    let mut all = Changes::default();
    for (stream, plan) in planned.iter().enumerate() {
        for &(at, slot, axis) in &plan.stream.constants {
            let turn = Turn { axis, stream, rotation: &plan.rotation, centred: plan.centred, gain: None };
            all.constants.entry((at, slot)).or_default().turns.push(turn);
        }
        for reader in plan.readers.iter().flat_map(|readers| &readers.layers) {
            let Some(axes) = view.layer(view.node(reader.node)) else { continue };
            let gain = reader.gain.as_ref().map(|name| Ok::<_, QuantizeError>((name.clone(), floats(view, name)?)));
            let turn =
                Turn { axis: axes.inputs, stream, rotation: &plan.rotation, centred: false, gain: gain.transpose()? };
            all.constants.entry((reader.node, 1)).or_default().turns.push(turn);
            all.shift(view, reader)?;
        }
        all.bypassed.extend(plan.readers.iter().flat_map(|readers| readers.bypassed.iter().copied()));
        all.whole.extend(&plan.whole);
    }
    Ok(all)
}

/// What a stream's rotation went into, by the names of constants.
pub(super) fn told(view: &View<'_>, plan: &Planned) -> RotatedStream {
    let name = |at: usize, slot: usize| view.node(at).input[slot].clone();
    let direct = |place: &&(usize, usize, usize)| plan.stream.readers.contains(&place.0) && place.1 == 1;
    let inputs = |at: usize| view.layer(view.node(at)).map(|axes| axes.inputs);
    let reads = |place: &&(usize, usize, usize)| direct(place) && inputs(place.0) == Some(place.2);
    let behind = plan.readers.iter().flat_map(|readers| &readers.layers).map(|reader| name(reader.node, 1));
    let constants = || plan.stream.constants.iter();
    RotatedStream {
        tensor: plan.seed.tensor.clone(),
        channels: plan.seed.channels,
        rotation: plan.rotation.to_string(),
        normalizations: plan.stream.norms.len(),
        makers: constants().filter(|place| !reads(place)).map(|&(at, slot, _)| name(at, slot)).collect(),
        readers: constants().filter(reads).map(|&(at, slot, _)| name(at, slot)).chain(behind).collect(),
    }
}

fn floats(view: &View<'_>, name: &str) -> Result<Vec<f32>, QuantizeError> {
    view.index.constant(view.graph, name).map_or_else(|| Ok(Vec::new()), values)
}

impl Changes<'_> {
    /// Moves the bias of a normalization behind a layer that reads it.
    fn shift(&mut self, view: &View<'_>, reader: &Reader) -> Result<(), QuantizeError> {
        let layer = view.node(reader.node);
        let (Some(bias), Some(axes)) = (&reader.bias, view.layer(layer)) else { return Ok(()) };
        let weight = &layer.input[1];
        let dims = view.floats(weight).unwrap_or_default();
        let addition = product(&floats(view, bias)?, &floats(view, weight)?, &dims, axes.outputs, factor(layer));
        match own_bias(view, reader.node, addition.len()) {
            Some(place) => self.constants.entry(place).or_default().addition = Some(addition),
            None => drop(self.biases.insert(reader.node, (axes.outputs, addition))),
        }
        Ok(())
    }

    /// Makes all changes.
    pub fn apply(self, graph: &mut GraphProto, spill: Option<&Spill>) -> Result<(), QuantizeError> {
        let mut writer =
            RotationWriter { index: Index::new(graph), names: Names::of(graph), copies: HashMap::new(), graph, spill };
        let read: BTreeSet<String> = writer.touched(&self).into_iter().collect();
        let biases: Vec<(usize, Vec<f32>)> =
            self.biases.iter().map(|(&at, bias)| (at, self.turned(at, bias))).collect();
        for (place, change) in &self.constants {
            writer.change(*place, change)?;
        }
        for &at in &self.whole {
            writer.neutral(at)?;
        }
        writer.finish(&self.bypassed, biases)?;
        let index = Index::new(graph);
        graph.initializer.retain(|tensor| !read.contains(tensor.name()) || index.is_read(tensor.name()));
        Ok(())
    }

    /// A new bias, turned as the outputs of its layer are.
    fn turned(&self, at: usize, (outputs, bias): &(usize, Vec<f64>)) -> Vec<f32> {
        let mut made: Vec<f32> = bias.iter().map(|&value| value as f32).collect();
        let turns = self.constants.get(&(at, 1)).into_iter().flat_map(|change| &change.turns);
        for turn in turns.filter(|turn| turn.axis == *outputs) {
            let along = Turn { axis: 0, gain: None, ..*turn };
            along.apply(&mut made, &[bias.len()]);
        }
        made
    }
}

/// A vector times a weight, whose outputs lie along an axis; a vector shorter than the inputs is repeated.
fn product(vector: &[f32], weight: &[f32], dims: &[usize], outputs: usize, factor: f64) -> Vec<f64> {
    let (rows, columns) = (dims[0], dims[1]);
    let mut sums = vec![0f64; dims[outputs]];
    for row in 0..rows {
        for column in 0..columns {
            let (input, output) = if outputs == 0 { (column, row) } else { (row, column) };
            sums[output] += f64::from(vector[input % vector.len()]) * f64::from(weight[row * columns + column]);
        }
    }
    sums.iter_mut().for_each(|sum| *sum *= factor);
    sums
}

/// What a Gemm multiplies its product by, over what it multiplies its bias by.
fn factor(layer: &kvant_container::onnx::NodeProto) -> f64 {
    let attribute = |name: &str| f64::from(float_attribute(layer, name).unwrap_or(1.0));
    if is(layer, "Gemm") { attribute("alpha") / attribute("beta") } else { 1.0 }
}

/// The constant that is added to a layer's outputs alone.
fn own_bias(view: &View<'_>, at: usize, outputs: usize) -> Option<Place> {
    let layer = view.node(at);
    if is(layer, "Gemm") {
        return positional_input(layer, 2).map(|_| (at, 2));
    }
    let output = layer.output.first()?;
    let add = view.index.only_consumer(output).filter(|&next| is(view.node(next), "Add"))?;
    let slot = view.node(add).input.iter().position(|name| name != output)?;
    view.is_vector(&view.node(add).input[slot], outputs).then_some((add, slot))
}

/// What tells turns apart: axis, stream, whether the mean goes, the gain.
type TurnKey = (usize, usize, bool, Option<String>);

struct RotationWriter<'g> {
    graph: &'g mut GraphProto,
    /// Of the graph as it was. Its nodes and initializers keep their positions until the end.
    index: Index,
    names: Names,
    /// Constants that were changed in the same way for another reader.
    copies: HashMap<(String, Vec<TurnKey>), String>,
    spill: Option<&'g Spill>,
}

impl RotationWriter<'_> {
    /// The constants that may be read no more.
    fn touched(&self, changes: &Changes<'_>) -> Vec<String> {
        let of_nodes = changes.bypassed.iter().map(|(at, _)| at).chain(&changes.whole);
        let vectors = of_nodes.flat_map(|&at| self.graph.node[at].input.iter().cloned());
        let changed = changes.constants.keys().map(|&(at, slot)| self.graph.node[at].input[slot].clone());
        vectors.chain(changed).filter(|name| self.index.initializer(name).is_some()).collect()
    }

    fn change(&mut self, (at, slot): Place, change: &Change<'_>) -> Result<(), QuantizeError> {
        let name = self.graph.node[at].input[slot].clone();
        let of =
            |turn: &Turn<'_>| (turn.axis, turn.stream, turn.centred, turn.gain.as_ref().map(|(name, _)| name.clone()));
        let key = (name.clone(), change.turns.iter().map(of).collect::<Vec<_>>());
        if let Some(copy) = self.copies.get(&key).filter(|_| change.addition.is_none()) {
            self.graph.node[at].input[slot].clone_from(copy);
            return Ok(());
        }
        let Some(source) = self.index.constant(self.graph, &name) else { return Ok(()) };
        let (dims, mut contents) = (shape(source)?, values(source)?);
        if let Some(addition) = &change.addition {
            let sum = |(value, more): (&mut f32, &f64)| *value = (f64::from(*value) + more) as f32;
            contents.iter_mut().zip(addition).for_each(sum);
        }
        change.turns.iter().for_each(|turn| turn.apply(&mut contents, &dims));
        let written = self.put((at, slot), &dims, &contents)?;
        if change.addition.is_none() && written != name {
            self.copies.insert(key, written);
        }
        Ok(())
    }

    /// Writes a constant for one reader. Returns its name, which is a new one where others read the old constant.
    fn put(&mut self, (at, slot): Place, dims: &[usize], contents: &[f32]) -> Result<String, QuantizeError> {
        let bytes = keep(self.spill, bytemuck::cast_slice(contents).to_vec())?;
        let name = self.graph.node[at].input[slot].clone();
        let once = self.graph.node[at].input.iter().filter(|input| **input == name).count() == 1;
        let own = self.index.initializer(&name).filter(|_| once && self.index.only_consumer(&name) == Some(at));
        if let Some(position) = own {
            let tensor = &mut self.graph.initializer[position];
            set_contents(tensor, bytes);
            return Ok(name);
        }
        let copy = self.names.fresh(&format!("{name}_rotated"));
        self.graph.initializer.push(tensor(&copy, DataType::FLOAT, dims, bytes));
        self.graph.node[at].input[slot].clone_from(&copy);
        Ok(copy)
    }

    /// Leaves a normalization without a gain and a bias of its own.
    fn neutral(&mut self, at: usize) -> Result<(), QuantizeError> {
        let gain = self.index.constant_shape(self.graph, &self.graph.node[at].input[1]).unwrap_or_default();
        self.put((at, 1), &gain, &vec![1.0; gain.iter().product()])?;
        self.graph.node[at].input.truncate(2);
        Ok(())
    }

    /// Takes nodes away, and gives layers the biases that they had not.
    fn finish(mut self, bypassed: &[Place], biases: Vec<(usize, Vec<f32>)>) -> Result<(), QuantizeError> {
        let mut edit = Edit::default();
        for &(at, slot) in bypassed {
            let node = &self.graph.node[at];
            edit.replace(at, Vec::new());
            edit.rename(&node.output[0], &node.input[slot]);
        }
        for (at, bias) in biases {
            let output = self.graph.node[at].output[0].clone();
            let name = self.names.fresh(&format!("{output}_bias"));
            let bytes = keep(self.spill, bytemuck::cast_slice(&bias).to_vec())?;
            edit.add(tensor(&name, DataType::FLOAT, &[bias.len()], bytes));
            let mut layer = self.graph.node[at].clone();
            if is(&layer, "Gemm") {
                layer.input.truncate(2);
                layer.input.push(name);
                edit.replace(at, vec![layer]);
                continue;
            }
            let product = self.names.fresh(&format!("{output}_product"));
            let add = node("Add", &self.names.fresh(&format!("{output}_Add")), &[&product, &name], &[&output]);
            layer.output[0] = product;
            edit.replace(at, vec![layer, add]);
        }
        edit.apply(self.graph);
        Ok(())
    }
}
