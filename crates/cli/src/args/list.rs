//! The arguments of `kvant list`.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kvant::catalog::{TOPICS, Topic};

/// `kvant list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The table to print
    #[arg(value_parser = topic_parser())]
    pub topic: Topic,
    /// Consider this loader only
    ///
    /// `kvant list schemes --for LOADER` lists the schemes that this loader reads, for dense language models and for ONNX graphs.
    #[arg(long = "for", value_name = "LOADER", value_parser = super::verify::loader_parser())]
    pub loader: Option<String>,
}

fn topic_parser() -> impl TypedValueParser<Value = Topic> {
    let value = |topic: &Topic| PossibleValue::new(topic.name).help(topic.about);
    PossibleValuesParser::new(TOPICS.iter().map(value))
        .try_map(|name| TOPICS.iter().find(|topic| topic.name == name).copied().ok_or("no such table"))
}
