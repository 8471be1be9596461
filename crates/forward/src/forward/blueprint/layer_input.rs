//! Inputs that blocks have of their own (Gemma 3n and 4): of each token, a row of a table and a projection of its embedding.

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::{Activation, NormSite, Role};
use kvant_model::network::Place;

/// How the inputs of all blocks are made: `(norm(a W x) + b t) / sqrt(2)` with the embedding `x` and the token's row `t` of the table.
#[derive(Clone, Debug)]
pub struct LayerInputs {
    /// The table.
    pub table: Projection,
    /// The factor on its rows.
    pub table_scale: f32,
    /// The projection of embeddings.
    pub projection: Projection,
    /// The factor on what it gives.
    pub projection_scale: f32,
    /// The norm of each block's part of it.
    pub norm: NormLayer,
    /// Width of the input of one block.
    pub width: usize,
}

/// What a block does with its own input `t`, behind its branches: `x += norm(W (act(gate(x)) * t))`.
#[derive(Clone, Debug)]
pub struct LayerInput {
    /// The gate.
    pub gate: Projection,
    /// Its activation.
    pub activation: Activation,
    /// From the gated input to the residual stream.
    pub output: Projection,
    /// The norm of what is added.
    pub norm: Option<NormLayer>,
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn layer_inputs(&self, trunk: &Parts<'_, '_, 'a>) -> Result<Option<LayerInputs>, ForwardError> {
        const KEY: &str = "hidden_size_per_layer_input";
        let at = self.network.places().iter().position(|place| *place == Place::LayerInputs);
        let stated = self.config.number(KEY)?.map(|width| width as usize).filter(|width| *width > 0);
        let (at, width) = match (at, stated) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(ForwardError::unsupported(format!("inputs of layers without `{KEY}`"))),
            (None, Some(_)) => return Err(ForwardError::missing("the model", "table of the inputs of layers")),
            (Some(at), Some(width)) => (at, width),
        };
        let (hidden, blocks) = (self.hidden()?, self.network.blocks().len());
        let too_large = || ForwardError::unsupported("inputs of layers beyond all sizes");
        let all = blocks.checked_mul(width).ok_or_else(too_large)?;
        let table = self.tensors.table(at)?;
        if table.columns != all {
            let expected = format!("a table of {all} columns, {width} for each of {blocks} blocks");
            return Err(self.tensors.shape_error(at, &expected));
        }
        let norm = trunk.listed_norm(NormSite::LayerInputs)?;
        Ok(Some(LayerInputs {
            table,
            table_scale: (width as f32).sqrt(),
            projection: trunk.sized(Role::LayerInputs, all, hidden)?,
            projection_scale: 1.0 / (hidden as f32).sqrt(),
            norm: norm.ok_or_else(|| ForwardError::missing("the model", "norm of the inputs of layers"))?,
            width,
        }))
    }

    /// What a block does with its own input of `width` elements.
    pub(super) fn layer_input(&self, parts: &Parts<'_, '_, 'a>, width: usize) -> Result<LayerInput, ForwardError> {
        let hidden = self.hidden()?;
        Ok(LayerInput {
            gate: parts.sized(Role::LayerInputGate, width, hidden)?,
            activation: self.activation(),
            output: parts.sized(Role::LayerInputOutput, hidden, width)?,
            norm: parts.listed_norm(NormSite::LayerInputOutput)?,
        })
    }
}
