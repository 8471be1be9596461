//! The layers and norms of one block, or of what surrounds the blocks, looked up by role.

use super::encoder::is_at;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::{Indexer, NormSite, Part, QueryKeyNorm, Role};
use kvant_model::network::{Linear, Norm};

/// A block, or the trunk.
pub(super) struct Parts<'p, 's, 'a> {
    sources: &'p Sources<'s, 'a>,
    block: Option<usize>,
}

impl<'p, 's, 'a> Parts<'p, 's, 'a> {
    pub(super) fn trunk(sources: &'p Sources<'s, 'a>) -> Self {
        Parts { sources, block: None }
    }

    pub(super) fn block(sources: &'p Sources<'s, 'a>, index: usize) -> Self {
        Parts { sources, block: Some(index) }
    }

    /// The name in messages.
    pub(super) fn place(&self) -> String {
        self.block.map_or_else(|| "the model".to_owned(), |block| format!("block {block}"))
    }

    fn linears(&self) -> impl Iterator<Item = &'p Linear> + use<'p, 's, 'a> {
        let block = self.block;
        self.sources.network.linears().iter().filter(move |linear| linear.block == block)
    }

    /// The layer that fulfils the condition.
    pub(super) fn find(&self, wanted: impl Fn(&Linear) -> bool) -> Option<&'p Linear> {
        self.linears().find(|linear| wanted(linear))
    }

    /// The layer of a role, if there is one.
    pub(super) fn linear(&self, role: Role) -> Result<Option<Projection>, ForwardError> {
        self.find(|linear| linear.role == role).map(|linear| self.sources.tensors.projection(linear)).transpose()
    }

    /// The layer of a role in a part of the block, if there is one.
    pub(super) fn linear_of(
        &self,
        part: Part,
        role: Role,
        expert: Option<usize>,
    ) -> Result<Option<Projection>, ForwardError> {
        let found = self.find(|linear| linear.part == part && linear.role == role && linear.expert == expert);
        found.map(|linear| self.sources.tensors.projection(linear)).transpose()
    }

    /// The layer of a role with so many rows and columns.
    pub(super) fn sized(&self, role: Role, rows: usize, columns: usize) -> Result<Projection, ForwardError> {
        self.checked(self.find(|linear| linear.role == role), role, [rows, columns])
    }

    /// The square layers of a role whose names end in numbers, in their order.
    pub(super) fn numbered(&self, role: Role, (count, width): (usize, usize)) -> Result<Vec<Projection>, ForwardError> {
        let mut found: Vec<&Linear> = self.linears().filter(|linear| linear.role == role).collect();
        found.sort_by_key(|linear| linear.module.rsplit('.').next().and_then(|number| number.parse::<usize>().ok()));
        match found.len() == count {
            true => found.into_iter().map(|linear| self.checked(Some(linear), role, [width, width])).collect(),
            false => Err(ForwardError::missing(self.place(), format!("{role} projections, {count} in number"))),
        }
    }

    /// The output projection of a mixer, of which a block may have two.
    pub(super) fn output(&self, part: Part, rows: usize, columns: usize) -> Result<Projection, ForwardError> {
        let found = self.find(|linear| linear.part == part && linear.role == Role::Output);
        self.checked(found, Role::Output, [rows, columns])
    }

    fn checked(
        &self,
        found: Option<&'p Linear>,
        role: Role,
        [rows, columns]: [usize; 2],
    ) -> Result<Projection, ForwardError> {
        let linear = found.ok_or_else(|| ForwardError::missing(self.place(), format!("{role} projection")))?;
        if (linear.out_features, linear.in_features) != (rows, columns) {
            let expected = format!("{rows} outputs and {columns} inputs, which config.json implies");
            return Err(self.sources.tensors.shape_error(linear.weight, &expected));
        }
        self.sources.tensors.projection(linear)
    }

    /// The layer at a path behind the last hidden states of an encoder, if there is one.
    pub(super) fn readout(&self, path: &str) -> Result<Option<Projection>, ForwardError> {
        let found = self.find(|linear| linear.role == Role::Readout && is_at(&linear.module, path));
        found.map(|linear| self.sources.tensors.projection(linear)).transpose()
    }

    /// The norm there.
    pub(super) fn readout_norm(&self, path: &str) -> Result<Option<NormLayer>, ForwardError> {
        let norms = self.norms_at(NormSite::Readout);
        norms.into_iter().find(|norm| is_at(&norm.module, path)).map(|norm| self.layer(norm)).transpose()
    }

    /// The norm of a numbered part at a site, whose module has the number in its path.
    pub(super) fn numbered_norm(&self, site: NormSite, number: usize) -> Result<NormLayer, ForwardError> {
        let is_of = |norm: &&Norm| norm.module.split('.').any(|part| part.parse() == Ok(number));
        let found = self.norms_at(site).into_iter().find(is_of);
        let missing = || ForwardError::missing(self.place(), format!("norm behind convolution {number}"));
        self.layer(found.ok_or_else(missing)?)
    }

    /// The norms at a site: one, or one for each head.
    fn norms_at(&self, site: NormSite) -> Vec<&'p Norm> {
        let norms = self.sources.network.norms().iter();
        norms.filter(|norm| norm.block == self.block && norm.site == site).collect()
    }

    /// The norm at a site, if there is one.
    pub(super) fn norm(&self, site: NormSite) -> Result<Option<NormLayer>, ForwardError> {
        match self.norms_at(site).as_slice() {
            [] => Ok(self.plain_norm(site)),
            [norm] => self.layer(norm).map(Some),
            [norm, ..] => Err(ForwardError::unsupported(format!("{}, one norm of many", norm.module))),
        }
    }

    /// The norm of `count` heads of `width` elements, if there is one: one for all of them, or one for each.
    pub(super) fn head_norm(
        &self,
        site: NormSite,
        (count, width): (usize, usize),
    ) -> Result<Option<NormLayer>, ForwardError> {
        let mut norms = self.norms_at(site);
        norms.sort_by_key(|norm| norm.head);
        let Some(first) = norms.first() else { return Ok(self.plain_norm(site)) };
        let layer = match first.head {
            None => self.norm(site)?,
            Some(_) => Some(self.joined(&norms, (count, width))?),
        };
        let rule = self.sources.family.math.query_key_norm;
        let length = layer.iter().flat_map(|layer| &layer.weight).map(|weight| weight.length).sum::<usize>();
        let fits = length == count * width || rule != QueryKeyNorm::AllHeads && length == width;
        if fits { Ok(layer) } else { Err(self.head_norm_error(first, (count, width))) }
    }

    fn head_norm_error(&self, norm: &Norm, (count, width): (usize, usize)) -> ForwardError {
        self.sources.tensors.shape_error(norm.weight, &format!("a norm of {count} heads of {width} elements"))
    }

    /// Norms of single heads as one.
    fn joined(&self, norms: &[&Norm], (count, width): (usize, usize)) -> Result<NormLayer, ForwardError> {
        let missing = (0..count).find(|head| norms.get(*head).is_none_or(|norm| norm.head != Some(*head)));
        let (Some(first), None) = (norms.first(), missing) else {
            let head = missing.unwrap_or(0);
            return Err(ForwardError::missing(
                self.place(),
                format!("norm of queries or keys of head {head} of {count}"),
            ));
        };
        if let Some(further) = norms.get(count) {
            return Err(ForwardError::unsupported(format!(
                "{}, a norm for one more than {count} heads",
                further.module
            )));
        }
        let mut joined = NormLayer { weight: Vec::new(), bias: Vec::new(), ..self.layer(first)? };
        for norm in norms {
            let NormLayer { weight, bias, .. } = self.layer(norm)?;
            if weight.iter().any(|weight| weight.length != width) {
                return Err(self.head_norm_error(norm, (1, width)));
            }
            joined.weight.extend(weight);
            joined.bias.extend(bias);
        }
        match joined.bias.len() {
            0 => Ok(joined),
            biases if biases == count => Ok(joined),
            _ => Err(ForwardError::missing(self.place(), "bias of the norm of one head, which others have")),
        }
    }

    /// The norm at a site; missing is an error if the family has one there.
    pub(super) fn listed_norm(&self, site: NormSite) -> Result<Option<NormLayer>, ForwardError> {
        let found = self.norm(site)?;
        match self.listed(site) {
            Some(path) if found.is_none() => Err(ForwardError::missing(self.place(), format!("norm `{path}`"))),
            _ => Ok(found),
        }
    }

    /// The path of the norm that the family has at a site.
    fn listed(&self, site: NormSite) -> Option<&'static str> {
        let family = self.sources.family;
        let norms = if self.block.is_some() { family.norms } else { family.trunk.norms };
        norms.iter().find(|(listed, _)| *listed == site).map(|(_, path)| *path)
    }

    /// Norms without parameters leave no trace in the checkpoint: those of the family, or of a configuration.
    fn plain_norm(&self, site: NormSite) -> Option<NormLayer> {
        let kind = self.sources.family.norm_kind_of(self.sources.config);
        let has_weight = kind.has_weight() && self.sources.config.flag_or("layer_norm_elementwise_affine", true);
        let exists = !has_weight && self.listed(site).is_some();
        exists.then(|| NormLayer { kind, weight: Vec::new(), bias: Vec::new(), eps: self.sources.eps() })
    }

    fn layer(&self, norm: &Norm) -> Result<NormLayer, ForwardError> {
        let tensors = self.sources.tensors;
        let weight = tensors.vector(norm.weight, None)?;
        let bias = norm.bias.map(|bias| tensors.vector(bias, Some(weight.length))).transpose()?;
        // The norms of latents do not take the model's eps.
        let of_blocks = matches!(self.sources.family.math.indexer, Some(Indexer::Blocks(_)));
        let own = matches!(norm.site, NormSite::QueryLatent | NormSite::KeyValueLatent)
            || norm.site == NormSite::IndexKey && !of_blocks;
        let latent = own && !self.sources.family.math.compressed_keys;
        let eps = if latent { 1e-6 } else { self.sources.eps() };
        Ok(NormLayer { kind: norm.kind, weight: vec![weight], bias: bias.into_iter().collect(), eps })
    }
}
