//! Inserting where a leaf is full: down again with write locks, of which those of full nodes are kept until all are split.

use super::locks;
use super::node::{Entry, INNER_ENTRIES, LEAF_ENTRIES, Target};
use super::region::Region;
use super::{Node, Tree};
use crate::substrates::Result;

impl<R: Region> Tree<R> {
    /// [`Tree::put`] of a key whose leaf was full; somebody else may have inserted it, or split the leaf, meanwhile.
    #[cold]
    pub(super) fn put_splitting(&self, target: &Target<'_>, value: &[u8]) -> Result<bool> {
        let mut root = Some(self.root.change());
        let mut path = Vec::new();
        let (mut level, mut number) = {
            let node = self.root.current(&self.space, root.as_ref().expect("taken above"));
            (node.level() - 1, node.child(self.above(node, target)))
        };
        loop {
            let lock = locks::write(self.locks.of(number));
            let node = self.space.node(number);
            if !is_full(node) {
                // What is split below ends here.
                path.clear();
                root = None;
            }
            path.push((number, lock));
            if level == 0 {
                break;
            }
            level -= 1;
            number = node.child(self.above(node, target));
        }
        if let Some(position) = self.position(number, target) {
            self.replace(number, position, target.key, value)?;
            return Ok(false);
        }
        // All that can fail comes first.
        let full_root = root.as_ref().map(|root| self.root.current(&self.space, root)).filter(|root| is_full(*root));
        let splits = path.iter().filter(|(number, _)| is_full(self.space.node(*number))).count();
        let wanted = splits + if full_root.is_some() { 2 } else { 0 };
        let mut nodes = (0..wanted).map(|_| self.space.take_node()).collect::<Result<Vec<u64>>>()?;
        let place = self.log.append(&self.space, target.key, value)?;

        let mut new = || nodes.pop().expect("counted above");
        let leaf = self.space.node(number);
        if !is_full(leaf) {
            leaf.insert_leaf(self.lower_bound(number, target), target, place);
            return Ok(true);
        }
        let (right, mut least);
        right = new();
        least = leaf.split_leaf(self.space.node(right), right);
        let side = if self.space.compare(least, target).is_le() { right } else { number };
        self.space.node(side).insert_leaf(self.lower_bound(side, target), target, place);
        let mut child = right;
        for (number, _) in path.iter().rev().skip(1) {
            let node = self.space.node(*number);
            if !is_full(node) {
                self.insert_child(node, least, child);
                return Ok(true);
            }
            let right = new();
            let middle = self.split_inner(node, right, least, child);
            (least, child) = (middle, right);
        }
        let Some(root) = root else { return Ok(true) };
        match full_root {
            None => self.root.publish(&self.space, &root, |copy| self.insert_child(copy, least, child)),
            Some(old) => {
                let (left, right) = (new(), new());
                let node = self.space.node(left);
                node.copy_from(old);
                let middle = self.split_inner(node, right, least, child);
                self.root.publish(&self.space, &root, |copy| {
                    copy.make_inner(old.level() + 1, left);
                    copy.insert_inner(0, middle, right);
                });
            }
        }
        Ok(true)
    }

    /// Splits a full inner node and inserts a child into the half it belongs to; returns what separates the halves.
    fn split_inner(&self, node: Node<'_>, right: u64, least: Entry, child: u64) -> Entry {
        let new = self.space.node(right);
        let middle = node.split_inner(new);
        let is_right = self.space.compare(middle, &self.key_of(least)).is_lt();
        self.insert_child(if is_right { new } else { node }, least, child);
        middle
    }

    fn insert_child(&self, node: Node<'_>, least: Entry, child: u64) {
        node.insert_inner(self.above(node, &self.key_of(least)), least, child);
    }

    /// How many entries of an inner node are not above a key.
    pub(super) fn above(&self, node: Node<'_>, target: &Target<'_>) -> usize {
        node.partition(node.count(), |position| self.space.compare(node.inner(position), target).is_le())
    }

    fn key_of(&self, entry: Entry) -> Target<'_> {
        // SAFETY: an entry that this thread has read under its node's lock, or the root's mutex.
        let key = unsafe { self.space.record(entry.place) }.key();
        Target { key, prefix: entry.prefix }
    }
}

fn is_full(node: Node<'_>) -> bool {
    node.count() >= if node.level() == 0 { LEAF_ENTRIES } else { INNER_ENTRIES }
}
