//! Which pages go first: the two lists, or the generations (MGLRU). A list has *folios*, which the kernel keeps and drops as one.

/// No folio.
pub const NONE: u32 = u32::MAX;

/// A doubly linked list over an array of links.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// The first, which was added last.
    pub head: u32,
    /// The last, which goes first.
    pub tail: u32,
    /// Pages of all.
    pub pages: u64,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, pages: 0 }
    }
}

/// Neighbours in a list.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    prev: u32,
    next: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link { prev: NONE, next: NONE }
    }
}

impl List {
    pub fn push(&mut self, links: &mut [Link], folio: u32, pages: u64) {
        links[folio as usize] = Link { prev: NONE, next: self.head };
        match self.head {
            NONE => self.tail = folio,
            head => links[head as usize].prev = folio,
        }
        self.head = folio;
        self.pages += pages;
    }

    pub fn remove(&mut self, links: &mut [Link], folio: u32, pages: u64) {
        let Link { prev, next } = links[folio as usize];
        match prev {
            NONE => self.head = next,
            prev => links[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => links[next as usize].prev = prev,
        }
        self.pages -= pages;
    }
}
