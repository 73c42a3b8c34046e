//! The public interface: objects, and maps of them.

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

/// The default deadline: how long a map waits for the store.
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
    /// Options with the process's cache, the user's folder of local copies, and a deadline of 30 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// The cache that limits the memory of a map's pages. Default: [`Cache::global`].
    pub fn cache(&mut self, cache: &Cache) -> &mut Self {
        self.cache = Some(cache.clone());
        self
    }

    /// The folder of local copies. [`Tier::open`] says which is the default, and how large it may be.
    pub fn tier(&mut self, tier: &Arc<Tier>) -> &mut Self {
        self.tier = Some(tier.clone());
        self
    }

    /// How long a map waits for the store; `None`: for ever. When the deadline has passed, [`Map::read_at`], [`Map::pin`] and [`Map::gather`]
    /// return an error, and a load raises SIGBUS. Opening an object has the same deadline; without one it gives up after 30 s.
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

    /// Opens an object without mapping it.
    ///
    /// # Errors
    /// [`Error::Url`] and [`Error::Store`] for the object, [`Error::Tier`] for its local copy, [`Error::Io`] if the process gets no threads.
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

/// An object of a store at one version, with its local copy. Parts are fetched when they are asked for.
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

    /// The local copy. A map of the object maps its file. Its version identifies the object.
    pub fn local(&self) -> &Arc<Local> {
        &self.remote.local
    }

    /// The slots in which this process, and its children made by fork(2), ask for parts while the object is open here.
    pub fn asking(&self) -> &Arc<Asking> {
        &self.server.asking
    }

    /// The number by which the object is asked for.
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

    /// The origin by which the engine maps it.
    pub fn origin(&self) -> Arc<TierOrigin> {
        TierOrigin::new(self.local().clone(), self.asking().clone(), self.number, self.remote.deadline)
    }

    /// Counts since it was opened.
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

/// Counts of an object since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Bytes that came from the store.
    pub fetched: u64,
    /// Bytes that were read from the local copy, and were right.
    pub hit: u64,
    /// Bytes that were evicted from the local copy without having been read.
    pub wasted: u64,
    /// Requests sent to the store, `retries` and `hedges` included.
    pub requests: u64,
    /// Requests that were sent again because the one before had failed.
    pub retries: u64,
    /// Second requests, sent because the first was late.
    pub hedges: u64,
    /// Units (256 KiB) of the local copy whose bytes were no longer those that had been written there. They were fetched anew.
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
    // Declared first, so it is unmapped before the object is dropped.
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

    /// Counts of the object since it was opened.
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

/// Fetches parts of objects for other processes, in this thread, until `stop` is set. The thread notices that within 200 ms, or at once after
/// [`Asking::ring`]. The processes ask for an object by its index in `objects`.
///
/// # Errors
/// [`Error::Io`] if the process gets no threads.
pub fn serve(asking: Arc<Asking>, objects: &[Object], stop: &AtomicBool) -> Result<()> {
    let runtime = Process::get()?.server.runtime.clone();
    let objects: HashMap<u32, _> = (0..).zip(objects.iter().map(|object| object.remote.clone())).collect();
    Server { asking, objects: RwLock::new(objects), runtime }.run(stop);
    Ok(())
}
