//! The files of a directory that Kvant wrote: as its manifest records them.

use super::DAMAGED;
use crate::verify::subject::CheckpointView;
use kvant_container::{Manifest, of_record, shown};
use kvant_quant::finding::Findings;

/// Files that users write on: what a loader computes does not depend on them.
const NOTES: [&str; 3] = ["md", "txt", "log"];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let dir = subject.checkpoint.path();
    let Some(manifest) = Manifest::read(dir) else {
        if Manifest::is_in(dir) {
            let reason = "cannot be read: whether files are as Kvant wrote them is not known";
            findings.warning("kvant_manifest.json", reason, DAMAGED);
        }
        return;
    };
    for (name, recorded) in &manifest.files {
        let name = of_record(name);
        let (file, place) = (dir.join(&name), shown(&name));
        let extension = name.extension().unwrap_or_default().to_string_lossy();
        match recorded.is_of(&file) {
            Ok(true) => {}
            _ if NOTES.contains(&&*extension) => {}
            Ok(false) if extension == "safetensors" => {
                findings.error(place, "is not as Kvant wrote it (kvant_manifest.json)", DAMAGED);
            }
            Ok(false) => {
                let hint = "quantize the model again, unless the change is intended";
                findings.warning(place, "is not as Kvant wrote it (kvant_manifest.json)", hint);
            }
            Err(_) if !file.exists() => {
                findings.warning(place, "is not there, and kvant_manifest.json lists it", DAMAGED);
            }
            Err(cause) => findings.warning(place, format!("cannot be read: {cause}"), DAMAGED),
        }
    }
}
