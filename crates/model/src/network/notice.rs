//! Notices of recognition to the user. Notices are not errors: the model can be quantized, with the limits they
//! state.

use kvant_quant::counts::{number, number_are};
use std::fmt;

/// Something about a checkpoint that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// config.json is missing or names no architecture.
    NoArchitecture,
    /// The architecture has no description.
    UnknownArchitecture {
        /// Its name in config.json.
        name: String,
        /// [`Network::can_be_described`](super::Network::can_be_described).
        can_be_described: bool,
        /// The architectures of which there are descriptions by users.
        described: Vec<&'static str>,
    },
    /// The family is known, and a user has described others.
    IdleDescription {
        /// The architectures of which there are descriptions by users.
        described: Vec<&'static str>,
    },
    /// The family is known, but its names do not occur in the checkpoint.
    ForeignNames {
        /// The family that config.json speaks of.
        family: &'static str,
        /// Whether a user has described it.
        is_registered: bool,
    },
    /// config.json names two families.
    Conflict {
        /// The `model_type`, which decides.
        model_type: String,
        /// The class among `architectures`.
        architecture: String,
    },
    /// The checkpoint has layers past the decoder's last block.
    ExtraLayers {
        /// Number of tensors in them.
        tensors: usize,
    },
    /// The number of blocks differs from what config.json states.
    BlockCount {
        /// Blocks found.
        found: usize,
        /// Blocks stated.
        stated: usize,
    },
    /// config.json says the head is not tied, but there is none.
    NoHead,
    /// Modules are quantized in a format that is not decoded here.
    AlreadyQuantized {
        /// Number of their tensors.
        tensors: usize,
        /// The first of them.
        first: String,
    },
    /// Tensors that the description of the family does not account for.
    Unrecognised {
        /// Number of tensors.
        tensors: usize,
        /// The first of them.
        first: String,
    },
    /// All experts of a block in one tensor, in an architecture without a description.
    KeptExperts {
        /// Number of tensors.
        tensors: usize,
        /// The first of them.
        first: String,
    },
    /// Expert tensors with three dimensions whose layout is not known.
    UnknownExperts {
        /// Number of tensors.
        tensors: usize,
        /// The first of them.
        first: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::UnknownArchitecture { name, can_be_described, described } => {
                write!(
                    f,
                    "no description of the architecture `{name}`: linear layers are recognised by shape and name, and only data-free \
                     schemes are possible"
                )?;
                match (described.as_slice(), can_be_described) {
                    ([], true) => f.write_str("; ‹family› takes a description"),
                    ([], false) => Ok(()),
                    (described, _) => write!(f, "; the description that ‹family› names is of `{}`", described.join("`, `")),
                }
            }
            Notice::IdleDescription { described } => write!(
                f,
                "the description that ‹family› names is of `{}`: the model's architecture is known and does not use it",
                described.join("`, `")
            ),
            Notice::NoArchitecture => f.write_str(
                "config.json is missing or names no architecture: linear layers are recognised by shape and name, and only \
                 data-free schemes are possible",
            ),
            Notice::ForeignNames { family, is_registered: true } => write!(
                f,
                "the description `{family}` fits config.json, but the tensors have none of its names: linear layers are recognised by shape \
                 and name"
            ),
            Notice::ForeignNames { family, is_registered: false } => write!(
                f,
                "config.json says `{family}`, but the tensors are named otherwise: linear layers are recognised by \
                 shape and name"
            ),
            Notice::Conflict { model_type, architecture } => write!(
                f,
                "config.json says model_type `{model_type}` and architectures `{architecture}`, which are different models: \
                 `{model_type}` is used, as transformers does; vLLM and SGLang go by `architectures`, so correct the one that is wrong"
            ),
            Notice::ExtraLayers { tensors } => write!(
                f,
                "{} of layers past the last block (multi-token prediction): kept unchanged",
                number(*tensors, "tensor")
            ),
            Notice::BlockCount { found, stated } => {
                write!(f, "config.json states {}, the checkpoint has {found}", number(stated, "block"))
            }
            Notice::NoHead => f.write_str("no output head: this looks like the checkpoint of a base model"),
            Notice::AlreadyQuantized { tensors, first } => {
                write!(f, "{} already quantized: kept unchanged, starting with `{first}`", number(*tensors, "tensor"))
            }
            Notice::Unrecognised { tensors, first } => write!(
                f,
                "{} not part of the family's description: kept unchanged, starting with `{first}`",
                number(*tensors, "tensor")
            ),
            Notice::KeptExperts { tensors, first } => write!(
                f,
                "{} kept in float that have all experts of a block, starting with `{first}`: where a class of transformers has one tensor, \
                 it finds no experts one by one; ‹override› '*.experts.*=SCHEME' makes a layer of each expert",
                number_are(*tensors, "tensor")
            ),
            Notice::UnknownExperts { tensors, first } => write!(
                f,
                "{} of unknown layout: kept unchanged, starting with `{first}`",
                number(*tensors, "three-dimensional expert tensor")
            ),
        }
    }
}
