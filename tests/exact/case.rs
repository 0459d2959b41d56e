//! Random cases as data: an arena, its pools, and a list of operations that any state can take.

use kvtide::config::{Compaction, Config, Engine, Prefer};
use kvtide_core::chain::{Grow, PoolKind, PoolSpec};
use kvtide_core::unit::{Bytes, Pages, Token, Tokens};

/// What a pool stores, in tokens where it is a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Full,
    Window(u32),
    State,
}

/// One pool. Pools of a [`Case`] stand in byte order.
#[derive(Clone, Debug)]
pub struct Pool {
    pub kind: Kind,
    pub grow: Grow,
    pub page_bytes: u64,
    pub cap: Option<u32>,
}

/// An arena and how the service over it behaves.
#[derive(Clone, Debug)]
pub struct Case {
    pub total: u64,
    pub sink: Option<u64>,
    pub page_tokens: u32,
    pub pools: Vec<Pool>,
    pub compaction: Compaction,
    pub prefer: Prefer,
    pub engine: Engine,
}

/// One operation. Numbers are taken modulo what there is to choose from; with nothing to choose, nothing is done.
#[derive(Clone, Debug)]
pub enum Op {
    Open {
        prompt: Prompt,
    },
    Extend {
        which: u32,
        tokens: u32,
    },
    Append {
        which: u32,
        tokens: u32,
    },
    Checkpoint {
        which: u32,
        how: u32,
    },
    Finish {
        which: u32,
        how: u32,
    },
    Drop {
        which: u32,
    },
    Reserve {
        pages: [u32; 4],
    },
    Release {
        which: u32,
        pools: Option<u32>,
    },
    BeginStep {
        mask: u32,
    },
    EndStep {
        which: u32,
    },
    CloseMoves {
        mask: u32,
    },
    OpenMoves {
        which: u32,
    },
    Flush,
    Compact {
        bytes: u64,
    },
    /// Open, compute all, publish, close.
    Insert {
        prompt: Prompt,
    },
}

/// The first `pages` pages and `rest` tokens more of one of a few families of texts.
#[derive(Clone, Copy, Debug)]
pub struct Prompt {
    pub family: u32,
    pub pages: u32,
    pub rest: u32,
    pub salted: u32,
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// One of `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    pub fn small(&mut self, below: u32) -> u32 {
        self.below(u64::from(below)) as u32
    }

    /// One of `from..=to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

impl Case {
    pub fn random(rng: &mut Rng) -> Self {
        let page_tokens = rng.pick(&[1, 1, 4, 16]);
        let pools = random_pools(rng, page_tokens);
        let largest = pools.iter().map(|pool| pool.page_bytes).max().unwrap_or(1);
        let sink = rng.chance(6).then(|| largest + rng.below(2 * largest));
        let content: u64 = pools.iter().map(|pool| pool.page_bytes * rng.range(3, 11)).sum();
        // Every pool needs one page above the sink.
        let total = sink.unwrap_or(largest) + content.max(2 * largest) + rng.below(largest);
        Case {
            total,
            sink,
            page_tokens,
            pools,
            compaction: rng.pick(&[Compaction::Lazy, Compaction::Lazy, Compaction::Eager]),
            prefer: rng.pick(&[Prefer::Full, Prefer::Full, Prefer::Window]),
            engine: if rng.chance(5) { Engine::Host } else { Engine::Accounting },
        }
    }

    pub fn config(&self) -> Config {
        let specs = (0..).zip(&self.pools).map(|(index, pool): (u32, _)| PoolSpec {
            name: format!("pool{index}"),
            kind: match pool.kind {
                Kind::Full => PoolKind::Full,
                Kind::Window(tokens) => PoolKind::Window { window: Tokens(tokens) },
                Kind::State => PoolKind::State,
            },
            grow: pool.grow,
            page_bytes: Bytes(pool.page_bytes),
            pages_max: pool.cap.map(Pages),
        });
        let sink = self.sink.map(Bytes);
        let page_tokens = Tokens(self.page_tokens);
        let config =
            Config::from_pools("random", Bytes(self.total), page_tokens, sink, specs.collect());
        let mut config = config.unwrap().with_engine(self.engine);
        config.sections.cache.compaction = self.compaction;
        config.sections.reclaim.prefer = self.prefer;
        config
    }

    pub fn full(&self) -> usize {
        self.pools.iter().position(|pool| pool.kind == Kind::Full).unwrap()
    }
}

fn random_pools(rng: &mut Rng, page_tokens: u32) -> Vec<Pool> {
    let count = rng.range(1, 4) as usize;
    let mut pools: Vec<Pool> = (0..count)
        .map(|index| {
            let window = rng.pick(&[1, 2, page_tokens, 3 * page_tokens, 50 * page_tokens]);
            let kind = match (index, rng.below(2)) {
                (0, _) => Kind::Full,
                (_, 0) => Kind::State,
                _ => Kind::Window(window),
            };
            let page_bytes = 8 * rng.pick(&[1, 1, 2, 3, 4, 5, 7, 8, 13]);
            let cap = rng.chance(8).then(|| rng.range(2, 9) as u32);
            Pool { kind, grow: Grow::Float, page_bytes, cap }
        })
        .collect();
    let full_at = rng.below(count as u64) as usize;
    pools.swap(0, full_at);
    if rng.below(5) > 0 {
        pools[0].grow = Grow::Up;
    }
    if (count > 1 || pools[0].grow == Grow::Float) && rng.below(5) > 0 {
        pools[count - 1].grow = Grow::Down;
    }
    pools
}

/// What a case's operations are like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Taste {
    /// Much is held: sequences, reservations, leases, gates.
    Held,
    /// Much is cached, little held: nearly every allocation evicts.
    Cached,
}

impl Op {
    pub fn random(rng: &mut Rng, taste: Taste) -> Self {
        let which = rng.small(64);
        let tokens = rng.small(200);
        let how = rng.small(6);
        let hasty = taste == Taste::Cached;
        match rng.below(if hasty { 170 } else { 100 }) {
            0..14 => Op::Open { prompt: Prompt::random(rng) },
            14..30 => Op::Extend { which, tokens },
            30..38 => Op::Append { which, tokens },
            38..43 => Op::Checkpoint { which, how },
            43..51 => Op::Finish { which, how },
            51..54 => Op::Drop { which },
            54..69 => Op::Reserve { pages: random_demand(rng) },
            69..77 => Op::Release { which, pools: rng.chance(4).then(|| rng.small(16)) },
            77..80 => Op::BeginStep { mask: rng.small(256) },
            80..83 => Op::EndStep { which },
            83..85 => Op::CloseMoves { mask: rng.small(16) },
            85..88 => Op::OpenMoves { which },
            88 => Op::Flush,
            89 => Op::Compact { bytes: rng.below(600) },
            90..130 => Op::Insert { prompt: Prompt::random(rng) },
            130..140 => Op::Finish { which, how },
            140..150 => Op::EndStep { which },
            150..155 => Op::OpenMoves { which },
            _ => Op::Release { which, pools: None },
        }
    }
}

fn random_demand(rng: &mut Rng) -> [u32; 4] {
    let size = rng.pick(&[2, 3, 5, 8, 14]);
    std::array::from_fn(|_| if rng.chance(3) { 0 } else { rng.small(size) })
}

impl Prompt {
    fn random(rng: &mut Rng) -> Self {
        Prompt {
            family: rng.small(6),
            pages: rng.small(9),
            rest: rng.small(16),
            salted: u32::from(rng.chance(8)),
        }
    }

    pub fn tokens(&self, case: &Case) -> Vec<Token> {
        let count = self.pages * case.page_tokens + self.rest % case.page_tokens;
        (0..count.max(1)).map(|at| token(case, self.family, at)).collect()
    }
}

/// Token `at` of a family: families in pairs share their first three pages.
pub fn token(case: &Case, family: u32, at: u32) -> Token {
    if at < 3 * case.page_tokens { family / 2 } else { 10 + family }
        .wrapping_mul(100_000)
        .wrapping_add(at)
}
