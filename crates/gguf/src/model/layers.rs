//! Linear layers, experts and norms as tensors of the file: rows put in the order of the graph, experts stacked, matrices
//! that hold two projections taken apart where loaders want them apart.

use super::drafts::{Builder, Draft, Grouped};
use super::{Change, Content, GgufPlanError, TensorSlice};
use crate::ftype::Category;
use crate::model::names;
use kvant_model::family::{NormSite, Orientation, Part, Positions, Role, RowOrder};
use kvant_model::network::{ExpertsStorage, FusedExperts, Linear, Norm};
use kvant_weights::weight::RowMap;

/// A projection of a layer: its role and its rows of the matrix.
type Projection = (Role, RowMap);

impl Builder<'_> {
    pub(crate) fn add_linears(&mut self) -> Result<(), GgufPlanError> {
        let network = self.network;
        let mut experts: Grouped<(Option<usize>, Role), &Linear> = Grouped::new();
        let mut lanes: Grouped<Role, &Linear> = Grouped::new();
        for linear in network.linears() {
            match (linear.expert, linear.role) {
                (Some(_), role) => experts.entry((linear.block, role)).or_default().push(linear),
                (None, Role::Head) if network.is_tied() => {
                    self.drop_tensor(linear.weight, "the head is the embedding");
                }
                (None, Role::KeyValueUp) => self.add_latent(linear)?,
                (None, role @ (Role::LaneInput | Role::LaneOutput)) => {
                    lanes.entry(role).or_default().push(linear);
                }
                (None, _) if linear.part == Part::Recurrent => self.add_recurrent(linear)?,
                (None, _) => self.add_linear(linear)?,
            }
        }
        experts.into_iter().try_for_each(|((block, role), layers)| self.add_experts(block, role, layers))?;
        lanes.into_iter().try_for_each(|(role, layers)| self.add_lanes(role, layers))
    }

    /// The layers that make further streams from the first, or the reverse, as one tensor.
    fn add_lanes(&mut self, role: Role, mut layers: Vec<&Linear>) -> Result<(), GgufPlanError> {
        layers.sort_by(|one, other| one.module.cmp(&other.module));
        let size = (layers[0].out_features, layers[0].in_features);
        let slabs = layers.iter().map(|linear| self.slab(linear.weight, (0, 1), size, RowMap::all(size.0)));
        let slabs = slabs.collect::<Result<Vec<_>, _>>()?;
        let stem = names::of_role(role, Part::Mlp).ok_or_else(|| self.no_place(layers[0].weight))?;
        self.add_small(format!("{stem}.weight"), None, vec![layers.len(), size.0, size.1], slabs);
        Ok(())
    }

    fn add_linear(&mut self, linear: &Linear) -> Result<(), GgufPlanError> {
        for (role, rows) in self.projections(linear)? {
            let size = (linear.out_features, linear.in_features);
            let parts = self.parts(linear, rows)?;
            let is_transposed = linear.orientation == Orientation::InOut;
            let mut slabs = self.slabs(linear.weight, size, &parts)?;
            slabs.iter_mut().for_each(|slab| slab.is_transposed = is_transposed);
            let slabs = self.scaled(linear, slabs)?;
            let stem = names::of_role_in(self.architecture.name, role, self.part(linear));
            let stem = stem.ok_or_else(|| self.no_place(linear.weight))?;
            // The gate on the shared expert is one row, and a vector in the file.
            let shape = if role == Role::SharedGate { vec![size.1] } else { vec![rows.count(), size.1] };
            let name = names::in_block(linear.block, &format!("{stem}.weight"));
            self.drafts.push(Draft {
                category: Category::of_name(&name),
                name,
                shape,
                content: Content::Slabs(slabs),
                block: linear.block,
                modules: vec![linear.module.clone()],
                fixed: matches!(role, Role::Router | Role::SharedGate) || is_kept(role),
            });
            if let Some(bias) = linear.bias {
                let slabs = self.slabs(bias, (size.0, 1), &parts)?;
                let name = names::in_block(linear.block, &format!("{stem}.bias"));
                self.add_small(name, linear.block, vec![rows.count()], slabs);
            }
        }
        Ok(())
    }

    /// The part that a layer belongs to in the file: the shared network of Granite 4 is the only one where there are no experts.
    fn part(&self, linear: &Linear) -> Part {
        match linear.part {
            Part::SharedExperts if self.config.experts.is_none() => Part::Mlp,
            part => part,
        }
    }

    /// Several runs of rows of a matrix.
    pub(super) fn slabs(
        &mut self,
        tensor: usize,
        size: (usize, usize),
        parts: &[RowMap],
    ) -> Result<Vec<TensorSlice>, GgufPlanError> {
        parts.iter().map(|rows| self.slab(tensor, (0, 1), size, *rows)).collect()
    }

    /// The runs of rows that one projection is put together from. Where queries, keys and values alternate by key head, as many
    /// queries as share it first, these are all queries, all keys and all values.
    fn parts(&self, linear: &Linear, rows: RowMap) -> Result<Vec<RowMap>, GgufPlanError> {
        if linear.role != Role::QueryKeyValue || linear.rows != RowOrder::PerGroup {
            return Ok(vec![rows]);
        }
        let heads = self.config.num_heads.zip(self.config.num_kv_heads());
        let sizes =
            heads.filter(|(queries, keys)| *keys > 0 && queries.is_multiple_of(*keys)).and_then(|(queries, keys)| {
                let all = queries.checked_add(keys.checked_mul(2)?)?;
                linear.out_features.is_multiple_of(all).then(|| (keys, queries / keys, linear.out_features / all))
            });
        let (groups, shared, width) =
            sizes.ok_or_else(|| self.shape_error(linear.weight, "its rows are not a multiple of the head size"))?;
        let first = |group: usize| group * (shared + 2) * width;
        let runs = [(0, shared), (shared, 1), (shared + 1, 1)].into_iter();
        let of_all = runs.flat_map(|(start, heads)| {
            (0..groups).map(move |group| RowMap::Run { first: first(group) + start * width, count: heads * width })
        });
        Ok(of_all.collect())
    }

    /// The projections of a layer as loaders want them.
    fn projections(&self, linear: &Linear) -> Result<Vec<Projection>, GgufPlanError> {
        let rows = linear.out_features;
        let all = RowMap::all(rows);
        match linear.role {
            Role::Query | Role::Key if self.architecture.interleaves(self.family) => {
                let width =
                    self.config.head_dim().filter(|width| width.is_multiple_of(2) && rows.is_multiple_of(*width));
                let width = width.filter(|width| *width > 0);
                let width = width
                    .ok_or_else(|| self.shape_error(linear.weight, "its rows are not a multiple of the head size"))?;
                let turning = self
                    .turning(width)
                    .ok_or_else(|| self.shape_error(linear.weight, "an even part of a head turns with its position"))?;
                Ok(vec![(linear.role, RowMap::Neighbours { width, turning, count: rows })])
            }
            Role::QueryKeyValue if linear.rows == RowOrder::PerHead => {
                let heads = self.config.num_heads.filter(|heads| *heads > 0 && rows.is_multiple_of(3 * heads));
                let heads = heads
                    .ok_or_else(|| self.shape_error(linear.weight, "its rows are not a multiple of the head size"))?;
                Ok(vec![(linear.role, RowMap::Unfolded { heads, parts: 3, width: rows / (3 * heads) })])
            }
            Role::GateUp if linear.part != Part::Mlp || !names::has_gate_in_up(self.architecture.name) => {
                Ok(gate_and_up(linear.rows, rows).to_vec())
            }
            role => Ok(vec![(role, all)]),
        }
    }

    /// Components of a head of so many that turn with their position.
    fn turning(&self, width: usize) -> Option<usize> {
        let Positions::Rotary { partial, .. } = self.family.math.positions.resolve(self.config) else {
            return Some(width);
        };
        let turning = self.config.rope.main.turning_components(width, partial);
        (turning > 0 && turning <= width && turning.is_multiple_of(2)).then_some(turning)
    }

    /// The up projection of latent attention, per head `[k; v]`. The graph folds keys into queries and values into outputs:
    /// the key part of each head must be transposed.
    fn add_latent(&mut self, linear: &Linear) -> Result<(), GgufPlanError> {
        let latent = self.config.latent.as_ref().ok_or_else(|| self.no_place(linear.weight))?;
        let (nope, value, rank) = (latent.nope_dim, latent.value_dim, linear.in_features);
        let heads = self.config.num_heads.unwrap_or(0);
        if heads == 0 || linear.out_features != heads * (nope + value) {
            return Err(self.shape_error(linear.weight, "its rows are not a multiple of the head size"));
        }
        let size = (linear.out_features, linear.in_features);
        let parts = [("attn_k_b", 0, nope, true), ("attn_v_b", nope, value, false)];
        for (stem, start, count, transposed) in parts {
            let mut slabs = Vec::with_capacity(heads);
            for head in 0..heads {
                let rows = RowMap::Run { first: head * (nope + value) + start, count };
                slabs.push(TensorSlice { transposed, ..self.slab(linear.weight, (0, 1), size, rows)? });
            }
            let shape = if transposed { vec![heads, rank, count] } else { vec![heads, count, rank] };
            self.drafts.push(Draft {
                name: names::in_block(linear.block, &format!("{stem}.weight")),
                shape,
                content: Content::Slabs(slabs),
                block: linear.block,
                category: Category::Other,
                modules: vec![linear.module.clone()],
                fixed: false,
            });
        }
        Ok(())
    }

    /// The experts of a block that are a matrix each, stacked.
    fn add_experts(&mut self, block: Option<usize>, role: Role, mut layers: Vec<&Linear>) -> Result<(), GgufPlanError> {
        layers.sort_by_key(|linear| linear.expert);
        let size = (layers[0].out_features, layers[0].in_features);
        let complete = layers.iter().enumerate().all(|(expert, linear)| linear.expert == Some(expert));
        let expected = self.config.experts.as_ref().map_or(layers.len(), |experts| experts.count);
        if !complete || layers.len() != expected {
            return Err(self.shape_error(layers[0].weight, format!("{expected} experts are expected")));
        }
        let modules: Vec<String> = layers.iter().map(|linear| linear.module.clone()).collect();
        let biases: Option<Vec<usize>> = layers.iter().map(|linear| linear.bias).collect();
        if let (None, Some(with)) = (&biases, layers.iter().find(|linear| linear.bias.is_some())) {
            return Err(self.no_place(with.weight));
        }
        for (role, rows) in expert_projections(role, layers[0].rows, size.0) {
            let slabs = layers.iter().map(|linear| self.slab(linear.weight, (0, 1), size, rows));
            let slabs = slabs.collect::<Result<Vec<_>, _>>()?;
            self.push_experts(block, role, modules.clone(), (layers.len(), rows.count(), size.1), slabs);
            if let Some(biases) = &biases {
                let slabs = biases.iter().map(|bias| self.slab(*bias, (0, 1), (size.0, 1), rows));
                let slabs = slabs.collect::<Result<Vec<_>, _>>()?;
                self.add_expert_biases(block, role, vec![layers.len(), rows.count()], slabs);
            }
        }
        Ok(())
    }

    /// The biases of all experts of a block.
    fn add_expert_biases(&mut self, block: Option<usize>, role: Role, shape: Vec<usize>, slabs: Vec<TensorSlice>) {
        let stem = names::of_role(role, Part::Experts).unwrap_or_default();
        self.add_small(names::in_block(block, &format!("{stem}.bias")), block, shape, slabs);
    }

    fn push_experts(
        &mut self,
        block: Option<usize>,
        role: Role,
        modules: Vec<String>,
        (experts, rows, columns): (usize, usize, usize),
        slabs: Vec<TensorSlice>,
    ) {
        let stem = names::of_role(role, Part::Experts).unwrap_or_default();
        self.drafts.push(Draft {
            name: names::in_block(block, &format!("{stem}.weight")),
            shape: vec![experts, rows, columns],
            content: Content::Slabs(slabs),
            block,
            category: Category::of(role, Part::Experts),
            modules,
            fixed: false,
        });
    }

    /// The experts of blocks that are one tensor.
    pub(crate) fn add_fused_experts(&mut self) -> Result<(), GgufPlanError> {
        self.network.experts().iter().try_for_each(|experts| self.add_fused(experts))
    }

    fn add_fused(&mut self, fused: &FusedExperts) -> Result<(), GgufPlanError> {
        let ExpertsStorage::Float { weight } = fused.storage else {
            let method = "mxfp4".to_owned();
            return Err(GgufPlanError::AlreadyQuantized { method, tensor: fused.module.clone() });
        };
        let projections = expert_projections(fused.role, fused.rows, fused.out_features);
        let (count, size, block) = (fused.experts, (fused.out_features, fused.in_features), Some(fused.block));
        for (role, rows) in projections {
            let mut slabs = Vec::with_capacity(count);
            for expert in 0..count {
                let slab = self.slab(weight, (expert, count), size, rows)?;
                slabs.push(TensorSlice { is_transposed: fused.orientation == Orientation::InOut, ..slab });
            }
            self.push_experts(block, role, vec![fused.module.clone()], (count, rows.count(), size.1), slabs);
            if let Some(bias) = fused.bias {
                let slabs = (0..count).map(|expert| self.slab(bias, (expert, count), (size.0, 1), rows));
                let slabs = slabs.collect::<Result<Vec<_>, _>>()?;
                self.add_expert_biases(block, role, vec![count, rows.count()], slabs);
            }
        }
        Ok(())
    }

    /// Norms; those that every head has for itself are stacked.
    pub(crate) fn add_norms(&mut self) -> Result<(), GgufPlanError> {
        let mut sites: Grouped<(Option<usize>, NormSite), &Norm> = Grouped::new();
        for norm in self.network.norms() {
            sites.entry((norm.block, norm.site)).or_default().push(norm);
        }
        sites.into_iter().try_for_each(|((block, site), norms)| self.add_norm(block, site, &norms))
    }

    /// The stem of a norm's name. Of the two norms that parallel branches of Falcon may have, the one that all of its models have is that
    /// of the feed-forward network.
    fn norm_stem(&self, site: NormSite) -> &'static str {
        let has_two = || self.network.norms().iter().any(|norm| norm.site == NormSite::FeedForwardInput);
        match site {
            NormSite::AttentionInput if self.architecture.name == "falcon" && has_two() => "attn_norm_2",
            site => self.architecture.norm(site).unwrap_or_else(|| names::of_norm(site)),
        }
    }

    fn add_norm(&mut self, block: Option<usize>, site: NormSite, norms: &[&Norm]) -> Result<(), GgufPlanError> {
        if self.architecture.lacks.contains(&site) {
            return Err(self.no_place(norms[0].weight));
        }
        let stem = self.norm_stem(site);
        let mut ordered = norms.to_vec();
        ordered.sort_by_key(|norm| norm.head);
        let weights: Vec<usize> = ordered.iter().map(|norm| norm.weight).collect();
        let offset = match (site, self.family.recurrent) {
            (NormSite::RecurrentOutput, Some(recurrent)) => recurrent.norm_kind.offset(),
            _ => self.family.norm_kind.offset(),
        };
        let change = if offset == 0.0 { Change::None } else { Change::Added(offset) };
        let ending = names::norm_ending(self.architecture.name, stem);
        self.add_vectors(names::in_block(block, &format!("{stem}{ending}")), block, &weights, change)?;
        self.group_norm(site);
        let biases: Vec<usize> = ordered.iter().filter_map(|norm| norm.bias).collect();
        match biases.is_empty() {
            true => Ok(()),
            false => self.add_vectors(names::in_block(block, &format!("{stem}.bias")), block, &biases, Change::None),
        }
    }

    /// Gives the norm of a Mamba 2 mixer, the last tensor, a row for each group.
    fn group_norm(&mut self, site: NormSite) {
        let groups = self.config.mamba.as_ref().map(|mamba| mamba.groups).filter(|_| site == NormSite::RecurrentOutput);
        let last = self.drafts.last_mut().filter(|draft| draft.shape.len() == 1);
        if let (Some(groups), Some(draft)) = (groups, last) {
            let length = draft.shape[0];
            if groups > 0 && length.is_multiple_of(groups) {
                draft.shape = vec![groups, length / groups];
            }
        }
    }

    /// Vectors as one tensor; one alone keeps its shape.
    fn add_vectors(
        &mut self,
        name: String,
        block: Option<usize>,
        tensors: &[usize],
        change: Change,
    ) -> Result<(), GgufPlanError> {
        let shape = self.tensors[tensors[0]].shape.clone();
        let length: usize = shape.iter().product();
        let mut slabs = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            slabs.push(TensorSlice { change, ..self.slab(*tensor, (0, 1), (length, 1), RowMap::all(length))? });
        }
        let shape = if tensors.len() > 1 { vec![tensors.len(), length] } else { shape };
        self.add_small(name, block, shape, slabs);
        Ok(())
    }
}

/// Returns whether llama.cpp quantizes no tensors of the role (`tensor_allows_quantization`).
fn is_kept(role: Role) -> bool {
    matches!(
        role,
        Role::LayerInputs
            | Role::LaneRouter
            | Role::LanePrediction
            | Role::LaneCorrection
            | Role::LowRankDown
            | Role::LowRankUp
    )
}

/// The projections of an expert's matrix, of so many rows.
fn expert_projections(role: Role, order: RowOrder, rows: usize) -> Vec<Projection> {
    match role {
        Role::GateUp => gate_and_up(order, rows).to_vec(),
        role => vec![(role, RowMap::all(rows))],
    }
}

/// Gate and up of a matrix that holds both.
fn gate_and_up(order: RowOrder, rows: usize) -> [Projection; 2] {
    let count = rows / 2;
    match order {
        RowOrder::Interleaved => [
            (Role::Gate, RowMap::Every { first: 0, step: 2, count }),
            (Role::Up, RowMap::Every { first: 1, step: 2, count }),
        ],
        _ => [(Role::Gate, RowMap::Run { first: 0, count }), (Role::Up, RowMap::Run { first: count, count })],
    }
}
