//! A server of files on this machine for tests: ranges, redirects as the Hugging Face Hub has them, and faults on request.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The commit of the model that the look-alike of the Hub has.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// What a redirect is signed with.
pub const SIGNATURE: &str = "5ecret51gnature";

/// What goes wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Another status.
    Status(u16),
    /// Half of the body, and the end of the connection.
    CutShort,
    /// The end of the connection in place of an answer.
    Reset,
    /// The whole file, whatever was asked for.
    WholeFile,
    /// Another ETag.
    OtherTag,
    /// A pause within the body.
    Slow(Duration),
}

/// A request as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub path: String,
    pub range: Option<Range<u64>>,
    pub authorization: Option<String>,
}

impl Request {
    /// Returns whether it is for the weights, and not for their header.
    pub fn is_for_tensors(&self) -> bool {
        let name = self.path.split('?').next().unwrap();
        name.ends_with(".safetensors") && self.range.as_ref().is_some_and(|range| range.start > 0)
    }
}

type Faults = Box<dyn Fn(&Request, usize) -> Fault + Send + Sync>;

/// A server, until it is dropped with the test's process.
pub struct Server {
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    faults: Mutex<Faults>,
    /// The token that each request must have, and where files of weights really are, on the look-alike of the Hub.
    hub: Option<(String, String)>,
    seen: Mutex<Vec<Request>>,
    sent: Mutex<HashMap<String, u64>>,
}

impl Server {
    /// Serves a folder.
    pub fn of(root: PathBuf) -> Server {
        Server::start(root, None)
    }

    /// Serves a folder as the Hub serves the model `org/name`, to whoever has a token; files of weights are on another server.
    pub fn hub(root: PathBuf, token: &str, weights: &Server) -> Server {
        Server::start(root, Some((token.to_owned(), weights.address.clone())))
    }

    fn start(root: PathBuf, hub: Option<(String, String)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let faults: Faults = Box::new(|_, _| Fault::None);
        let shared = Shared { root, faults: Mutex::new(faults), hub, seen: Mutex::default(), sent: Mutex::default() };
        let shared = Arc::new(shared);
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&served);
                thread::spawn(move || while shared.answer(&stream).is_some() {});
            }
        });
        Server { address, shared }
    }

    /// Decides what goes wrong from now on, by the request and the number of equal ones before it.
    pub fn fail(&self, faults: impl Fn(&Request, usize) -> Fault + Send + Sync + 'static) {
        *self.shared.faults.lock().unwrap() = Box::new(faults);
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Bytes that were sent of files whose names end so.
    pub fn sent(&self, ending: &str) -> u64 {
        let sent = self.shared.sent.lock().unwrap();
        sent.iter().filter(|(path, _)| path.ends_with(ending)).map(|(_, bytes)| bytes).sum()
    }

    /// Forgets all requests.
    pub fn forget(&self) {
        self.shared.seen.lock().unwrap().clear();
        self.shared.sent.lock().unwrap().clear();
    }
}

impl Shared {
    /// Answers a request; `None` at the end of the connection.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let request = read_request(stream)?;
        let before = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(request.clone());
            seen.iter().filter(|other| **other == request).count() - 1
        };
        let fault = (self.faults.lock().unwrap())(&request, before);
        let mut out = stream;
        match fault {
            Fault::Reset => return None,
            Fault::Status(status) => {
                let wait = if status == 429 { "Retry-After: 0\r\n" } else { "" };
                let head = format!("HTTP/1.1 {status} Fault\r\n{wait}Content-Length: 5\r\n\r\nfault");
                return out.write_all(head.as_bytes()).ok();
            }
            _ => {}
        }
        match &self.hub {
            Some((token, weights)) => self.answer_as_hub(out, &request, token, weights, fault),
            None => self.send_file(out, &request, request.path.split('?').next()?, "", fault),
        }
    }

    fn answer_as_hub(
        &self,
        mut out: &TcpStream,
        request: &Request,
        token: &str,
        weights: &str,
        fault: Fault,
    ) -> Option<()> {
        let empty = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        if request.authorization.as_deref() != Some(&format!("Bearer {token}")) {
            return out.write_all(empty("401 Unauthorized").as_bytes()).ok();
        }
        if request.path == "/api/models/org/name/revision/main" {
            let names =
                fs::read_dir(&self.root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let files: Vec<_> = names.map(|name| serde_json::json!({"rfilename": name})).collect();
            let body = serde_json::json!({"sha": COMMIT, "siblings": files}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            return out.write_all(head.as_bytes()).ok();
        }
        let Some(name) = request.path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")) else {
            return out.write_all(empty("404 Not Found").as_bytes()).ok();
        };
        if name.ends_with(".safetensors") {
            let head = format!(
                "HTTP/1.1 302 Found\r\nLocation: {weights}/{name}?X-Signature={SIGNATURE}\r\nX-Repo-Commit: {COMMIT}\r\n\
                 X-Linked-Etag: \"of-{name}\"\r\nContent-Length: 0\r\n\r\n"
            );
            return out.write_all(head.as_bytes()).ok();
        }
        self.send_file(out, request, name, &format!("X-Repo-Commit: {COMMIT}\r\n"), fault)
    }

    fn send_file(&self, mut out: &TcpStream, request: &Request, name: &str, more: &str, fault: Fault) -> Option<()> {
        let path = self.root.join(name.trim_start_matches('/'));
        let Some(mut file) = fs::File::open(&path).ok().filter(|_| path.is_file()) else {
            return out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok();
        };
        let len = file.metadata().unwrap().len();
        let range = request.range.clone().filter(|_| fault != Fault::WholeFile);
        let (status, range, content_range) = match range {
            Some(range) => {
                let range = range.start..range.end.min(len);
                let stated = format!("Content-Range: bytes {}-{}/{len}\r\n", range.start, range.end - 1);
                ("206 Partial Content", range, stated)
            }
            None => ("200 OK", 0..len, String::new()),
        };
        let version = if fault == Fault::OtherTag { "other" } else { "one" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{len}-{version}\"\r\n{content_range}{more}\r\n",
            range.end - range.start
        );
        out.write_all(head.as_bytes()).ok()?;
        file.seek(SeekFrom::Start(range.start)).unwrap();
        let mut body = vec![0; (range.end - range.start) as usize];
        file.read_exact(&mut body).unwrap();
        *self.sent.lock().unwrap().entry(name.to_owned()).or_default() += body.len() as u64;
        let half = body.len() / 2;
        out.write_all(&body[..half]).ok()?;
        match fault {
            Fault::CutShort => return None,
            Fault::Slow(pause) => thread::sleep(pause),
            _ => {}
        }
        out.write_all(&body[half..]).ok()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    // One request at a time is on a connection: nothing behind it is lost with the buffer.
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut request = Request { path, range: None, authorization: None };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { return Some(request) };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.to_owned()),
            "range" => {
                let (start, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.range = Some(start.parse().ok()?..last.parse::<u64>().ok()? + 1);
            }
            _ => {}
        }
    }
    None
}
