//! Quantities and names, each its own type, so that none can be taken for another.

use std::fmt;

/// A token id, opaque: a vocabulary entry, or a 32-bit hash of other content.
pub type Token = u32;

/// A count of tokens, or a position in a sequence.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tokens(pub u32);

/// A count of pages (of slots, for a state pool).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pages(pub u32);

/// A count of bytes, or an offset into the arena.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Bytes(pub u64);

/// A physical page: its index on its pool's grid, so that it starts at byte `index * page_bytes`.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PageId(pub u32);

/// The name of a page that sequences, the tree and kernels hold; moving the page never changes it.
///
/// Token pools share one space of ids, owned by the full pool; every state pool has its own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct VirtId(pub u32);

/// A pool, by its place in the chain (byte order, lowest first).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PoolId(pub u8);

/// The most pools that one chain may have.
pub const POOLS_MAX: usize = 8;

impl Tokens {
    /// Pages that hold this many tokens, the last one perhaps in part.
    #[must_use]
    pub const fn pages_up(self, page_tokens: Tokens) -> Pages {
        Pages(self.0.div_ceil(page_tokens.0))
    }

    /// Whole pages in this many tokens.
    #[must_use]
    pub const fn pages_down(self, page_tokens: Tokens) -> Pages {
        Pages(self.0 / page_tokens.0)
    }
}

impl Pages {
    /// Tokens that this many whole pages hold.
    #[must_use]
    pub const fn tokens(self, page_tokens: Tokens) -> Tokens {
        Tokens(self.0 * page_tokens.0)
    }

    /// Bytes of this many pages of `page_bytes` each.
    #[must_use]
    pub const fn bytes(self, page_bytes: Bytes) -> Bytes {
        Bytes(self.0 as u64 * page_bytes.0)
    }

    /// As an index or a length.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl PageId {
    /// As an index into a table of the pool's pages.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The byte at which the page starts.
    #[must_use]
    pub const fn offset(self, page_bytes: Bytes) -> Bytes {
        Bytes(self.0 as u64 * page_bytes.0)
    }
}

impl VirtId {
    /// As an index into a table of ids.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl PoolId {
    /// As an index into a [`PerPool`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0)
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.0)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

/// One value for every pool of a chain, by place in the chain.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PerPool<T>(pub [T; POOLS_MAX]);

impl<T> std::ops::Index<PoolId> for PerPool<T> {
    type Output = T;

    fn index(&self, pool: PoolId) -> &T {
        &self.0[pool.index()]
    }
}

impl<T> std::ops::IndexMut<PoolId> for PerPool<T> {
    fn index_mut(&mut self, pool: PoolId) -> &mut T {
        &mut self.0[pool.index()]
    }
}
