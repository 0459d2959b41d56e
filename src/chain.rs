//! The pools of one model in byte order, checked once.

use crate::unit::{Bytes, POOLS_MAX, Pages, PoolId, Tokens};

/// What a pool stores.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolKind {
    /// Full-attention KV: a page per token page, kept for the whole prefix.
    Full,
    /// Sliding-window KV: a page per token page, needed for the trailing `window` only.
    Window {
        /// Trailing tokens that a layer still attends to.
        window: Tokens,
    },
    /// Recurrent state: a slot per checkpoint.
    State,
}

/// Where a pool's span lies and which way it grows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Grow {
    /// From the bottom, upwards: the up end.
    Up,
    /// Between its neighbours, on either side.
    Float,
    /// From the top, downwards: the down end.
    Down,
}

/// One pool as asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolSpec {
    /// Unique in its chain; names the pool in demands, metrics and errors.
    pub name: String,
    /// What it stores.
    pub kind: PoolKind,
    /// Where it lies.
    pub grow: Grow,
    /// Bytes of one page, all its layers together.
    pub page_bytes: Bytes,
    /// A cap on the pool's pages and ids, if less than what its grid has.
    pub pages_max: Option<Pages>,
}

/// A checked chain of pools over an arena of `total` bytes.
///
/// Pools are held in byte order: the up end, the floats in the order given, the down end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chain {
    total: Bytes,
    sink: Bytes,
    page_tokens: Tokens,
    pools: Vec<PoolSpec>,
    full: Option<PoolId>,
    windows: Vec<PoolId>,
    states: Vec<PoolId>,
}

/// Why pools cannot form a chain. Nothing was made.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChainError {
    /// The chain is empty.
    #[error("a chain needs at least one pool")]
    NoPools,
    /// More pools than [`POOLS_MAX`].
    #[error("{0} pools, at most {POOLS_MAX} can form a chain")]
    TooManyPools(usize),
    /// Two pools share a name.
    #[error("two pools are named `{0}`")]
    SameName(String),
    /// A page of no bytes, of no tokens, or a window of none.
    #[error("pool `{pool}`: {what} must be at least 1")]
    Zero {
        /// The pool, or `arena`.
        pool: String,
        /// The quantity that is zero.
        what: &'static str,
    },
    /// Two pools grow from the same end.
    #[error("pools `{first}` and `{second}` both grow {grow}")]
    SameEnd {
        /// The pool named first.
        first: String,
        /// The other one.
        second: String,
        /// `up` or `down`.
        grow: &'static str,
    },
    /// Two full pools: token pools share the ids of exactly one.
    #[error("pools `{first}` and `{second}` are both full pools")]
    TwoFull {
        /// The pool named first.
        first: String,
        /// The other one.
        second: String,
    },
    /// A window pool without the full pool whose ids it shares.
    #[error("window pool `{0}` needs a full pool to share ids with")]
    NoFull(String),
    /// The sink must hold page 0 of every pool.
    #[error("a sink of {sink} is below the largest page, {page_bytes} of pool `{pool}`")]
    SmallSink {
        /// The sink asked for.
        sink: Bytes,
        /// The largest page.
        page_bytes: Bytes,
        /// Whose page that is.
        pool: String,
    },
    /// Not one page of a pool lies between the sink and the top.
    #[error(
        "capacity of {total} is too small: pool `{pool}` needs {needed} for the sink and one page"
    )]
    NoRoom {
        /// The arena's bytes.
        total: Bytes,
        /// The pool without a usable page.
        pool: String,
        /// Bytes from which it would have one.
        needed: Bytes,
    },
    /// Page numbers are 32 bits.
    #[error("pool `{pool}` would have {pages} pages, at most {} can be named", u32::MAX - 1)]
    TooManyPages {
        /// The pool.
        pool: String,
        /// Pages on its grid.
        pages: u64,
    },
}

impl Chain {
    /// Checks `pools`, given in any order (floats keep theirs), and lays them out over `total` bytes.
    ///
    /// `sink` is the bytes at the bottom that no page may use: the largest page unless given.
    ///
    /// # Errors
    /// Every [`ChainError`]; see there.
    pub fn new(
        total: Bytes,
        page_tokens: Tokens,
        sink: Option<Bytes>,
        mut pools: Vec<PoolSpec>,
    ) -> Result<Self, ChainError> {
        check_shape(page_tokens, &pools)?;
        check_kinds(&pools)?;
        pools.sort_by_key(|pool| match pool.grow {
            Grow::Up => 0,
            Grow::Float => 1,
            Grow::Down => 2,
        });
        let largest = pools.iter().max_by_key(|pool| pool.page_bytes).ok_or(ChainError::NoPools)?;
        let sink = sink.unwrap_or(largest.page_bytes);
        if sink < largest.page_bytes {
            return Err(ChainError::SmallSink {
                sink,
                page_bytes: largest.page_bytes,
                pool: largest.name.clone(),
            });
        }
        let ids = |wanted: fn(&PoolKind) -> bool| {
            (0..)
                .map(PoolId)
                .zip(&pools)
                .filter(move |(_, pool)| wanted(&pool.kind))
                .map(|(id, _)| id)
        };
        let chain = Chain {
            total,
            sink,
            page_tokens,
            full: ids(|kind| *kind == PoolKind::Full).next(),
            windows: ids(|kind| matches!(kind, PoolKind::Window { .. })).collect(),
            states: ids(|kind| *kind == PoolKind::State).collect(),
            pools,
        };
        chain.check_room()?;
        Ok(chain)
    }

    /// Bytes of the arena.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// Bytes at the bottom that no page may use.
    #[must_use]
    pub fn sink(&self) -> Bytes {
        self.sink
    }

    /// Tokens of one token page.
    #[must_use]
    pub fn page_tokens(&self) -> Tokens {
        self.page_tokens
    }

    /// Every pool's id, in byte order.
    pub fn pool_ids(&self) -> impl DoubleEndedIterator<Item = PoolId> + ExactSizeIterator + use<> {
        (0..self.pools.len() as u8).map(PoolId)
    }

    /// One pool as asked for.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> &PoolSpec {
        &self.pools[pool.index()]
    }

    /// The pool of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<PoolId> {
        self.pool_ids().find(|&pool| self.pool(pool).name == name)
    }

    /// The full pool, unless the model keeps recurrent state only.
    #[must_use]
    pub fn full(&self) -> Option<PoolId> {
        self.full
    }

    /// Window pools in byte order. A pool's place here is its *window ordinal*.
    #[must_use]
    pub fn windows(&self) -> &[PoolId] {
        &self.windows
    }

    /// State pools in byte order. A pool's place here is its *state ordinal*.
    #[must_use]
    pub fn states(&self) -> &[PoolId] {
        &self.states
    }

    /// Pages that the trailing window of a window pool may touch, counted back from a page boundary.
    #[must_use]
    pub fn window_pages(&self, pool: PoolId) -> Pages {
        match self.pool(pool).kind {
            PoolKind::Window { window } => window.pages_up(self.page_tokens),
            PoolKind::Full | PoolKind::State => Pages(0),
        }
    }

    /// Pages on a pool's grid, the sink's included.
    #[must_use]
    pub fn grid_pages(&self, pool: PoolId) -> Pages {
        Pages((self.total.0 / self.pool(pool).page_bytes.0) as u32)
    }

    /// First page wholly above the sink.
    #[must_use]
    pub fn first_page(&self, pool: PoolId) -> Pages {
        Pages(self.sink.0.div_ceil(self.pool(pool).page_bytes.0) as u32)
    }

    /// The most pages that can ever be live at once: what the grid has above the sink, its cap and its ids allow.
    #[must_use]
    pub fn pages_max(&self, pool: PoolId) -> Pages {
        let own = |pool: PoolId| {
            let usable = self.grid_pages(pool).0 - self.first_page(pool).0;
            self.pool(pool).pages_max.map_or(usable, |cap| cap.0.min(usable))
        };
        match (self.pool(pool).kind, self.full) {
            (PoolKind::Window { .. }, Some(full)) => Pages(own(pool).min(own(full))),
            _ => Pages(own(pool)),
        }
    }

    fn check_room(&self) -> Result<(), ChainError> {
        for pool in self.pool_ids() {
            let spec = self.pool(pool);
            let pages = self.total.0 / spec.page_bytes.0;
            if pages >= u64::from(u32::MAX) {
                return Err(ChainError::TooManyPages { pool: spec.name.clone(), pages });
            }
            let first = self.sink.0.div_ceil(spec.page_bytes.0);
            if first >= pages {
                return Err(ChainError::NoRoom {
                    total: self.total,
                    pool: spec.name.clone(),
                    needed: Bytes((first + 1).saturating_mul(spec.page_bytes.0)),
                });
            }
        }
        Ok(())
    }
}

fn check_shape(page_tokens: Tokens, pools: &[PoolSpec]) -> Result<(), ChainError> {
    if pools.is_empty() {
        return Err(ChainError::NoPools);
    }
    if pools.len() > POOLS_MAX {
        return Err(ChainError::TooManyPools(pools.len()));
    }
    let zero = |pool: &str, what| Err(ChainError::Zero { pool: pool.to_owned(), what });
    if page_tokens.0 == 0 {
        return zero("arena", "page tokens");
    }
    for (index, pool) in pools.iter().enumerate() {
        if pools[..index].iter().any(|other| other.name == pool.name) {
            return Err(ChainError::SameName(pool.name.clone()));
        }
        if pool.page_bytes.0 == 0 {
            return zero(&pool.name, "page bytes");
        }
        if pool.pages_max == Some(Pages(0)) {
            return zero(&pool.name, "the cap on pages");
        }
        if pool.kind == (PoolKind::Window { window: Tokens(0) }) {
            return zero(&pool.name, "the window");
        }
    }
    Ok(())
}

fn check_kinds(pools: &[PoolSpec]) -> Result<(), ChainError> {
    let pair = |wanted: &dyn Fn(&PoolSpec) -> bool| {
        let mut found = pools.iter().filter(|pool| wanted(pool)).map(|pool| pool.name.clone());
        found.next().zip(found.next())
    };
    for (grow, name) in [(Grow::Up, "up"), (Grow::Down, "down")] {
        if let Some((first, second)) = pair(&|pool| pool.grow == grow) {
            return Err(ChainError::SameEnd { first, second, grow: name });
        }
    }
    if let Some((first, second)) = pair(&|pool| pool.kind == PoolKind::Full) {
        return Err(ChainError::TwoFull { first, second });
    }
    let window = pools.iter().find(|pool| matches!(pool.kind, PoolKind::Window { .. }));
    match window {
        Some(window) if pools.iter().all(|pool| pool.kind != PoolKind::Full) => {
            Err(ChainError::NoFull(window.name.clone()))
        }
        _ => Ok(()),
    }
}
