//! How far a run is: a bar on a terminal, lines elsewhere.

use crate::escape::printable;
use crate::printer::{Printer, ProgressTarget};
use crate::size;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use kvant_llm::engine::{self, Progress as _};
use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of the source.
    Bytes,
    /// Tokens that passed the model.
    Tokens,
    /// Samples that passed the model.
    Samples,
    /// Weights that were quantized.
    Weights,
    /// Layers that algorithms have done.
    Layers,
    /// Models that were made and measured.
    Models,
}

impl Unit {
    /// How a bar looks.
    fn style(self) -> ProgressStyle {
        let template = "{bar:32} {percent:>3} %  {part}  {rate}  {eta} left  {wide_msg}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        // A bar that cannot be written is redrawn soon.
        let part = move |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&self.of(state.pos(), state.len().unwrap_or(0)));
        };
        let rate = move |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&self.rate(state.per_sec()));
        };
        style.with_key("part", part).with_key("rate", rate)
    }

    /// What is counted, in the plural; bytes have units of their own.
    fn noun(self) -> Option<&'static str> {
        match self {
            Unit::Bytes => None,
            Unit::Tokens => Some("tokens"),
            Unit::Samples => Some("samples"),
            Unit::Layers => Some("layers"),
            Unit::Weights => Some("weights"),
            Unit::Models => Some("models"),
        }
    }

    /// `1 of 13 layers`.
    fn of(self, done: u64, total: u64) -> String {
        match self.noun() {
            Some(noun) => format!("{done} of {total} {noun}"),
            None => format!("{} of {}", size::bytes(done), size::bytes(total)),
        }
    }

    /// `20 layers/s`, and below one a second `0.25 layers/s`.
    fn rate(self, rate: f64) -> String {
        match self.noun() {
            Some(noun) if rate < 1.0 => format!("{rate:.2} {noun}/s"),
            Some(noun) => format!("{rate:.0} {noun}/s"),
            None => format!("{}/s", size::bytes(rate as u64)),
        }
    }
}

/// How often a line is printed.
const LINE_INTERVAL: Duration = Duration::from_secs(3);

/// Shows the progress of a run until it is dropped.
pub struct Progress<'a> {
    printer: &'a Printer,
    view: View,
}

enum View {
    Hidden,
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

/// What the next line depends on.
struct Lines {
    unit: Unit,
    begun: Instant,
    next: Instant,
    /// What an earlier run had done.
    resumed: u64,
    done: u64,
    total: u64,
}

impl Progress<'_> {
    /// Counts in `unit`; follows the printer's settings.
    pub fn new(printer: &Printer, unit: Unit) -> Progress<'_> {
        let view = match printer.progress_target() {
            ProgressTarget::Hidden => View::Hidden,
            ProgressTarget::Lines(at_once) => View::Lines(Mutex::new(Lines::new(unit, at_once))),
            ProgressTarget::Terminal(target) => {
                let bar = ProgressBar::with_draw_target(None, target);
                bar.set_style(unit.style());
                printer.set_bar(Some(bar.clone()));
                View::Bar(bar)
            }
        };
        Progress { printer, view }
    }
}

impl Progress<'_> {
    /// Takes what is done and what there is in all.
    pub fn watch(&self) -> impl FnMut(u64, u64) + Send {
        let mut watch = self.watch_places();
        move |done: u64, all: u64| watch("", done, all)
    }

    /// The same, told where the work is.
    pub fn watch_places(&self) -> impl FnMut(&str, u64, u64) + Send {
        self.watch_after(|_| 0)
    }

    /// The same of a run that may go on with an earlier one: what is done when it is first told is that one's.
    pub fn watch_resumed(&self) -> impl FnMut(&str, u64, u64) + Send {
        self.watch_after(|done| done)
    }

    fn watch_after(&self, resumed: impl Fn(u64) -> u64 + Send) -> impl FnMut(&str, u64, u64) + Send {
        let mut before = None;
        move |place: &str, done: u64, all: u64| {
            let earlier = before.replace(done).unwrap_or_else(|| {
                let earlier = resumed(done);
                self.start(all, earlier);
                earlier
            });
            self.advance(place, done.saturating_sub(earlier));
        }
    }

    /// Begins to count, at what an earlier run has done.
    fn start(&self, total: u64, done: u64) {
        match &self.view {
            View::Hidden => {}
            View::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.reset_eta();
            }
            View::Lines(lines) => {
                if let Ok(mut lines) = lines.lock() {
                    (lines.total, lines.resumed) = (total, done);
                    self.tell(lines.advance("", done, Instant::now()));
                }
            }
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
            self.printer.set_bar(None);
        }
    }
}

impl engine::Progress for Progress<'_> {
    fn begin(&self, total_bytes: u64, done_bytes: u64) {
        if done_bytes > 0 {
            let (done, total) = (size::bytes(done_bytes), size::bytes(total_bytes));
            self.printer.note(&format!("going on where an earlier run stopped, at {done} of {total}"));
        }
        self.start(total_bytes, done_bytes);
    }

    fn advance(&self, name: &str, bytes: u64) {
        match &self.view {
            View::Hidden => {}
            View::Bar(bar) => {
                bar.set_message(printable(name));
                bar.inc(bytes);
            }
            View::Lines(lines) => {
                if let Ok(mut lines) = lines.lock() {
                    // Names of tensors, in a run that counts bytes, change too fast to be read.
                    let place = if lines.unit == Unit::Tokens { name } else { "" };
                    self.tell(lines.advance(place, bytes, Instant::now()));
                }
            }
        }
    }
}

impl Progress<'_> {
    fn tell(&self, line: Option<String>) {
        if let Some(line) = line {
            self.printer.message(&line);
        }
    }
}

impl Lines {
    fn new(unit: Unit, at_once: bool) -> Lines {
        let begun = Instant::now();
        let next = if at_once { begun } else { begun + LINE_INTERVAL };
        Lines { unit, begun, next, resumed: 0, done: 0, total: 0 }
    }

    /// Adds to what is done, and gives the line if it is time for one.
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
        let part = self.unit.of(self.done, self.total);
        let part = if place.is_empty() { part } else { format!("{place}  {part}") };
        if rate <= 0.0 {
            return format!("{percent} %  {part}");
        }
        let left = self.total.saturating_sub(self.done) as f64 / rate;
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        format!("{percent} %  {part}  {}  {} left", self.unit.rate(rate), size::duration(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_at_most_every_few_seconds() {
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
    fn slow_rates_are_no_zeros() {
        let mut lines = Lines::new(Unit::Layers, false);
        lines.total = 13;
        let later = lines.begun + Duration::from_secs(8);
        assert_eq!(lines.advance("", 2, later).unwrap(), "15 %  2 of 13 layers  0.25 layers/s  44 s left");
    }

    #[test]
    fn tokens_are_told_with_the_block_the_stage_and_whole_rates() {
        let mut lines = Lines::new(Unit::Tokens, false);
        lines.total = 8192;
        let later = lines.begun + Duration::from_secs(3);
        let line = lines.advance("block 3 of 32, rounding", 1000, later).unwrap();
        assert_eq!(line, "12 %  block 3 of 32, rounding  1000 of 8192 tokens  333 tokens/s  21 s left");
    }

    #[test]
    fn nothing_to_do_is_no_division_by_zero() {
        let mut lines = Lines::new(Unit::Bytes, true);
        let begun = lines.begun;
        assert_eq!(lines.advance("", 0, begun).as_deref(), Some("0 %  0 B of 0 B"));
    }
}
