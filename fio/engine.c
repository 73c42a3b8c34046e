/* libfastmap-fio.so: an engine for fio(1) that reads and writes files through libfastmap.
 *
 * As fio's own mmap engine, with fm_mmap_in() for mmap(2): a file is mapped whole, a read copies from the map, a write into it,
 * a sync is fm_msync(). The threads of a job share one cache, whose size is the option cache_size.
 *
 * fio has no interface for engines that is stable: this is built with the sources of the very version that it is for, see
 * `fio/build`. A mismatch is told when a job begins. */

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fio.h"
#include "optgroup.h"

#include "fastmap.h"

struct fastmap_options {
	void *pad; /* fio takes an option at offset 0 for none */
	unsigned long long cache_size;
};

static struct fio_option options[] = {
	{
		.name = "cache_size",
		.lname = "Cache size",
		.type = FIO_OPT_STR_VAL,
		.off1 = offsetof(struct fastmap_options, cache_size),
		.minval = 65536,
		.def = "64m",
		.help = "Most bytes of the job's files in memory, of all its threads together",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

/* A job's cache. */
struct cache {
	struct cache *next;
	char *job;
	unsigned long users;
	struct fm_cache *cache;
};

static struct cache *caches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* One file's map, of one thread: those of all threads have the same addresses. */
struct map {
	char *start;
	size_t length;
};

extern struct ioengine_ops ioengine;

/* Fails a thread with errno and what the library says. */
static int fail(struct thread_data *td, const char *what)
{
	int error = errno;

	log_err("fastmap: %s: %s\n", what, fm_last_error());
	td_verror(td, error, what);
	return error;
}

static int init(struct thread_data *td)
{
	struct fastmap_options *o;
	struct cache *cache;

	/* The fields that are used lie behind most others. */
	if (td->io_ops != &ioengine) {
		log_err("fastmap: built for " BUILT_FOR ", and this is another: run fio/build again\n");
		return 1;
	}
	if (!td->o.use_thread) {
		log_err("fastmap: a cache belongs to one process: give --thread\n");
		return 1;
	}
	o = td->eo;
	pthread_mutex_lock(&lock);
	for (cache = caches; cache && strcmp(cache->job, td->o.name); cache = cache->next)
		;
	if (!cache) {
		cache = calloc(1, sizeof(*cache));
		if (cache) {
			cache->job = strdup(td->o.name);
			cache->cache = fm_cache_create(o->cache_size);
			if (!cache->job || !cache->cache) {
				if (cache->job)
					fail(td, "cache_size");
				free(cache->job);
				free(cache);
				cache = NULL;
			} else {
				cache->next = caches;
				caches = cache;
			}
		}
	}
	if (cache)
		cache->users++;
	pthread_mutex_unlock(&lock);
	td->io_ops_data = cache;
	return !cache;
}

static void cleanup(struct thread_data *td)
{
	struct cache *cache = td->io_ops_data;

	td->io_ops_data = NULL;
	pthread_mutex_lock(&lock);
	if (cache && --cache->users == 0) {
		struct cache **at;

		for (at = &caches; *at != cache; at = &(*at)->next)
			;
		*at = cache->next;
		fm_cache_destroy(cache->cache);
		free(cache->job);
		free(cache);
	}
	pthread_mutex_unlock(&lock);
}

/* Straight where the file is in memory, else in the cache: never an ordinary mapping of the kernel's, which is what others
 * measure. */
static void *map_file(struct cache *cache, size_t length, int prot, int fd)
{
	void *start = fm_mmap_in(cache->cache, NULL, length, prot, MAP_SHARED | FM_MAP_DIRECT, fd, 0);

	if (start == MAP_FAILED && (errno == ENOSYS || errno == EOPNOTSUPP))
		start = fm_mmap_in(cache->cache, NULL, length, prot, MAP_SHARED | FM_MAP_CACHED, fd, 0);
	return start;
}

static int open_file(struct thread_data *td, struct fio_file *f)
{
	int prot = td_write(td) && !td->o.verify_only ? PROT_READ | PROT_WRITE : PROT_READ;
	/* As fio's mmap engine says it to the kernel. */
	int advice = td_random(td) ? MADV_RANDOM : MADV_SEQUENTIAL;
	struct map *map = NULL;
	struct stat facts;
	int error = generic_open_file(td, f);

	if (error)
		return error;
	if (fstat(f->fd, &facts) || !S_ISREG(facts.st_mode)) {
		log_err("fastmap: %s: is no regular file\n", f->file_name);
		error = EINVAL;
		goto close;
	}
	map = calloc(1, sizeof(*map));
	if (!map) {
		error = ENOMEM;
		goto close;
	}
	map->length = facts.st_size;
	map->start = map_file(td->io_ops_data, map->length, prot, f->fd);
	if (map->start == MAP_FAILED) {
		error = fail(td, "fm_mmap");
		goto close;
	}
	if (td->o.fadvise_hint && fm_madvise(map->start, map->length, advice)) {
		error = fail(td, "fm_madvise");
		fm_munmap(map->start, map->length);
		goto close;
	}
	FILE_SET_ENG_DATA(f, map);
	return 0;
close:
	free(map);
	if (generic_close_file(td, f))
		log_err("fastmap: %s: cannot be closed\n", f->file_name);
	return error;
}

static int close_file(struct thread_data *td, struct fio_file *f)
{
	struct map *map = FILE_ENG_DATA(f);
	int error = 0;

	FILE_SET_ENG_DATA(f, NULL);
	if (map && fm_munmap(map->start, map->length))
		error = fail(td, "fm_munmap");
	free(map);
	return generic_close_file(td, f) ?: error;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct map *map = FILE_ENG_DATA(io_u->file);

	fio_ro_check(td, io_u);
	if (ddir_sync(io_u->ddir)) {
		if (fm_msync(map->start, map->length, MS_SYNC))
			io_u->error = fail(td, "fm_msync");
	} else if (io_u->ddir == DDIR_TRIM) {
		io_u->error = EOPNOTSUPP;
		td_verror(td, io_u->error, "trim");
	} else if (io_u->offset > map->length || io_u->xfer_buflen > map->length - io_u->offset) {
		io_u->error = EINVAL;
		td_verror(td, io_u->error, "past the file's end");
	} else if (io_u->ddir == DDIR_READ) {
		memcpy(io_u->xfer_buf, map->start + io_u->offset, io_u->xfer_buflen);
	} else {
		memcpy(map->start + io_u->offset, io_u->xfer_buf, io_u->xfer_buflen);
	}
	return FIO_Q_COMPLETED;
}

struct ioengine_ops ioengine = {
	.name = "fastmap",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_SYNCIO | FIO_NOEXTEND,
	.init = init,
	.cleanup = cleanup,
	.queue = queue,
	.open_file = open_file,
	.close_file = close_file,
	.get_file_size = generic_get_file_size,
	.option_struct_size = sizeof(struct fastmap_options),
	.options = options,
};
