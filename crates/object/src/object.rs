//! The public face: objects, and maps of them.

use crate::error::{Error, Result};
use crate::fetch::Source;
use crate::process::Process;
use crate::serve::{Remote, Server, load};
use crate::url::Location;
use fastmap::{Cache, Map, MapOptions};
use fastmap_tier::{Asking, Local, Tier, TierOrigin};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How long a store may take to give what is waited for, where nothing else is said.
const DEADLINE: Duration = Duration::from_secs(30);

/// How an object is opened.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    cache: Option<Cache>,
    tier: Option<Arc<Tier>>,
    deadline: Option<Duration>,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        ObjectOptions { cache: None, tier: None, deadline: Some(DEADLINE) }
    }
}

impl ObjectOptions {
    /// The process's cache, the user's folder of local copies, and a deadline of 30 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory that pages of a map may take ([`Cache::global`] otherwise).
    pub fn cache(&mut self, cache: &Cache) -> &mut Self {
        self.cache = Some(cache.clone());
        self
    }

    /// The folder of local copies ([`Tier::open`] says which it is otherwise, and how large it may be).
    pub fn tier(&mut self, tier: &Arc<Tier>) -> &mut Self {
        self.tier = Some(tier.clone());
        self
    }

    /// How long the store may take to give what is waited for; `None`: for ever. After it [`Map::read_at`], [`Map::pin`] and [`Map::gather`] give an
    /// error, and a load raises SIGBUS. To open an object takes 30 s at most, whatever is said here.
    pub fn deadline(&mut self, deadline: Option<Duration>) -> &mut Self {
        self.deadline = deadline;
        self
    }

    /// Opens an object and maps it.
    ///
    /// # Errors
    /// As [`ObjectMap::open`].
    pub fn map(&self, url: &str) -> Result<ObjectMap> {
        let object = self.open(url)?;
        let mut options = MapOptions::new();
        if let Some(cache) = &self.cache {
            options.cache(cache);
        }
        let map = options.map_origin(object.local().file(), object.origin())?;
        Ok(ObjectMap { map, object })
    }

    /// Opens an object, to be mapped by other means.
    ///
    /// # Errors
    /// [`Error::Url`] and [`Error::Store`] of the object, [`Error::Tier`] of its local copy, [`Error::Io`] where the process gets no threads.
    pub fn open(&self, url: &str) -> Result<Object> {
        let location = Location::parse(url)?;
        let process = Process::get()?;
        let tier = match &self.tier {
            Some(tier) => tier.clone(),
            None => process.tier()?,
        };
        let name = location.name.clone();
        let source = process.wait(Source::open(location, process.client.clone(), self.deadline))?;
        let source = source.map_err(|failure| Error::Store { url: name, errno: failure.errno, why: failure.why })?;
        let local = tier.local(source.version())?;
        let remote = Remote::new(source, local, tier, self.deadline, process.permits.clone());
        Ok(Object::new(Arc::new(remote), process.server.clone()))
    }
}

/// An object of a store at one version, with its local copy: parts come when they are asked for.
pub struct Object {
    remote: Arc<Remote>,
    server: Arc<Server>,
    number: u32,
}

impl fmt::Debug for Object {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Object")
            .field("version", self.local().version())
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Object {
    fn new(remote: Arc<Remote>, server: Arc<Server>) -> Object {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        server.objects.write().unwrap_or_else(PoisonError::into_inner).insert(number, remote.clone());
        Object { remote, server, number }
    }

    /// Opens an object.
    ///
    /// # Errors
    /// As [`ObjectOptions::open`].
    pub fn open(url: &str) -> Result<Object> {
        ObjectOptions::new().open(url)
    }

    /// The local copy: its file is what is mapped, and its version says which object it is of.
    pub fn local(&self) -> &Arc<Local> {
        &self.remote.local
    }

    /// Where its parts are asked for, in this process and its children by fork(2), while the object is open here.
    pub fn asking(&self) -> &Arc<Asking> {
        &self.server.asking
    }

    /// What it is asked for by.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Length, bytes.
    pub fn len(&self) -> u64 {
        self.local().version().len
    }

    /// Whether the object has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the engine maps it by.
    pub fn origin(&self) -> Arc<TierOrigin> {
        TierOrigin::new(self.local().clone(), self.asking().clone(), self.number, self.remote.deadline)
    }

    /// What has been done for it since it was opened.
    pub fn stats(&self) -> ObjectStats {
        let (counters, local) = (&self.remote.source.counters, self.local().stats());
        ObjectStats {
            fetched: load(&counters.fetched),
            hit: local.hit,
            wasted: local.wasted,
            requests: load(&counters.requests),
            retries: load(&counters.retries),
            hedges: load(&counters.hedges),
            wrong_units: local.wrong,
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.server.objects.write().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// What has been done for an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Bytes that came from the store.
    pub fetched: u64,
    /// Bytes that were read from the local copy, and were right.
    pub hit: u64,
    /// Bytes that were evicted from the local copy without having been read.
    pub wasted: u64,
    /// Requests sent to the store, second ones included.
    pub requests: u64,
    /// Requests that were sent again, because the one before failed.
    pub retries: u64,
    /// Second requests, sent because the first was late.
    pub hedges: u64,
    /// Units of 256 KiB of the local copy that had other bytes in them than were put there; they were fetched anew.
    pub wrong_units: u64,
}

/// A map of an object: derefs to a [`Map`], and that to the object's bytes.
///
/// ```no_run
/// use fastmap_object::ObjectMap;
///
/// let map = ObjectMap::open("s3://bucket/data.bin")?;
/// let first = map[0];
/// let mut row = [0; 256];
/// map.read_at(&mut row, 1 << 20)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ObjectMap {
    // Unmapped before the object goes.
    map: Map,
    object: Object,
}

impl ObjectMap {
    /// Opens an object and maps it read-only, at the version that it has now.
    ///
    /// # Errors
    /// Those of [`ObjectOptions::open`], and [`Error::Map`].
    pub fn open(url: &str) -> Result<ObjectMap> {
        ObjectOptions::new().map(url)
    }

    /// The object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// What has been done for the object since it was opened.
    pub fn stats(&self) -> ObjectStats {
        self.object.stats()
    }
}

impl Deref for ObjectMap {
    type Target = Map;

    fn deref(&self) -> &Map {
        &self.map
    }
}

/// Fetches parts of objects for other processes, which ask for them by their places in the list; in this thread, until `stop` is set
/// ([`Asking::ring`] has that noticed at once).
///
/// # Errors
/// [`Error::Io`] where the process gets no threads.
pub fn serve(asking: Arc<Asking>, objects: &[Object], stop: &AtomicBool) -> Result<()> {
    let runtime = Process::get()?.server.runtime.clone();
    let objects: HashMap<u32, _> = (0..).zip(objects.iter().map(|object| object.remote.clone())).collect();
    Server { asking, objects: RwLock::new(objects), runtime }.run(stop);
    Ok(())
}
