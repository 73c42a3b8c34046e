//! The HTTP client by which OpenDAL sends requests. It notes a response's headers itself, because OpenDAL hands on only some of them, and fails
//! at headers that it cannot read. No URL, header or body gets into an error, since all of them may hold credentials.

use futures::TryStreamExt;
use opendal::raw::{HttpBody, HttpFetch, Operation};
use opendal::{Buffer, Error, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

tokio::task_local! {
    /// The request under way in this task.
    pub(crate) static EXCHANGE: Arc<Exchange>;
}

/// Most bytes of an error response's body that are read.
const LONGEST_REFUSAL: usize = 16 << 10;
/// The longest Retry-After that is believed, seconds: a day.
const LONGEST_WAIT: u64 = 24 * 60 * 60;

/// One request for an object: what this crate adds to OpenDAL's request, and what came back.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Replaces the URL that OpenDAL makes, which has no query string.
    pub url: Option<reqwest::Url>,
    /// The ETag for If-Match, for services with which OpenDAL sends none.
    pub if_match: Option<String>,
    end: Mutex<End>,
}

/// How far a request came.
#[derive(Clone, Debug, Default)]
pub(crate) enum End {
    /// Nothing was sent: no credentials, or no HTTP.
    #[default]
    Unsent,
    /// No answer came, for a reason.
    Failed(String),
    Answered(Answer),
}

/// The headers of a response, and its error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub status: u16,
    pub etag: Option<String>,
    pub version: Option<String>,
    pub modified: Option<String>,
    /// The range of the object's bytes that was sent, and the object's length.
    pub range: Option<(Range<u64>, u64)>,
    pub len: Option<u64>,
    pub retry_after: Option<Duration>,
    /// The error's name in S3, GCS and Azure.
    pub code: Option<String>,
    /// The AWS region of the bucket.
    pub region: Option<String>,
}

impl Exchange {
    pub fn end(&self) -> End {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, end: End) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }
}

/// The client. One serves all objects of a process, so that connections are used again.
#[derive(Clone)]
pub(crate) struct Client(reqwest::Client);

impl Client {
    pub fn new() -> Result<Self, String> {
        // OpenDAL makes clients of its own, which are never used but need a provider of cryptography. If the program has installed one, it
        // stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .tcp_keepalive(Duration::from_secs(30))
            // A URL may be signed, so no other host may see it.
            .referer(false)
            .user_agent(concat!("fastmap/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Client(client.map_err(reason)?))
    }
}

impl HttpFetch for Client {
    async fn fetch(&self, request: http::Request<Buffer>) -> opendal::Result<http::Response<HttpBody>> {
        // Requests for credentials have no operation.
        let is_ours = request.extensions().get::<Operation>().is_some();
        let exchange = is_ours.then(|| EXCHANGE.try_with(Arc::clone).ok()).flatten();
        let (parts, body) = request.into_parts();
        let is_head = parts.method == http::Method::HEAD;
        let failed = |why: String| {
            let error = Error::new(ErrorKind::Unexpected, &why).set_temporary();
            exchange.iter().for_each(|exchange| exchange.set(End::Failed(why.clone())));
            error
        };
        let url = match exchange.as_ref().and_then(|exchange| exchange.url.clone()) {
            Some(url) => url,
            None => reqwest::Url::parse(&parts.uri.to_string()).map_err(|error| failed(error.to_string()))?,
        };
        // The metadata service of a cloud, which gives out credentials. On other machines nothing answers at its address.
        let is_metadata =
            url.host_str().is_some_and(|host| host.starts_with("169.254.") || host == "metadata.google.internal");
        let mut builder = self.0.request(parts.method, url).headers(parts.headers);
        if !is_ours {
            builder = builder.timeout(Duration::from_secs(if is_metadata { 2 } else { 20 }));
        }
        if let Some(etag) = exchange.as_ref().and_then(|exchange| exchange.if_match.as_deref()) {
            builder = builder.header(http::header::IF_MATCH, etag);
        }
        if !body.is_empty() {
            builder = builder.body(body.to_bytes());
        }
        let mut response = builder.send().await.map_err(|error| failed(reason(error)))?;

        let mut answer = read_headers(&response);
        let status = response.status();
        let mut said = http::Response::builder().status(status).version(response.version());
        if let Some(headers) = said.headers_mut() {
            std::mem::swap(headers, response.headers_mut());
            // The time is compared as text. OpenDAL would fail if it cannot read it.
            headers.remove(http::header::LAST_MODIFIED);
        }
        let is_refusal = is_ours && !status.is_success();
        let body = if is_refusal {
            answer.code = refusal(response).await;
            HttpBody::new(futures::stream::empty(), None)
        } else {
            let len = answer.len.filter(|_| !is_head);
            let bytes = response.bytes_stream().map_ok(Buffer::from);
            HttpBody::new(bytes.map_err(|error| Error::new(ErrorKind::Unexpected, reason(error)).set_temporary()), len)
        };
        if let Some(exchange) = exchange {
            exchange.set(End::Answered(answer));
        }
        said.body(body).map_err(|error| Error::new(ErrorKind::Unexpected, error.to_string()))
    }
}

/// The reason of an error, without the URL.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut said = error.to_string();
    let mut source = std::error::Error::source(&error);
    // The innermost error names the reason.
    while let Some(inner) = source {
        said = inner.to_string();
        source = inner.source();
    }
    said
}

fn read_headers(response: &reqwest::Response) -> Answer {
    let text = |name: &str| {
        let text = String::from_utf8_lossy(response.headers().get(name)?.as_bytes()).trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let number = |name: &str| text(name)?.parse::<u64>().ok();
    let is_encoded = response.headers().contains_key(http::header::CONTENT_ENCODING);
    Answer {
        status: response.status().as_u16(),
        etag: text("etag"),
        version: text("x-amz-version-id").filter(|version| version != "null").or_else(|| text("x-goog-generation")),
        modified: text("last-modified"),
        range: text("content-range").and_then(|range| content_range(&range)),
        len: number("content-length").filter(|_| !is_encoded),
        retry_after: number("retry-after").map(|seconds| Duration::from_secs(seconds.min(LONGEST_WAIT))),
        code: None,
        region: text("x-amz-bucket-region").filter(|region| is_name(region)),
    }
}

/// Reads a Content-Range such as `bytes 0-9/100`, or `bytes */100` for a range that the object does not have.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, len) = text.strip_prefix("bytes")?.trim().split_once('/')?;
    let len = len.parse().ok()?;
    if range == "*" {
        return Some((0..0, len));
    }
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?, len))
}

/// The name that S3, GCS and Azure give an error, from the response's body.
async fn refusal(mut response: reqwest::Response) -> Option<String> {
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > LONGEST_REFUSAL {
            break;
        }
    }
    let text = String::from_utf8_lossy(&body);
    let (_, code) = text.split_once("<Code>")?;
    let (code, _) = code.split_once("</Code>")?;
    is_name(code).then(|| code.to_owned())
}

/// Whether a text looks like a name, and so may be shown whoever sent it.
fn is_name(text: &str) -> bool {
    text.len() < 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::content_range;

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 5-9/100"), Some((5..10, 100)));
        assert_eq!(content_range("bytes */0"), Some((0..0, 0)));
        for wrong in ["", "bytes", "bytes 1/2", "lines 0-1/2", "bytes 0-18446744073709551615/1", "bytes 0-1/*"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
