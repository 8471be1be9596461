//! Any config.json and table of tensors as a checkpoint: looked at, verified, planned and quantized, or refused with a reason.
//!
//! The first byte chooses a scheme. The rest is config.json, the header of the safetensors file and its values, with a zero byte
//! between two of them; missing values are zeros.

use crate::settle;
use kvant::{CancelToken, Job, Verification, inspect};
use serde_json::Value;
use std::path::Path;

const SCHEMES: [&str; 5] = ["int4:g32", "FP8_DYNAMIC", "mxfp4", "NVFP4A16", "uint4_wo_32"];
/// Bytes of values, at most.
const MOST: u64 = 1 << 18;

/// See above.
pub fn run(input: &[u8]) {
    let Some((&choice, rest)) = input.split_first() else { return };
    let mut parts = rest.splitn(3, |byte| *byte == 0);
    let [config, header, values] = [parts.next(), parts.next(), parts.next()].map(Option::unwrap_or_default);
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("config.json"), config).unwrap();
    if !write_weights(&source, header, values) {
        return;
    }
    settle(inspect(&source));
    settle(Verification::new(&source).run());
    let mut job = Job::new(&source);
    job.recipe.scheme = Some(SCHEMES[choice as usize % SCHEMES.len()].to_owned());
    job.recipe.requantize = true;
    job.limits.threads = Some(1);
    let Some(_) = settle(job.plan(&mut ())) else { return };
    let output = place.path().join("output");
    job.sinks.output = Some(output.clone());
    if settle(job.run(&mut (), &CancelToken::new())).is_some() {
        settle(Verification::new(&output).run());
    }
}

/// Writes the file, if its header does not ask for too many values.
fn write_weights(directory: &Path, header: &[u8], values: &[u8]) -> bool {
    let tensors: Value = serde_json::from_slice(header).unwrap_or_default();
    let ends = tensors.as_object().into_iter().flatten().filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
    let length = ends.max().unwrap_or(0);
    if length > MOST {
        return false;
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(values.iter().copied().chain(std::iter::repeat(0)).take(length as usize));
    std::fs::write(directory.join("model.safetensors"), file).is_ok()
}
