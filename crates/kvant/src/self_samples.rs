//! Calibration data that the model writes itself (LLM-QAT, arXiv 2305.17888): sequences sampled from the model, for users without data.
//! They stand in a file of rows of tokens among the work files of an output, and are read like any other calibration data.

use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::generation::begin_token;
use crate::job::Job;
use crate::text::shown;
use kvant_container::Checkpoint;
use kvant_container::unfinished::{samples_beside, state_of};
use kvant_data::calibration::{ChatTemplate, Rendered};
use kvant_data::tokenizer::ModelTokenizer;
use kvant_forward::forward::Decoder;
use kvant_forward::generation::{GenerationError, GenerationOptions, Next, Progress, Sampling, generate};
use kvant_quant::random::{SplitMix64, mix};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Sequences that are written together. Each of them depends on the number of its batch, and on none of the others.
const BATCH: usize = 32;

/// Stands for the text of a user in a chat template.
const MARK: &str = "\u{2402}kvant\u{2403}";

/// The samples of a job that the model writes.
pub struct SelfSamples<'a> {
    pub job: &'a Job,
    pub checkpoint: &'a Checkpoint,
    /// The output whose work files they are among.
    pub target: &'a Path,
    /// Sequences.
    pub count: usize,
    /// Tokens of each.
    pub length: usize,
}

impl SelfSamples<'_> {
    /// Has the model write what an earlier run has not, and returns the file.
    ///
    /// # Errors
    /// Models that do not generate text; the system's; a cancelled run.
    pub fn write(&self, reporter: &Reporter<'_>) -> Result<PathBuf, Error> {
        let decoder = Decoder::open(self.checkpoint)?;
        let opening = self.opening(&decoder)?;
        let path = samples_beside(self.target);
        let key_path = path.with_extension("key");
        let failure = |cause: io::Error| Error::io(format!("cannot write {}", shown(&path)), &cause);
        let key = self.key(&opening);
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failure)?;
        if fs::read_to_string(&key_path).ok().as_ref() != Some(&key) {
            File::create(&path).map_err(failure)?;
            fs::write(&key_path, &key).map_err(failure)?;
        }
        let written = whole_lines(&path).map_err(failure)?;
        if written.len() >= self.count {
            return Ok(path);
        }
        let kept = written.len() / BATCH * BATCH;
        let mut file = OpenOptions::new().write(true).open(&path).map_err(failure)?;
        let bytes: usize = written[..kept].iter().map(|line| line.len() + 1).sum();
        file.set_len(bytes as u64).map_err(failure)?;
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(failure)?;
        // A mixture may have its text in a field that is named; then these rows have theirs there too.
        let field = self.job.data.column.as_deref().unwrap_or("input_ids");
        let progress = reporter.stage(Stage::Generation, Unit::Tokens);
        let mut watch = progress.watch_cancelled();
        let (mut done, all) = ((kept * self.length) as u64, (self.count * self.length) as u64);
        for first in (kept..self.count).step_by(BATCH) {
            let count = BATCH.min(self.count - first);
            let mut watch = |event: Progress| {
                done += u64::from(matches!(event, Progress::Token { .. }));
                if watch(done, all).is_break() { Next::Cancel } else { Next::Continue }
            };
            let prompts =
                (first..first + count).map(|number| opening.prompt(self.job.data.seed, number)).collect::<Vec<_>>();
            let options = self.options(&opening, first);
            let work = || generate(&decoder, &prompts, &options, &mut watch);
            let continued =
                self.job.limits.pool()?.install(work).map_err(|error: GenerationError| Error::from(error))?;
            let rows = prompts.into_iter().zip(continued).map(|(prompt, more)| {
                let row: Vec<u32> = prompt.into_iter().chain(more.tokens).collect();
                format!("{}\n", json!({ field: row }))
            });
            file.write_all(rows.collect::<String>().as_bytes()).map_err(failure)?;
        }
        file.sync_data().map_err(failure)?;
        Ok(path)
    }

    /// How every sequence begins.
    fn opening(&self, decoder: &Decoder<'_>) -> Result<Opening, Error> {
        let model = &self.job.source.model;
        let tokenizer = ModelTokenizer::open(model).ok();
        let template = ChatTemplate::open(model)?;
        let of_chat = tokenizer.as_ref().zip(template).map(|(tokenizer, template)| before_a_user(tokenizer, &template));
        let begin = tokenizer.as_ref().map(|tokenizer| begin_token(self.checkpoint, tokenizer)).transpose()?.flatten();
        let tokens = match of_chat.transpose()?.flatten() {
            Some(tokens) => tokens,
            None => begin.into_iter().collect(),
        };
        let opening = Opening { tokens, vocabulary: decoder.vocabulary() as u64 };
        if self.length <= opening.length() {
            let message = format!("sequences of {} tokens are too short for the model to write them", self.length);
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_remedies(vec![kvant_container::Remedy::setting("seq-len", "give a larger ‹seq-len›")]));
        }
        Ok(opening)
    }

    fn options(&self, opening: &Opening, first: usize) -> GenerationOptions {
        let seed = mix(self.job.data.seed, [first as u64, 1, 0]);
        GenerationOptions {
            max_new_tokens: self.length - opening.length(),
            sampling: Sampling { temperature: 1.0, top_k: None, top_p: None, seed },
            // What follows the end of a text begins another one.
            stop: Vec::new(),
            cpu: self.job.data.precision.ops(),
            memory: self.job.limits.memory.0,
        }
    }

    /// What the sequences depend on besides their number.
    fn key(&self, opening: &Opening) -> String {
        let data = &self.job.data;
        let model = state_of(&self.job.source.model).unwrap_or_default();
        let adapters = self.job.source.adapters.iter().map(|adapter| state_of(adapter).unwrap_or_default());
        let (precision, adapters) = (data.precision.name(), adapters.collect::<Vec<_>>());
        let (length, seed, field) = (self.length, data.seed, data.column.as_deref().unwrap_or_default());
        format!("2 {length} {seed} {precision} {:?} {model} {adapters:?} {field}", opening.tokens)
    }
}

/// The tokens that sequences begin with: those of the chat template before what a user says, else the token that begins texts. Of a
/// model with neither, a token drawn from the vocabulary.
struct Opening {
    tokens: Vec<u32>,
    vocabulary: u64,
}

impl Opening {
    fn length(&self) -> usize {
        self.tokens.len().max(1)
    }

    fn prompt(&self, seed: u64, number: usize) -> Vec<u32> {
        let drawn = || SplitMix64::new(mix(seed, [number as u64, 2, 0])).below(self.vocabulary.max(1)) as u32;
        if self.tokens.is_empty() { vec![drawn()] } else { self.tokens.clone() }
    }
}

/// The tokens before the first message of a user; `None` where the template says nothing before it.
fn before_a_user(tokenizer: &ModelTokenizer, template: &ChatTemplate) -> Result<Option<Vec<u32>>, Error> {
    let Rendered::Text(text) = template.render_prompt(&[json!({"role": "user", "content": MARK})])? else {
        return Ok(None);
    };
    let Some((before, _)) = text.split_once(MARK) else { return Ok(None) };
    let tokens = tokenizer.encode_rendered(before)?;
    Ok(Some(tokens).filter(|tokens| !tokens.is_empty()))
}

/// The lines of a file that end; the last one may have been cut off.
fn whole_lines(path: &Path) -> io::Result<Vec<String>> {
    let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    Ok(text[..end].lines().map(str::to_owned).collect())
}
