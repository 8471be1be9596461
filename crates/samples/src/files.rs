//! The files of a path: the path itself, or those in and below a folder.

use std::path::{Path, PathBuf};

use crate::error::SampleError;
use crate::npz;
use crate::stored::{Stored, map};

/// Folders in folders are looked through to this depth.
const DEEPEST: usize = 8;

/// The files of data: the path itself, or those in and below a folder, by name.
///
/// # Errors
/// A path that is missing or cannot be read, a folder without files of samples.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, SampleError> {
    let about = std::fs::metadata(path).map_err(|e| SampleError::io(path, e))?;
    if !about.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut found = Vec::new();
    walk(path, DEEPEST, &mut found)?;
    match found.is_empty() {
        true => Err(SampleError::invalid(path, "a folder without .npy, .npz, .safetensors, .jpg or .png files")),
        false => Ok(found),
    }
}

fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), SampleError> {
    let entries = std::fs::read_dir(folder).and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect());
    let mut entries: Vec<PathBuf> = entries.map_err(|e| SampleError::io(folder, e))?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            if depth > 0 {
                walk(&entry, depth - 1, found)?;
            }
        } else if is_image(&entry) || ["npy", "npz", "safetensors"].contains(&extension(&entry).as_str()) {
            found.push(entry);
        }
    }
    Ok(())
}

/// Returns whether the name is that of an image.
pub fn is_image(path: &Path) -> bool {
    ["jpg", "jpeg", "png"].contains(&extension(path).as_str())
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

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}
