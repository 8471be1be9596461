//! Progress of a run: a bar on a terminal, lines elsewhere. Other reports go to the printer.

use crate::interrupt;
use crate::printer::{Printer, ProgressTarget, option};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use kvant::text::{printable, size};
use kvant::{CancelToken, Event, Events, Resumption, Unit};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Shows what a run reports, and lets signals cancel it once it works.
pub struct Console<'p> {
    printer: &'p Printer,
    cancel: CancelToken,
    view: View,
    /// Whether generated text goes to stdout as it comes, in place of progress.
    streams: bool,
    /// Whether some has.
    has_streamed: bool,
}

impl Console<'_> {
    /// Shows events as the printer's settings say.
    pub fn new(printer: &Printer) -> Console<'_> {
        Console { printer, cancel: CancelToken::new(), view: View::Hidden, streams: false, has_streamed: false }
    }

    /// The same, which prints generated text as it comes and shows no progress.
    pub fn streaming(mut self) -> Self {
        self.streams = true;
        self
    }

    /// The token that a signal cancels.
    pub fn cancel(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Whether text without a line break is on stdout.
    pub fn has_streamed(&self) -> bool {
        self.has_streamed
    }

    fn start_stage(&mut self, unit: Unit, total: u64, done: u64) {
        self.view = match self.printer.progress_target() {
            ProgressTarget::Hidden => View::Hidden,
            ProgressTarget::Lines(at_once) => View::Lines(Lines { total, resumed: done, ..Lines::new(unit, at_once) }),
            ProgressTarget::Terminal(target) => {
                let bar = ProgressBar::with_draw_target(Some(total), target);
                bar.set_style(style(unit));
                bar.set_position(done);
                bar.reset_eta();
                self.printer.set_bar(Some(bar.clone()));
                View::Bar(bar)
            }
        };
        if let View::Lines(lines) = &mut self.view {
            let line = lines.advance("", done, Instant::now());
            line.iter().for_each(|line| self.printer.message(line));
        }
    }

    fn advance(&mut self, place: &str, units: u64) {
        match &mut self.view {
            View::Hidden => {}
            View::Bar(bar) => {
                bar.set_message(printable(place));
                bar.inc(units);
            }
            View::Lines(lines) => {
                // Names of tensors, in a run that counts bytes, change too fast to be read.
                let place = if lines.unit == Unit::Tokens { place } else { "" };
                let line = lines.advance(place, units, Instant::now());
                line.iter().for_each(|line| self.printer.message(line));
            }
        }
    }

    fn end_stage(&mut self) {
        if let View::Bar(bar) = std::mem::replace(&mut self.view, View::Hidden) {
            bar.finish_and_clear();
            self.printer.set_bar(None);
        }
    }
}

impl Events for Console<'_> {
    fn spell(&self, setting: &str) -> String {
        option(setting)
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Started => interrupt::cancel_on_signal(&self.cancel),
            Event::Note(text) => self.printer.note(text),
            Event::Warning(text) => self.printer.warning(text),
            Event::Detail(text) => self.printer.detail(text),
            Event::Resumed(resumption) => self.printer.note(&resumed(resumption)),
            Event::StageStarted { .. } if self.streams => {}
            Event::StageStarted { unit, total, done, .. } => self.start_stage(unit, total, done),
            Event::Text { text, .. } if self.streams => {
                self.has_streamed = true;
                self.printer.text_part(text);
            }
            Event::Text { .. } => {}
            Event::Progress { place, units } => self.advance(place, units),
            Event::StageEnded => self.end_stage(),
        }
    }
}

/// A run that fails leaves no bar behind.
impl Drop for Console<'_> {
    fn drop(&mut self) {
        self.end_stage();
    }
}

/// Where an interrupted run resumes, in words.
pub fn resumed(resumption: Resumption) -> String {
    match resumption {
        Resumption::Bytes { done, total } => {
            format!("resuming an interrupted run at {} of {}", size::bytes(done), size::bytes(total))
        }
        Resumption::Blocks { done, total } if done < total => format!("resuming at block {} of {total}", done + 1),
        Resumption::Blocks { .. } => "resuming after the last block".to_owned(),
        Resumption::Layers { done, total } if done < total => format!("resuming at layer {} of {total}", done + 1),
        Resumption::Layers { .. } => "resuming after the last layer".to_owned(),
        Resumption::Candidates { done, total } => format!("{done} of {total} measurements are known already"),
        Resumption::Rotation { done, total } if done < total => {
            format!("resuming at step {} of {total} of learning the rotation", done + 1)
        }
        Resumption::Rotation { .. } => "resuming with the rotation that an interrupted run has learned".to_owned(),
        Resumption::Statistics => "resuming with the statistics of an interrupted run".to_owned(),
        Resumption::Transforms => "resuming with the transforms that an interrupted run has found".to_owned(),
    }
}

/// The template of a bar.
fn style(unit: Unit) -> ProgressStyle {
    let template = "{bar:32} {percent:>3} %  {part}  {rate}  {eta} left  {wide_msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // A bar that cannot be written is redrawn soon.
    let part = move |state: &ProgressState, out: &mut dyn Write| {
        let _ = out.write_str(&part_of(unit, state.pos(), state.len().unwrap_or(0)));
    };
    let rate = move |state: &ProgressState, out: &mut dyn Write| {
        let _ = out.write_str(&rate_of(unit, state.per_sec()));
    };
    style.with_key("part", part).with_key("rate", rate)
}

/// The counted items, in the plural; bytes have their own units.
pub fn noun(unit: Unit) -> Option<&'static str> {
    match unit {
        Unit::Bytes => None,
        Unit::Tokens => Some("tokens"),
        Unit::Samples => Some("samples"),
        Unit::Layers => Some("layers"),
        Unit::Weights => Some("weights"),
        Unit::Models => Some("models"),
    }
}

/// `1 of 13 layers`.
fn part_of(unit: Unit, done: u64, total: u64) -> String {
    match noun(unit) {
        Some(noun) => format!("{done} of {total} {noun}"),
        None => format!("{} of {}", size::bytes(done), size::bytes(total)),
    }
}

/// `20 layers/s`, and below one a second `0.25 layers/s`.
fn rate_of(unit: Unit, rate: f64) -> String {
    match noun(unit) {
        Some(noun) if rate < 1.0 => format!("{rate:.2} {noun}/s"),
        Some(noun) => format!("{rate:.0} {noun}/s"),
        None => format!("{}/s", size::bytes(rate as u64)),
    }
}

/// The interval between lines.
const LINE_INTERVAL: Duration = Duration::from_secs(3);

enum View {
    Hidden,
    Bar(ProgressBar),
    Lines(Lines),
}

/// The state of the next line.
struct Lines {
    unit: Unit,
    begun: Instant,
    next: Instant,
    /// The progress of an interrupted run.
    resumed: u64,
    done: u64,
    total: u64,
}

impl Lines {
    fn new(unit: Unit, at_once: bool) -> Lines {
        let begun = Instant::now();
        let next = if at_once { begun } else { begun + LINE_INTERVAL };
        Lines { unit, begun, next, resumed: 0, done: 0, total: 0 }
    }

    /// Adds progress, and returns a line if it is time for one.
    fn advance(&mut self, place: &str, bytes: u64, now: Instant) -> Option<String> {
        self.done += bytes;
        if now < self.next {
            return None;
        }
        self.next = now + LINE_INTERVAL;
        Some(self.line(place, now - self.begun))
    }

    fn line(&self, place: &str, elapsed: Duration) -> String {
        let percent = self.done * 100 / self.total.max(1);
        let rate = self.done.saturating_sub(self.resumed) as f64 / elapsed.as_secs_f64().max(1e-3);
        let part = part_of(self.unit, self.done, self.total);
        let part = if place.is_empty() { part } else { format!("{place}  {part}") };
        if rate <= 0.0 {
            return format!("{percent} %  {part}");
        }
        let left = self.total.saturating_sub(self.done) as f64 / rate;
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        format!("{percent} %  {part}  {}  {} left", rate_of(self.unit, rate), size::duration(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_rate_limited() {
        let mut lines = Lines::new(Unit::Bytes, false);
        (lines.total, lines.resumed) = (2_000_000, 500_000);
        let at = |seconds| lines.begun + Duration::from_secs(seconds);
        let (first, second, third, fourth) = (at(0), at(5), at(6), at(10));
        assert_eq!(lines.advance("", 500_000, first), None);
        let line = lines.advance("", 500_000, second).unwrap();
        assert_eq!(line, "50 %  1.0 MB of 2.0 MB  100 kB/s  10 s left");
        assert_eq!(lines.advance("", 100_000, third), None);
        assert!(lines.advance("", 100_000, fourth).is_some());
    }

    #[test]
    fn slow_rates_keep_decimals() {
        let mut lines = Lines::new(Unit::Layers, false);
        lines.total = 13;
        let later = lines.begun + Duration::from_secs(8);
        assert_eq!(lines.advance("", 2, later).unwrap(), "15 %  2 of 13 layers  0.25 layers/s  44 s left");
    }

    #[test]
    fn token_progress_shows_block_stage_and_rate() {
        let mut lines = Lines::new(Unit::Tokens, false);
        lines.total = 8192;
        let later = lines.begun + Duration::from_secs(3);
        let line = lines.advance("block 3 of 32, rounding", 1000, later).unwrap();
        assert_eq!(line, "12 %  block 3 of 32, rounding  1000 of 8192 tokens  333 tokens/s  21 s left");
    }

    #[test]
    fn empty_progress_does_not_divide_by_zero() {
        let mut lines = Lines::new(Unit::Bytes, true);
        let begun = lines.begun;
        assert_eq!(lines.advance("", 0, begun).as_deref(), Some("0 %  0 B of 0 B"));
    }
}
