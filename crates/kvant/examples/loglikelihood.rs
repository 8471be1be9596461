//! Prints the log-likelihoods of continuations, and whether they are greedy, for a list of pairs `[context, continuation]` of tokens on stdin:
//! `loglikelihood MODEL < PAIRS.json`.

use kvant::{CancelToken, LanguageModel, Source, TokenPair};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args_os().nth(1).ok_or("give a model")?;
    let pairs: Vec<(Vec<u32>, Vec<u32>)> = serde_json::from_reader(std::io::stdin())?;
    let pair = |(context, continuation)| TokenPair { context, continuation };
    let pairs: Vec<TokenPair> = pairs.into_iter().map(pair).collect();
    let model = LanguageModel::new(Source::new(std::path::PathBuf::from(model)));
    let found = model.loglikelihood(&pairs, &mut (), &CancelToken::new())?;
    let found: Vec<(f64, bool)> = found.iter().map(|found| (found.log_likelihood, found.is_greedy)).collect();
    serde_json::to_writer(std::io::stdout(), &found)?;
    Ok(())
}
