//! The scales moved through the smoothing pairs of one block so far.

use super::changed::{ChangedTensor, scale};
use super::error::ScaleFusionError;
use super::modules::{self, Module, Place};
use super::{norm, scales};
use kvant_forward::forward::{Tensors, Vector, WeightOverrides};
use kvant_model::family::Orientation;
use kvant_model::network::{Consumer, Network, Norm, PairPath, ScaleSource, SmoothingPair};
use kvant_weights::weight::{ClippingThresholds, WeightMatrix, WeightTransform};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The factors of all rows and columns of a weight's matrices.
#[derive(Clone, Debug, Default)]
pub(super) struct ScaleFactors {
    pub(super) rows: Option<Vec<f32>>,
    pub(super) columns: Option<Vec<f32>>,
}

/// The scales moved through the links of a block so far, as foldings of weights and new values of norms and biases. Links
/// may be applied again, and touch the same modules: factors multiply.
#[derive(Clone, Debug)]
pub struct ScaleFusion<'n, 'a> {
    network: &'n Network,
    tensors: &'n Tensors<'a>,
    modules: BTreeMap<String, Module>,
    /// Weight tensors of modules that are not rounded.
    kept: HashSet<usize>,
    /// By the tensor of the weight.
    factors: BTreeMap<usize, ScaleFactors>,
    /// New values of norms and biases, by tensor.
    vectors: BTreeMap<usize, (Vector, Vec<f32>)>,
    /// By module.
    limits: BTreeMap<String, ClippingThresholds>,
}

/// The changes of a smoothing pair, found before anything is modified.
struct PairFusion {
    applied: Vec<f32>,
    /// Factors on the rows of a weight tensor.
    rows: Option<(usize, Vec<f32>)>,
    vectors: Vec<(usize, Vector, Vec<f32>)>,
}

impl<'n, 'a> ScaleFusion<'n, 'a> {
    /// No scales yet. `tensors` are those that the network was recognised from; `is_kept` says of a module (of all experts
    /// in one tensor: theirs) whether it stays in its type instead of being rounded.
    pub fn new(
        network: &'n Network,
        tensors: &'n Tensors<'a>,
        block: usize,
        is_kept: impl Fn(&str) -> bool,
    ) -> ScaleFusion<'n, 'a> {
        let kept = modules::places(network, block).filter(|place| is_kept(place.module));
        let kept = kept.map(|place| place.weight).collect();
        let modules = modules::of_block(network, tensors, block);
        let (factors, vectors, limits) = Default::default();
        ScaleFusion { network, tensors, modules, kept, factors, vectors, limits }
    }

    /// The number of scales of a smoothing pair: one for each input of its consumers.
    pub fn width(&self, link: &SmoothingPair) -> usize {
        let places = link.into.iter().filter_map(|consumer| Place::of(self.network, *consumer));
        places.map(|place| place.columns).next().unwrap_or(0)
    }

    /// Divides the link's source by `scales`, one for each input column of its consumers, and multiplies these columns.
    /// Returns the scales as applied: equal for the query heads that share values, and corrected for what a norm loses where
    /// its weight is rounded to its type.
    ///
    /// # Errors
    /// [`ScaleFusionError`], with nothing changed: scales that are not positive, modules that cannot be changed.
    pub fn apply(&mut self, link: &SmoothingPair, scales: &[f32]) -> Result<Vec<f32>, ScaleFusionError> {
        let change = self.change(link, scales)?;
        if let Some((tensor, factors)) = change.rows {
            multiply(&mut self.factors.entry(tensor).or_default().rows, &factors);
        }
        let vectors = change.vectors.into_iter().map(|(tensor, vector, values)| (tensor, (vector, values)));
        self.vectors.extend(vectors);
        for place in link.into.iter().filter_map(|consumer| Place::of(self.network, *consumer)) {
            multiply(&mut self.factors.entry(place.weight).or_default().columns, &change.applied);
        }
        Ok(change.applied)
    }

    /// Clips the weight of a module that is rounded, with all factors that it has then.
    ///
    /// # Errors
    /// [`ScaleFusionError::ClippingThresholds`].
    pub fn clip(&mut self, module: &str, limits: ClippingThresholds) -> Result<(), ScaleFusionError> {
        let known = self.modules.get(module).filter(|known| !self.kept.contains(&known.weight));
        let folding = WeightTransform { limits: Some(limits), ..WeightTransform::default() };
        if !known.is_some_and(|known| folding.fits(known.layer.rows, known.layer.columns)) {
            return Err(ScaleFusionError::ClippingThresholds { module: module.to_owned() });
        }
        self.limits.extend(folding.limits.map(|limits| (module.to_owned(), limits)));
        Ok(())
    }

    /// The current bias of a module, or of a single expert; `None` without a bias that can be changed.
    pub fn bias(&self, module: &str) -> Option<Vec<f32>> {
        let known = self.modules.get(module)?;
        let (tensor, first) = known.bias?;
        let (_, values) = self.vector(tensor, module).ok()?;
        values.get(first..first + known.layer.rows).map(<[f32]>::to_vec)
    }

    /// Gives a module another bias, as its type stores it, which is returned.
    ///
    /// # Errors
    /// [`ScaleFusionError`] where it has no bias of as many values, or the type cannot hold one of them; nothing is changed then.
    pub fn set_bias(&mut self, module: &str, bias: &[f32]) -> Result<Vec<f32>, ScaleFusionError> {
        let fixed = || ScaleFusionError::Fixed { module: module.to_owned(), reason: "it has no such bias".to_owned() };
        let known = self.modules.get(module).filter(|known| known.layer.rows == bias.len()).ok_or_else(fixed)?;
        let (tensor, first) = known.bias.ok_or_else(fixed)?;
        let (vector, mut values) = self.vector(tensor, module)?;
        let stored = vector.source().arithmetic();
        let bias: Vec<f32> = bias.iter().map(|value| stored.round(*value)).collect();
        values.get_mut(first..first + bias.len()).ok_or_else(fixed)?.copy_from_slice(&bias);
        let vectors = [(tensor, vector, values)];
        finite(module, &vectors)?;
        self.vectors.extend(vectors.map(|(tensor, vector, values)| (tensor, (vector, values))));
        Ok(bias)
    }

    /// Returns whether a vector is a whole tensor, which can be given other values.
    pub fn holds(&self, vector: &Vector) -> bool {
        self.tensors.vector(vector.tensor(), None).is_ok_and(|whole| whole == *vector)
    }

    /// The values that a vector which it [holds](Self::holds) has now.
    pub fn values(&self, vector: &Vector) -> Vec<f32> {
        let changed = self.vectors.get(&vector.tensor());
        changed.map_or_else(|| self.tensors.values(vector), |(_, values)| values.clone())
    }

    /// Gives such a vector other values, each a number of its type.
    pub fn set_values(&mut self, vector: &Vector, values: Vec<f32>) {
        self.vectors.insert(vector.tensor(), (vector.clone(), values));
    }

    /// The transform of a module's weight, including single experts; `None` if there is none.
    pub fn folding(&self, module: &str) -> Option<WeightTransform> {
        let factors = self.modules.get(module).and_then(|known| self.factors.get(&known.weight));
        let limits = self.limits.get(module).cloned();
        if factors.is_none() && limits.is_none() {
            return None;
        }
        let ScaleFactors { rows, columns } = factors.cloned().unwrap_or_default();
        Some(WeightTransform { rows, columns, limits })
    }

    /// The weight of a module, a single expert's included, as it is now; `None` for modules that are not of this block or
    /// not readable.
    pub fn weight(&self, module: &str) -> Option<WeightMatrix<'a>> {
        let weight = self.tensors.weight(&self.modules.get(module)?.layer);
        Some(match self.folding(module) {
            Some(folding) => weight.folded(Arc::new(folding)),
            None => weight,
        })
    }

    /// Overrides the checkpoint's tensors with the changed ones.
    pub fn add_to(&self, overlay: &mut WeightOverrides<'a>) {
        for (name, module) in &self.modules {
            if let Some(weight) = self.weight(name).filter(|_| self.folding(name).is_some()) {
                overlay.set_weight(name, weight);
            }
            let bias = module.bias.and_then(|(tensor, first)| self.vectors.get(&tensor).zip(Some(first)));
            if let Some(((_, values), first)) = bias {
                overlay.set_bias(name, values[first..first + module.layer.rows].to_vec());
            }
        }
        for (vector, values) in self.vectors.values() {
            overlay.set_vector(vector, values.clone());
        }
    }

    /// The tensors that stay in their types, but with other values: norms, biases, and weights of layers that are kept.
    pub fn changed_tensors(&self) -> impl Iterator<Item = ChangedTensor> + '_ {
        let name = |tensor: usize| self.tensors.meta()[tensor].name.clone();
        let vectors = self.vectors.iter().map(move |(tensor, (vector, values))| ChangedTensor {
            tensor: *tensor,
            name: name(*tensor),
            dtype: vector.source(),
            values: values.clone(),
        });
        let kept = self.network.linears().iter().filter(|linear| self.kept.contains(&linear.weight));
        let weights = kept.filter_map(move |linear| {
            let factors = self.factors.get(&linear.weight)?;
            // It is known to be readable since the factors were set.
            let vector = self.tensors.vector(linear.weight, None).ok()?;
            let mut values = self.tensors.values(&vector);
            let is_transposed = linear.orientation == Orientation::InOut;
            scale(&mut values, factors, (linear.out_features, linear.in_features), is_transposed);
            let stored = vector.source().arithmetic();
            values.iter_mut().for_each(|value| *value = stored.round(*value));
            Some(ChangedTensor { tensor: linear.weight, name: name(linear.weight), dtype: vector.source(), values })
        });
        vectors.chain(weights)
    }

    fn change(&self, link: &SmoothingPair, wanted: &[f32]) -> Result<PairFusion, ScaleFusionError> {
        if let Some(reason) = scales::fault(wanted, self.width(link)) {
            return Err(ScaleFusionError::Scales { place: self.source_name(link).to_owned(), reason });
        }
        for consumer in &link.into {
            self.check(*consumer)?;
        }
        let passable = scales::passable(link.through, wanted);
        let divisors = scales::of_source(link.through, &passable);
        match &link.from {
            ScaleSource::Norm(id) => self.divide_norm(self.network.norm(*id), &divisors, (link.through, wanted.len())),
            ScaleSource::Linear { linear, rows } => {
                self.divide_rows(Consumer::Linear(*linear), rows, &divisors, passable)
            }
            ScaleSource::Experts { experts, rows } => {
                self.divide_rows(Consumer::Experts(*experts), rows, &divisors, passable)
            }
        }
    }

    fn source_name(&self, link: &SmoothingPair) -> &str {
        match &link.from {
            ScaleSource::Norm(id) => &self.network.norm(*id).module,
            ScaleSource::Linear { linear, .. } => &self.network.linear(*linear).module,
            ScaleSource::Experts { experts, .. } => &self.network.experts()[experts.index()].module,
        }
    }

    /// Checks that the weights of a layer, or of experts, can be changed.
    fn check(&self, consumer: Consumer) -> Result<Place<'n>, ScaleFusionError> {
        let module = match consumer {
            Consumer::Linear(id) => &self.network.linear(id).module,
            Consumer::Experts(id) => &self.network.experts()[id.index()].module,
        };
        let fixed = |reason: &str| ScaleFusionError::Fixed { module: module.clone(), reason: reason.to_owned() };
        let place = Place::of(self.network, consumer).ok_or_else(|| fixed("its experts are stored as codes"))?;
        let readable = self.modules.values().filter(|module| module.weight == place.weight).count();
        match (readable == place.count, self.kept.contains(&place.weight)) {
            (false, _) => Err(fixed("its weight is not stored in a way that can be read")),
            (true, true) if place.count > 1 => Err(fixed("all its experts are in one tensor, which is kept as it is")),
            (true, true) if self.tensors.vector(place.weight, None).is_err() => {
                Err(fixed("it is quantized already and kept as it is"))
            }
            _ => Ok(place),
        }
    }

    /// A norm divided by the scales of its channels; consumers have `width` channels behind `through`.
    fn divide_norm(
        &self,
        norm: &Norm,
        wanted: &[f32],
        (through, width): (PairPath, usize),
    ) -> Result<PairFusion, ScaleFusionError> {
        let (vector, weight) = self.vector(norm.weight, &norm.module)?;
        if weight.len() != wanted.len() {
            let reason = format!("it has {} channels, what reads it {}", weight.len(), wanted.len());
            return Err(ScaleFusionError::Fixed { module: norm.module.clone(), reason });
        }
        let stored = vector.source().arithmetic();
        let divided = norm::divide(&weight, wanted, norm.kind.offset(), stored);
        let mut vectors = vec![(norm.weight, vector, divided.weight)];
        if let Some(tensor) = norm.bias {
            let (vector, mut bias) = self.vector(tensor, &norm.module)?;
            let stored = vector.source().arithmetic();
            bias.iter_mut().zip(&divided.scales).for_each(|(bias, scale)| *bias = stored.round(*bias / scale));
            vectors.push((tensor, vector, bias));
        }
        finite(&norm.module, &vectors)?;
        Ok(PairFusion { applied: scales::of_consumers(through, &divided.scales, width), rows: None, vectors })
    }

    fn divide_rows(
        &self,
        source: Consumer,
        rows: &[Range<usize>],
        divisors: &[f32],
        applied: Vec<f32>,
    ) -> Result<PairFusion, ScaleFusionError> {
        let place = self.check(source)?;
        let mut factors = vec![1.0; place.rows];
        for (row, divisor) in rows.iter().cloned().flatten().zip(divisors) {
            factors[row] = divisor.recip();
        }
        let mut vectors = Vec::new();
        if let Some(tensor) = place.bias {
            let (vector, mut bias) = self.vector(tensor, place.module)?;
            let stored = vector.source().arithmetic();
            let factors = factors.iter().cycle();
            bias.iter_mut().zip(factors).for_each(|(bias, factor)| *bias = stored.round(*bias * factor));
            vectors.push((tensor, vector, bias));
        }
        finite(place.module, &vectors)?;
        Ok(PairFusion { applied, rows: Some((place.weight, factors)), vectors })
    }

    /// The values that a norm or bias has now.
    fn vector(&self, tensor: usize, module: &str) -> Result<(Vector, Vec<f32>), ScaleFusionError> {
        if let Some((vector, values)) = self.vectors.get(&tensor) {
            return Ok((vector.clone(), values.clone()));
        }
        let vector = self.tensors.vector(tensor, None);
        let fixed = |error: kvant_forward::forward::ForwardError| ScaleFusionError::Fixed {
            module: module.to_owned(),
            reason: error.to_string(),
        };
        let vector = vector.map_err(fixed)?;
        let values = self.tensors.values(&vector);
        Ok((vector, values))
    }
}

fn multiply(factors: &mut Option<Vec<f32>>, more: &[f32]) {
    match factors {
        Some(factors) => factors.iter_mut().zip(more).for_each(|(factor, more)| *factor *= more),
        None => *factors = Some(more.to_vec()),
    }
}

/// # Errors
/// [`ScaleFusionError::Overflow`] where a value is NaN or infinite.
fn finite(module: &str, vectors: &[(usize, Vector, Vec<f32>)]) -> Result<(), ScaleFusionError> {
    match vectors.iter().all(|(_, _, values)| values.iter().all(|value| value.is_finite())) {
        true => Ok(()),
        false => Err(ScaleFusionError::Overflow { module: module.to_owned() }),
    }
}
