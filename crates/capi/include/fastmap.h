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
 * For fm_mmap: in the cache or not at all. Without it, and without anything else that only the cache has, a map is the
 * kernel's, and a file in memory already (on tmpfs, hugetlbfs, DAX) is mapped straight.
 */
#define FM_MAP_CACHED (1 << 24)

/**
 * For fm_mmap: other processes may map the file for writing too, through caches. Without it, a file that another process
 * opens to write, or has mapped, is the kernel's in both, before that one maps it if it uses FastMap. With it, of two
 * processes that store to one page the last one wins all of that page.
 */
#define FM_MAP_MANY_WRITERS (1 << 25)

/**
 * For fm_mmap: a store to a page that is not in memory does not wait for it to be read. It is buffered,
 * and applied when the page is there; loads of the page wait. For scattered small stores to a slow
 * device: moves of 1 to 64 bytes, eight a page; all else waits. Holds for all maps of the file.
 */
#define FM_MAP_ASYNC_STORES (1 << 21)

/**
 * For fm_mmap: straight or not at all, that is, only a file in memory. Without it, that is chosen by
 * the file. On DAX, where the kernel can (MAP_SYNC), fm_msync() of up to 64 KiB is then a matter of
 * user space, without a system call.
 */
#define FM_MAP_DIRECT (1 << 22)

/**
 * For fm_mmap, of a file on tmpfs or hugetlbfs: fm_msync() writes what was stored to memory, by cache
 * line, since the memory is persistent, or stands in for such. Without it, there is nothing to do.
 */
#define FM_MAP_CACHE_LINES (1 << 23)

/**
 * For fm_madvise: the range will be walked backward, and is read ahead of in that direction.
 * madvise(2) has no such advice.
 */
#define FM_MADV_BACKWARD 1000

/**
 * For fm_pin and fm_unpin: the program or a system call stores to the range meanwhile.
 */
#define FM_PIN_WRITE 1

/**
 * Bytes of a line: the unit of stores for fm_async_read.
 */
#define FM_LINE 64

/**
 * A cache: a limit in bytes on the pages in memory of all the maps that were made in it. What it
 * points to is the library's.
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
   * Folder of local copies, on a local disk, which is made if need be; NULL: $FASTMAP_TIER, else $XDG_CACHE_HOME/fastmap, else
   * ~/.cache/fastmap.
   */
  const char *tier;
  /**
   * Most bytes that all copies in that folder may take together, 16 MiB at least; 0: $FASTMAP_TIER_LIMIT, else what the folder
   * was given last, else a tenth of the disk's free space.
   */
  uint64_t tier_limit;
  /**
   * Seconds that the store may take to give what is waited for; 0: 30; INFINITY: for ever.
   */
  double deadline;
};

/**
 * What has been done for a mapped object since it was opened. Bytes and counts.
 *
 * Later versions of the library may have more at the end: hand fm_object_stats() the size that you know.
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
   * Bytes that left the local copy without having been read.
   */
  uint64_t wasted;
  /**
   * Requests sent to the store, all of them.
   */
  uint64_t requests;
  /**
   * Of these, those sent again since the one before failed.
   */
  uint64_t retries;
  /**
   * Of these, second ones, sent since the first was late.
   */
  uint64_t hedges;
  /**
   * Units of 256 KiB of the local copy that had other bytes in them than were put there. They were fetched anew.
   */
  uint64_t wrong;
};

/**
 * What a cache has done since it was made, and what it holds now. Counts, of pages of 4096 bytes
 * where it says pages.
 *
 * Later versions of the library may have more at the end: hand fm_stats() the size that you know.
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
   * Of these, pages newer than their file.
   */
  uint64_t dirty_pages;
  /**
   * Of these, pages that pins and locks keep there.
   */
  uint64_t pinned_pages;
  /**
   * Loads and stores that found their page absent.
   */
  uint64_t misses;
  /**
   * Misses on pages that had been evicted a short while ago.
   */
  uint64_t ghost_hits;
  /**
   * Pages filled with zeros, without a read, because the file has a hole there.
   */
  uint64_t born_zero;
  /**
   * First stores to clean pages.
   */
  uint64_t upgrades;
  /**
   * Misses that waited for another thread's work on the page.
   */
  uint64_t waits;
  /**
   * Streams: walks with a constant step, which are read ahead of.
   */
  uint64_t streams;
  /**
   * Pages read ahead for them.
   */
  uint64_t ahead_pages;
  /**
   * Of these, pages that the stream came to.
   */
  uint64_t ahead_used;
  /**
   * Of these, pages dropped before.
   */
  uint64_t ahead_wasted;
  /**
   * Stores to absent pages that did not wait (fm_async_read, FM_MAP_ASYNC_STORES).
   */
  uint64_t async_loads;
  /**
   * Stores buffered until their page was read.
   */
  uint64_t kept_stores;
  /**
   * Lines that hold part of the initial value beside what was stored: violations of fm_async_read's
   * duties, as far as they can be seen.
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
   * Writes they took: neighbours go together.
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

/**
 * Nanoseconds; [`FOR_EVER`] without a limit.
 */
typedef uint64_t Limit;

#define FOR_EVER UINT64_MAX

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Maps a file as mmap(2) does: the kernel serves it. A thread of the library looks at what is touched of the program's
 * file mappings; while memory is short, or loads are slow, it tells the kernel what to read ahead, what to keep, and
 * where not to read around a miss.
 *
 * What only the cache has means the cache, from the first touch: fm_mmap_in() with a cache, the flags here, a capacity
 * given by fm_cache_resize(NULL, ...). A file that the kernel serves already in this process is the kernel's for such a
 * map too, or fails with FM_MAP_CACHED, so that its maps agree; and one that is cached stays so. The process's own cache
 * holds what others leave of memory (of the cgroup's, if that is less), but for a sixteenth: it shrinks at once when
 * they need it, and grows while that helps; unless fm_cache_resize() says otherwise.
 *
 * What is MAP_SHARED of a regular file or block device, and not executable, can be cached, unless the file
 * is in memory already: then it is mapped straight, on DAX with MAP_SYNC if it can be. Anything else
 * goes to mmap(2) with the same arguments. Length and offset are bytes. Cached maps of one file have
 * the same addresses for the same bytes: mapped twice for the same use, a file has the same address
 * twice, and is to be unmapped twice. What the cache cannot do with a map (memory mapped over a part,
 * another protection for a part or for a second map of the same bytes, a second place) makes all maps
 * of its file kernel mappings, in place. Use fm_munmap() and the other functions here for all maps made here, and
 * mmap(2)'s for none of them.
 *
 * A system call that is handed memory of a cached map can fail with EFAULT: fm_pin() it meanwhile, or copy with
 * fm_read() and fm_write(). While the cache has a file, read(2) and write(2) of it see and
 * change what the file has, not what is in memory.
 * The library has SIGBUS; a load that cannot be served raises it, as with mmap(2). A child made by fork(2) and its
 * parent see one file: when the child first touches a map, that of its parent, and its own, become kernel mappings in
 * place, and so are all of that file from then on. A child that executes a program costs nothing.
 *
 * Returns the address, or MAP_FAILED and sets errno as mmap(2); and EAGAIN while another process
 * has the file in a cache for writing and does not give it back (a map of the Rust or Python interface), EBUSY where pins outside of a range that is mapped over (MAP_FIXED) keep
 * its file in the cache, and the error of writing where it cannot be saved (then nothing is mapped
 * over), ENOSYS and EOPNOTSUPP where FM_MAP_CACHED asks for what cannot be.
 */
void *fm_mmap(void *addr,
              size_t length,
              int prot,
              int flags,
              int fd,
              off_t offset);

/**
 * fm_mmap() in a cache of the program's own; NULL: as fm_mmap(). All maps of a file are in the
 * cache of its first.
 *
 * Returns as fm_mmap(); EINVAL also where `cache` is none.
 */
void *fm_mmap_in(struct fm_cache *cache,
                 void *addr,
                 size_t length,
                 int prot,
                 int flags,
                 int fd,
                 off_t offset);

/**
 * munmap(2): of a whole map, part of one, or several, cached or not. Dirty pages are written to the
 * file, not waited for on stable storage. Pins of what is mapped no more end.
 *
 * Returns 0, or -1 and sets errno: EINVAL.
 */
int fm_munmap(void *addr, size_t length);

/**
 * mremap(2), with `new_address` (for MREMAP_FIXED) always there; NULL if unused. The file is not
 * extended: see ftruncate(2), which may come before or after.
 *
 * Returns the address, or MAP_FAILED and sets errno as mremap(2); EAGAIN also where pins keep a map
 * in its place.
 */
void *fm_mremap(void *old_address, size_t old_size, size_t new_size, int flags, void *new_address);

/**
 * msync(2). With MS_SYNC it returns when every byte of the range that was stored before is on stable
 * storage, or in persistent memory. What cannot be written is kept in memory, dirty, and reported again by each later call
 * until it is saved.
 *
 * Returns 0, or -1 and sets errno: EINVAL; ENOMEM part of it is not mapped; ENOSPC, EIO and what
 * else write(2) and fdatasync(2) have.
 */
int fm_msync(void *addr,
             size_t length,
             int flags);

/**
 * madvise(2), and FM_MADV_BACKWARD. Of cached maps MADV_NORMAL, RANDOM, SEQUENTIAL say how to read
 * ahead (in units of 2 MiB); WILLNEED, POPULATE_READ and POPULATE_WRITE bring in; DONTNEED, COLD and
 * PAGEOUT save and drop; DONTFORK and DOFORK say what children get; HUGEPAGE, NOHUGEPAGE, DONTDUMP and
 * DODUMP change nothing. With other advice, such as REMOVE, all maps of the file become kernel mappings.
 *
 * Returns 0, or -1 and sets errno as madvise(2); EBUSY where pins keep a file in the cache, and the
 * error of writing where it cannot be saved.
 */
int fm_madvise(void *addr,
               size_t length,
               int advice);

/**
 * mprotect(2). Of cached maps those that are meant as a whole, for reading, or for reading and writing,
 * stay cached; else all maps of the file become kernel mappings.
 *
 * Returns 0, or -1 and sets errno as mprotect(2): EACCES for PROT_WRITE if the file was not opened
 * for that; EBUSY where pins keep it in the cache, and the error of writing where it cannot be saved.
 */
int fm_mprotect(void *addr,
                size_t length,
                int prot);

/**
 * mincore(2): the lowest bit of each byte of `vec`, one for each page of 4096, says whether the page
 * is in memory.
 *
 * Returns 0, or -1 and sets errno: EINVAL; ENOMEM part of it is not mapped; EFAULT `vec` is no memory.
 */
int fm_mincore(void *addr,
               size_t length,
               unsigned char *vec);

/**
 * mlock(2): the range stays in memory until fm_munlock() or fm_munmap(). Locks and pins together
 * leave a 16th of a cache free.
 *
 * Returns 0, or -1 and sets errno as mlock(2): ENOMEM also where that is too much for the cache.
 */
int fm_mlock(const void *addr, size_t length);

/**
 * munlock(2).
 *
 * Returns 0, or -1 and sets errno as munlock(2).
 */
int fm_munlock(const void *addr, size_t length);

/**
 * Bytes that fm_msync() has written to memory by cache line in this process: on DAX, and of maps made
 * with FM_MAP_CACHE_LINES.
 */
uint64_t fm_flushed_bytes(void);

/**
 * Whether all bytes of a range are in cached maps: 1, or 0 (kernel mappings, other memory, nothing).
 */
int fm_is_cached(const void *addr,
                 size_t length);

/**
 * Asks for scattered ranges to be brought into memory, in order, in one call and with many reads
 * under way; returns before they are there. Touching one that is on its way waits for it.
 *
 * Returns how many ranges were taken, from the first on: fewer than `count` when the queue is full
 * (2048 pages, or an eighth of the cache), so ask for the rest later. Of a range longer than that
 * only its first part is brought in. Or -1 and sets errno: ENOMEM the first is not mapped; EINVAL; EFAULT
 * `ranges` is NULL.
 */
ssize_t fm_prefetch(const struct fm_range *ranges,
                    size_t count);

/**
 * fm_prefetch() of all ranges, returning when each has been in memory, and all together if they fit
 * the cache.
 *
 * Returns 0, or -1 and sets errno: ENOMEM one is not mapped; ENXIO one is past the file's end; EIO;
 * EINVAL; EFAULT `ranges` is NULL.
 */
int fm_prefetch_wait(const struct fm_range *ranges, size_t count);

/**
 * Copies scattered ranges to `buffer`, one after the other in the order given: fm_prefetch() and
 * fm_read() of all of them in one call. What is absent is read side by side, as much as the device
 * takes, in windows ahead of the copy, so that all of it together may be larger than the cache.
 * Ranges may be sorted or not, overlap and repeat, and lie in any number of maps; `length` is the
 * bytes of all of them. `buffer` may be in a map, but not in the ranges.
 *
 * Returns 0, or -1 and sets errno: EINVAL `length` is another, or a range does not fit the address
 * space, and then nothing is read; ENXIO past the file's end (in kernel mappings EFAULT); EIO and what
 * else read(2) has; EFAULT not mapped, or not for reading, or `ranges` or `buffer` is NULL. What `buffer`
 * holds then is not said.
 */
int fm_gather(const struct fm_range *ranges,
              size_t count,
              void *buffer,
              size_t length);

/**
 * Makes stores to absent pages of a mapped file complete at once, on a page filled with a line of
 * FM_LINE bytes again and again, while the file's bytes are read in the background (AR-MMAP). When
 * these are there, the lines that still hold that value are replaced by them, never under a store.
 * Holds for all writable maps of the file in the process, while there are any.
 *
 * The program stores whole lines, each at a multiple of FM_LINE; never stores the initial value, nor
 * in a word of 8 bytes of a line what the value has there; and where it loads a line that holds it
 * (fm_is_initial), calls fm_synchronise() and loads again. Otherwise bytes of the file are lost.
 * Kernel mappings stay what they are: stores wait there. Map with FM_MAP_CACHED.
 *
 * Returns 0, or -1 and sets errno: EINVAL the map is not writable, or the file has another initial
 * value; EFAULT `initial_line` is NULL; ENOMEM.
 */
int fm_async_read(void *addr,
                  size_t length,
                  const void *initial_line);

/**
 * Whether a line of a map holds the initial value of fm_async_read() in one of its words of 8 bytes at
 * least: the file's bytes may not have come yet, or came between two moves. 1, or 0. A program whose
 * other threads store to the page has to ask of what it loaded, which may be another a moment later:
 * it copies the line and compares its words with those of the value.
 */
int fm_is_initial(const void *line);

/**
 * Waits until the file's bytes are in every page of a range that was stored to before it was read.
 *
 * Returns 0, or -1 and sets errno: EIO and what else pread(2) has, and what was stored is kept; EINVAL.
 */
int fm_synchronise(const void *addr,
                   size_t length);

/**
 * Keeps a range in memory, where it is, until it has been unpinned as often: so that it can be
 * handed to system calls, write(2) and its kin; with FM_PIN_WRITE to read(2) and its kin as well.
 * Loads from it do not trap (nor stores, with FM_PIN_WRITE). What is not there is read first. The
 * range needs no alignment; all of it is pinned, or nothing.
 *
 * Pins and locks together leave a 16th of a cache free (and 64 KiB at least; in caches below 85 KiB,
 * three quarters). Unmapping part of a pinned range ends its pins. A child made by fork(2) has none
 * of its parent's. Of a kernel mapping the range is brought in and left to the kernel, which lets system calls
 * wait for pages.
 *
 * Returns 0, or -1 and sets errno: ENOMEM too much is pinned; ENXIO past the file's end; EFAULT not
 * mapped, or not for that; EIO; EINVAL.
 */
int fm_pin(const void *addr,
           size_t length,
           int flags);

/**
 * Takes back one fm_pin() of the same range with the same flags.
 *
 * Returns 0, or -1 and sets errno: EINVAL there is none.
 */
int fm_unpin(const void *addr, size_t length, int flags);

/**
 * Copies `length` bytes of mapped memory to `buffer`. What cannot be read is an error, where a load
 * raises SIGBUS or SIGSEGV. `buffer` may be in a map.
 *
 * Returns 0, or -1 and sets errno: ENXIO past the file's end (in kernel mappings EFAULT); EIO and
 * what else read(2) has; EFAULT not mapped, or not for reading. What `buffer` holds then is not
 * said.
 */
int fm_read(const void *addr, void *buffer, size_t length);

/**
 * Copies `length` bytes from `data` to mapped memory. What cannot be stored is an error, where a
 * store raises SIGBUS or SIGSEGV. `data` may be in a map. It reaches the file as any store does: see
 * fm_msync().
 *
 * Returns 0, or -1 and sets errno: ENXIO past the file's end (in kernel mappings EFAULT); EIO and
 * what else read(2) has; EFAULT not mapped, or not for writing. Part of the data may have been
 * stored then.
 */
int fm_write(void *addr,
             const void *data,
             size_t length);

/**
 * Limits how far ahead of a walk the file that is mapped at `addr` is read, in bytes: 8 MiB at most,
 * which is the default; 0: not at all. It is remembered for the file. Kernel mappings are left
 * alone.
 *
 * Returns 0, or -1 and sets errno: ENOMEM nothing is mapped there.
 */
int fm_set_readahead(const void *addr,
                     size_t bytes);

/**
 * Maps an object of a store, read-only, at the version that it has now: s3://BUCKET/KEY, gs://BUCKET/KEY,
 * az://CONTAINER/KEY, http(s)://, webdav(s)://, webhdfs://, hdfs://, file:///PATH. Parts are fetched when they are
 * touched, and ahead of walks, and kept in a folder on local disk, which all processes of the user share. Credentials and
 * endpoints are found where each service's own tools find them, and never in the URL.
 *
 * `*length` is the bytes to map from `offset` on, a multiple of 4096; 0: to the object's end. It is set to how many are mapped. `options`
 * may be NULL. All functions here work on the map as on others, but for stores to it; fm_munmap() closes the object.
 * What cannot be fetched within the deadline is an error of fm_read(), fm_pin(), fm_gather() and fm_prefetch_wait(), and SIGBUS
 * of a load, after a line on standard error that names object and offset: ETIMEDOUT; ESTALE the object has changed; EACCES
 * access is denied, or credentials have expired; ENOENT it is gone; ENOSPC there is no room for the local copy; EIO.
 * A child made by fork(2) has the map, too, filled by its parent while that lives.
 *
 * Returns the address, or MAP_FAILED and sets errno: EINVAL no such URL, no bytes there, a negative offset, or a deadline or
 * limit that is none; EFAULT `url` or `length` is NULL; ELIBACC libfastmap_object.so, which has all of this, cannot be opened; those
 * above (to open an object takes 30 s at most); what else the folder of local copies has.
 */
void *fm_open_url(const char *url,
                  off_t offset,
                  size_t *length,
                  const struct fm_url_options *options);

/**
 * Fills in what has been done for the object that is mapped at `addr`. `size` is sizeof(struct fm_object_stats) as
 * the program knows it: that many bytes are written, zeros for what this library does not know. In a child made by fork(2)
 * what its parent had done before.
 *
 * Returns 0, or -1 and sets errno: EINVAL no object is mapped there, or a size that is not a multiple of 8, or zero; EFAULT `stats` is
 * NULL.
 */
int fm_object_stats(const void *addr,
                    struct fm_object_stats *stats,
                    size_t size);

/**
 * Makes a cache of up to `capacity` bytes, rounded down to pages of 4096; 65536 at least. Its
 * bookkeeping takes 0.2 % more. It costs no memory before maps are used. Stores to its maps survive
 * the program's death (a process fastmap-keeper sees to that), but for what ends that process,
 * too: the OOM killer, and the end of a PID namespace. There only what fm_msync() has written is
 * sure to be in the file.
 *
 * Returns NULL and sets errno: EINVAL too small; ENOMEM; ENOSYS in a child made by fork(2).
 */
struct fm_cache *fm_cache_create(size_t capacity);

/**
 * Changes a cache's capacity to `capacity` bytes, rounded down to pages of 4096, while it is in use;
 * `cache` NULL: the process's own. More is there at once. Less is reached when this returns: pages
 * leave memory, dirty ones written first. The process's own follows the memory that is left until it is given a
 * capacity, and from then on maps are cached: see fm_mmap().
 *
 * Returns 0, or -1 and sets errno: EINVAL not a cache, too small, or larger than physical memory;
 * EBUSY more is pinned than that; ENOSPC, EIO and what else write(2) has, when dirty pages cannot be
 * written (they are kept); ENOSYS in a child made by fork(2).
 */
int fm_cache_resize(struct fm_cache *cache,
                    size_t capacity);

/**
 * Gives back the handle of a cache. The cache itself is there as long as maps in it are: its last
 * munmap ends it.
 *
 * Returns 0, or -1 and sets errno: EINVAL not a cache, or destroyed already (NULL is not to be
 * destroyed); ENOSYS in a child made by fork(2).
 */
int fm_cache_destroy(struct fm_cache *cache);

/**
 * Fills in what a cache has counted; `cache` NULL: the process's own. `size` is sizeof(struct
 * fm_stats) as the program knows it: that many bytes are written, zeros for what this library does
 * not know.
 *
 * Returns 0, or -1 and sets errno: EINVAL not a cache, or a size that is not a multiple of 8, or
 * zero; EFAULT `stats` is NULL; ENOSYS in a child made by fork(2).
 */
int fm_stats(struct fm_cache *cache, struct fm_stats *stats, size_t size);

/**
 * What the last function of this library that failed in this thread has to say: it names the file
 * and the place in it, and what to do. "" if none has failed.
 *
 * The text is the library's, and there until the next failure in this thread. errno has the number.
 */
const char *fm_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FASTMAP_H */

