//! One version of one object, and how ranges of it are fetched. A failed request is sent again until a deadline. A late one gets a second one
//! beside it. No byte of another version is handed on.
//!
//! Opening the object notes length and ETag of a response to a GET (without an ETag its version id, else its modification time). All later
//! responses must have the same, whatever If-Match was sent.

use crate::client::{Answer, Client, EXCHANGE, End, Exchange};
use crate::times::Times;
use crate::url::{Found, Location, Reached, Service};
use fastmap_tier::Version;
use futures::StreamExt;
use opendal::layers::HttpClientLayer;
use opendal::raw::HttpClient;
use opendal::{Buffer, BufferStream, ErrorKind, Operator};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The pause between two tries is random, up to a maximum. The maximum begins at twice this, and doubles with each try up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Tries to reach a store when an object is opened. Then a store that never answered is given up: the host's name may be mistyped.
const TRIES_TO_REACH: u32 = 4;
/// Bytes asked for by second requests are at most one in so many bytes fetched.
const HEDGED: u64 = 20;

/// Counts of an object since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub fetched: AtomicU64,
    pub requests: AtomicU64,
    pub retries: AtomicU64,
    pub hedges: AtomicU64,
    hedged: AtomicU64,
}

/// Why a range was not fetched.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub errno: i32,
    pub why: String,
}

/// Why one try failed, and what follows.
#[derive(Debug)]
enum Trouble {
    /// The request is sent again.
    Again {
        why: String,
        after: Option<Duration>,
        is_reached: bool,
    },
    /// The request is sent again once, with credentials found anew.
    Denied(String),
    /// There are no credentials.
    Unsigned,
    /// The bucket is in another region.
    Elsewhere(String),
    Final(Failure),
}

/// An object at one version.
pub(crate) struct Source {
    location: Location,
    client: Client,
    store: Mutex<Store>,
    version: Version,
    /// The version as the store named it when the object was opened.
    said: Option<Version>,
    /// A request is given up if its answer, or the next part of it, takes longer than this.
    patience: Duration,
    pub times: Times,
    pub counters: Counters,
}

struct Store {
    found: Found,
    operator: Operator,
    path: String,
    endpoint: Option<String>,
    /// How often credentials were found anew.
    renewed: u64,
}

/// A request whose first bytes have come.
struct Opened {
    stream: BufferStream,
    exchange: Arc<Exchange>,
    first: Option<Buffer>,
    asked: Instant,
    answered: Instant,
}

impl Source {
    /// Finds the object, and notes its version.
    pub async fn open(location: Location, client: Client, deadline: Option<Duration>) -> Result<Source, Failure> {
        let store = Store::reach(&location, &client, Found::default(), 0)?;
        let longest = deadline.unwrap_or(Duration::from_secs(30));
        let version = Version { url: location.name.clone(), etag: None, version: None, modified: None, len: 0 };
        let mut source = Source {
            location,
            client,
            store: Mutex::new(store),
            version,
            said: None,
            patience: (longest / 3).clamp(Duration::from_millis(200), Duration::from_secs(10)),
            times: Times::default(),
            counters: Counters::default(),
        };
        let mut tries = Tries::until(Instant::now() + longest);
        tries.gives_up = true;
        source.version = loop {
            match source.look().await {
                Ok(version) => break version,
                Err(trouble) => tries.after(&source, trouble).await?,
            }
        };
        source.said = Some(source.version.clone());
        // At another endpoint the same name means another object.
        let endpoint = source.store().endpoint.clone();
        if let Some(endpoint) = endpoint {
            let version = source.version.version.take().unwrap_or_default();
            source.version.version = Some(format!("{version} at {endpoint}"));
        }
        Ok(source)
    }

    pub fn version(&self) -> &Version {
        &self.version
    }

    /// The version that the store has now.
    async fn look(&self) -> Result<Version, Trouble> {
        let url = self.location.name.clone();
        if !self.location.is_http() {
            return self.stat().await;
        }
        // A GET and not a HEAD: it is later compared with GETs, and a signed URL may allow nothing else.
        let answer = match self.begin(0..1).await {
            Ok(opened) => match opened.exchange.end() {
                End::Answered(answer) => answer,
                _ => return Err(again("it did not answer")),
            },
            Err(Trouble::Final(Failure { errno: libc::ESTALE, .. })) => return self.stat().await,
            Err(trouble) => return Err(trouble),
        };
        let Some((_, len)) = answer.range else {
            let why =
                "the server gives whole objects only, and no ranges of them: download the object, and map the file"
                    .to_owned();
            return Err(Trouble::Final(Failure { errno: libc::EIO, why }));
        };
        Ok(Version { url, etag: answer.etag, version: answer.version, modified: answer.modified, len })
    }

    /// The same by a stat, for a service whose responses do not say the version, and for an object without bytes.
    async fn stat(&self) -> Result<Version, Trouble> {
        let (operator, path, _) = self.operator();
        let exchange = Arc::new(self.exchange());
        let stat = EXCHANGE.scope(exchange.clone(), async { operator.stat(&path).await });
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let found = timeout(self.patience, stat).await.map_err(|_| again("it did not answer"))?;
        let found = found.map_err(|error| self.trouble(&exchange, &error))?;
        if !found.is_file() {
            return Err(Trouble::Final(Failure { errno: libc::EIO, why: "is a folder, not an object".to_owned() }));
        }
        let mut version = Version {
            url: self.location.name.clone(),
            etag: found.etag().map(str::to_owned),
            version: found.version().map(str::to_owned),
            modified: found.last_modified().map(|time| time.to_string()),
            len: found.content_length(),
        };
        if let End::Answered(answer) = exchange.end() {
            version.modified = version.modified.or(answer.modified);
        }
        Ok(version)
    }

    /// Fetches a range, and passes it to `take` piece by piece, in order.
    pub async fn fetch(
        &self,
        range: Range<u64>,
        deadline: Instant,
        mut take: impl FnMut(&[u8]) -> io::Result<()> + Send,
    ) -> Result<(), Failure> {
        let mut tries = Tries::until(deadline);
        let mut at = range.start;
        while at < range.end {
            let before = at;
            let trouble = tokio::select! {
                done = self.attempt(&mut at, range.end, &mut take) => done.err(),
                () = sleep_until(deadline) => Some(again("it did not answer")),
            };
            if at > before {
                tries.made = 0;
            }
            if let Some(trouble) = trouble {
                tries.after(self, trouble).await?;
            }
        }
        Ok(())
    }

    async fn attempt(
        &self,
        at: &mut u64,
        end: u64,
        take: &mut (impl FnMut(&[u8]) -> io::Result<()> + Send),
    ) -> Result<(), Trouble> {
        let begin = *at;
        let Opened { mut stream, exchange, first, asked, answered } = self.begin_hedged(begin..end).await?;
        // If the service's responses do not say the version, the bytes wait until the version has been looked at.
        let mut waiting = Vec::new();
        let mut came = begin;
        let mut part = first;
        while let Some(buffer) = part {
            came += buffer.len() as u64;
            self.counters.fetched.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            if came > end {
                return Err(again("it sent more than was asked for"));
            }
            for bytes in buffer {
                if self.location.is_http() {
                    take(&bytes).map_err(no_room)?;
                    *at += bytes.len() as u64;
                } else {
                    waiting.extend_from_slice(&bytes);
                }
            }
            let next = EXCHANGE.scope(exchange.clone(), stream.next());
            let next = timeout(self.patience, next).await.map_err(|_| again("it stopped in the middle"))?;
            part = next.transpose().map_err(|_| again("the connection broke in the middle"))?;
        }
        if came < end {
            return Err(again("it sent less than was asked for"));
        }
        if !self.location.is_http() {
            let now = self.stat().await?;
            if (now.len, &now.modified) != (self.version.len, &self.version.modified) {
                return Err(Trouble::Final(changed()));
            }
            take(&waiting).map_err(no_room)?;
            *at = came;
        }
        self.times.note(answered - asked, came - begin, answered.elapsed());
        Ok(())
    }

    /// Sends a request, and a second one when the first is late. Takes the answer that comes first.
    async fn begin_hedged(&self, range: Range<u64>) -> Result<Opened, Trouble> {
        let len = range.end - range.start;
        let first = self.begin(range.clone());
        tokio::pin!(first);
        let Some(late) = self.times.late() else {
            return first.await;
        };
        tokio::select! {
            biased;
            opened = &mut first => return opened,
            () = sleep(late) => {}
        }
        let counters = &self.counters;
        if counters.hedged.load(Ordering::Relaxed) + len > counters.fetched.load(Ordering::Relaxed) / HEDGED {
            return first.await;
        }
        counters.hedged.fetch_add(len, Ordering::Relaxed);
        counters.hedges.fetch_add(1, Ordering::Relaxed);
        let second = self.begin(range);
        tokio::pin!(second);
        tokio::select! {
            opened = &mut first => if opened.is_ok() { opened } else { second.await },
            opened = &mut second => if opened.is_ok() { opened } else { first.await },
        }
    }

    /// Sends a request, and waits for its first bytes.
    async fn begin(&self, range: Range<u64>) -> Result<Opened, Trouble> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (operator, path, _) = self.operator();
        // A weak ETag never matches in If-Match. Then only the response is checked.
        let etag = self.version.etag.as_deref().filter(|etag| self.location.is_http() && !etag.starts_with("W/"));
        let is_theirs = operator.info().full_capability().read_with_if_match;
        let mut exchange = self.exchange();
        exchange.if_match = etag.filter(|_| !is_theirs).map(str::to_owned);
        let exchange = Arc::new(exchange);
        let asked = Instant::now();
        let opened = EXCHANGE.scope(exchange.clone(), async {
            let mut reader = operator.reader_with(&path);
            if let Some(etag) = etag.filter(|_| is_theirs) {
                reader = reader.if_match(etag);
            }
            let mut stream = reader.await?.into_stream(range.clone()).await?;
            let first = stream.next().await.transpose()?;
            Ok((stream, first))
        });
        let opened = timeout(self.patience, opened).await.map_err(|_| again("it did not answer"))?;
        let (stream, first) = opened.map_err(|error: opendal::Error| self.trouble(&exchange, &error))?;
        if let End::Answered(answer) = exchange.end()
            && self.location.is_http()
        {
            self.check(&answer, range)?;
        }
        Ok(Opened { stream, exchange, first, asked, answered: Instant::now() })
    }

    /// Fails unless an answer is of this version, and of the range that was asked for.
    fn check(&self, answer: &Answer, range: Range<u64>) -> Result<(), Trouble> {
        let version = &self.version;
        // Before the object is open, there is no version to compare with.
        let is_first = self.said.is_none();
        let whole = Some((0..answer.len.unwrap_or(0), answer.len.unwrap_or(0)));
        let (of, len) = match &answer.range {
            Some(range) => range.clone(),
            None if answer.status == 200 && !is_first && whole == Some((range.clone(), version.len)) => {
                (range.clone(), version.len)
            }
            None if is_first => return Ok(()),
            None => return Err(again("it did not say which part of the object it sent")),
        };
        // Each response must say what the first one said.
        let (known, said) = match &self.said {
            Some(said) if said.etag.is_some() => (&said.etag, &answer.etag),
            Some(said) if said.version.is_some() => (&said.version, &answer.version),
            Some(said) => (&said.modified, &answer.modified),
            None => (&None, &None),
        };
        if !is_first && len != version.len || known.is_some() && said.is_some() && known != said {
            return Err(Trouble::Final(changed()));
        }
        if known.is_some() && said.is_none() {
            return Err(again("it did not say which version of the object it sent"));
        }
        if of != range {
            return Err(again("it sent another part of the object than was asked for"));
        }
        Ok(())
    }

    /// The meaning of an error of OpenDAL. Mostly the response decides, since OpenDAL's services turn it into different errors. The error's text
    /// is not kept, because it holds URLs and bodies of responses.
    fn trouble(&self, exchange: &Exchange, error: &opendal::Error) -> Trouble {
        let failed = |errno, why: &str| Trouble::Final(Failure { errno, why: why.to_owned() });
        let answer = match exchange.end() {
            End::Answered(answer) => answer,
            End::Failed(why) => return Trouble::Again { why, after: None, is_reached: false },
            End::Unsent if self.location.is_signed() && error.kind() != ErrorKind::ConfigInvalid => {
                return Trouble::Unsigned;
            }
            End::Unsent => {
                return match error.kind() {
                    ErrorKind::NotFound => failed(libc::ENOENT, "there is no such object"),
                    ErrorKind::PermissionDenied => failed(libc::EACCES, "permission denied"),
                    ErrorKind::Unexpected => again("it cannot be read"),
                    kind => failed(libc::EIO, &format!("cannot be read ({kind})")),
                };
            }
        };
        let code = answer.code.as_deref().unwrap_or("");
        let said = |what: &str| {
            format!("{what} (HTTP status {}{}{code})", answer.status, if code.is_empty() { "" } else { ", " })
        };
        let renewable =
            ["ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed"].contains(&code);
        match answer.status {
            200..=299 => again("the answer was cut short, or cannot be read"),
            401 | 403 => Trouble::Denied(said("access denied")),
            400 if renewable => Trouble::Denied(said("access denied")),
            404 | 410 => failed(libc::ENOENT, &said("there is no such object")),
            412 | 416 => failed(libc::ESTALE, &changed().why),
            301 | 307 | 400 if answer.region.is_some() => Trouble::Elsewhere(answer.region.unwrap_or_default()),
            400 if code != "RequestTimeout" => failed(libc::EIO, &said("the request was refused")),
            400 | 408 | 425 | 429 | 500 | 502..=504 | 506..=599 => {
                Trouble::Again { why: said("the store is not available"), after: answer.retry_after, is_reached: true }
            }
            _ => failed(libc::EIO, &said("the request was refused")),
        }
    }

    fn exchange(&self) -> Exchange {
        let mut exchange = Exchange::default();
        if let Service::Http { url } = &self.location.service {
            exchange.url = Some(url.clone());
        }
        exchange
    }

    fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn operator(&self) -> (Operator, String, u64) {
        let store = self.store();
        (store.operator.clone(), store.path.clone(), store.renewed)
    }

    /// Finds credentials anew, with a change of what is known of the service, unless another request has done so since.
    fn renew(&self, since: u64, change: impl FnOnce(&mut Found)) -> Result<(), Failure> {
        let mut store = self.store();
        if store.renewed == since {
            let mut found = store.found.clone();
            change(&mut found);
            *store = Store::reach(&self.location, &self.client, found, since + 1)?;
        }
        Ok(())
    }
}

impl Store {
    fn reach(location: &Location, client: &Client, found: Found, renewed: u64) -> Result<Store, Failure> {
        let Reached { operator, path, endpoint } = location.reach(&found).map_err(|error| {
            // The message may hold parts of a connection string, including keys.
            let why = match location.service {
                Service::Azure { .. } => {
                    "look at AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY"
                }
                _ => error.message(),
            };
            Failure { errno: libc::EIO, why: format!("cannot be reached as things are set: {why}") }
        })?;
        let endpoint = endpoint.map(without_user);
        let operator = operator.layer(HttpClientLayer::new(HttpClient::with(client.clone())));
        Ok(Store { found, operator, path, endpoint, renewed })
    }
}

/// The tries of a range: how many were made, and until when they go on.
struct Tries {
    deadline: Instant,
    made: u32,
    renewed: Option<u64>,
    /// Whether a store that never answered is given up early ([`TRIES_TO_REACH`]).
    gives_up: bool,
}

impl Tries {
    fn until(deadline: Instant) -> Self {
        Tries { deadline, made: 0, renewed: None, gives_up: false }
    }

    /// Waits until it is time to try again. Fails if there is to be no other try.
    async fn after(&mut self, source: &Source, trouble: Trouble) -> Result<(), Failure> {
        let renewed = source.operator().2;
        let (why, after, is_reached) = match trouble {
            Trouble::Final(failure) => return Err(failure),
            Trouble::Unsigned if self.gives_up && !source.store().found.is_anonymous => {
                return source.renew(renewed, |found| found.is_anonymous = true);
            }
            trouble @ (Trouble::Denied(_) | Trouble::Unsigned) => {
                let why = match trouble {
                    Trouble::Denied(why) => why,
                    _ => "there are no credentials any more".to_owned(),
                };
                if self.renewed.is_some() {
                    return Err(Failure { errno: libc::EACCES, why });
                }
                self.renewed = Some(renewed);
                return source.renew(renewed, |_| {});
            }
            Trouble::Elsewhere(region) => {
                if source.store().found.region.as_ref() == Some(&region) {
                    return Err(Failure {
                        errno: libc::EIO,
                        why: format!("its bucket's region {region} refused the request"),
                    });
                }
                return source.renew(renewed, |found| found.region = Some(region));
            }
            Trouble::Again { why, after, is_reached } => (why, after, is_reached),
        };
        self.made += 1;
        source.counters.retries.fetch_add(1, Ordering::Relaxed);
        let most = LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.saturating_pow(self.made.min(16)));
        let pause = most.mul_f64(random()).max(after.unwrap_or_default());
        let is_over =
            Instant::now() + pause >= self.deadline || (self.gives_up && !is_reached && self.made >= TRIES_TO_REACH);
        tracing::debug!(object = %source.location.name, tries = self.made, why, "an object's part is fetched again");
        if is_over {
            // At the opening the error is returned at once. A fetch would be begun anew as soon as it fails, so it waits for the deadline.
            if !self.gives_up {
                sleep_until(self.deadline).await;
            }
            return Err(Failure { errno: libc::ETIMEDOUT, why: format!("the store does not give it: {why}") });
        }
        sleep(pause).await;
        Ok(())
    }
}

/// An endpoint without user and password, which may be shown.
fn without_user(endpoint: String) -> String {
    match (endpoint.split_once("://"), endpoint.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        (None, Some((_, place))) => place.to_owned(),
        (_, None) => endpoint,
    }
}

fn again(why: &str) -> Trouble {
    Trouble::Again { why: why.to_owned(), after: None, is_reached: true }
}

fn changed() -> Failure {
    Failure { errno: libc::ESTALE, why: "the object has changed since it was opened".to_owned() }
}

fn no_room(error: io::Error) -> Trouble {
    let errno = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => libc::ENOSPC,
        _ => libc::EIO,
    };
    Trouble::Final(Failure { errno, why: format!("its local copy cannot be written: {error}") })
}

/// A random number from 0 to 1, seeded anew by each call.
fn random() -> f64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(Instant::now().elapsed().as_nanos() as u64);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}
