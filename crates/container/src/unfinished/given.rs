//! The options of a run, compared with those of another: values, resolved paths, and the state of the files and folders among them.
//! The plan's fingerprint determines which of them decide the output.

use super::journal::{Given, Input, Options};
use super::output_error::Differing;
use crate::path_text::{of_record, recorded};
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use xxhash_rust::xxh3::xxh3_64;

/// The most files of a folder that are looked at.
const MOST_FILES: usize = 10_000;

/// Name parts of work files beside an output, which may be beside the source too.
const UNFINISHED: &str = ".partial";

/// The inputs and options of this run.
pub(super) fn given(options: &Options) -> Given {
    given_in(options, &here())
}

fn given_in(options: &Options, directory: &Path) -> Given {
    let of_option = |(option, value): (&String, &String)| {
        let inputs = paths(value, directory).into_iter().filter_map(|(path, real)| {
            let state = state(&real?).ok()?;
            Some(Input { option: option.clone(), path: path.to_owned(), state })
        });
        inputs.collect::<Vec<_>>()
    };
    Given {
        options: options.clone(),
        directory: recorded(directory),
        inputs: options.iter().flat_map(of_option).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The options in which this run differs from an earlier one; empty if either states none.
pub(super) fn differing(then: &Given, now: &Options) -> Vec<Differing> {
    differing_in(then, now, &here())
}

fn differing_in(then: &Given, now: &Options, directory: &Path) -> Vec<Differing> {
    if then.options.is_empty() || now.is_empty() {
        return Vec::new();
    }
    let names: BTreeSet<&String> = then.options.keys().chain(now.keys()).collect();
    let differing = names.into_iter().filter_map(|name| {
        let (before, after) = (then.options.get(name), now.get(name));
        let leads_to_the_same = || Some(files(before?, &directory_of(then)) == files(after?, directory));
        let is_same = before == after || leads_to_the_same() == Some(true);
        (!is_same).then(|| Differing { name: name.clone(), then: before.cloned(), now: after.cloned() })
    });
    differing.collect()
}

/// What has changed since an earlier run began: inputs by the option and the path that it was given, and Kvant itself.
pub(super) fn changed(then: &Given) -> Vec<String> {
    let directory = directory_of(then);
    let has_changed = |input: &&Input| state(&directory.join(&input.path)).ok().as_ref() != Some(&input.state);
    let inputs = then.inputs.iter().filter(has_changed);
    let inputs = inputs.map(|input| format!("{} {}", input.option, input.path.escape_debug()));
    let (before, now) = (then.version.as_str(), env!("CARGO_PKG_VERSION"));
    let is_other = !before.is_empty() && before != now;
    let version = is_other.then(|| format!("Kvant ({} then, {now} now)", before.escape_debug()));
    inputs.chain(version).collect()
}

fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}

/// The working directory of an earlier run; the current one for runs of versions that did not record it.
fn directory_of(given: &Given) -> PathBuf {
    if given.directory.is_empty() { here() } else { of_record(&given.directory) }
}

/// The paths that a value may name, one or several between commas, and where those lead that are there.
fn paths<'v>(value: &'v str, directory: &Path) -> Vec<(&'v str, Option<PathBuf>)> {
    let real = |path: &str| directory.join(path).canonicalize().ok().filter(|_| !path.is_empty());
    match real(value) {
        Some(whole) => vec![(value, Some(whole))],
        None => value.split(',').map(|part| (part, real(part))).collect(),
    }
}

/// The same, with the words themselves where nothing is there.
fn files(value: &str, directory: &Path) -> Vec<PathBuf> {
    paths(value, directory).into_iter().map(|(path, real)| real.unwrap_or_else(|| PathBuf::from(path))).collect()
}

/// A fingerprint of a file or folder, which differs after a change.
///
/// # Errors
/// System errors.
pub fn state_of(path: &Path) -> io::Result<String> {
    state(path)
}

/// The size of a file and when it was changed; of a folder those of all its files.
fn state(path: &Path) -> io::Result<String> {
    let metadata = path.metadata()?;
    if !metadata.is_dir() {
        return Ok(stamp(&metadata));
    }
    let names = fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.file_name()));
    let names: BTreeSet<_> = names.filter(|name| !name.to_string_lossy().contains(UNFINISHED)).collect();
    let mut text = format!("{}\n", names.len());
    for name in names.into_iter().take(MOST_FILES) {
        if let Ok(metadata) = path.join(&name).metadata()
            && metadata.is_file()
        {
            text.push_str(&format!("{name:?} {}\n", stamp(&metadata)));
        }
    }
    Ok(format!("{:016x}", xxh3_64(text.as_bytes())))
}

fn stamp(metadata: &Metadata) -> String {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} {}", metadata.len(), modified.map_or(0, |since| since.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(all: &[(&str, &str)]) -> Options {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn recorded_paths_do_not_depend_on_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        fs::create_dir_all(one.join("model")).unwrap();
        fs::create_dir(&other).unwrap();
        for name in ["a.txt", "b,c.txt"] {
            fs::write(one.join(name), name).unwrap();
        }
        let then =
            given_in(&options(&[("the source", "model"), ("‹calib›", "a.txt,hub"), ("‹data›", "b,c.txt")]), &one);
        let differing = |all: &[(&str, &str)]| -> Vec<String> {
            differing_in(&then, &options(all), &other).into_iter().map(|option| option.name).collect()
        };
        let (source, data) = (("the source", "../one/model"), ("‹data›", "../one/b,c.txt"));
        assert_eq!(differing(&[source, ("‹calib›", "../one/a.txt,hub"), data]), Vec::<String>::new());
        assert_eq!(differing(&[source, ("‹calib›", "../one/a.txt,other"), data]), ["‹calib›"]);
        assert_eq!(differing(&[source, ("‹calib›", "../one/b.txt,hub"), ("‹seed›", "1"), data]), ["‹calib›", "‹seed›"]);
        assert_eq!(differing(&[]), Vec::<String>::new());
    }

    #[test]
    fn only_changed_inputs_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("model")).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("model/config.json", "{}");
        write("a.txt", "a");
        write("recipe.toml", "");
        let given =
            options(&[("the source", "model"), ("‹calib›", "a.txt,hub"), ("‹recipe›", "recipe.toml"), ("‹seed›", "1")]);
        let then = given_in(&given, dir.path());
        assert_eq!(then.inputs.len(), 3);
        // Outputs may be written beside their source.
        write("model/out.partial.journal", "work");
        assert_eq!(changed(&then), Vec::<String>::new());
        write("a.txt", "other");
        write("model/config.json", "{ }");
        assert_eq!(changed(&then), ["the source model", "‹calib› a.txt"]);
        let earlier = Given { version: "0.0.1".to_owned(), ..then };
        assert!(changed(&earlier)[2].starts_with("Kvant (0.0.1 then, "), "{:?}", changed(&earlier));
        fs::remove_file(dir.path().join("recipe.toml")).unwrap();
        assert!(changed(&earlier).contains(&"‹recipe› recipe.toml".to_owned()));
    }
}
