//! `kvant list`: what can be typed behind it.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kvant::catalog::{TOPICS, Topic};

/// `kvant list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Which table
    #[arg(value_parser = topic_parser())]
    pub topic: Topic,
    /// Only the schemes that this loader takes, for dense language models
    #[arg(long = "for", value_name = "LOADER", value_parser = super::verify::loader_parser())]
    pub loader: Option<String>,
}

fn topic_parser() -> impl TypedValueParser<Value = Topic> {
    let value = |topic: &Topic| PossibleValue::new(topic.name).help(topic.about);
    PossibleValuesParser::new(TOPICS.iter().map(value))
        .try_map(|name| TOPICS.iter().find(|topic| topic.name == name).copied().ok_or("no such table"))
}
