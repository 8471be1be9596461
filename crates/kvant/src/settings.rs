//! The names of settings in messages.
//!
//! The crates below know nothing of command lines. Where a message names a setting, as in `give a text with ‹calib› FILE`, the name is
//! in single angle quotes, and whoever shows the message spells it: the command line as `--calib`, Python as `data=`.

/// A text with each setting in it spelled by the front end.
///
/// ```
/// let text = kvant::spelled("give a text with ‹calib› FILE", |setting| format!("--{setting}"));
/// assert_eq!(text, "give a text with --calib FILE");
/// ```
pub fn spelled(text: &str, spell: impl Fn(&str) -> String) -> String {
    let mut spelled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('‹') {
        spelled.push_str(before);
        let name = after.split_once('›').filter(|(name, _)| is_setting(name));
        match name {
            Some((name, behind)) => {
                spelled.push_str(&spell(name));
                rest = behind;
            }
            None => {
                spelled.push('‹');
                rest = after;
            }
        }
    }
    spelled.push_str(rest);
    spelled
}

/// The settings of a text, in order.
pub fn settings(text: &str) -> Vec<&str> {
    let candidates = text.split('‹').skip(1).filter_map(|rest| rest.split_once('›'));
    candidates.map(|(name, _)| name).filter(|name| is_setting(name)).collect()
}

/// The spelling of a setting without a front end's own: that of the fields of a job.
pub(crate) fn plain(setting: &str) -> String {
    setting.replace('-', "_")
}

fn is_setting(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The first setting that was given, of several with whether they were.
pub(crate) fn first_given(settings: &[(bool, &'static str)]) -> Option<&'static str> {
    settings.iter().find(|(given, _)| *given).map(|(_, setting)| *setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_angle_quotes_are_kept() {
        let dashes = |setting: &str| format!("--{setting}");
        assert_eq!(spelled("‹a-b›, ‹Ab› and ‹", dashes), "--a-b, ‹Ab› and ‹");
        assert_eq!(spelled("‹‹x›", dashes), "‹--x");
        assert_eq!(settings("‹a-b›, ‹Ab› or ‹c›"), ["a-b", "c"]);
    }
}
