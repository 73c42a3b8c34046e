//! A directed graph in compressed sparse rows, both ways round, in memory and in a file.
//!
//! Vertices and edges are 8 bytes each: such graphs outgrow 32 bits. In the file the four arrays follow one another, as words of
//! little endian: for edges out and for edges in, where each vertex's begin, and their other ends.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

/// Bytes read at a time.
const BUFFER: usize = 256 << 10;

/// Edges of all vertices in one direction.
#[derive(Debug, Default, PartialEq)]
pub struct Rows {
    /// Where each vertex's edges begin in `ends`, and after the last vertex their number.
    begins: Vec<u64>,
    /// The vertices at the other ends.
    ends: Vec<u64>,
}

impl Rows {
    /// Sorts edges by their first vertex.
    fn of(vertices: usize, edges: &[(u32, u32)], first: impl Fn(&(u32, u32)) -> (u32, u32)) -> Rows {
        let mut begins = vec![0; vertices + 1];
        edges.iter().for_each(|edge| begins[first(edge).0 as usize + 1] += 1);
        for vertex in 0..vertices {
            begins[vertex + 1] += begins[vertex];
        }
        let (mut next, mut ends) = (begins.clone(), vec![0; edges.len()]);
        for edge in edges {
            let (from, to) = first(edge);
            let at = &mut next[from as usize];
            ends[*at as usize] = u64::from(to);
            *at += 1;
        }
        Rows { begins, ends }
    }

    /// The other ends of a vertex's edges.
    #[inline]
    pub fn of_vertex(&self, vertex: u64) -> &[u64] {
        let vertex = vertex as usize;
        &self.ends[self.begins[vertex] as usize..self.begins[vertex + 1] as usize]
    }

    /// How many edges a vertex has.
    #[inline]
    pub fn degree(&self, vertex: u64) -> u64 {
        self.begins[vertex as usize + 1] - self.begins[vertex as usize]
    }

    /// What says whether two are the same, from one look at every word.
    fn digest(&self) -> u64 {
        self.begins.iter().chain(&self.ends).fold(0, |sum, word| digest(sum, *word))
    }
}

fn digest(sum: u64, word: u64) -> u64 {
    (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A directed graph.
#[derive(Debug, Default, PartialEq)]
pub struct Graph {
    /// Edges by where they come from.
    pub out: Rows,
    /// Edges by where they go to.
    pub into: Rows,
}

impl Graph {
    /// Of these edges.
    pub fn of(vertices: usize, edges: &[(u32, u32)]) -> Graph {
        let out = Rows::of(vertices, edges, |edge| *edge);
        Graph { out, into: Rows::of(vertices, edges, |&(from, to)| (to, from)) }
    }

    /// Number of vertices.
    pub fn vertices(&self) -> u64 {
        self.out.begins.len() as u64 - 1
    }

    /// Number of edges, each counted once.
    pub fn edges(&self) -> u64 {
        self.out.ends.len() as u64
    }

    /// Bytes of a graph's arrays, which is also its file's length.
    pub fn bytes(vertices: u64, edges: u64) -> u64 {
        2 * 8 * (vertices + 1 + edges)
    }

    /// Hands over each of its arrays.
    ///
    /// # Errors
    ///
    /// The first that `see` answers.
    pub fn each_array<E>(&self, see: impl FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
        [&self.out.begins, &self.out.ends, &self.into.begins, &self.into.ends]
            .map(Vec::as_slice)
            .into_iter()
            .try_for_each(see)
    }

    /// What says whether two graphs are the same, from one look at every word.
    pub fn digest(&self) -> u64 {
        digest(self.out.digest(), self.into.digest())
    }

    /// Puts it into a file.
    ///
    /// # Errors
    ///
    /// What the file system answers.
    pub fn write(&self, file: &File) -> io::Result<()> {
        let mut to = BufWriter::with_capacity(BUFFER, file);
        self.each_array(|array| array.iter().try_for_each(|word| to.write_all(&word.to_le_bytes())))?;
        to.flush()
    }

    /// Reads one from a file into this process's heap.
    ///
    /// # Errors
    ///
    /// A file too short, or what the file system answers.
    pub fn read(mut file: impl Read, vertices: u64, edges: u64) -> io::Result<Graph> {
        let mut rows = || -> io::Result<Rows> {
            let begins = words(&mut file, vertices as usize + 1)?;
            Ok(Rows { begins, ends: words(&mut file, edges as usize)? })
        };
        Ok(Graph { out: rows()?, into: rows()? })
    }
}

fn words(file: &mut impl Read, count: usize) -> io::Result<Vec<u64>> {
    let mut words = Vec::with_capacity(count);
    let mut buffer = vec![0; BUFFER];
    while words.len() < count {
        let bytes = &mut buffer[..BUFFER.min((count - words.len()) * 8)];
        file.read_exact(bytes)?;
        words.extend(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    #[test]
    fn edges_are_found_from_both_ends() {
        let graph = Graph::of(4, &[(0, 2), (3, 0), (0, 1), (0, 2)]);
        assert_eq!((graph.vertices(), graph.edges()), (4, 4));
        assert_eq!((graph.out.of_vertex(0), graph.out.degree(0)), (&[2, 1, 2][..], 3));
        assert_eq!((graph.out.of_vertex(1), graph.out.of_vertex(3)), (&[][..], &[0][..]));
        assert_eq!((graph.into.of_vertex(2), graph.into.of_vertex(0)), (&[0, 0][..], &[3][..]));
    }

    #[test]
    fn a_file_holds_all_of_a_graph_and_any_change_shows() {
        let graph = Graph::of(100, &(0..70_000).map(|i| (i % 97, i * 7 % 100)).collect::<Vec<_>>());
        let mut file = tempfile::tempfile().unwrap();
        graph.write(&file).unwrap();
        assert_eq!(file.metadata().unwrap().len(), Graph::bytes(100, 70_000));
        file.rewind().unwrap();
        let mut read = Graph::read(&file, 100, 70_000).unwrap();
        assert_eq!((&read, read.digest()), (&graph, graph.digest()));
        read.into.ends.swap(0, 1);
        assert_ne!(read.digest(), graph.digest());
        file.rewind().unwrap();
        assert!(Graph::read(&file, 101, 70_000).is_err());
    }
}
