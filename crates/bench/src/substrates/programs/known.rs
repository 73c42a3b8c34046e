//! The list of programs.

/// A program of the list.
#[derive(Debug)]
pub struct Program {
    /// Its name on the command line and in the JSON.
    pub name: &'static str,
    /// Its name in tables.
    pub title: &'static str,
    /// The packages that it needs and that may be missing.
    pub packages: &'static str,
    /// The advice that suits all its maps best: `random` or `sequential`.
    pub advice: &'static str,
    /// The anonymous memory that the program may use besides its share of the data, in MiB: one and a half times its measured use, at least 4.
    pub own_mib: u64,
    /// Its sources. The first one that can be built or found is used.
    pub from: &'static [From],
}

/// A source of a program.
#[derive(Debug)]
pub enum From {
    /// A source text in C, with flags of the compiler.
    C(&'static str, &'static [&'static str]),
    /// The name of a file of Python, its text, and the modules that it needs, with commas.
    Python(&'static str, &'static str, &'static str),
    /// The name of a class in Java, and its source text. Other classes that it needs are found by CLASSPATH.
    Java(&'static str, &'static str),
    /// The command of ripgrep.
    Ripgrep,
    /// The command of fio.
    Fio,
}

const fn program(name: &'static str, title: &'static str, own_mib: u64, from: &'static [From]) -> Program {
    Program { name, title, packages: "", advice: "random", own_mib, from }
}

impl Program {
    const fn of(self, packages: &'static str) -> Program {
        Program { packages, ..self }
    }

    const fn sequential(self) -> Program {
        Program { advice: "sequential", ..self }
    }
}

/// The modules of llama.cpp's programs.
const LLAMA: &str = "gguf, llama_cpp, numpy";

/// An index for searches, made and read by a library of Python.
macro_rules! index {
    ($name:literal, $title:literal, $file:literal, $module:literal, $package:literal) => {
        program($name, $title, 40, &[From::Python($file, include_str!("index.py"), concat!("numpy, ", $module))])
            .of(concat!("numpy and ", $package, ", from PyPI"))
    };
}

/// The programs of `fastmap bench programs`, in the order in which they are run.
pub const ALL: &[Program] = &[
    program("search", "binary search in a sorted file", 4, &[From::C(include_str!("search.c"), &[])]).of("gcc"),
    program("files", "many small files, mapped one after the other", 4, &[From::C(include_str!("files.c"), &[])])
        .of("gcc"),
    program(
        "python",
        "Python's mmap, slices at random",
        12,
        &[From::Python("python_mmap", include_str!("python_mmap.py"), "mmap")],
    )
    .of("python3"),
    program(
        "sqlite",
        "SQLite, mmap_size, rows at random",
        12,
        &[From::Python("sqlite", include_str!("sqlite.py"), "sqlite3")],
    )
    .of("python3"),
    program(
        "lmdb",
        "LMDB, gets at random",
        12,
        &[
            From::C(include_str!("lmdb.c"), &["-llmdb"]),
            From::Python("lmdb_gets", include_str!("lmdb_gets.py"), "lmdb"),
        ],
    )
    .of("gcc and liblmdb-dev, or python3-lmdb"),
    program(
        "lmdb-shared",
        "LMDB, gets at random, another process writes",
        16,
        &[From::C(include_str!("lmdb.c"), &["-llmdb", "-DWRITER"])],
    )
    .of("gcc and liblmdb-dev"),
    program(
        "numpy-rows",
        "numpy.memmap, rows at random",
        24,
        &[From::Python("numpy_rows", include_str!("numpy_rows.py"), "numpy")],
    )
    .of("python3-numpy"),
    program(
        "numpy-sum",
        "numpy.memmap, a sum",
        24,
        &[From::Python("numpy_sum", include_str!("numpy_sum.py"), "numpy")],
    )
    .of("python3-numpy")
    .sequential(),
    program("ripgrep", "ripgrep --mmap", 8, &[From::Ripgrep]).of("ripgrep").sequential(),
    program(
        "rocksdb",
        "RocksDB, allow_mmap_reads, gets at random",
        8,
        &[From::C(include_str!("rocksdb.c"), &["-ldl"])],
    )
    .of("gcc and librocksdb (Debian 12: librocksdb7.8)"),
    program("kyoto", "Kyoto Cabinet, gets at random", 4, &[From::C(include_str!("kyoto.c"), &["-lkyotocabinet"])])
        .of("gcc and libkyotocabinet-dev"),
    program("memcached", "memcached --memory-file, gets at random", 24, &[From::C(include_str!("memcached.c"), &[])])
        .of("gcc and memcached"),
    program("java", "Java's mapped buffers, rows at random", 48, &[From::Java("Rows", include_str!("Rows.java"))])
        .of("a JDK (default-jdk-headless)"),
    program("llama", "llama.cpp, a dense model", 44, &[From::Python("llama", include_str!("llama.py"), LLAMA)])
        .of("llama-cpp-python and gguf, from PyPI")
        .sequential(),
    program(
        "llama-experts",
        "llama.cpp, a model with experts",
        44,
        &[From::Python("llama_experts", include_str!("llama.py"), LLAMA)],
    )
    .of("llama-cpp-python and gguf, from PyPI")
    .sequential(),
    index!("faiss-lists", "faiss, inverted lists", "faiss_lists", "faiss", "faiss-cpu"),
    index!("faiss-graph", "faiss, a graph (HNSW)", "faiss_graph", "faiss", "faiss-cpu"),
    index!("usearch", "usearch, a graph (HNSW)", "usearch_graph", "usearch", "usearch"),
    index!("annoy", "Annoy, trees", "annoy_trees", "annoy", "annoy"),
    index!("tantivy", "tantivy, two words", "tantivy_words", "tantivy", "tantivy"),
    program("lucene", "Lucene, two words", 48, &[From::Java("Lucene", include_str!("Lucene.java"))])
        .of("a JDK, and in CLASSPATH the jar lucene-core (9.12 for Java 17), from Maven Central"),
    program("fio", "fio, ioengine=mmap, random reads", 16, &[From::Fio]).of("fio"),
];

/// Two programs that read a table column by column: with numpy, and with Python alone. `fastmap bench try` runs the first that can be had.
pub const COLUMN: [Program; 2] = [
    program("column", "numpy.memmap, a column", 24, &[From::Python("column", include_str!("column.py"), "numpy")])
        .of("python3-numpy"),
    program("column", "Python's mmap, a column", 12, &[From::Python("column", include_str!("column.py"), "mmap")])
        .of("python3"),
];
/// A model that is read layer by layer, for `fastmap bench try`.
pub const MODEL: Program =
    program("model", "a model, layer by layer", 12, &[From::Python("model", include_str!("model.py"), "mmap")])
        .of("python3");
/// A file that is loaded once, for `fastmap bench try`.
pub const LOAD: Program =
    program("load", "a load", 12, &[From::Python("load", include_str!("load.py"), "mmap")]).of("python3");

/// The program of [`ALL`] with this name.
pub fn named(name: &str) -> Option<&'static Program> {
    ALL.iter().find(|program| program.name == name)
}
