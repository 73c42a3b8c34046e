"""Search indexes that map their file: those of faiss (inverted lists, a graph), usearch, annoy and tantivy. The name of this file says which.
A batch is a few queries with one thread. Vectors lie around centres, documents have words by Zipf's law. No query is asked twice."""

import os
import sys
import zlib

import numpy
import program

WIDTH, CENTRES, ANSWERS, QUERIES = 256, 2000, 10, 4
WORDS, LENGTH, AT_ONCE = 50000, 60, 20000
CENTRE = numpy.random.default_rng(0).standard_normal((CENTRES, WIDTH), dtype="f4")


def some(seed, count):
    """So many vectors."""
    chance = numpy.random.default_rng(seed)
    return CENTRE[chance.integers(CENTRES, size=count)] + chance.standard_normal((count, WIDTH), dtype="f4") / 2


class Vectors:
    """An index of vectors in one file."""

    def __init__(self, data):
        self.path = f"{data}/vectors"

    def make(self, bytes):
        self.build(some(0, bytes // (4 * WIDTH)))

    def answers(self, number):
        return self.search(some(number + 1, 1)[0])


class Faiss(Vectors):
    """An index of faiss, by the text that names its kind."""

    def build(self, vectors):
        import faiss

        index = faiss.index_factory(WIDTH, self.kind)
        index.train(vectors[: 64 * CENTRES])
        index.add(vectors)
        faiss.write_index(index, self.path)

    def open(self):
        import faiss

        faiss.omp_set_num_threads(1)
        self.index = faiss.read_index(self.path, getattr(faiss, self.flags))
        faiss.ParameterSpace().set_index_parameter(self.index, *self.effort)

    def search(self, vector):
        return self.index.search(vector[None], ANSWERS)[1].tobytes()


class faiss_lists(Faiss):
    kind, flags, effort = "IVF1024,Flat", "IO_FLAG_MMAP", ("nprobe", 4)


class faiss_graph(Faiss):
    kind, flags, effort = "HNSW16", "IO_FLAG_MMAP_IFC", ("efSearch", 64)


class usearch_graph(Vectors):
    def index(self):
        from usearch.index import Index

        return Index(ndim=WIDTH, metric="l2sq", dtype="f32", connectivity=16, expansion_add=40)

    def build(self, vectors):
        index = self.index()
        index.add(numpy.arange(len(vectors)), vectors)
        index.save(self.path)

    def open(self):
        self.made = self.index()
        self.made.view(self.path)

    def search(self, vector):
        return self.made.search(vector, ANSWERS, threads=1).keys.tobytes()


class annoy_trees(Vectors):
    def index(self):
        import annoy

        return annoy.AnnoyIndex(WIDTH, "euclidean")

    def build(self, vectors):
        index = self.index()
        index.set_seed(1)
        for number, vector in enumerate(vectors):
            index.add_item(number, vector)
        index.build(8, n_jobs=1)
        index.save(self.path)

    def open(self):
        self.made = self.index()
        self.made.load(self.path)

    def search(self, vector):
        return repr(self.made.get_nns_by_vector(vector, ANSWERS, search_k=2000)).encode()


class tantivy_words:
    """Documents of words: two words of each query must be there, and the best ones are read."""

    def __init__(self, data):
        self.path = data

    def words(self, seed, count):
        return (numpy.random.default_rng(seed).zipf(1.2, count) % WORDS).tolist()

    def make(self, bytes):
        import tantivy

        fields = tantivy.SchemaBuilder().add_text_field("text", stored=True).build()
        # Its files take about 330 bytes a document.
        writer = tantivy.Index(fields, path=self.path).writer(num_threads=1, heap_size=100 << 20)
        for first in range(0, bytes // 330, AT_ONCE):
            words = self.words(first + 1, AT_ONCE * LENGTH)
            for place in range(0, len(words), LENGTH):
                text = " ".join(f"w{word}" for word in words[place : place + LENGTH])
                writer.add_document(tantivy.Document(text=[text]))
        writer.commit()
        writer.wait_merging_threads()

    def open(self):
        import tantivy

        self.made = tantivy.Index.open(self.path)
        self.searcher = self.made.searcher()
        self.asked = self.words(0, 1 << 17)

    def answers(self, number):
        place = 2 * number % len(self.asked)
        query = self.made.parse_query(" AND ".join(f"w{word}" for word in self.asked[place : place + 2]), ["text"])
        found = [address for _, address in self.searcher.search(query, ANSWERS).hits]
        return b"".join(self.searcher.doc(address)["text"][0].encode() for address in found)


Index = globals()[os.path.splitext(os.path.basename(sys.argv[0]))[0]]


def begin(data):
    index = Index(data)
    index.open()

    def batch(number):
        total = 0
        for turn in range(number * QUERIES, number * QUERIES + QUERIES):
            total = zlib.crc32(index.answers(turn), total)
        return QUERIES, total

    return batch


program.main(lambda data, bytes: Index(data).make(bytes), begin)
