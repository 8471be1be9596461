//! Scales moved from the inputs of products into their weights: which products read the same tensor, and where the inverse goes.
//! Which scales, is the algorithms' business.
//!
//! All products that read a tensor share its scales. The inverse goes into what makes the tensor: the scale and bias of a
//! normalization, a constant that is added or multiplied, the outputs of a product; else into a Mul behind the tensor, which
//! stays in float.

use std::collections::BTreeSet;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, Spill, keep, set_contents, tensor};
use serde::Serialize;

use super::channels::ChannelMap;
use crate::error::QuantizeError;
use crate::graph::{Index, Names, is_standard, node, positional_input, sort};
use crate::shape::Types;
use crate::solution::values;

/// Normalizations whose scale, and bias if any, multiply the last axis.
const NORMALIZATIONS: &[&str] = &["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"];

/// Products that read one tensor.
#[derive(Debug, Clone)]
pub(super) struct SharedInputGroup {
    /// The tensor.
    pub tensor: String,
    /// The weights, each with its inputs along the rows or the columns.
    pub weights: Vec<Scaled>,
    /// Nodes that read the tensor and lead to these products alone.
    edges: BTreeSet<usize>,
    /// The constants that take the inverse; `None` where there has to be a Mul.
    folded: Option<Vec<Scaled>>,
    /// Channels of the tensor's last axis.
    pub channels: usize,
}

/// A constant, and which channel its elements belong to.
#[derive(Debug, Clone)]
pub(super) struct Scaled {
    pub name: String,
    pub map: ChannelMap,
}

/// A tensor whose channels were scaled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScaledInput {
    /// The tensor.
    pub tensor: String,
    /// The products that read it.
    pub products: usize,
    /// The name of the Mul; `None` where the inverse went into what makes the tensor.
    pub multiplied_by: Option<String>,
}

/// All tensors that products with constants read along their last axis.
pub(super) fn readers(graph: &GraphProto, types: &Types) -> Vec<SharedInputGroup> {
    let finder = Finder { graph, index: Index::new(graph), types };
    let origins: BTreeSet<(usize, String)> = (0..graph.node.len()).filter_map(|i| finder.origin(i)).collect();
    origins.into_iter().filter_map(|(_, tensor)| finder.readers(tensor)).collect()
}

struct Finder<'g> {
    graph: &'g GraphProto,
    index: Index,
    types: &'g Types,
}

impl Finder<'_> {
    /// The weight of a product that reads its data along the last axis.
    fn product(&self, position: usize) -> Option<Scaled> {
        let node = &self.graph.node[position];
        let product = is_standard(node) && matches!(node.op_type(), "MatMul" | "Gemm");
        let name = self.own(node.input.get(1).filter(|_| product)?)?;
        let map = ChannelMap::inputs(node, &self.dims(&name)?)?;
        self.index.constant(self.graph, &node.input[0]).is_none().then_some(Scaled { name, map })
    }

    fn own(&self, name: &str) -> Option<String> {
        self.index.own_floats(self.graph, name).map(|tensor| tensor.name().to_owned())
    }

    fn dims(&self, name: &str) -> Option<Vec<usize>> {
        self.index.constant_shape(self.graph, name)
    }

    /// Returns whether a node passes its last axis through.
    fn passes(&self, node: &NodeProto) -> bool {
        let last = |name: Option<&String>| self.types.get(name?)?.shape.as_ref()?.last().and_then(|d| d.known());
        let same = || last(node.input.first()).is_some() && last(node.input.first()) == last(node.output.first());
        is_standard(node) && (node.op_type() == "Identity" || node.op_type() == "Reshape" && same())
    }

    /// The data input of a product, and the position of its producer.
    fn origin(&self, position: usize) -> Option<(usize, String)> {
        self.product(position)?;
        let mut tensor = self.graph.node[position].input.first()?;
        for _ in 0..self.graph.node.len() {
            match self.index.producer(tensor).map(|maker| &self.graph.node[maker]) {
                Some(maker) if self.passes(maker) => tensor = maker.input.first()?,
                _ => break,
            }
        }
        Some((self.index.producer(tensor).unwrap_or(0), tensor.clone()))
    }

    /// The products that a node leads to; `None` where it leads elsewhere too.
    fn products(&self, position: usize, tensor: &str, depth: usize) -> Option<Vec<Scaled>> {
        let node = &self.graph.node[position];
        let once = node.input.iter().filter(|name| *name == tensor).count() == 1 && node.input.first()? == tensor;
        if !once || depth == 0 {
            return None;
        }
        if let Some(product) = self.product(position) {
            return Some(vec![product]);
        }
        let output = node.output.first().filter(|name| self.passes(node) && !self.index.is_output(name))?;
        let next = self.index.consumers(output).iter().map(|&next| self.products(next, output, depth - 1));
        next.collect::<Option<Vec<_>>>().map(|all| all.concat())
    }

    fn readers(&self, tensor: String) -> Option<SharedInputGroup> {
        /// Reshapes between a tensor and a product, at most.
        const DEEPEST: usize = 8;
        let consumers = self.index.consumers(&tensor);
        let found = consumers.iter().filter_map(|&i| Some((i, self.products(i, &tensor, DEEPEST)?)));
        let (edges, weights): (BTreeSet<usize>, Vec<_>) = found.unzip();
        let weights = weights.concat();
        let channels = weights.first()?.map.channels;
        let alone = edges.len() == consumers.len() && !self.index.is_output(&tensor);
        let folded = if alone { self.fold(&tensor, channels, DEEPEST) } else { None };
        let alike = weights.iter().all(|weight| weight.map.channels == channels);
        alike.then_some(SharedInputGroup { tensor, weights, edges, folded, channels })
    }

    /// The constants that a factor on each channel of a tensor can go into.
    fn fold(&self, tensor: &str, channels: usize, depth: usize) -> Option<Vec<Scaled>> {
        let maker = &self.graph.node[self.index.producer(tensor).filter(|_| depth > 0)?];
        if !is_standard(maker) && maker.op_type() != "SimplifiedLayerNormalization" || maker.output.first()? != tensor {
            return None;
        }
        let vector = |name: &str| {
            let map = ChannelMap::vector(channels).filter(|_| self.dims(name) == Some(vec![channels]));
            Some(Scaled { name: self.own(name)?, map: map? })
        };
        let alone = |name: &str| self.index.only_consumer(name).is_some();
        match maker.op_type() {
            op if NORMALIZATIONS.contains(&op) => {
                let parts = [positional_input(maker, 1), positional_input(maker, 2)];
                let constants: Vec<Scaled> = parts.into_iter().flatten().map(vector).collect::<Option<_>>()?;
                (!constants.is_empty()).then_some(constants)
            }
            "Mul" => maker.input.iter().find_map(|name| vector(name)).map(|one| vec![one]),
            "Add" => {
                let constant = maker.input.iter().find_map(|name| vector(name))?;
                let other = maker.input.iter().find(|name| **name != constant.name).filter(|name| alone(name))?;
                Some([self.fold(other, channels, depth - 1)?, vec![constant]].concat())
            }
            "Relu" => self.fold(maker.input.first().filter(|name| alone(name))?, channels, depth - 1),
            "MatMul" | "Gemm" => {
                let name = self.own(maker.input.get(1)?)?;
                let map = ChannelMap::outputs(maker, &self.dims(&name)?).filter(|map| map.channels == channels)?;
                let bias = positional_input(maker, 2).map(vector);
                let weight = Scaled { name, map };
                bias.map_or_else(|| Some(vec![weight.clone()]), |bias| Some(vec![weight.clone(), bias?]))
            }
            _ => None,
        }
    }
}

/// Multiplies the weights of the readers by `scales`, one for each channel, and divides their input. A Mul needed for this is placed
/// at the end of the graph, which has to be [sorted](crate::graph::sort) when all is done.
pub(super) fn apply(
    model: &mut ModelProto,
    readers: &SharedInputGroup,
    scales: &[f32],
    spill: Option<&Spill>,
) -> Result<ScaledInput, QuantizeError> {
    let mut done = ScaledInput { tensor: readers.tensor.clone(), products: readers.weights.len(), multiplied_by: None };
    let Some(graph) = model.graph.as_mut() else { return Ok(done) };
    for weight in &readers.weights {
        rescale(graph, weight, spill, |value, channel| value * scales[channel])?;
    }
    match &readers.folded {
        Some(constants) => {
            for constant in constants {
                rescale(graph, constant, spill, |value, channel| value / scales[channel])?;
            }
        }
        None => done.multiplied_by = Some(multiply(graph, readers, scales)),
    }
    Ok(done)
}

/// Puts every Mul in front of what reads it.
pub(super) fn sorted(model: &mut ModelProto) -> Result<(), QuantizeError> {
    Ok(model.graph.as_mut().map_or(Ok(()), sort)?)
}

fn rescale(
    graph: &mut GraphProto,
    constant: &Scaled,
    spill: Option<&Spill>,
    by: impl Fn(f32, usize) -> f32,
) -> Result<(), QuantizeError> {
    let Some(tensor) = graph.initializer.iter_mut().find(|t| t.name() == constant.name) else { return Ok(()) };
    let scaled = values(tensor)?.into_iter().enumerate().map(|(i, value)| by(value, constant.map.channel(i)));
    let scaled: Vec<f32> = scaled.collect();
    set_contents(tensor, keep(spill, bytemuck::cast_slice(&scaled).to_vec())?);
    Ok(())
}

/// Puts a Mul behind the tensor, for these readers. Returns its name.
fn multiply(graph: &mut GraphProto, readers: &SharedInputGroup, scales: &[f32]) -> String {
    let mut names = Names::of(graph);
    let output = names.fresh(&format!("{}_smooth", readers.tensor));
    let name = names.fresh(&format!("{output}_Mul"));
    let factors = names.fresh(&format!("{output}_factors"));
    let values: Vec<u8> = scales.iter().flat_map(|s| (1.0 / s).to_le_bytes()).collect();
    graph.initializer.push(tensor(&factors, DataType::FLOAT, &[scales.len()], values));
    for &edge in &readers.edges {
        graph.node[edge].input[0].clone_from(&output);
    }
    // At the end, so that the places of all other nodes stay as they are until the graph is sorted.
    graph.node.push(node("Mul", &name, &[&readers.tensor, &factors], &[&output]));
    name
}
