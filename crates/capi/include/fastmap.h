/* FastMap for C and C++: memory-mapped files behind ordinary pointers, with a hard memory budget.
 *
 * Link with `pkg-config --cflags --libs fastmap`. Linux on x86-64; pages are 4096 bytes. The functions
 * are shaped like mmap(2) and its kin, and may be called from any thread, though not from signal
 * handlers. One that fails sets errno, and fm_last_error() says what happened and what to do; one that
 * succeeds leaves errno alone. `fastmap doctor` says what this machine offers.
 *
 * Made by cbindgen from crates/capi/src: change those, then `make header`. */

#ifndef FASTMAP_H
#define FASTMAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

/**
 * For fm_mmap(): map in the cache, or fail. Without this flag, and without anything else that only the cache
 * has, the kernel serves the map. A file that is in memory already (on tmpfs, hugetlbfs or DAX) is then mapped
 * directly.
 */
#define FM_MAP_CACHED (1 << 24)

/**
 * For fm_mmap(): other processes may map the file for writing too, each through its own cache. If two
 * processes store to one page, the last one wins all of that page. Without this flag a map by a descriptor that
 * may write says that only this process uses the file. One by a descriptor that may only read is cached while
 * the kernel vouches that nobody has the file open to write, this process included (a lease, fcntl(2)); else the
 * kernel serves it.
 */
#define FM_MAP_MANY_WRITERS (1 << 25)

/**
 * For fm_mmap(): a store to a page that is not in memory does not wait for the read. It is buffered, and
 * applied when the page is there. Loads of the page wait. This is for small scattered stores to a slow device:
 * up to eight moves of 1 to 64 bytes a page are buffered, and all other stores wait. The flag holds for all
 * maps of the file.
 */
#define FM_MAP_ASYNC_STORES (1 << 21)

/**
 * For fm_mmap(): map directly, without a cache, or fail. Only a file in memory can be mapped so (on tmpfs,
 * hugetlbfs or DAX). Without this flag the file decides. On DAX, where the kernel offers MAP_SYNC, fm_msync()
 * of up to 64 KiB of a direct map makes no system call.
 */
#define FM_MAP_DIRECT (1 << 22)

/**
 * For fm_mmap() of a file on tmpfs or hugetlbfs: fm_msync() writes stored bytes from the processor's caches to
 * memory, by cache line. This is for memory that is persistent, or stands in for persistent memory. Without
 * this flag fm_msync() has nothing to do there.
 */
#define FM_MAP_CACHE_LINES (1 << 23)

/**
 * For fm_madvise(): the program will walk the range backward. It is read ahead in that direction. madvise(2)
 * has no such advice.
 */
#define FM_MADV_BACKWARD 1000

/**
 * For fm_pin() and fm_unpin(): the program, or a system call, stores to the range while it is pinned.
 */
#define FM_PIN_WRITE 1

/**
 * Bytes of a line: the unit of stores for fm_async_read().
 */
#define FM_LINE 64

/**
 * A cache: a limit, in bytes, on the pages in memory of all maps that were made in it. The structure is opaque.
 */
struct fm_cache;

/**
 * A range of mapped memory.
 */
struct fm_range {
  /**
   * Its first byte; need not be the first of a page.
   */
  const void *addr;
  /**
   * Bytes.
   */
  size_t length;
};

/**
 * How fm_open_url() opens an object. Each member may be 0: `struct fm_url_options options = {0};`
 */
struct fm_url_options {
  /**
   * The cache; NULL: the process's own.
   */
  struct fm_cache *cache;
  /**
   * Folder of local copies, on a local disk; it is made if it does not exist. NULL: $FASTMAP_TIER, else
   * $XDG_CACHE_HOME/fastmap, else ~/.cache/fastmap.
   */
  const char *tier;
  /**
   * Most bytes that all copies in that folder may take together, at least 16 MiB. 0: $FASTMAP_TIER_LIMIT,
   * else the folder's last limit, else a tenth of the disk's free space.
   */
  uint64_t tier_limit;
  /**
   * Seconds that a map waits for the store. 0: 30 s; INFINITY: for ever.
   */
  double deadline;
};

/**
 * Counts of a mapped object since it was opened.
 *
 * Later versions of the library may have more members at the end: pass fm_object_stats() the size that you
 * know.
 */
struct fm_object_stats {
  /**
   * Bytes that came from the store.
   */
  uint64_t fetched;
  /**
   * Bytes that were read from the local copy, and were right.
   */
  uint64_t hit;
  /**
   * Bytes evicted from the local copy without having been read.
   */
  uint64_t wasted;
  /**
   * Requests sent to the store.
   */
  uint64_t requests;
  /**
   * Of `requests`, those sent again because the one before had failed.
   */
  uint64_t retries;
  /**
   * Of `requests`, second ones, sent because the first was late.
   */
  uint64_t hedges;
  /**
   * Units of 256 KiB whose local copy had changed since it was fetched. They were fetched again.
   */
  uint64_t wrong;
};

/**
 * Counts of a cache since it was made, and its present contents. Where a comment says pages, the count is of
 * pages of 4096 bytes.
 *
 * Later versions of the library may have more members at the end: pass fm_stats() the size that you know.
 */
struct fm_stats {
  /**
   * Most bytes that may be in memory.
   */
  uint64_t capacity;
  /**
   * Pages in memory now.
   */
  uint64_t resident_pages;
  /**
   * Of `resident_pages`, those newer than their file.
   */
  uint64_t dirty_pages;
  /**
   * Of `resident_pages`, those that pins and locks keep in memory.
   */
  uint64_t pinned_pages;
  /**
   * Loads and stores that found their page absent.
   */
  uint64_t misses;
  /**
   * Pages that were missed or read ahead a short while after their eviction.
   */
  uint64_t ghost_hits;
  /**
   * Pages filled with zeros, without a read, because the file has a hole there.
   */
  uint64_t born_zero;
  /**
   * First stores to clean pages, and pages pinned for writing.
   */
  uint64_t upgrades;
  /**
   * Page faults that waited for another thread's work on the page.
   */
  uint64_t waits;
  /**
   * Streams: walks with a constant step, which the engine reads ahead of.
   */
  uint64_t streams;
  /**
   * Pages read ahead for streams.
   */
  uint64_t ahead_pages;
  /**
   * Of `ahead_pages`, those that the stream came to.
   */
  uint64_t ahead_used;
  /**
   * Of `ahead_pages`, those dropped before the stream came to them.
   */
  uint64_t ahead_wasted;
  /**
   * Stores to absent pages that did not wait (fm_async_read(), FM_MAP_ASYNC_STORES); counted as misses, too.
   */
  uint64_t async_loads;
  /**
   * Stores buffered until their page was read.
   */
  uint64_t kept_stores;
  /**
   * Lines that hold part of the initial value beside what was stored: violations of the duties of
   * fm_async_read(), as far as they can be seen.
   */
  uint64_t partial_lines;
  /**
   * Pages brought in by fm_prefetch() and its kin.
   */
  uint64_t prefetched_pages;
  /**
   * Pages dropped, to make room or on advice.
   */
  uint64_t evicted_pages;
  /**
   * Pages written to files.
   */
  uint64_t writeback_pages;
  /**
   * Writes that this took: neighbouring pages are written together.
   */
  uint64_t writeback_runs;
  /**
   * Writes that failed. Their pages are kept and tried again.
   */
  uint64_t writeback_errors;
  /**
   * fdatasync(2) calls.
   */
  uint64_t syncs;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Maps a file as mmap(2) does. By default the kernel serves the map; fm_steer() has such maps steered.
 *
 * A map is in a cache, from the first touch on, if it asks for something that only a cache has: fm_mmap_in()
 * with a cache, a flag of this library (except FM_MAP_DIRECT), or a capacity given by fm_cache_resize() with
 * NULL.
 *
 * All maps of a file in a process are served alike. If the kernel serves a file already, it serves a new map
 * of the file, too, or the call fails if FM_MAP_CACHED is given. A file that is cached stays cached.
 *
 * The process's own cache is used where no other is given. It holds the memory that others leave, except for a
 * sixteenth. (Memory is that of the machine, or of the cgroup if that is less.) The cache shrinks at once when
 * others need memory, and grows while that helps. fm_cache_resize() gives it a fixed capacity instead.
 *
 * A map can be cached if it is MAP_SHARED, of a regular file or a block device, and not executable. A file
 * that is in memory already is mapped directly instead, on DAX with MAP_SYNC if possible. Anything else goes
 * to mmap(2) with the same arguments. Length and offset are bytes.
 *
 * Cached maps of one file have the same addresses for the same bytes. A file that is mapped twice for the same
 * use has the same address twice, and must be unmapped twice. Some requests are beyond the cache. They make
 * all maps of the file kernel mappings, in place:
 * - other memory is mapped over a part of a map;
 * - a part of a map, or a second map of the same bytes, gets another protection;
 * - the same bytes are mapped at a second place.
 *
 * Use fm_munmap() and the other functions here for all maps made here, and never munmap(2) and its kin.
 *
 * A system call that is given memory of a cached map can fail with EFAULT. Use fm_pin() for as long as it
 * runs, or copy with fm_read() and fm_write(). While a file is in a cache, read(2) and write(2) of the file
 * see and change what the file has, not what is in memory.
 *
 * The library handles SIGBUS. A load that cannot be served raises it, as with mmap(2).
 *
 * A child made by fork(2) and its parent see one file. When the child first touches a map, its map and the
 * parent's become kernel mappings, in place. All maps of that file are kernel mappings from then on. A child
 * that executes a program costs nothing.
 *
 * Returns the address, or MAP_FAILED and sets errno as mmap(2), or to:
 * - EAGAIN: another process has the file in a cache for writing;
 * - EBUSY: MAP_FIXED replaces a part of a map, and pins outside of that range keep the file in the cache;
 * - an error of write(2): a file that has to leave the cache cannot be saved; then nothing is mapped over;
 * - ENOSYS, EOPNOTSUPP: FM_MAP_CACHED or FM_MAP_DIRECT asks for what cannot be;
 * - EINVAL: FM_MAP_CACHED and FM_MAP_DIRECT are given together.
 */
void *fm_mmap(void *addr,
              size_t length,
              int prot,
              int flags,
              int fd,
              off_t offset);

/**
 * fm_mmap() in the given cache; with NULL the same as fm_mmap(). All maps of a file are in the cache of its
 * first map.
 *
 * Returns as fm_mmap(); EINVAL also where `cache` is not a cache.
 */
void *fm_mmap_in(struct fm_cache *cache,
                 void *addr,
                 size_t length,
                 int prot,
                 int flags,
                 int fd,
                 off_t offset);

/**
 * munmap(2) of a whole map, a part of one, or several, cached or not. Dirty pages are written to the file; the
 * call does not wait until they are on stable storage. Pins of what is unmapped end.
 *
 * Returns 0, or -1 and sets errno: EINVAL as munmap(2).
 */
int fm_munmap(void *addr,
              size_t length);

/**
 * mremap(2). `new_address` is always passed: the new place with MREMAP_FIXED, otherwise NULL. The file is not
 * extended: use ftruncate(2), before or after.
 *
 * Returns the address, or MAP_FAILED and sets errno as mremap(2); EAGAIN also where pins keep a map in its
 * place.
 */
void *fm_mremap(void *old_address,
                size_t old_size,
                size_t new_size,
                int flags,
                void *new_address);

/**
 * msync(2). With MS_SYNC it returns when every byte of the range that was stored before is on stable storage,
 * or in persistent memory. Bytes that cannot be written stay in memory, dirty. Each later call reports the
 * error again until they are saved.
 *
 * Returns 0, or -1 and sets errno: EINVAL; ENOMEM (part of the range is not mapped); EBUSY (MS_INVALIDATE of
 * locked memory); ENOSPC, EIO and the other errors of write(2) and fdatasync(2).
 */
int fm_msync(void *addr,
             size_t length,
             int flags);

/**
 * madvise(2), and FM_MADV_BACKWARD. Advice for cached maps:
 * - MADV_NORMAL, RANDOM, SEQUENTIAL: how to read ahead (in units of 2 MiB);
 * - MADV_WILLNEED, POPULATE_READ, POPULATE_WRITE: bring pages into memory;
 * - MADV_DONTNEED, COLD, PAGEOUT: save pages and drop them;
 * - MADV_DONTFORK, DOFORK: whether children made by fork(2) get the range;
 * - MADV_HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP: no effect;
 * - any other, such as MADV_REMOVE: all maps of the file become kernel mappings.
 *
 * Returns 0, or -1 and sets errno as madvise(2), or to: EBUSY (pins keep a file in the cache); an error of
 * write(2) (the file cannot be saved).
 */
int fm_madvise(void *addr,
               size_t length,
               int advice);

/**
 * mprotect(2). A cached map stays cached if the range is the whole map, and the protection is PROT_READ, or
 * PROT_READ and PROT_WRITE. Otherwise all maps of the file become kernel mappings.
 *
 * Returns 0, or -1 and sets errno as mprotect(2), EACCES for PROT_WRITE if the file was not opened for that;
 * or to: EBUSY (pins keep the file in the cache); an error of write(2) (the file cannot be saved).
 */
int fm_mprotect(void *addr,
                size_t length,
                int prot);

/**
 * mincore(2): the lowest bit of each byte of `vec`, one byte for each page of 4096 bytes, says whether the
 * page is in memory.
 *
 * Returns 0, or -1 and sets errno: EINVAL; ENOMEM (part of the range is not mapped); EFAULT (`vec` does not
 * point to memory).
 */
int fm_mincore(void *addr,
               size_t length,
               unsigned char *vec);

/**
 * mlock(2): the range stays in memory until fm_munlock() or fm_munmap(). Locks and pins together leave a
 * sixteenth of a cache free: see fm_pin().
 *
 * Returns 0, or -1 and sets errno as mlock(2): ENOMEM also where the cache has no room for so many locks and
 * pins.
 */
int fm_mlock(const void *addr,
             size_t length);

/**
 * munlock(2).
 *
 * Returns 0, or -1 and sets errno as munlock(2).
 */
int fm_munlock(const void *addr, size_t length);

/**
 * Has this process's file mappings steered, those of the kernel: a thread of the library watches which pages are
 * touched. While memory is short, or loads are slow, it tells the kernel what to read ahead, what to keep, and
 * where reading around a page fault is wasted. It is a thread as any other: /proc/self/task and limits count it,
 * and system call filters for all threads (seccomp(2)) apply to it. No signal is delivered to it. It ends when the
 * process changes its user, capabilities or filters, or has no memory left for it. A second call does nothing; a
 * child made by fork(2) calls it anew.
 */
void fm_steer(void);

/**
 * Bytes that fm_msync() has written to memory by cache line in this process, for maps on DAX and maps made
 * with FM_MAP_CACHE_LINES.
 */
uint64_t fm_flushed_bytes(void);

/**
 * 1 if all bytes of a range lie in cached maps, otherwise 0 (kernel mappings, other memory, nothing mapped).
 */
int fm_is_cached(const void *addr,
                 size_t length);

/**
 * Starts to bring scattered ranges into memory, in the order given, with many reads under way, and returns
 * before they are there. A thread that touches a page on its way waits for it.
 *
 * Returns how many ranges were taken, counted from the first. Fewer than `count` means that the queue is full
 * (it has room for 2048 pages, or for an eighth of the cache if that is less): ask for the rest later. Of a
 * range longer than the queue only the first part is brought in. On failure returns -1 and sets errno: ENOMEM
 * (the first range is not mapped); EINVAL; EFAULT (`ranges` is NULL).
 */
ssize_t fm_prefetch(const struct fm_range *ranges,
                    size_t count);

/**
 * fm_prefetch() of all ranges, which returns when each has been in memory. All of them are in memory together
 * if they fit into the cache.
 *
 * Returns 0, or -1 and sets errno: ENOMEM (a range is not mapped); ENXIO (a range is past the file's end);
 * EIO; EINVAL; EFAULT (`ranges` is NULL).
 */
int fm_prefetch_wait(const struct fm_range *ranges,
                     size_t count);

/**
 * Copies scattered ranges to `buffer`, one after the other in the order given: fm_prefetch() and fm_read() of
 * all of them in one call. Absent pages are read in parallel, as many as the device takes, in windows ahead of
 * the copy. So all ranges together may be larger than the cache. They may be unsorted, overlap, repeat, and
 * lie in any number of maps. `length` is the sum of their lengths in bytes. `buffer` may be in a map, but not
 * in the ranges.
 *
 * Returns 0, or -1 and sets errno. The contents of `buffer` are then unspecified.
 * - EINVAL: `length` is not the sum, or a range does not fit the address space; nothing is read
 * - ENXIO: a range is past the file's end (EFAULT in kernel mappings)
 * - EIO and the other errors of read(2)
 * - EFAULT: memory is not mapped, or not for reading, or `ranges` or `buffer` is NULL
 */
int fm_gather(const struct fm_range *ranges,
              size_t count,
              void *buffer,
              size_t length);

/**
 * Makes stores to absent pages of a mapped file complete at once (the protocol of AR-MMAP, by Imamura and
 * Yoshida). Such a page is first filled with copies of a line of FM_LINE bytes, the initial value, while the
 * file's bytes are read in the background. When these are there, they replace the lines that still hold the
 * initial value, never under a store. This holds for all writable maps of the file in the process, while there
 * are any.
 *
 * The program has duties. If it breaks one, bytes of the file are lost:
 * - It stores whole lines, each at a multiple of FM_LINE.
 * - It never stores the initial value, nor in any 8-byte word of a line what the initial value has there.
 * - Where it loads a line that holds the initial value (fm_is_initial()), it calls fm_synchronise() and loads
 *   again.
 *
 * Kernel mappings stay what they are: stores wait there. Map with FM_MAP_CACHED to have none.
 *
 * Returns 0, or -1 and sets errno: EINVAL (the map is not writable, or the file has another initial value);
 * EFAULT (`initial_line` is NULL); ENOMEM.
 */
int fm_async_read(void *addr,
                  size_t length,
                  const void *initial_line);

/**
 * 1 if at least one 8-byte word of a line of a map holds what the initial value of fm_async_read() has there,
 * otherwise 0. At 1 the file's bytes may not have come yet, or may have come while the line was loaded.
 *
 * If other threads store to the page, the line may differ a moment later from what the program loaded. Such a
 * program copies the line instead, and compares the words of the copy with those of the initial value.
 */
int fm_is_initial(const void *line);

/**
 * Waits until the file's bytes are in every page of a range that was stored to before it was read.
 *
 * Returns 0, or -1 and sets errno: EIO and the other errors of pread(2) (what was stored is kept); EINVAL.
 */
int fm_synchronise(const void *addr,
                   size_t length);

/**
 * Keeps a range in memory, at its addresses, until it has been unpinned as often as it was pinned. It can then
 * be given to system calls: to write(2) and its kin, and with FM_PIN_WRITE to read(2) and its kin as well.
 * Loads from the range do not trap, and with FM_PIN_WRITE neither do stores. Absent pages are read first. The
 * range needs no alignment. All of it is pinned, or nothing.
 *
 * Pins and locks together leave a sixteenth of a cache free, 64 KiB at least (in caches below 85 KiB, three
 * quarters). To unmap a part of a pinned range ends its pins. A child made by fork(2) has none of its parent's
 * pins. A range of a kernel mapping is brought in and left to the kernel, which lets system calls wait for
 * pages.
 *
 * Returns 0, or -1 and sets errno: ENOMEM (too much is pinned); ENXIO (past the file's end); EFAULT (not
 * mapped, or not for such access); EIO; EINVAL.
 */
int fm_pin(const void *addr,
           size_t length,
           int flags);

/**
 * Takes back one fm_pin() of the same range with the same flags.
 *
 * Returns 0, or -1 and sets errno: EINVAL (there is no such pin).
 */
int fm_unpin(const void *addr, size_t length, int flags);

/**
 * Copies `length` bytes of mapped memory to `buffer`. Where a load would raise SIGBUS or SIGSEGV, it returns
 * an error. `buffer` may be in a map.
 *
 * Returns 0, or -1 and sets errno: ENXIO (past the file's end; in kernel mappings this is EFAULT); EIO and the
 * other errors of read(2); EFAULT (not mapped, or not for reading). The contents of `buffer` are then
 * unspecified.
 */
int fm_read(const void *addr,
            void *buffer,
            size_t length);

/**
 * Copies `length` bytes from `data` to mapped memory. Where a store would raise SIGBUS or SIGSEGV, it returns
 * an error. `data` may be in a map. The bytes reach the file as those of any store do: see fm_msync().
 *
 * Returns 0, or -1 and sets errno: ENXIO (past the file's end; in kernel mappings this is EFAULT); EIO and the
 * other errors of read(2); EFAULT (not mapped, or not for writing). Part of the data may have been stored
 * then.
 */
int fm_write(void *addr,
             const void *data,
             size_t length);

/**
 * Limits how far the file that is mapped at `addr` is read ahead of a walk, in bytes: at most 8 MiB, the
 * default; 0 turns it off. The file keeps the limit. Kernel mappings are left alone.
 *
 * Returns 0, or -1 and sets errno: ENOMEM (nothing is mapped there).
 */
int fm_set_readahead(const void *addr,
                     size_t bytes);

/**
 * Maps an object of a store, read-only, at the version that it has now. `url` is one of s3://BUCKET/KEY,
 * gs://BUCKET/KEY, az://CONTAINER/KEY, http(s)://, webdav(s)://, (s)webhdfs://, hdfs://, file:///PATH. Parts
 * are fetched when they are touched, and ahead of walks. They are kept in a folder on local disk that all
 * processes of the user share. Credentials and endpoints are found where each service's own tools find them,
 * and never in the URL.
 *
 * `offset` is in bytes, a multiple of 4096. `*length` is the bytes to map from there on; 0: to the object's
 * end. The call sets it to the bytes that are mapped. `options` may be NULL.
 *
 * All functions here work on the map as on others, except that it cannot be stored to. fm_munmap() closes the
 * object. A child made by fork(2) has the map, too; the parent fetches for it, as long as it lives.
 *
 * If a part cannot be fetched within the deadline, fm_read(), fm_pin(), fm_gather() and fm_prefetch_wait()
 * return an error. A load raises SIGBUS, after a line on standard error that names object and offset. The
 * errors:
 * - ETIMEDOUT: the deadline has passed
 * - ESTALE: the object has changed
 * - EACCES: access is denied, or credentials have expired
 * - ENOENT: the object is gone
 * - ENOSPC: there is no room for the local copy
 * - ESHUTDOWN: the process that fetches has ended (a parent, in a child made by fork(2))
 * - EIO: any other failure
 *
 * Returns the address, or MAP_FAILED and sets errno to one of these or of the following. Opening gives up after
 * the deadline, or after 30 s if there is none.
 * - EINVAL: not such a URL; no bytes in the range; an offset that is negative or not a multiple of 4096; not a
 *   valid deadline or limit
 * - EFAULT: `url` or `length` is NULL
 * - ELIBACC: libfastmap_object.so, which fetches objects, cannot be opened
 * - other errors of the folder of local copies
 */
void *fm_open_url(const char *url,
                  off_t offset,
                  size_t *length,
                  const struct fm_url_options *options);

/**
 * Fills in what has been done for the object that is mapped at `addr`. `size` is sizeof(struct
 * fm_object_stats) as the program knows it. So many bytes are written, with zeros for what this library does
 * not know. A child made by fork(2) gets what its parent had done before.
 *
 * Returns 0, or -1 and sets errno: EINVAL (no object is mapped there, or a size that is zero or not a multiple
 * of 8); EFAULT (`stats` is NULL).
 */
int fm_object_stats(const void *addr,
                    struct fm_object_stats *stats,
                    size_t size);

/**
 * Makes a cache of up to `capacity` bytes, at least 65536, rounded down to pages of 4096 bytes. Its
 * bookkeeping takes 0.2 % more. A cache takes no memory before it has maps.
 *
 * Stores to its maps survive the death of the program, because a process named fastmap-keeper writes them.
 * They do not survive what ends that process, too: the OOM killer, and the end of a PID namespace. Then only
 * what fm_msync() has written is sure to be in the file.
 *
 * Returns NULL and sets errno on failure: EINVAL (too small); ENOMEM; ENOSYS (in a child made by fork(2)).
 */
struct fm_cache *fm_cache_create(size_t capacity);

/**
 * Changes a cache's capacity to `capacity` bytes, rounded down to pages of 4096 bytes, while it is in use.
 * NULL for `cache` means the process's own. A larger capacity holds at once. A smaller one is reached when the
 * call returns: pages leave memory, and dirty ones are written first. The process's own cache follows the
 * memory that is left until it is given a capacity. From then on maps are cached: see fm_mmap().
 *
 * Returns 0, or -1 and sets errno: EINVAL (not a cache, too small, or larger than physical memory); EBUSY
 * (more is pinned than that); ENOSPC, EIO and the other errors of write(2) (dirty pages cannot be written, and
 * are kept); ENOSYS (in a child made by fork(2)).
 */
int fm_cache_resize(struct fm_cache *cache,
                    size_t capacity);

/**
 * Gives back the handle of a cache. The cache itself stays as long as there are maps in it.
 *
 * Returns 0, or -1 and sets errno: EINVAL (not a cache, NULL, or destroyed already); ENOSYS (in a child made
 * by fork(2)).
 */
int fm_cache_destroy(struct fm_cache *cache);

/**
 * Fills in what a cache has counted. NULL for `cache` means the process's own. `size` is sizeof(struct
 * fm_stats) as the program knows it. So many bytes are written, with zeros for what this library does not
 * know.
 *
 * Returns 0, or -1 and sets errno: EINVAL (not a cache, or a size that is zero or not a multiple of 8); EFAULT
 * (`stats` is NULL); ENOSYS (in a child made by fork(2)).
 */
int fm_stats(struct fm_cache *cache,
             struct fm_stats *stats,
             size_t size);

/**
 * The message of the last function of this library that failed in this thread, or "" if none has failed. It
 * names the file and the place in it, and says what to do. errno has the number.
 *
 * The text belongs to the library, and stays until the next failure in this thread.
 */
const char *fm_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FASTMAP_H */

