//! What encoders have around their blocks: token types, dropped tokens, and what is read out of the last hidden states.

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::heads::HeadLayout;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{
    ATTENDED, ATTENDED_OUTPUT, Activation, Encoder, Positions, Readout, ReadoutRows, ReadoutStep, Role,
};
use kvant_model::network::Place;

/// The parts of an encoder.
#[derive(Clone, Debug)]
pub struct EncoderParts {
    /// The table of token types. Every token has the first.
    pub token_types: Option<Projection>,
    /// The token whose embeddings are 0, where the others are scaled by the share of such tokens.
    pub dropped_token: Option<u32>,
    /// What is read out of the last hidden states.
    pub readouts: Vec<ReadoutLayers>,
}

/// An output that is made of the last hidden states.
#[derive(Clone, Debug)]
pub struct ReadoutLayers {
    /// Its name in reports.
    pub name: &'static str,
    /// The hidden states that it reads.
    pub rows: HiddenRows,
    /// What reads them, where a query does.
    pub pool: Option<AttentionPool>,
    /// What becomes of them. If the last step is a linear layer, its outputs can be computed one part after the other.
    pub steps: Vec<ReadoutLayer>,
    /// Elements of a row that it gives.
    pub width: usize,
}

/// Hidden states that are read out of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenRows {
    /// Those of all tokens.
    All,
    /// That of the first token.
    First,
    /// The mean of all.
    Mean,
    /// That of the first token, then the mean of those of the patches of an image, side by side.
    FirstAndMeanOfPatches,
    /// What a learned query gives that attends to all: see [`AttentionPool`].
    Attended,
    /// That of the last token.
    Last,
    /// That of the first token with this number.
    FirstOf(u32),
    /// That of the first token with the largest number.
    FirstOfLargest,
}

/// A learned query that attends to all hidden states.
#[derive(Clone, Debug)]
pub struct AttentionPool {
    /// The query before its projection.
    pub probe: Vector,
    /// The projections of queries, keys and values, one after the other.
    pub inputs: [Projection; 3],
    /// The heads.
    pub heads: HeadLayout,
    /// The output projection.
    pub output: Projection,
}

/// A step of a readout.
#[derive(Clone, Debug)]
pub enum ReadoutLayer {
    /// A linear layer.
    Linear(Projection),
    /// A norm.
    Norm(NormLayer),
    /// An activation function.
    Activation(Activation),
    /// The hyperbolic tangent.
    Tanh,
    /// What these steps make of it is added to it.
    Added(Vec<ReadoutLayer>),
}

impl ReadoutLayers {
    /// All its linear layers.
    pub fn layers(&self) -> impl Iterator<Item = &Projection> {
        fn collect<'l>(steps: &'l [ReadoutLayer], layers: &mut Vec<&'l Projection>) {
            for step in steps {
                match step {
                    ReadoutLayer::Linear(layer) => layers.push(layer),
                    ReadoutLayer::Added(steps) => collect(steps, layers),
                    ReadoutLayer::Norm(_) | ReadoutLayer::Activation(_) | ReadoutLayer::Tanh => {}
                }
            }
        }
        let mut layers: Vec<&Projection> = self.pool.iter().map(|pool| &pool.output).collect();
        collect(&self.steps, &mut layers);
        layers.into_iter()
    }

    /// The steps before the last linear layer, and that layer, if no step follows it.
    pub fn parts(&self) -> (&[ReadoutLayer], Option<&Projection>) {
        match self.steps.split_last() {
            Some((ReadoutLayer::Linear(layer), before)) => (before, Some(layer)),
            _ => (&self.steps, None),
        }
    }
}

/// The table of learned positions.
#[derive(Clone, Debug)]
pub struct PositionTable {
    /// The table.
    pub table: Projection,
    /// Rows before that of the first position.
    pub offset: usize,
    /// The padding token, which reads the row before the first position.
    pub padding: Option<u32>,
}

impl PositionTable {
    /// The longest sequence that has a row for each position.
    pub fn longest(&self) -> usize {
        self.table.rows.saturating_sub(self.offset)
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn position_table(&self) -> Result<Option<PositionTable>, ForwardError> {
        let of_decoder = self.family.decoder_stack().is_some();
        self.position_table_at(if of_decoder { Place::DecoderPositions } else { Place::Positions })
    }

    /// The table of positions in this place.
    pub(super) fn position_table_at(&self, place: Place) -> Result<Option<PositionTable>, ForwardError> {
        let (offset, padding) = match self.positions_rule() {
            Positions::Learned { offset } => (offset, None),
            Positions::LearnedBehindPadding { padding, is_fixed } => {
                let stated = self.config.number("pad_token_id")?.filter(|_| !is_fixed);
                let padding = stated.map_or(padding, |padding| padding as usize);
                (padding + 1, u32::try_from(padding).ok())
            }
            _ => return Ok(None),
        };
        let table = self.table(place, "table of positions")?;
        Ok(Some(PositionTable { table, offset, padding }))
    }

    fn table(&self, place: Place, what: &str) -> Result<Projection, ForwardError> {
        let at = self.network.places().iter().position(|found| *found == place);
        self.tensors.table(at.ok_or_else(|| ForwardError::missing("the model", what))?)
    }

    /// The parts of an encoder; `None` for decoders.
    pub(super) fn encoder(
        &self,
        trunk: &Parts<'_, '_, 'a>,
        head: &Projection,
    ) -> Result<Option<EncoderParts>, ForwardError> {
        let Some(encoder) = self.family.encoder.filter(|encoder| encoder.decoder.is_none()) else { return Ok(None) };
        let has_types = self.config.size("type_vocab_size") != Some(0);
        let token_types = encoder
            .token_types
            .filter(|_| has_types)
            .map(|path| self.table(Place::TokenTypes, &format!("table `{path}`")));
        let readouts = encoder.readouts.iter().filter(|readout| self.is_of_class(readout));
        let readouts = readouts.map(|readout| self.readout(trunk, readout, head)).collect::<Result<Vec<_>, _>>()?;
        let readouts: Vec<ReadoutLayers> = readouts.into_iter().flatten().collect();
        self.check_all_are_read(encoder, &readouts)?;
        Ok(Some(EncoderParts {
            token_types: token_types.transpose()?,
            dropped_token: self.dropped_token(encoder)?,
            readouts,
        }))
    }

    fn dropped_token(&self, encoder: Encoder) -> Result<Option<u32>, ForwardError> {
        if !encoder.drops_tokens || !self.config.flag_or("token_dropout", false) {
            return Ok(None);
        }
        let token = self.need(self.config.number("mask_token_id")?, "mask_token_id")?;
        Ok(Some(token as u32))
    }

    /// Returns whether the checkpoint's class may have a readout. A readout of a class stands before those of every class.
    fn is_of_class(&self, readout: &Readout) -> bool {
        let is = |end: &str| self.config.architectures.iter().any(|class| class.ends_with(end));
        let all = || self.family.encoder.iter().flat_map(|encoder| encoder.readouts);
        match readout.class {
            Some(end) => is(end),
            None => !all().any(|other| other.name == readout.name && other.class.is_some_and(is)),
        }
    }

    /// A readout, if the checkpoint has its layers.
    fn readout(
        &self,
        trunk: &Parts<'_, '_, 'a>,
        readout: &Readout,
        head: &Projection,
    ) -> Result<Option<ReadoutLayers>, ForwardError> {
        let (rows, mut width) = (self.hidden_rows(readout.rows)?, self.hidden()?);
        if rows == HiddenRows::FirstAndMeanOfPatches {
            width *= 2;
        }
        let pool = match readout.rows {
            ReadoutRows::Attended(path) => {
                let Some(pool) = self.attention_pool(trunk, path)? else { return Ok(None) };
                Some(pool)
            }
            _ => None,
        };
        let Some(steps) = self.readout_steps(trunk, readout.steps, head, &mut width)? else { return Ok(None) };
        Ok(Some(ReadoutLayers { name: readout.name, rows, pool, steps, width }))
    }

    /// Steps on rows of `width` elements, which then is the width of what they give; `None` where the checkpoint does not have their layers.
    fn readout_steps(
        &self,
        trunk: &Parts<'_, '_, 'a>,
        steps: &[ReadoutStep],
        head: &Projection,
        width: &mut usize,
    ) -> Result<Option<Vec<ReadoutLayer>>, ForwardError> {
        let mut layers = Vec::new();
        for step in steps {
            let layer = match step {
                ReadoutStep::Added(inner) => {
                    let mut inner_width = *width;
                    let inner = self.readout_steps(trunk, inner, head, &mut inner_width)?;
                    if inner.is_some() && inner_width != *width {
                        return Err(ForwardError::unsupported(format!("rows of {inner_width} on those of {width}")));
                    }
                    inner.map(ReadoutLayer::Added)
                }
                step => self.readout_layer(trunk, *step, head)?,
            };
            let Some(layer) = layer else { return Ok(None) };
            if let ReadoutLayer::Linear(layer) = &layer {
                if layer.columns != *width {
                    return Err(ForwardError::unsupported(format!(
                        "{}, which reads {} elements of rows of {width}",
                        layer.module, layer.columns
                    )));
                }
                *width = layer.rows;
            }
            layers.push(layer);
        }
        Ok(Some(layers))
    }

    fn hidden_rows(&self, rows: ReadoutRows) -> Result<HiddenRows, ForwardError> {
        Ok(match rows {
            ReadoutRows::All => HiddenRows::All,
            ReadoutRows::First => HiddenRows::First,
            ReadoutRows::FirstAndMeanOfPatches => HiddenRows::FirstAndMeanOfPatches,
            ReadoutRows::Attended(_) => HiddenRows::Attended,
            ReadoutRows::Last => HiddenRows::Last,
            ReadoutRows::EndOfText => match self.need(self.config.size("eos_token_id"), "eos_token_id")? {
                2 => HiddenRows::FirstOfLargest,
                token => HiddenRows::FirstOf(token as u32),
            },
            ReadoutRows::FirstUnlessMean(key) => match self.config.text(key) {
                Some("mean") => HiddenRows::Mean,
                None | Some("cls") => HiddenRows::First,
                Some(other) => return Err(ForwardError::unsupported(format!("`{key}` {other}"))),
            },
        })
    }

    /// The learned query in the module of this path, if the checkpoint has it.
    fn attention_pool(&self, trunk: &Parts<'_, '_, 'a>, path: &str) -> Result<Option<AttentionPool>, ForwardError> {
        let Some(output) = trunk.readout(&format!("{path}.{ATTENDED_OUTPUT}"))? else { return Ok(None) };
        let hidden = self.hidden()?;
        let count = self.need(self.config.num_heads, "num_attention_heads")?;
        let [probe, weight, bias] = ATTENDED.map(|name| {
            let path = format!("{path}.{name}");
            let found = self.tensors.meta().iter().position(|tensor| is_at(&tensor.name, &path));
            found.ok_or_else(|| ForwardError::missing("the model", format!("tensor `{path}`")))
        });
        let (probe, weight, bias) = (probe?, weight?, bias?);
        if !hidden.is_multiple_of(count) || (output.rows, output.columns) != (hidden, hidden) {
            return Err(ForwardError::unsupported(format!("{count} heads in {}", output.module)));
        }
        let input = |index| {
            let module = &self.tensors.meta()[weight].name;
            self.tensors.slice(module, (weight, Some(bias)), (index, 3), (hidden, hidden), false)
        };
        Ok(Some(AttentionPool {
            probe: self.tensors.vector(probe, Some(hidden))?,
            inputs: [input(0)?, input(1)?, input(2)?],
            heads: HeadLayout::packed(count, hidden / count),
            output,
        }))
    }

    /// A step of a readout; `None` where the checkpoint does not have its layer.
    fn readout_layer(
        &self,
        trunk: &Parts<'_, '_, 'a>,
        step: ReadoutStep,
        head: &Projection,
    ) -> Result<Option<ReadoutLayer>, ForwardError> {
        let known = |activation| match activation {
            Activation::Unknown | Activation::Xielu | Activation::ClampedSwiglu | Activation::LimitedSilu => {
                Err(ForwardError::unsupported("the activation behind the last hidden states"))
            }
            known => Ok(Some(ReadoutLayer::Activation(known))),
        };
        match step {
            ReadoutStep::Linear(path) => Ok(trunk.readout(path)?.map(ReadoutLayer::Linear)),
            ReadoutStep::Norm(path) => Ok(trunk.readout_norm(path)?.map(ReadoutLayer::Norm)),
            ReadoutStep::Head => Ok(Some(ReadoutLayer::Linear(head.clone()))),
            // Converted step by step in `readout_steps`.
            ReadoutStep::Added(_) => Ok(None),
            ReadoutStep::Tanh => Ok(Some(ReadoutLayer::Tanh)),
            ReadoutStep::TanhUnlessNamed(key) => match self.config.text(key) {
                None | Some("tanh") => Ok(Some(ReadoutLayer::Tanh)),
                Some(name) => known(Activation::from_config_name(name)),
            },
            ReadoutStep::Gelu => known(Activation::Gelu),
            ReadoutStep::Relu => known(Activation::Relu),
            ReadoutStep::Activation => known(self.activation()),
            ReadoutStep::NamedActivation(key) => {
                known(self.config.text(key).map_or(Activation::Gelu, Activation::from_config_name))
            }
        }
    }

    /// Refuses layers behind the last hidden states that are not known to be read by anything.
    fn check_all_are_read(&self, encoder: Encoder, readouts: &[ReadoutLayers]) -> Result<(), ForwardError> {
        let is_read = |module: &str| {
            readouts.iter().flat_map(ReadoutLayers::layers).any(|layer| layer.module == module)
                || encoder.unread.iter().any(|path| is_at(module, path))
        };
        let mut linears = self.network.linears().iter();
        match linears.find(|linear| linear.role == Role::Readout && !is_read(&linear.module)) {
            None => Ok(()),
            Some(linear) => {
                let class = self.config.architectures.first().map_or("this class", String::as_str);
                Err(ForwardError::unsupported(format!("what {class} makes of {}", linear.module)))
            }
        }
    }
}

/// Returns whether a module has this path, alone or in another module.
pub(in crate::forward) fn is_at(module: &str, path: &str) -> bool {
    module.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::is_at;

    #[test]
    fn paths_end_at_dots() {
        assert!(is_at("bert.pooler.dense", "pooler.dense") && is_at("classifier", "classifier"));
        assert!(!is_at("pre_classifier", "classifier"));
    }
}
