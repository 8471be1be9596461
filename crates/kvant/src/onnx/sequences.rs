//! Text and tokens as samples of a decoder's graph: read, packed and held out as for checkpoints.

use super::text::{Home, refuse_exhausting};
use crate::calibration::{check, options};
use crate::error::{Error, ErrorKind};
use crate::job::Job;
use kvant_container::Remedy;
use kvant_container::directory_of;
use kvant_container::onnx::{GraphProto, read};
use kvant_data::calibration::{CalibrationData, Options};
use kvant_data::images::ImagesUnread;
use kvant_onnx::data::Samples;
use kvant_onnx::decoder::DecoderGraph;
use std::path::PathBuf;

/// Sequences of tokens for a decoder.
pub struct TextSequences {
    decoder: DecoderGraph,
    data: CalibrationData,
    file: PathBuf,
}

/// What is known of sequences before their files are read.
struct TextSetup {
    decoder: DecoderGraph,
    options: Options,
    /// The directory of the tokenizer.
    tokenizer: PathBuf,
}

impl TextSetup {
    fn of(job: &Job, files: &[PathBuf], graph: &GraphProto, count: usize) -> Result<TextSetup, Error> {
        if job.data.preprocess.is_some() {
            let error = Error::new(ErrorKind::Usage, "‹preprocess› does not apply to text");
            return Err(error.with_remedies(vec![Remedy::leave_out("preprocess")]));
        }
        let decoder = DecoderGraph::of(graph)?;
        let (model, fixed) = (job.source.model.as_path(), decoder.length());
        let home = Home::of(&[model], None);
        // Tokens need no tokenizer: that it is missing is an error where text is read.
        let tokenizer = home.tokenizer(&[model]).unwrap_or_else(|_| directory_of(model).to_path_buf());
        check(&job.data, home.longest, &tokenizer, Some(&ImagesUnread::of_text()))?;
        let usual = options(&job.data, home.longest);
        let length = job.data.seq_len.or(fixed).unwrap_or(usual.sequence_length);
        decoder.check_length(length)?;
        let options = Options { files: files.to_vec(), samples: count, sequence_length: length, ..usual };
        Ok(TextSetup { decoder, options, tokenizer })
    }
}

impl TextSequences {
    /// Reads the first `count` sequences of the files of a job, and at most `held_out` further ones.
    ///
    /// # Errors
    /// Graphs that are no decoders; errors of the data or the tokenizer.
    pub fn load(
        job: &Job,
        files: &[PathBuf],
        graph: &GraphProto,
        count: usize,
        held_out: usize,
    ) -> Result<TextSequences, Error> {
        let TextSetup { decoder, options, tokenizer } = TextSetup::of(job, files, graph, count)?;
        let options = Options { held_out, ..options };
        let model = job.source.model.as_path();
        let vocabulary = decoder.vocabulary().unwrap_or(usize::MAX);
        let data = CalibrationData::load(&options, &tokenizer, vocabulary, |_, _| {})?;
        let longest = data.sequences.iter().map(Vec::len).max().unwrap_or(0);
        refuse_exhausting(&read(model)?, longest)?;
        let file = files.first().cloned().unwrap_or_default();
        Ok(TextSequences { decoder, data, file })
    }

    /// Refuses data that [`load`](Self::load) would refuse, as far as the beginning of the files shows.
    ///
    /// # Errors
    /// See above.
    pub fn check(job: &Job, files: &[PathBuf], graph: &GraphProto) -> Result<(), Error> {
        TextSetup::of(job, files, graph, job.data.num_samples).map(drop)
    }

    /// What the user should know about the data.
    pub fn warnings(&self) -> Vec<String> {
        self.data.provenance.warnings().iter().map(ToString::to_string).collect()
    }

    /// The sequences, and those that are held out.
    pub fn into_parts(self) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
        (self.data.sequences, self.data.held_out)
    }

    /// The sequences as samples.
    ///
    /// # Errors
    /// Sequences of another length than the graph takes.
    pub fn samples(self) -> Result<Samples, Error> {
        Ok(self.decoder.samples(self.data.sequences, self.file)?)
    }

    /// The sequences that are held out as samples; `None` where there are none.
    ///
    /// # Errors
    /// Those of [`Self::samples`].
    pub fn held_out_samples(self) -> Result<Option<Samples>, Error> {
        match self.data.held_out.is_empty() {
            true => Ok(None),
            false => Ok(Some(self.decoder.samples(self.data.held_out, self.file)?)),
        }
    }
}
