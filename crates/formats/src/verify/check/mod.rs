//! The checks of a checkpoint, one file each (or a few that look at the same), all in one table. A check looks at the
//! subject and says what it finds; what follows from that is not its business.

mod activations;
mod codes;
mod config;
mod custom_code;
mod files;
mod floats;
mod fused;
mod groups;
mod json_files;
mod kv_cache;
mod layout;
mod listed;
mod loader_names;
mod manifest;
mod names;
mod required;
mod scales;
mod shapes;
mod split;
mod stated;
mod stated_sizes;
mod stated_values;
mod tied;
mod tokenizer;
mod zero_points;

pub(super) use files::opening;

use super::subject::CheckpointView;
use kvant_quant::finding::{Finding, Findings, Severity};

/// What a check reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Headers, configurations, single numbers.
    Headers,
    /// Scales, zero points and the like: a few percent of the bytes.
    Scales,
    /// Tensors that stay in float, too: embeddings and norms.
    Floats,
    /// All bytes.
    Weights,
}

impl Reads {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Reads::Headers => "headers",
            Reads::Scales => "scales",
            Reads::Floats => "floats",
            Reads::Weights => "weights",
        }
    }
}

/// What a check does: it looks at a subject, and adds what it finds.
type Run = fn(&CheckpointView<'_>, &mut Findings);

/// A check of a checkpoint.
pub struct Check {
    /// Its name in findings.
    pub id: &'static str,
    /// What it looks after.
    pub subject: &'static str,
    /// One line about its purpose.
    pub about: &'static str,
    /// Its input.
    pub reads: Reads,
    /// Whether no loader gets past its errors; the others make a model that loads and computes nonsense.
    pub stops: bool,
    pub(crate) run: Run,
}

impl Check {
    pub(super) fn findings(&self, subject: &CheckpointView<'_>) -> Vec<Finding> {
        let mut findings = Findings::of(self.id);
        (self.run)(subject, &mut findings);
        findings.into_vec()
    }
}

const fn structure(id: &'static str, run: Run, about: &'static str) -> Check {
    Check { id, subject: "structure", about, reads: Reads::Headers, stops: true, run }
}

/// The subject of checks of values.
pub(super) const VALUES: &str = "values";

const fn values(id: &'static str, reads: Reads, run: Run, about: &'static str) -> Check {
    Check { id, subject: VALUES, about, reads, stops: false, run }
}

const fn statement(id: &'static str, run: Run, about: &'static str) -> Check {
    Check { id, subject: "configuration", about, reads: Reads::Headers, stops: false, run }
}

/// Every check.
pub const CHECKS: &[Check] = &[
    structure(
        "files",
        files::run,
        "the index and the shards belong together: every tensor in exactly one, none missing",
    ),
    structure("config", config::run, "config.json can be read, and names an architecture and functions that are known"),
    structure(
        "json-files",
        json_files::run,
        "tokenizer_config.json, generation_config.json and the like are JSON objects",
    ),
    structure("custom-code", custom_code::run, "the files of code that configurations name (auto_map) are there"),
    structure("names", names::run, "every weight of the model is there, and no tensor that no loader asks for"),
    structure("shapes", shapes::run, "shapes are those that config.json's sizes give"),
    structure(
        "layout",
        layout::run,
        "codes and scales of every quantized layer have the shapes and types of its scheme",
    ),
    structure("tied", tied::run, "the head is there where it is not the embedding, and only there"),
    structure("tokenizer", tokenizer::run, "there is a tokenizer, and its tokens fit the embedding"),
    values("scales", Reads::Scales, scales::run, "scales are finite, positive, and not too small for their type"),
    values("scale-outliers", Reads::Scales, scales::outliers, "no scale is far above all others of its tensor"),
    values(
        "zero-points",
        Reads::Scales,
        zero_points::run,
        "zero points are in range, and those of symmetric codes are central",
    ),
    values("groups", Reads::Scales, groups::run, "every input channel belongs to a group that there is"),
    values("floats", Reads::Floats, floats::run, "kept floats are finite"),
    values("codes", Reads::Weights, codes::run, "fp8 codes are numbers"),
    values("manifest", Reads::Weights, manifest::run, "the files are those that Kvant wrote, byte for byte"),
    // Of a layer that is not, the first values show it.
    values("zero-layers", Reads::Floats, codes::constant, "no layer is all zeros"),
    statement("stated", stated::run, "bits, group sizes and blocks are those that config.json states"),
    statement(
        "listed",
        listed::run,
        "the float layers are those that config.json lists, and every listed layer exists",
    ),
    statement(
        "loader-names",
        loader_names::run,
        "what config.json targets and ignores is named as in the model that transformers loads",
    ),
    statement("activations", activations::run, "static scales of inputs and outputs are there where they are promised"),
    statement("kv-cache", kv_cache::run, "scales of keys and values are there where they are promised"),
    Check {
        subject: "fusion",
        ..statement(
            "fused-schemes",
            fused::schemes,
            "layers that engines fuse (q, k and v; gate and up) are quantized alike",
        )
    },
    Check {
        subject: "fusion",
        reads: Reads::Scales,
        ..statement("fused-scales", fused::scales, "layers that engines fuse share the scales that they must share")
    },
    Check {
        subject: "parallelism",
        ..statement("tensor-parallel", split::run, "layers can be cut for 2, 4 and 8 devices")
    },
];

/// What of the checks is told of a source before anything is made of it, from headers and config.json: outputs inherit it.
const OF_SOURCES: [(&str, Run); 10] = [
    ("config", config::unnamed),
    ("config", config::quantization),
    ("config", stated_sizes::run),
    ("json-files", json_files::run),
    ("config", stated_values::run),
    ("custom-code", custom_code::run),
    ("names", names::run),
    ("shapes", shapes::run),
    ("tied", tied::run),
    ("tokenizer", tokenizer::run),
];

/// What every output of a source would have wrong, of one severity.
pub(super) fn inherited(subject: &CheckpointView<'_>, severity: Severity) -> Vec<Finding> {
    let found = OF_SOURCES.iter().flat_map(|(id, run)| {
        let mut findings = Findings::of(id);
        run(subject, &mut findings);
        findings.into_vec()
    });
    found.filter(|finding| finding.severity == severity).collect()
}

/// The hint for files that contradict themselves.
const DAMAGED: &str = "download the file again, or quantize the model again";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn check_ids_are_unique() {
        let names: HashSet<&str> = CHECKS.iter().map(|check| check.id).collect();
        assert_eq!(names.len(), CHECKS.len());
    }
}
