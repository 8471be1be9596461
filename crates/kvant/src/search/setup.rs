//! From a request to the groups of the model and their options: which options, in which format, for which loader; and the refusal of what
//! cannot be reached.

use crate::error::{Error, ErrorKind};
use crate::job::{Format, MixTarget, Search, SearchMethod};
use crate::loading::refuse_unloadable;
use crate::text::size;
use kvant_checkpoint::sensitivity::{Estimates, MixKind, MixOption, MixPlan, MixSettings, Mixture, options};
use kvant_container::{Checkpoint, Remedy};
use kvant_formats::format::OutputFormat;
use kvant_formats::verify::{Loader, loaders};
use kvant_forward::forward::Decoder;

/// What layers of a checkpoint may become unless said otherwise.
const OF_CHECKPOINTS: &[&str] = &["int4:g128", "int8:channel", "float"];

/// The same of GGUF files.
const OF_GGUF: &[&str] = &["Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"];

/// Passes of the model beyond which groups are estimated unless said otherwise.
const MANY_PASSES: usize = 100;

/// A search that can begin.
pub(super) struct SetUp<'a> {
    pub(super) mixture: Mixture<'a>,
    /// The loaders of all options together.
    pub(super) loaders: Vec<&'static str>,
    pub(super) budget: Option<Budget>,
    /// Bytes of a mix besides its groups, about: headers depend on the mix.
    pub(super) other_bytes: u64,
    pub(super) format: OutputFormat,
    pub(super) method: SearchMethod,
    /// Why no known loader takes all options together.
    pub(super) unloadable: Option<Error>,
}

/// The target in the units of what is shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Budget {
    /// Bytes of the weight files.
    FileBytes(u64),
    /// Bytes of the groups.
    GroupBytes(u64),
    /// The largest divergence.
    Kl(f64),
    /// The smallest share of equal top tokens.
    Top1(f64),
}

/// The format whose form of experts the source is read in: all checkpoint formats of mixes share one.
pub(super) fn format_of_source(search: &Search) -> Result<OutputFormat, Error> {
    let asked = asked_format(search)?;
    Ok(match kind(search, asked_loader(search), asked) {
        MixKind::Gguf => OutputFormat::Gguf,
        MixKind::Checkpoint => asked.unwrap_or(OutputFormat::QUARK),
    })
}

fn asked_loader(search: &Search) -> Option<&'static Loader> {
    search.loader.as_deref().and_then(|id| loaders().iter().find(|loader| loader.id == id))
}

/// Finds the format and the groups.
///
/// # Errors
/// See [`Search::run`].
pub(super) fn set_up<'a>(
    search: &Search,
    checkpoint: &'a Checkpoint,
    decoder: &'a Decoder<'a>,
) -> Result<SetUp<'a>, Error> {
    let loader = asked_loader(search);
    let asked = asked_format(search)?;
    let kind = kind(search, loader, asked);
    let names = match (search.options.is_empty(), kind) {
        (false, _) => search.options.clone(),
        (true, MixKind::Checkpoint) => OF_CHECKPOINTS.iter().map(|name| (*name).to_owned()).collect(),
        (true, MixKind::Gguf) => OF_GGUF.iter().map(|name| (*name).to_owned()).collect(),
    };
    let options = options(&names, kind, search.job.recipe.weights_only)?;
    let made = match kind {
        MixKind::Gguf => mixture(search, (checkpoint, decoder), kind, &options, None),
        MixKind::Checkpoint => in_first_format(search, (checkpoint, decoder), &options, loader, asked),
    };
    // Nobody has asked for the schemes by which a layer is refused.
    let made = made.map_err(|error| match search.options.is_empty() {
        true => {
            let way = match kind {
                MixKind::Checkpoint => {
                    format!("choose others than {} with ‹options›, e.g. int4:g32,int8:channel", names.join(", "))
                }
                MixKind::Gguf => "search among schemes of checkpoints: leave out ‹for› and ‹format›".to_owned(),
            };
            error.with_hint(Some(way))
        }
        false => error,
    })?;
    if let Some(loader) = loader.filter(|loader| !reads(loader, &made.loaders)) {
        return Err(refused_by(loader, &made));
    }
    let method = method(search, &made.mixture)?;
    refuse_unreachable(search, SetUp { method, ..made })
}

/// How groups are measured: as asked, else by passes of the model if these are few, or if the model has no gradients.
fn method(search: &Search, mixture: &Mixture<'_>) -> Result<SearchMethod, Error> {
    let choices = mixture.groups().iter().map(|group| group.choices.len()).sum::<usize>();
    match (search.method, Estimates::obstacle(mixture)) {
        (Some(SearchMethod::Estimated), Some(obstacle)) => {
            let failure = Error::new(ErrorKind::Unsupported, format!("‹method› estimated: {obstacle}"));
            let way = "use ‹method› measured, which takes longer";
            Err(failure.with_remedies(vec![Remedy::setting_to("method", "measured", way)]))
        }
        (Some(method), _) => Ok(method),
        // On average, half of the model is behind a group.
        (None, None) if choices / 2 > MANY_PASSES => Ok(SearchMethod::Estimated),
        (None, _) => Ok(SearchMethod::Measured),
    }
}

/// The checkpoint format or GGUF, where the request names one.
fn asked_format(search: &Search) -> Result<Option<OutputFormat>, Error> {
    let refused = |message: &str| {
        let failure = Error::new(ErrorKind::Usage, message.to_owned());
        Err(failure.with_hint(Some("name one checkpoint format, or gguf (`kvant list formats`)".to_owned())))
    };
    match &search.job.sinks.formats[..] {
        [] => Ok(None),
        [Format::Model(OutputFormat::PlainFloats)] => {
            refused("‹format› fake has the size of the source, whatever the mix")
        }
        [Format::Model(format)] => Ok(Some(*format)),
        [Format::Onnx] => refused("‹format› onnx holds no mix of schemes of checkpoints"),
        _ => refused("a recipe is for one ‹format›"),
    }
}

/// What is written: by the format, by the options, or by the loader.
fn kind(search: &Search, loader: Option<&Loader>, format: Option<OutputFormat>) -> MixKind {
    let reads_gguf_only = |loader: &Loader| loader.layout.iter().all(|layout| layout.method == "gguf");
    match format {
        Some(OutputFormat::Gguf) => MixKind::Gguf,
        Some(_) => MixKind::Checkpoint,
        None if loader.is_some_and(reads_gguf_only) => MixKind::Gguf,
        None if search.options.is_empty() => MixKind::Checkpoint,
        None => MixKind::of(&search.options),
    }
}

/// Returns whether a loader is among those of a plan.
fn reads(loader: &Loader, plan: &[&'static str]) -> bool {
    plan.iter().any(|name| name.starts_with(&loader.name))
}

/// The mixture in the first format that holds all options together and that the loader, or any, takes; else in the first that holds them.
fn in_first_format<'a>(
    search: &Search,
    model: (&'a Checkpoint, &'a Decoder<'a>),
    options: &[MixOption],
    loader: Option<&Loader>,
    asked: Option<OutputFormat>,
) -> Result<SetUp<'a>, Error> {
    let known = OutputFormat::all().filter(|format| matches!(format, OutputFormat::Checkpoint(_)));
    let first = [OutputFormat::COMPRESSED_TENSORS, OutputFormat::QUARK];
    let all = first.into_iter().chain(known.filter(|format| !first.contains(format)));
    let candidates: Vec<OutputFormat> = asked.map_or_else(|| all.collect(), |format| vec![format]);
    let (mut held, mut error) = (None, None);
    for format in candidates {
        match mixture(search, model, MixKind::Checkpoint, options, Some(format)) {
            Ok(made) => {
                let loads = loader.map_or(!made.loaders.is_empty(), |loader| reads(loader, &made.loaders));
                if loads {
                    return Ok(made);
                }
                held = held.or(Some(made));
            }
            Err(problem) => error = error.or(Some(problem)),
        }
    }
    match (held, error) {
        (Some(made), _) => Ok(made),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::internal("no checkpoint format is known")),
    }
}

/// The mixture in a format, if it holds all options together.
fn mixture<'a>(
    search: &Search,
    (checkpoint, decoder): (&'a Checkpoint, &'a Decoder<'a>),
    kind: MixKind,
    options: &[MixOption],
    format: Option<OutputFormat>,
) -> Result<SetUp<'a>, Error> {
    let recipe = &search.job.recipe;
    let settings = MixSettings {
        format,
        scales: recipe.scales,
        weights_only: recipe.weights_only,
        keeps_head: !recipe.no_keep_defaults,
    };
    let mixture = Mixture::new(checkpoint, decoder, kind, options.to_vec(), settings)?;
    // Options in turn: what no file holds together is refused.
    let float = mixture.float();
    let in_turn = mixture.groups().iter().enumerate();
    let in_turn: Vec<usize> = in_turn.map(|(index, group)| group.choice_of(index % options.len(), float)).collect();
    let plan = mixture.plan(&in_turn)?;
    let other_bytes = plan.bytes() - mixture.bytes(&in_turn);
    let format = format.unwrap_or(OutputFormat::Gguf);
    let method = SearchMethod::Measured;
    let other = || Remedy::UseFormat("leave ‹format› out: a format that loads is chosen".to_owned());
    let unloadable = match &plan {
        MixPlan::Checkpoint(plan) => refuse_unloadable(plan, other).err(),
        MixPlan::Gguf(_) => None,
    };
    Ok(SetUp { loaders: plan.loaders(), mixture, budget: None, other_bytes, format, method, unloadable })
}

/// The error for a loader that does not take all options together, naming one that it does not take alone.
fn refused_by(loader: &Loader, made: &SetUp<'_>) -> Error {
    let takes = |option: usize| {
        let plan = made.mixture.plan(&made.mixture.uniform(option));
        plan.is_ok_and(|plan| reads(loader, &plan.loaders()))
    };
    let all = made.mixture.options().iter().enumerate().filter(|(_, option)| **option != MixOption::Float);
    let (taken, refused): (Vec<_>, Vec<_>) = all.partition(|(index, _)| takes(*index));
    let (message, hint) = match refused.first() {
        Some(_) if taken.is_empty() => (
            format!("‹for› {}: {} reads this model in none of these options", loader.id, loader.name),
            format!(
                "leave out ‹for›, or name another loader: `kvant plan` of one option says which read it, e.g. ‹scheme› {}",
                refused[0].1.name()
            ),
        ),
        Some((_, option)) => (
            format!("‹for› {}: {} does not read ‹options› {} of this model", loader.id, loader.name, option.name()),
            format!("leave it out; `kvant list schemes ‹for› {}` lists those that it reads", loader.id),
        ),
        None => (
            format!("‹for› {}: {} does not read these options together", loader.id, loader.name),
            "leave out all but one, or leave out ‹for›".to_owned(),
        ),
    };
    Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint))
}

/// Refuses a target that the sizes alone show to be out of reach.
fn refuse_unreachable<'a>(search: &Search, made: SetUp<'a>) -> Result<SetUp<'a>, Error> {
    let mixture = &made.mixture;
    let smallest = mixture.groups().iter().map(|group| {
        let sizes = group.choices.iter().enumerate().map(|(index, choice)| (choice.bytes, index));
        sizes.min().unwrap_or((0, 0))
    });
    let (bytes, choices): (Vec<u64>, Vec<usize>) = smallest.unzip();
    let least: u64 = bytes.iter().sum();
    let refused = |message: String, setting: &'static str, way: String| {
        let smaller = Remedy::setting("options", "add smaller ‹options›");
        Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![Remedy::setting(setting, way), smaller]))
    };
    let budget = match search.target {
        None => None,
        Some(MixTarget::Size(target)) => {
            let target = target.bytes(source_bytes(&made));
            let least = mixture.plan(&choices)?.bytes();
            if target < least {
                let wanted = size::bytes(target);
                let message =
                    format!("no mix of these options is as small as {wanted}: the smallest has {least} bytes");
                return refused(message, "target-size", format!("give a ‹target-size› of at least {least}B"));
            }
            Some(Budget::FileBytes(target))
        }
        Some(MixTarget::BitsPerWeight(bits)) => {
            let weights = mixture.weights() as f64;
            let (target, found) = ((bits * weights / 8.0) as u64, least as f64 * 8.0 / weights);
            if target < least {
                let message = format!(
                    "no mix of these options has as few as {bits} bits per weight: the smallest has {found:.3}"
                );
                let least = (found * 1000.0).ceil() / 1000.0;
                return refused(message, "target-bpw", format!("give a ‹target-bpw› of at least {least:.3}"));
            }
            Some(Budget::GroupBytes(target))
        }
        Some(MixTarget::MaxKl(kl)) => Some(Budget::Kl(kl)),
        Some(MixTarget::MinTop1(share)) => Some(Budget::Top1(share)),
    };
    Ok(SetUp { budget, ..made })
}

/// Bytes of the weights of the source, with the headers of a mix.
fn source_bytes(made: &SetUp<'_>) -> u64 {
    made.other_bytes + made.mixture.source_bytes()
}
