//! Finding the library of ONNX Runtime, and its version. The only unsafe code of the crate: the library is asked for its
//! version before the binding loads it, which would panic where it is too old.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use libloading::{Library, Symbol};
use ort::environment::{Environment, EnvironmentBuilder, GlobalThreadPoolOptions};
use ort::logging::LogLevel;

use super::error::RuntimeError;

/// The version of the C interface the binding is built for: that of ONNX Runtime 1.18.
const API: u32 = 18;

/// ONNX Runtime, loaded: one library per process.
#[derive(Clone)]
pub(super) struct OnnxRuntime {
    pub environment: Environment,
    pub version: String,
    /// Threads that all sessions share; all cores where this is `None`.
    pub threads: Option<usize>,
    path: PathBuf,
}

static LOADED: Mutex<Option<OnnxRuntime>> = Mutex::new(None);

/// Directories of Python packages that the program knows.
static KNOWN_PACKAGES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// States directories of Python packages, in which ONNX Runtime is looked for before those that can be found. Only the first call has
/// an effect.
pub fn look_in_packages(directories: Vec<PathBuf>) {
    _ = KNOWN_PACKAGES.set(directories);
}

/// Loads the library: the one named, else the first usable one of those found. The first call says the number of threads.
pub(super) fn load(named: Option<&Path>, threads: Option<usize>) -> Result<OnnxRuntime, RuntimeError> {
    let mut loaded = LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(runtime) = &*loaded {
        return match named {
            Some(path) if path != runtime.path => {
                let problem = format!("{} is loaded already", runtime.path.display());
                Err(RuntimeError::Library { path: path.to_path_buf(), problem })
            }
            _ => Ok(runtime.clone()),
        };
    }
    let runtime = match named {
        Some(path) => start(path, threads)?,
        None => first(threads)?,
    };
    *loaded = Some(runtime.clone());
    Ok(runtime)
}

/// The first candidate that can be used. One named by the environment is the only one.
fn first(threads: Option<usize>) -> Result<OnnxRuntime, RuntimeError> {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return start(Path::new(&path), threads);
    }
    let system = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let mut looked = vec![format!("{system} (system)")];
    if let Ok(runtime) = start(Path::new(&system), threads) {
        return Ok(runtime);
    }
    let mut unusable = None;
    for directory in site_packages().into_iter().chain(asked_python()) {
        looked.push(directory.display().to_string());
        for library in libraries(&directory.join("onnxruntime").join("capi")) {
            match start(&library, threads) {
                Ok(runtime) => return Ok(runtime),
                Err(error) => unusable = Some(error),
            }
        }
    }
    Err(unusable.unwrap_or(RuntimeError::NoLibrary(looked)))
}

/// Checks a library and starts it.
fn start(path: &Path, threads: Option<usize>) -> Result<OnnxRuntime, RuntimeError> {
    let refused = |problem: String| RuntimeError::Library { path: path.to_path_buf(), problem };
    let version = version(path).map_err(refused)?;
    let builder = ort::init_from(path).map_err(|e| refused(e.to_string()))?;
    let environment = environment(builder, threads).map_err(|e| refused(e.to_string()))?;
    Ok(OnnxRuntime { environment, version, threads, path: path.to_path_buf() })
}

/// One pool of threads for all sessions, of which an evaluation may have many.
fn environment(builder: EnvironmentBuilder, threads: Option<usize>) -> Result<Environment, ort::Error> {
    // Threads that spin between runs take the cores from what is done with the results.
    let pool = GlobalThreadPoolOptions::default().with_spin_control(false)?;
    let pool = match threads {
        Some(threads) => pool.with_intra_threads(threads)?,
        None => pool,
    };
    let environment = builder.with_name("kvant").with_telemetry(false).with_global_thread_pool(pool).build()?;
    environment.set_log_level(LogLevel::Fatal);
    Ok(environment)
}

/// The start of `struct OrtApiBase` of onnxruntime_c_api.h, the same in all versions.
#[repr(C)]
struct ApiBase {
    get_api: unsafe extern "C" fn(u32) -> *const c_void,
    get_version_string: unsafe extern "C" fn() -> *const c_char,
}

/// The version of a library that has the interface needed.
fn version(path: &Path) -> Result<String, String> {
    // SAFETY: loading a library runs its initialisers. It is the one the user named or installed as ONNX Runtime, and is about
    // to be loaded by the binding in the same way.
    let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
    // SAFETY: `OrtGetApiBase` has had this signature since the first version of the library.
    let get_base: Symbol<'_, unsafe extern "C" fn() -> *const ApiBase> =
        unsafe { library.get(b"OrtGetApiBase\0") }.map_err(|_| "it does not export OrtGetApiBase".to_owned())?;
    // SAFETY: it takes nothing, and returns a pointer to a constant of the library, which is loaded, or null.
    let base = unsafe { get_base().as_ref() }.ok_or("it has no interface")?;
    // SAFETY: both functions are the library's own; the first returns null for versions it does not have, the second a
    // string constant ended by zero.
    let (api, version) = unsafe { ((base.get_api)(API), (base.get_version_string)()) };
    if version.is_null() {
        return Err("it has no version".to_owned());
    }
    // SAFETY: checked not to be null just above; the constant lives as long as the library, which outlives this copy.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy().into_owned();
    match api.is_null() {
        true => Err(format!("it is version {version}")),
        // The library stays loaded: its threads and constants are in use from here on.
        false => {
            std::mem::forget(library);
            Ok(version)
        }
    }
}

/// Directories of Python packages that can be told without running Python: those that the program knows, of the active environment, of the `python3` on
/// PATH where it is no script, of the user.
fn site_packages() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let python = on_path("python3").into_iter().flat_map(|python| {
        let real = python.canonicalize().ok();
        [Some(python), real]
            .into_iter()
            .flatten()
            .filter_map(|p| Some(p.parent()?.parent()?.to_path_buf()))
            .collect::<Vec<_>>()
    });
    let user = std::env::home_dir().map(|home| home.join(".local"));
    let mut found: Vec<PathBuf> = KNOWN_PACKAGES.get().cloned().unwrap_or_default();
    for prefix in environments.chain(python).chain(user) {
        for directory in packages_below(&prefix) {
            if !found.contains(&directory) {
                found.push(directory);
            }
        }
    }
    found
}

/// The package directories of an installation of Python, the newest version's first.
fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<PathBuf> = entries(&prefix.join("lib"))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    versions.sort_by_key(|path| path.file_name().map(OsStr::len));
    versions.reverse();
    let below = |version: PathBuf| ["site-packages", "dist-packages"].map(|name| version.join(name));
    versions
        .into_iter()
        .flat_map(below)
        .chain([prefix.join("Lib").join("site-packages")])
        .filter(|p| p.is_dir())
        .collect()
}

/// Where the `python3` on PATH would find the package. It is asked once, since every session looks for the library where there is none.
fn asked_python() -> Option<PathBuf> {
    static ANSWER: OnceLock<Option<PathBuf>> = OnceLock::new();
    ANSWER.get_or_init(ask_python).clone()
}

/// Asks it itself: some are scripts that lead elsewhere.
fn ask_python() -> Option<PathBuf> {
    const SCRIPT: &str = "import importlib.util as u; s = u.find_spec('onnxruntime'); print(s.submodule_search_locations[0] if s else '')";
    let python = on_path("python3")?;
    let answer = Command::new(python).args(["-I", "-c", SCRIPT]).output().ok()?;
    let package = PathBuf::from(String::from_utf8(answer.stdout).ok()?.trim());
    package.parent().filter(|parent| parent.is_absolute()).map(Path::to_path_buf)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let name = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&path).map(|directory| directory.join(&name)).find(|file| file.is_file())
}

/// The libraries of ONNX Runtime itself in a directory; its providers lie beside it.
fn libraries(directory: &Path) -> Vec<PathBuf> {
    let wanted = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let start = format!("{}onnxruntime.", std::env::consts::DLL_PREFIX);
        name.starts_with(&start) && name.contains(std::env::consts::DLL_SUFFIX)
    };
    let mut found: Vec<PathBuf> = entries(directory).filter(wanted).collect();
    found.sort();
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    #[test]
    fn invalid_onnx_runtime_library_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("libonnxruntime.so");
        std::fs::write(&file, b"no library").unwrap();
        let error = start(&file, None).err().unwrap();
        assert!(matches!(&error, RuntimeError::Library { path, .. } if *path == file), "{error}");
        assert!(error.hint().is_some());
    }

    #[test]
    fn onnx_runtime_wheels_are_found_below_a_prefix() {
        let prefix = tempfile::tempdir().unwrap();
        let capi = prefix.path().join("lib/python3.12/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        let extension = std::env::consts::DLL_SUFFIX;
        let library = format!("{}onnxruntime{extension}.1.31.1", std::env::consts::DLL_PREFIX);
        std::fs::write(capi.join(&library), b"").unwrap();
        std::fs::write(capi.join(format!("libonnxruntime_providers_shared{extension}")), b"").unwrap();
        let packages = packages_below(prefix.path());
        assert_eq!(packages, [prefix.path().join("lib/python3.12/site-packages")]);
        assert_eq!(libraries(&capi), [capi.join(library)]);
    }
}
