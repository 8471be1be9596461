//! Requests carried out, and their answers as JSON.

use kvant::json::versioned;
use kvant::summary::{Remark, Section};
use kvant::{CancelToken, Error, Event, Events, Plan, inspect};
use kvant_cli::Request;
use serde_json::{Value, json};

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// The object that `--json` prints.
    pub report: Value,
    /// The summary.
    pub sections: Vec<Section>,
    /// The reason that there is a report and nevertheless no result.
    pub error: Option<Error>,
}

/// Whether a request may be abandoned at any time: it only reads, and does not know a token.
pub fn only_reads(request: &Request) -> bool {
    matches!(request, Request::Plan(_) | Request::Inspect(_) | Request::Verify(_))
}

/// Carries out a request. Remarks on the result are events too.
///
/// # Errors
/// Those of the request.
pub fn carry_out(request: Request, events: &mut dyn Events, cancel: &CancelToken) -> Result<Answer, Error> {
    match request {
        Request::Quantize(job) => {
            let report = job.run(events, cancel)?;
            let remarks = report.remarks();
            send(events, &remarks);
            let mut sections = report.losses();
            sections.extend(summaries(&remarks));
            sections.extend(report.sections());
            let rejection = report.rejection().cloned();
            Ok(Answer { error: rejection, ..answer("quantize", report.to_json(), sections) })
        }
        Request::Plan(job) => {
            let plan = job.plan(events)?;
            notes(events, &plan.notices());
            let report = match plan {
                Plan::Graph(_) => plan.to_json(),
                _ => with_tensors(plan.to_json(), plan.tensors_json()),
            };
            Ok(answer("plan", report, plan.sections(false)))
        }
        Request::Convert(conversion) => {
            let report = conversion.run(events, cancel)?;
            Ok(answer("convert", report.to_json(), report.sections()))
        }
        Request::Evaluate(evaluation) => {
            let report = evaluation.run(events, cancel)?;
            send(events, &report.remarks());
            Ok(answer("eval", report.to_json(), report.sections(false)))
        }
        Request::Verify(verification) => {
            let report = verification.run()?;
            Ok(answer("verify", report.to_json(), report.sections(false)))
        }
        Request::Inspect(model) => {
            let inspection = inspect(&model)?;
            notes(events, &inspection.notices());
            let report = match inspection.tensors_json() {
                None => inspection.to_json(),
                Some(tensors) => with_tensors(inspection.to_json(), tensors),
            };
            Ok(answer("inspect", report, inspection.sections(false)))
        }
        Request::Sensitivity(analysis) => {
            let report = analysis.run(events, cancel)?;
            let outcome = serde_json::to_value(&report.outcome).map_err(|error| Error::internal(error.to_string()))?;
            let mut sections = report.sections();
            sections.push(Section::Text(report.summary()));
            Ok(Answer { error: report.unwritten, ..answer("sensitivity", outcome, sections) })
        }
        Request::Search(search) => {
            let report = search.run(events, cancel)?;
            let mut sections = report.sections();
            sections.push(Section::Text(report.summary()));
            Ok(answer("search", report.to_json(), sections))
        }
        Request::Generate(generation) => {
            let report = generation.run(events, cancel)?;
            let remarks = report.remarks();
            send(events, &remarks);
            let mut sections = vec![Section::Text(report.text())];
            sections.extend(summaries(&remarks));
            Ok(answer("generate", report.to_json(), sections))
        }
    }
}

fn answer(command: &str, report: Value, sections: Vec<Section>) -> Answer {
    // Serializing values does not fail.
    Answer { report: serde_json::to_value(versioned(command, report)).unwrap_or_default(), sections, error: None }
}

/// A report with the tensors of its model.
fn with_tensors(mut report: Value, tensors: Vec<Value>) -> Value {
    if let Some(object) = report.as_object_mut() {
        object.insert("tensors".to_owned(), tensors.into());
    }
    report
}

fn notes(events: &mut dyn Events, texts: &[String]) {
    texts.iter().for_each(|text| events.event(Event::Note(text)));
}

fn send(events: &mut dyn Events, remarks: &[Remark]) {
    for remark in remarks {
        match remark {
            Remark::Warning(text) => events.event(Event::Warning(text)),
            Remark::Note(text) => events.event(Event::Note(text)),
            Remark::Detail(text) => events.event(Event::Detail(text)),
            Remark::Summary(_) => {}
        }
    }
}

fn summaries(remarks: &[Remark]) -> impl Iterator<Item = Section> {
    remarks.iter().filter_map(|remark| match remark {
        Remark::Summary(text) => Some(Section::Text(text.clone())),
        _ => None,
    })
}

/// Sections as JSON: objects with `text`, `lines` (pairs) or `titles` and `rows`.
pub fn sections_json(sections: &[Section]) -> Value {
    let object = |section: &Section| match section {
        Section::Text(text) => json!({ "text": text }),
        Section::Lines(lines) => json!({ "lines": lines }),
        Section::Table(table) => {
            let titles: Vec<&str> = table.titles().iter().map(|(title, _)| title.as_str()).collect();
            json!({ "titles": titles, "rows": table.rows() })
        }
    };
    sections.iter().map(object).collect()
}
