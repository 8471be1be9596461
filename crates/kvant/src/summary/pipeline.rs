//! Pipelines in words: their plans, and reports of runs.

use super::{Remark, Section, with_loaders};
use crate::pipeline::quantize::LOADER;
use crate::pipeline::{PipelinePlan, PipelineReport};
use crate::text::counts;
use crate::text::{Align, Table, size};

/// The plan of a pipeline.
pub fn plan_sections(plan: &PipelinePlan) -> Vec<Section> {
    let class = plan.pipeline.class.as_deref().unwrap_or("a pipeline");
    let title = format!("{class}, {}", counts::number(plan.components.len(), "component"));
    let (before, after) = plan.sizes();
    let lines = vec![
        ("copied", counts::number(plan.copied.len(), "file")),
        counts::sizes(before, after),
        ("memory", format!("{} at most", size::bytes(plan.peak_memory()))),
    ];
    vec![Section::Text(title), Section::Table(table(plan)), Section::Lines(lines)]
}

/// A row for each component.
fn table(plan: &PipelinePlan) -> Table {
    use Align::{Left, Right};
    let titles = [
        ("component", Left),
        ("class", Left),
        ("scheme", Left),
        ("format", Left),
        ("layers", Right),
        ("bytes", Right),
        ("after", Right),
        ("why", Left),
    ];
    let mut table = Table::new(&titles);
    for component in &plan.components {
        let name = component.component.name.clone();
        let class = component.component.class.clone();
        let [scheme, format, layers, why] = match &component.plan {
            Ok(planned) => {
                let layers = planned.plan.layers().len().to_string();
                [planned.plan.recipe().scheme_name(), planned.format().to_owned(), layers, String::new()]
            }
            Err(reason) => ["kept".to_owned(), String::new(), String::new(), reason.clone()],
        };
        let (before, after) = (size::bytes(component.source_bytes), size::bytes(component.output_bytes()));
        table.push([name, class, scheme, format, layers, before, after, why]);
    }
    table
}

/// The output of a run.
pub fn report_sections(report: &PipelineReport) -> Vec<Section> {
    let (before, after) = report.plan.sizes();
    let lines = [counts::sizes(before, after), ("time", size::duration(report.time))];
    vec![Section::Table(table(&report.plan)), with_loaders(lines, &[LOADER], &report.output)]
}

/// What is to be said of the components.
pub fn remarks(report: &PipelineReport) -> Vec<Remark> {
    report.warnings.iter().cloned().map(Remark::Warning).collect()
}
