//! URLs, as far as requests for files need them: taken apart, joined, and without the credentials that they may hold.

use std::fmt;

/// The address of a file or a folder, without credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// `https` or `http`.
    scheme: &'static str,
    /// The host, with a port if one is given.
    host: String,
    /// From the first slash on, with a query if there is one.
    path: String,
}

/// What a request says of who asks.
#[derive(Clone)]
pub struct Credentials {
    /// Where they are sent: nowhere else.
    origin: String,
    /// The value of the header `Authorization`.
    pub header: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials for {}", self.origin)
    }
}

impl Credentials {
    /// A token.
    pub fn bearer(token: &str, address: &Address) -> Credentials {
        Credentials { origin: address.origin(), header: format!("Bearer {token}") }
    }

    /// Returns whether they are for the server of an address.
    pub fn are_for(&self, address: &Address) -> bool {
        self.origin == address.origin()
    }
}

impl fmt::Display for Address {
    /// Without the query: those of signed addresses are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{path}", self.scheme, self.host)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Address {
    /// Takes a URL apart; `None` where it is none of HTTP.
    pub fn parse(url: &str) -> Option<(Address, Option<Credentials>)> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = ["https", "http"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known))?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let is_plain = |byte: u8| byte.is_ascii_graphic();
        if host.is_empty() || !url.bytes().all(is_plain) {
            return None;
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let address = Address { scheme, host: host.to_ascii_lowercase(), path };
        let credentials = user.map(|user| Credentials {
            origin: address.origin(),
            header: format!("Basic {}", base64(&percent_decoded(user))),
        });
        Some((address, credentials))
    }

    /// The URL for a request.
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.host, self.path)
    }

    /// Returns whether it has a query, which addresses of folders do not have.
    pub fn has_query(&self) -> bool {
        self.path.contains('?')
    }

    /// A file below it; `name` has `/` between folders.
    pub fn join(&self, name: &str) -> Address {
        let path = format!("{}/{}", self.path.trim_end_matches('/'), percent_encoded(name));
        Address { path, ..self.clone() }
    }

    /// The folder and the name of what is named last.
    pub fn split(&self) -> Option<(Address, String)> {
        let (folder, name) = self.path.trim_end_matches('/').rsplit_once('/')?;
        let name = String::from_utf8(percent_decoded(name)).ok()?;
        Some((Address { path: format!("{folder}/"), ..self.clone() }, name))
    }

    /// Where a redirect leads; `None` if that is no address, or if it leaves an encrypted connection.
    pub fn redirected(&self, location: &str) -> Option<Address> {
        if location.starts_with("//") {
            return Address::parse(&format!("{}:{location}", self.scheme)).map(|(address, _)| address);
        }
        if location.starts_with('/') {
            return Some(Address { path: location.to_owned(), ..self.clone() });
        }
        let (address, _) = Address::parse(location)?;
        (self.scheme == "http" || address.scheme == "https").then_some(address)
    }

    /// Scheme and host.
    fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.host)
    }
}

fn percent_encoded(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes().fold(String::new(), |mut text, byte| {
        match is_plain(byte) {
            true => text.push(byte.into()),
            false => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut left) = (Vec::new(), text.as_bytes());
    while let [first, rest @ ..] = left {
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        left = if byte.is_some() { &rest[2..] } else { rest };
    }
    bytes
}

/// Base64 of RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |chunk: &[u8]| {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let digit = |place: usize| match place <= chunk.len() {
            true => char::from(DIGITS[(word >> (18 - 6 * place)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Address {
        Address::parse(url).unwrap().0
    }

    #[test]
    fn credentials_are_taken_out_of_addresses() {
        let (address, credentials) = Address::parse("https://me:p%40ss@Host:8080/a/b").unwrap();
        let credentials = credentials.unwrap();
        // RFC 7617: base64 of `me:p@ss`.
        assert_eq!(
            (address.url().as_str(), credentials.header.as_str()),
            ("https://host:8080/a/b", "Basic bWU6cEBzcw==")
        );
        assert!(credentials.are_for(&address) && !format!("{credentials:?} {address:?}").contains("cEBzcw"));
        for elsewhere in ["https://host/a", "http://host:8080/a", "https://host2:8080/a"] {
            assert!(!credentials.are_for(&self::address(elsewhere)), "{elsewhere}");
        }
        for wrong in ["s3://bucket/a", "https://", "https:///a", "/a/b", "https://a b/", "https://a/\r\nX: y"] {
            assert!(Address::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn names_are_joined_and_taken_apart() {
        let folder = address("https://host/m/");
        assert_eq!(folder.join("a b/é.bin").url(), "https://host/m/a%20b/%C3%A9.bin");
        let (parent, name) = address("https://host/m/a%20b.safetensors").split().unwrap();
        assert_eq!((parent.url().as_str(), name.as_str()), ("https://host/m/", "a b.safetensors"));
        assert_eq!(address("https://host").join("a").url(), "https://host/a");
    }

    #[test]
    fn redirects_are_followed_except_from_encrypted_to_plain() {
        let from = address("https://host/m/a?x=1");
        let to = |location: &str| from.redirected(location).map(|address| address.url());
        assert_eq!(to("/b?y=2").as_deref(), Some("https://host/b?y=2"));
        assert_eq!(to("//cdn/b").as_deref(), Some("https://cdn/b"));
        assert_eq!(to("https://cdn/b?sig=1").as_deref(), Some("https://cdn/b?sig=1"));
        assert_eq!((to("http://cdn/b"), to("ftp://cdn/b")), (None, None));
        assert_eq!(from.to_string(), "https://host/m/a", "a query may be a signature");
    }
}
