//! Sizes and times as people read them, rounded. Decimal units, as disks and model hubs use them. What people write is read
//! by `kvant_checkpoint::byte_size`.

use std::time::Duration;

const UNITS: &[&str] = &["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/// `1.2 GB`, `134 MB`, `17 B`: three digits at most before the unit.
pub fn bytes(count: u64) -> String {
    let mut unit = 0;
    let mut value = count as f64;
    // Values that would be rounded to 1000 use the next unit.
    while value >= if unit == 0 { 1000.0 } else { 999.5 } && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 99.95);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// `1.2 TFLOP`: floating-point operations, with two digits or three.
pub fn operations(count: f64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let thousands = ((count.max(1.0).log10() / 3.0) as usize).min(UNITS.len() - 1);
    let value = count / 1000_f64.powi(thousands as i32);
    let decimals = usize::from(value < 99.95);
    format!("{value:.decimals$} {}FLOP", UNITS[thousands])
}

/// `0.24 s`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        whole @ 0..60 => format!("{whole} s"),
        whole @ 60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `384x128`, or `scalar`.
pub fn shape(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    if dims.is_empty() { "scalar".to_owned() } else { dims.join("x") }
}

/// `3.9 times smaller`, `1.1 times larger`, `the same size`.
pub fn ratio(before: u64, after: u64) -> String {
    let ratio = before.max(1) as f64 / after.max(1) as f64;
    match ratio {
        _ if ratio >= 1.05 => format!("{ratio:.1} times smaller"),
        _ if ratio <= 1.0 / 1.05 => format!("{:.1} times larger", 1.0 / ratio),
        _ => "about the same".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_abbreviated() {
        let cases = [(0.0, "0.0 FLOP"), (1500.0, "1.5 kFLOP"), (2.34e13, "23.4 TFLOP"), (5e20, "500 EFLOP")];
        for (count, text) in cases {
            assert_eq!(operations(count), text);
        }
    }

    #[test]
    fn sizes_are_abbreviated() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_627_912, "2.6 MB"), (99_949_999, "99.9 MB")];
        for (count, text) in cases.into_iter().chain([(99_950_000, "100 MB"), (999_600_000, "1.0 GB")]) {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(bytes(u64::MAX), "18.4 EB");
    }

    #[test]
    fn durations_are_abbreviated() {
        let text = |ms| duration(Duration::from_millis(ms));
        assert_eq!(
            [text(240), text(12_600), text(200_000), text(7_500_000)],
            ["0.24 s", "12 s", "3 min 20 s", "2 h 5 min"]
        );
    }
}
