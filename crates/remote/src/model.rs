//! From the name of a model elsewhere to a folder that stands for it: small files whole, shards as sparse files with their headers.

use crate::address::Address;
use crate::client::{Client, Object, Version};
use crate::error::RemoteError;
use crate::hub::{Environment, HubModel, Resolved};
use crate::listing::{self, CONFIG, INDEX, PIPELINE, SINGLE, USUAL};
use crate::shard::{Folder, Shard, ShardFile, Shards};
use kvant_container::positioned::write_all_at;
use kvant_container::supply::{SuppliedFile, show_folder_as, supply};
use kvant_container::{MAX_HEADER_LEN, lock_folder, new_folder_for, shown};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The most bytes of a file that is downloaded whole: tokenizers and indices of the largest models have a tenth.
const LONGEST_FILE: u64 = 256 << 20;
/// The bytes of a shard that the first request asks for: most headers are shorter.
const FIRST_BYTES: u64 = 32 << 10;
/// Shards whose headers are read at the same time.
const AT_ONCE: usize = 8;
/// The length that a safetensors file begins with.
const LENGTH_BYTES: u64 = 8;

/// Where a model is.
pub enum Opened {
    /// On this machine: in the cache of the Hub.
    Local(PathBuf),
    /// Elsewhere.
    Remote(RemoteModel),
}

/// A model elsewhere. Its bytes are fetched as long as this lives.
pub struct RemoteModel {
    path: PathBuf,
    name: String,
    shards: Arc<Shards>,
    _supplied: Vec<SuppliedFile>,
}

impl RemoteModel {
    /// The path to open it with: a folder, or a file in one.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name for messages, with the commit of a model on the Hub.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for RemoteModel {
    fn drop(&mut self) {
        self.shards.end();
    }
}

/// Opens a model elsewhere: `https://host/folder`, one `.safetensors` file in such a folder, `hf://organisation/name[@revision]` or
/// `organisation/name`. Its folder is made beside `output`, where temporary files belong that a run for it leaves when it is killed.
///
/// # Errors
/// See [`RemoteError`].
pub fn open(model: &Path, output: &Path, cancelled: &Arc<AtomicBool>) -> Result<Opened, RemoteError> {
    let text = model.to_str().unwrap_or_default();
    if text.starts_with("hf://") || !text.contains("://") {
        return open_hub(text, output, cancelled);
    }
    let scheme = text.split("://").next().unwrap_or_default();
    let Some((address, credentials)) = Address::parse(text) else {
        let (what, way_out) = match scheme {
            "http" | "https" => ("the address of the model is not valid".to_owned(), "write https://HOST/FOLDER"),
            _ => (
                format!("models at {scheme}:// addresses are not read"),
                "serve the files over https, e.g. with presigned or public addresses below one folder, or download the model first",
            ),
        };
        return Err(RemoteError::Unsupported { what, way_out: way_out.to_owned() });
    };
    if address.has_query() {
        let what = format!("{address}: an address with a query names one file, and not the folder of a model");
        let way_out = "serve the folder without queries, or download the model first".to_owned();
        return Err(RemoteError::Unsupported { what, way_out });
    }
    let client = Client::new(credentials, Arc::clone(cancelled));
    let (folder, file) = match address.split() {
        Some((folder, name)) if is_file(&name) => (folder, Some(name)),
        _ => (address.clone(), None),
    };
    if let Some(name) = file.as_ref().filter(|name| !name.ends_with(".safetensors")) {
        return Err(RemoteError::Unsupported {
            what: format!("{address}: of single files elsewhere only .safetensors are read, not {name}"),
            way_out: "download the file first".to_owned(),
        });
    }
    let source = Source { name: folder.to_string(), folder, names: None, file, directory: None };
    source.open(client, output).map(Opened::Remote)
}

/// Returns whether the last part of an address is a file of a model, and not a folder.
fn is_file(name: &str) -> bool {
    [".safetensors", ".gguf", ".onnx", ".bin", ".pt", ".pth"].iter().any(|ending| name.ends_with(ending))
}

fn open_hub(text: &str, output: &Path, cancelled: &Arc<AtomicBool>) -> Result<Opened, RemoteError> {
    let model = HubModel::parse(text).ok_or_else(|| RemoteError::Unsupported {
        what: format!("`{}` is no name of a model on the Hugging Face Hub", text.escape_debug()),
        way_out: "write hf://ORGANISATION/NAME or hf://ORGANISATION/NAME@REVISION".to_owned(),
    })?;
    let environment = Environment::read()?;
    if let Some(snapshot) = environment.cached(&model) {
        return Ok(Opened::Local(snapshot));
    }
    if environment.is_offline {
        let cache = environment.cache.as_deref().map(shown).unwrap_or_default();
        return Err(RemoteError::Offline { model: model.name, cache });
    }
    let client = Client::new(environment.credentials.clone(), Arc::clone(cancelled));
    let Resolved { folder, commit, names } = environment.resolve(&client, &model)?;
    let name = format!("hf://{}@{commit}", model.name);
    let source = Source { folder, name, names: Some(names), file: None, directory: Some(model.folder()) };
    source.open(client, output).map(Opened::Remote)
}

/// The files of a model elsewhere.
struct Source {
    folder: Address,
    /// The folder's name for messages.
    name: String,
    /// The names of all files, where the server lists them.
    names: Option<Vec<String>>,
    /// The file of weights that was named.
    file: Option<String>,
    /// The name of the folder that stands for the model.
    directory: Option<String>,
}

/// A file of weights: its version, and its first bytes up to the end of its header.
struct Head {
    version: Version,
    bytes: Vec<u8>,
}

impl Source {
    fn open(self, client: Client, output: &Path) -> Result<RemoteModel, RemoteError> {
        let name = self.name.as_str();
        let disk = |action| move |cause: io::Error| RemoteError::Disk { action, object: name.to_owned(), cause };
        let dir = new_folder_for(output).map_err(disk("make"))?;
        let lock = lock_folder(dir.path()).map_err(disk("make"))?;
        let root = dir.path().canonicalize().map_err(disk("make"))?;
        let root = root.join(self.directory.as_deref().unwrap_or("model"));
        fs::create_dir(&root).map_err(disk("make"))?;
        show_folder_as(&root, &self.name);
        let names = self.describe(&client, &root)?;
        let heads = self.heads(&client, &names)?;
        let mut files = Vec::new();
        for (shard, head) in names.iter().zip(&heads) {
            let path = root.join(shard);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(disk("make"))?;
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(disk("make"))?;
            file.set_len(head.version.len).map_err(disk("make"))?;
            write_all_at(&file, &head.bytes, 0).map_err(disk("write"))?;
            files.push(ShardFile { object: self.object(shard), version: head.version.clone(), file });
        }
        let shards = Arc::new(Shards::new(client, files));
        let folder = Arc::new(Folder { dir, _lock: lock });
        let register = |(index, name): (usize, &String)| {
            let shard = Shard { shards: Arc::clone(&shards), index, folder: Arc::clone(&folder) };
            supply(&root.join(name), Arc::new(shard))
        };
        let supplied = names.iter().enumerate().map(register).collect::<Result<_, _>>().map_err(disk("open"))?;
        let path = self.file.as_ref().map_or(root.clone(), |file| root.join(file));
        Ok(RemoteModel { path, name: self.name.clone(), shards: Arc::clone(&shards), _supplied: supplied })
    }

    fn object(&self, name: &str) -> Object {
        Object::new(self.folder.join(name))
    }

    /// Downloads the small files, and finds the names of the files of weights.
    fn describe(&self, client: &Client, root: &Path) -> Result<Vec<String>, RemoteError> {
        if let Some(names) = &self.names {
            self.refuse_pipeline(names.iter().any(|name| name == PIPELINE))?;
            for name in listing::describing(names) {
                self.save(client, root, name)?;
            }
            let index = self.listed(names, INDEX).then(|| self.save(client, root, INDEX)).transpose()?.flatten();
            let weights = match index {
                Some(index) => listing::shards(&index, &self.object(INDEX).name())?,
                None => listing::weights(names),
            };
            return self.some(weights);
        }
        let config = self.save(client, root, CONFIG)?;
        if config.is_none() && self.file.is_none() {
            self.refuse_pipeline(client.whole(&self.object(PIPELINE), LONGEST_FILE)?.is_some())?;
            let object = self.object(CONFIG).name();
            return Err(RemoteError::Missing { object, kind: "file", status: 404 });
        }
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let code = listing::code(&config);
        for name in USUAL.iter().copied().chain(code.iter().map(String::as_str)) {
            match self.save(client, root, name) {
                // Some servers say of a missing file that it must not be read.
                Err(RemoteError::Denied { status: 403, .. }) => {}
                saved => drop(saved?),
            }
        }
        if let Some(file) = &self.file {
            return Ok(vec![file.clone()]);
        }
        let index = match self.save(client, root, INDEX) {
            Err(RemoteError::Denied { status: 403, .. }) => None,
            saved => saved?,
        };
        match index {
            Some(index) => self.some(listing::shards(&index, &self.object(INDEX).name())?),
            None => Ok(vec![SINGLE.to_owned()]),
        }
    }

    fn listed(&self, names: &[String], name: &str) -> bool {
        names.iter().any(|listed| listed == name)
    }

    fn refuse_pipeline(&self, is_pipeline: bool) -> Result<(), RemoteError> {
        match is_pipeline {
            true => Err(self.unsupported("pipelines of several models are not read from elsewhere")),
            false => Ok(()),
        }
    }

    fn some(&self, weights: BTreeSet<String>) -> Result<Vec<String>, RemoteError> {
        let foreign = weights.iter().find(|name| !name.ends_with(".safetensors"));
        match (weights.is_empty(), foreign) {
            (true, _) => {
                Err(self.unsupported("it has no weights as .safetensors, and others are not read from elsewhere"))
            }
            (_, Some(name)) => Err(self.unsupported(&format!("{name}: only .safetensors are read from elsewhere"))),
            _ => Ok(weights.into_iter().collect()),
        }
    }

    fn unsupported(&self, problem: &str) -> RemoteError {
        let way_out = "download the model first".to_owned();
        RemoteError::Unsupported { what: format!("{}: {problem}", self.name), way_out }
    }

    /// Downloads a small file into the folder; `None` if there is none.
    fn save(&self, client: &Client, root: &Path, name: &str) -> Result<Option<Vec<u8>>, RemoteError> {
        let object = self.object(name);
        let Some(bytes) = client.whole(&object, LONGEST_FILE)? else { return Ok(None) };
        let path = root.join(name);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, &bytes));
        written.map_err(|cause| RemoteError::Disk { action: "write", object: object.name(), cause })?;
        Ok(Some(bytes))
    }

    /// The headers of shards, in their order.
    fn heads(&self, client: &Client, names: &[String]) -> Result<Vec<Head>, RemoteError> {
        let next = AtomicUsize::new(0);
        let found: Mutex<Vec<(usize, Result<Head, RemoteError>)>> = Mutex::default();
        let take = || {
            let take_next = || next.fetch_add(1, Ordering::Relaxed);
            while let Some((index, name)) = Some(take_next()).and_then(|index| Some((index, names.get(index)?))) {
                let head = self.head(client, name);
                if head.is_err() {
                    next.store(names.len(), Ordering::Relaxed);
                }
                found.lock().unwrap_or_else(PoisonError::into_inner).push((index, head));
            }
        };
        thread::scope(|scope| (0..AT_ONCE.min(names.len())).for_each(|_| _ = scope.spawn(take)));
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(index, _)| *index);
        found.into_iter().map(|(_, head)| head).collect()
    }

    fn head(&self, client: &Client, name: &str) -> Result<Head, RemoteError> {
        let object = self.object(name);
        let (version, mut bytes) = client.beginning(&object, FIRST_BYTES)?;
        let stated = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
        // What is longer than the file, or than any header, is refused by whoever reads the file.
        let end = stated.min(MAX_HEADER_LEN).saturating_add(LENGTH_BYTES).min(version.len);
        bytes.truncate(end as usize);
        let left = bytes.len() as u64..end;
        client.part(&object, &version, left, &mut |_, more| {
            bytes.extend_from_slice(more);
            Ok(())
        })?;
        Ok(Head { version, bytes })
    }
}
