//! Conversions go through the journal as quantization does, and give the same bytes at any number of threads.

use super::sources::convert;
use crate::common::{files, llama, llama_config, quantize, scheme, write};
use kvant_checkpoint::engine::{self, EngineError, Output, Progress, Start};
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Dtype, Durability};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::transcode::{Conversion, ConversionTarget};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Stops a run after some jobs.
struct StopAfter<'a> {
    jobs: usize,
    done: AtomicUsize,
    cancelled: &'a AtomicBool,
}

impl Progress for StopAfter<'_> {
    fn begin(&self, _total_bytes: u64, _done_bytes: u64) {}

    fn advance(&self, _name: &str, _bytes: u64) {
        if self.done.fetch_add(1, Ordering::Relaxed) + 1 == self.jobs {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn interrupted_conversion_resumes_with_identical_output() {
    let dir = tempfile::tempdir().unwrap();
    let (model, source) = (dir.path().join("model"), dir.path().join("source"));
    write(&model, &llama_config(), &llama(Dtype::BF16));
    quantize(&model, &source, &Settings { format: Some(OutputFormat::GPTQ_V2), ..scheme("uint4:g32:zp") }, 1).unwrap();
    let target = ConversionTarget::Codes(FormatHandle::AWQ);
    let whole = dir.path().join("whole");
    convert(&source, &whole, target, false, 1).unwrap();

    let (checkpoint, out) = (Checkpoint::open(&source).unwrap(), dir.path().join("out"));
    let plan = Plan::convert(&checkpoint, &Conversion { target, requantize: false, max_shard_size: 1 << 30 }).unwrap();
    let Start::Working(output) = Output::begin(&plan, &source, &out, false).unwrap() else { panic!("finished") };
    let cancelled = AtomicBool::new(false);
    let stop = StopAfter { jobs: 3, done: AtomicUsize::new(0), cancelled: &cancelled };
    let stopped = engine::run(&plan, &checkpoint, &output, 1, &cancelled, &stop);
    assert!(matches!(stopped, Err(EngineError::Cancelled)) && !out.exists());
    drop(output);

    let Start::Working(output) = Output::begin(&plan, &source, &out, false).unwrap() else { panic!("finished") };
    let done = engine::run(&plan, &checkpoint, &output, 3, &AtomicBool::new(false), &engine::Silent).unwrap();
    assert_eq!(done.resumed, 3);
    output.finish(&plan, &checkpoint, Durability::Process).unwrap();
    assert!(files(&out) == files(&whole));
}
