//! The HTTP client that OpenDAL sends requests with: what a response said of the object is noted beside it, because OpenDAL hands on only a
//! part of it and refuses headers that it cannot read; and no URL, header or body gets into an error, since all of them may hold credentials.

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

/// Of a body that says what went wrong no more than this is looked at.
const LONGEST_REFUSAL: usize = 16 << 10;
/// A store that wants to be asked again later than after a day is not believed, seconds.
const LONGEST_WAIT: u64 = 24 * 60 * 60;

/// One request of ours: what is added to OpenDAL's, and what came back.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Goes in place of the URL that OpenDAL makes: it knows of no queries.
    pub url: Option<reqwest::Url>,
    /// For services by which OpenDAL sends none.
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

/// What a response said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub status: u16,
    pub etag: Option<String>,
    pub version: Option<String>,
    pub modified: Option<String>,
    /// Of the object's bytes; and how long the object is.
    pub range: Option<(Range<u64>, u64)>,
    pub len: Option<u64>,
    pub retry_after: Option<Duration>,
    /// What S3 and its kin call an error.
    pub code: Option<String>,
    /// The region of AWS in which the bucket is.
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

/// The client, one for all objects of a process: connections are used again.
#[derive(Clone)]
pub(crate) struct Client(reqwest::Client);

impl Client {
    pub fn new() -> Result<Self, String> {
        // OpenDAL makes clients of its own, which are never used, but need a provider. A program's own that is there already stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .tcp_keepalive(Duration::from_secs(30))
            // A URL may be signed: another host is not told of it.
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
        // A machine that is no part of a cloud has nobody at the address that gives out credentials there.
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
            // Whatever it is, it is compared and not read.
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

/// What went wrong, without the URL.
fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut said = error.to_string();
    let mut source = std::error::Error::source(&error);
    // The innermost is the one that says it.
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

/// `bytes 0-9/100`, and `bytes */100` of a range that is not there.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, len) = text.strip_prefix("bytes")?.trim().split_once('/')?;
    let len = len.parse().ok()?;
    if range == "*" {
        return Some((0..0, len));
    }
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?, len))
}

/// The word by which S3, GCS and Azure name an error.
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

/// Whether it may be shown, whoever sent it.
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
