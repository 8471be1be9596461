//! The files of a path: the path itself, or those in and below a folder.

use std::path::{Path, PathBuf};

use crate::error::SampleError;
use crate::npz;
use crate::stored::{Stored, map};

/// Folders in folders are looked through to this depth.
const DEEPEST: usize = 8;

/// Files of sounds that are not decoded, by the ends of their names.
pub(crate) const FOREIGN_SOUNDS: &[&str] =
    &["mp3", "flac", "ogg", "oga", "opus", "m4a", "aac", "wma", "aif", "aiff", "au", "webm", "mp4", "w64"];

/// The files of arrays and pictures: the path itself, or those in and below a folder, by name.
///
/// # Errors
/// A path that is missing or cannot be read, a folder without files of samples.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, SampleError> {
    found(path, is_image, ".jpg or .png", "a picture")
}

/// The files of arrays and sounds, likewise; those of sounds that are not decoded are among them.
///
/// # Errors
/// As [`files`].
pub fn sound_files(path: &Path) -> Result<Vec<PathBuf>, SampleError> {
    found(path, is_sound, "or .wav", "a sound")
}

/// The files of arrays and those that `is_media` says.
fn found(path: &Path, is_media: fn(&Path) -> bool, ends: &str, media: &str) -> Result<Vec<PathBuf>, SampleError> {
    let about = std::fs::metadata(path).map_err(|e| SampleError::io(path, e))?;
    if !about.is_dir() {
        return match is_media(path) || is_arrays(path) {
            true => Ok(vec![path.to_path_buf()]),
            false => Err(SampleError::unsupported(
                path,
                format!(
                    "neither {media} nor a file of arrays: its name ends in none of .npz, .npy, .safetensors, {ends}"
                ),
            )),
        };
    }
    let mut found = Vec::new();
    walk(path, is_media, DEEPEST, &mut found)?;
    match found.is_empty() {
        true => Err(SampleError::invalid(path, format!("a folder without .npy, .npz, .safetensors, {ends} files"))),
        false => Ok(found),
    }
}

fn walk(folder: &Path, is_media: fn(&Path) -> bool, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), SampleError> {
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect());
    let mut entries: Vec<PathBuf> = entries.map_err(|e| SampleError::io(folder, e))?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            if depth > 0 {
                walk(&entry, is_media, depth - 1, found)?;
            }
        } else if is_media(&entry) || is_arrays(&entry) {
            found.push(entry);
        }
    }
    Ok(())
}

/// Returns whether the name is that of a file of arrays.
fn is_arrays(path: &Path) -> bool {
    ["npy", "npz", "safetensors"].contains(&extension(path).as_str())
}

/// Returns whether the name is that of an image.
pub fn is_image(path: &Path) -> bool {
    ["jpg", "jpeg", "png"].contains(&extension(path).as_str())
}

/// Returns whether the name is that of a sound, whether or not its format is decoded.
pub fn is_sound(path: &Path) -> bool {
    let end = extension(path);
    end == "wav" || FOREIGN_SOUNDS.contains(&end.as_str())
}

/// The arrays of files, in order.
///
/// # Errors
/// Files that hold no arrays by their name, or are not what their name says.
pub fn arrays(files: &[PathBuf]) -> Result<Vec<Stored>, SampleError> {
    let mut arrays = Vec::new();
    for file in files {
        match extension(file).as_str() {
            "npz" => arrays.extend(npz::open(file)?),
            "npy" => {
                let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
                arrays.push(Stored::npy(file.clone(), name, map(file)?)?);
            }
            "safetensors" => arrays.extend(Stored::safetensors(file)?),
            _ => {
                let problem = "not a file of arrays: its name ends in none of .npz, .npy and .safetensors";
                return Err(SampleError::unsupported(file, problem));
            }
        }
    }
    arrays.sort_by_key(|stored| number_behind(&stored.name));
    Ok(arrays)
}

/// `x_10` comes after `x_9`.
fn number_behind(name: &str) -> u64 {
    name.rsplit_once('_').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

/// The end of a name behind its last dot, in lower case.
pub(crate) fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}
