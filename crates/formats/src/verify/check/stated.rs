//! Bits, group sizes and blocks: as config.json states them. Where the layout of a layer follows from config.json alone
//! (AMD Quark, compressed-tensors, MLX) its shapes tell already; the others' files tell them twice.

use crate::format::mlx;
use crate::loader_rules::Sharing;
use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;

const HINT: &str = "loaders believe config.json: correct it, or quantize the model again";

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let Some(statement) = &subject.statement else { return };
    if matches!(statement.method.as_str(), "quark" | "compressed-tensors" | mlx::METHOD) {
        return;
    }
    let (bits, group) = (statement.bits(), statement.group_size());
    let block = crate::format::stated_block(&statement.config);
    for weight in &subject.survey.weights {
        let facts = subject.facts(weight);
        if let Some(bits) = bits.filter(|bits| *bits != u64::from(weight.bits)) {
            findings.error(
                &weight.module,
                format!("has codes of {} bits; config.json states {bits}", weight.bits),
                HINT,
            );
        }
        let found = weight.tile.1;
        if let Some(group) = group.filter(|group| found != (*group).min(weight.columns)) {
            findings.error(&weight.module, format!("has groups of {found}; config.json states {group}"), HINT);
        }
        match (block, facts.sharing) {
            (Some((rows, columns)), Sharing::Block) if weight.tile != (rows, columns) => {
                let found = format!("{}x{}", weight.tile.0, weight.tile.1);
                let reason = format!("has blocks of {found}; config.json states {rows}x{columns}");
                findings.error(&weight.module, reason, HINT);
            }
            _ => {}
        }
    }
}
