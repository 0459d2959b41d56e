//! One sequence's pages: what it computed, which pages are its own and which it shares with the tree.
//!
//! A sequence is opened on a match: `lock` holds the tree's pages up to a boundary; what is computed after that boundary
//! lies in pages of its own until it is published. It knows neither where pages lie nor what else is cached.
//!
//! ```text
//! pages   [ shared with the tree, locked ][ own ............ ][ own, partly filled ]
//! tokens  0                              boundary            computed rounded down   computed
//! ```

mod fork;
mod park;
mod truncate;

use crate::arena::Grant;
use crate::chain::{Chain, PoolKind};
use crate::demand::{DemandError, ExactDemand, Extend, WindowDemand};
use crate::tree::{Fate, Lock, Match, Namespace, Ordinals, OwnPage, User};
use crate::unit::{Pages, PoolId, Token, Tokens, VirtId};

pub use truncate::PageUnderWay;

/// Tokens, pages and locks of one open sequence.
#[derive(Debug)]
pub struct Sequence {
    namespace: Namespace,
    tokens: Vec<Token>,
    prompt: Tokens,
    computed: Tokens,
    /// `None` only while the tree works on it.
    lock: Option<Lock>,
    /// What was computed when the lock's windows were last looked at.
    lock_shed: Tokens,
    shared: Vec<VirtId>,
    own: Vec<OwnPage>,
    /// By window ordinal: the first position whose window page was not given up yet.
    shed: Vec<Pages>,
    running: Vec<VirtId>,
    standing: Standing,
}

/// Whether a sequence has memory.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Standing {
    Open,
    /// It has none; whom its hold was for.
    Parked(User),
}

/// Why an operation does not apply to the sequence as it stands. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SequenceError {
    /// Extending past the prompt.
    #[error("extend by {asked}, but {left} of the prompt are left")]
    PastPrompt {
        /// Tokens asked for.
        asked: Tokens,
        /// Prompt tokens not yet computed.
        left: Tokens,
    },
    /// Appending before the prompt is computed.
    #[error("append before the prompt is computed: {computed} of {prompt}")]
    PromptNotComputed {
        /// Tokens computed.
        computed: Tokens,
        /// Tokens of the prompt.
        prompt: Tokens,
    },
    /// Using a sequence that has no memory.
    #[error("the sequence is parked; resume it first")]
    Parked,
    /// Resuming one that has.
    #[error("the sequence is not parked")]
    NotParked,
    /// A prompt, or an append, of no tokens.
    #[error("no tokens given, at least one is needed")]
    NoTokens,
    /// More tokens than positions can be counted.
    #[error("a sequence of {asked} tokens is longer than {} can be", u32::MAX)]
    TooLong {
        /// Tokens that the sequence would have.
        asked: u64,
    },
    /// Truncating to more than is computed.
    #[error("truncate to {asked}, but only {computed} are computed")]
    PastComputed {
        /// Tokens that were to stay.
        asked: Tokens,
        /// Tokens computed.
        computed: Tokens,
    },
    /// Truncating to where the trailing window lacks a page, most often because it was given back.
    #[error("truncate to {asked}: the window page at position {missing} was given back")]
    WindowGivenBack {
        /// Tokens that were to stay.
        asked: Tokens,
        /// First position of the first page that is not there.
        missing: Tokens,
    },
    /// The demand cannot be counted.
    #[error(transparent)]
    Demand(#[from] DemandError),
}

/// What a sequence would add to the tree: whole pages computed past its lock's boundary.
#[derive(Debug)]
pub struct Publication {
    /// Tokens of those pages.
    pub tokens: Vec<Token>,
    /// The pages, one per page of tokens.
    pub pages: Vec<OwnPage>,
}

/// Pages of a pool that a closed sequence gives back, and the lock that it held.
#[derive(Debug)]
pub struct GivenBack {
    /// Pages of its own, window pages before the full pages that they are bound under.
    pub pages: Vec<(PoolId, VirtId)>,
    /// The hold on the tree, unless the tree has it back.
    pub lock: Option<Lock>,
}

impl Sequence {
    /// A sequence whose prompt is `prompt`, computed as far as `matched` goes.
    #[must_use]
    pub fn new(
        chain: &Chain,
        namespace: Namespace,
        prompt: Vec<Token>,
        matched: Match,
        lock: Lock,
        running: Vec<VirtId>,
    ) -> Self {
        let length = Tokens(prompt.len() as u32);
        let computed = matched.pages.tokens(chain.page_tokens());
        Sequence {
            namespace,
            tokens: prompt,
            prompt: length,
            computed,
            lock: Some(lock),
            lock_shed: computed,
            shared: matched.virts,
            own: Vec::new(),
            shed: vec![Pages(0); chain.windows().len()],
            running,
            standing: Standing::Open,
        }
    }

    /// The namespace that its prefix is cached under.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Tokens computed so far.
    #[must_use]
    pub fn computed(&self) -> Tokens {
        self.computed
    }

    /// Tokens known and not yet computed: of the prompt, or of all so far after a resume.
    #[must_use]
    pub fn prompt_left(&self) -> Tokens {
        Tokens((self.tokens.len() as u32).saturating_sub(self.computed.0))
    }

    /// Takes the hold on the tree out, for the tree to work on; [`Sequence::put_lock`] brings it back.
    ///
    /// # Panics
    /// If it is out already: the allocator works on one operation of a sequence at a time.
    pub fn take_lock(&mut self) -> Lock {
        self.lock.take().expect("I11: between operations a sequence holds its lock")
    }

    /// Whether it belongs to a session.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.user().session.is_some())
    }

    /// Brings the hold on the tree back.
    pub fn put_lock(&mut self, lock: Lock) {
        self.lock = Some(lock);
    }

    /// Pages shared with the tree: where its lock's boundary is.
    #[must_use]
    pub fn boundary(&self) -> Pages {
        Pages(self.shared.len() as u32)
    }

    /// Running state slots, by state ordinal.
    #[must_use]
    pub fn running(&self) -> &[VirtId] {
        &self.running
    }

    /// Computed tokens after the next `count` prompt tokens (all that are left, if `None`).
    ///
    /// # Errors
    /// [`SequenceError::PastPrompt`].
    pub fn extend_target(&self, count: Option<Tokens>) -> Result<Tokens, SequenceError> {
        let left = self.prompt_left();
        let asked = count.unwrap_or(left);
        if asked > left {
            return Err(SequenceError::PastPrompt { asked, left });
        }
        Ok(Tokens(self.computed.0 + asked.0))
    }

    /// What a step to `new` computed tokens needs, to the page.
    ///
    /// # Errors
    /// [`SequenceError::Demand`].
    pub fn demand_to(
        &self,
        chain: &Chain,
        new: Tokens,
        windows: WindowDemand,
    ) -> Result<ExactDemand, SequenceError> {
        let extend = Extend { old: self.computed, new, windows };
        Ok(ExactDemand::for_extends(chain, &[extend])?)
    }

    /// Takes the pages of a step to `new` computed prompt tokens.
    pub fn extend(&mut self, chain: &Chain, grant: &Grant, new: Tokens) {
        let count = grant.pages.len() as u32;
        for (index, &virt) in (0..).zip(&grant.pages) {
            let mut windows = Ordinals::NONE;
            for (ordinal, &pool) in chain.windows().iter().enumerate() {
                // A grant's window pages are bound under the last of its full pages.
                if count - index <= grant.windows[pool].0 {
                    windows.insert(ordinal);
                }
            }
            self.own.push(OwnPage { virt, windows });
        }
        self.computed = new;
    }

    /// Whether decode steps may be appended.
    ///
    /// # Errors
    /// [`SequenceError::PromptNotComputed`], [`SequenceError::NoTokens`], [`SequenceError::TooLong`].
    pub fn can_append(&self, count: usize) -> Result<(), SequenceError> {
        if count == 0 {
            return Err(SequenceError::NoTokens);
        }
        if self.prompt_left() > Tokens(0) {
            let prompt = Tokens(self.tokens.len() as u32);
            return Err(SequenceError::PromptNotComputed { computed: self.computed, prompt });
        }
        let asked = self.tokens.len() as u64 + count as u64;
        if asked > u64::from(u32::MAX) { Err(SequenceError::TooLong { asked }) } else { Ok(()) }
    }

    /// Whether the next decode step starts a page.
    #[must_use]
    pub fn starts_page(&self, chain: &Chain) -> bool {
        self.computed.0.is_multiple_of(chain.page_tokens().0)
    }

    /// Whether the page that the next token goes to is there already.
    #[must_use]
    pub fn has_page(&self, chain: &Chain) -> bool {
        let next = self.computed.pages_down(chain.page_tokens()).index();
        next < self.shared.len() + self.own.len()
    }

    /// Whether some trailing window has left shared pages behind since this was last asked: then the tree's window
    /// locks can be shed.
    pub fn sheds_lock(&mut self, chain: &Chain) -> bool {
        let before = std::mem::replace(&mut self.lock_shed, self.computed);
        let (page, boundary) = (chain.page_tokens(), self.boundary());
        chain.windows().iter().any(|&pool| match chain.pool(pool).kind {
            PoolKind::Window { window } => {
                let behind = |computed: Tokens| {
                    let behind = Tokens(computed.0.saturating_sub(window.0));
                    behind.pages_down(page).min(boundary)
                };
                behind(before) < behind(self.computed)
            }
            PoolKind::Full | PoolKind::State => false,
        })
    }

    /// One decode step into the page under way.
    pub fn append(&mut self, token: Token) {
        self.tokens.push(token);
        self.computed.0 += 1;
    }

    /// Takes back the last `count` tokens' worth of an extend that nobody waited for: the pages to free.
    ///
    /// Only pages of its own that the shorter sequence does not reach are given back.
    pub fn undo_to(&mut self, chain: &Chain, computed: Tokens) -> Vec<(PoolId, VirtId)> {
        let keep = computed.pages_up(chain.page_tokens()).index().saturating_sub(self.shared.len());
        let freed = self.own.split_off(keep.min(self.own.len()));
        self.computed = computed;
        own_pages(chain, &freed)
    }

    /// Gives up own window pages that no trailing window of what is computed covers any more: the pages to free.
    pub fn shed(&mut self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        let mut freed = Vec::new();
        for (ordinal, &pool) in chain.windows().iter().enumerate() {
            let PoolKind::Window { window } = chain.pool(pool).kind else { continue };
            let page = chain.page_tokens();
            let whole = self.computed.pages_down(page).tokens(page);
            let behind = Tokens(whole.0.saturating_sub(window.0)).pages_down(page).index();
            let behind = behind.min(self.shared.len() + self.own.len());
            let from = self.shed[ordinal].index().max(self.shared.len());
            for position in from..behind {
                let page = &mut self.own[position - self.shared.len()];
                if page.windows.contains(ordinal) {
                    page.windows.remove(ordinal);
                    freed.push((pool, page.virt));
                }
            }
            self.shed[ordinal] = Pages(self.shed[ordinal].0.max(behind as u32));
        }
        freed
    }

    /// Whole pages computed past the lock's boundary.
    #[must_use]
    pub fn publication(&self, chain: &Chain) -> Publication {
        let page = chain.page_tokens();
        let from = self.shared.len();
        // After a truncation the last page may be the tree's and partly used.
        let to = self.computed.pages_down(page).max(Pages(from as u32));
        Publication {
            tokens: self.tokens
                [Pages(from as u32).tokens(page).0 as usize..to.tokens(page).0 as usize]
                .to_vec(),
            pages: self.own[..to.index() - from].to_vec(),
        }
    }

    /// Takes note of what became of a publication: pages that the tree kept, and the tree's own for the others.
    pub fn published(&mut self, lock: Lock, fates: &[Fate]) {
        for (page, fate) in self.own.drain(..fates.len()).zip(fates) {
            self.shared.push(match fate {
                Fate::Kept => page.virt,
                Fate::Duplicate { tree, .. } => *tree,
            });
        }
        self.lock = Some(lock);
        self.lock_shed = Tokens(0);
    }

    /// Whether it ends at a page boundary: only there is its running state one that a match could use.
    #[must_use]
    pub fn is_at_boundary(&self, chain: &Chain) -> bool {
        self.computed.0 > 0 && self.computed.0.is_multiple_of(chain.page_tokens().0)
    }

    /// Gives its running slots away, to the tree.
    pub fn take_running(&mut self) -> Vec<VirtId> {
        std::mem::take(&mut self.running)
    }

    /// Pages that a step of this sequence reads or writes: its full pages, window pages in the trailing window and
    /// its own, its running slots. O(pages).
    #[must_use]
    pub fn holds(&self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        let mut holds = own_pages(chain, &self.own);
        if let Some(full) = chain.full() {
            holds.extend(self.shared.iter().map(|&virt| (full, virt)));
        }
        for &pool in chain.windows() {
            let PoolKind::Window { window } = chain.pool(pool).kind else { continue };
            let from = Tokens(self.computed.0.saturating_sub(window.0));
            let from = from.pages_down(chain.page_tokens()).index().min(self.shared.len());
            holds.extend(self.shared[from..].iter().map(|&virt| (pool, virt)));
        }
        holds.extend(chain.states().iter().copied().zip(self.running.iter().copied()));
        holds
    }

    /// Full pages in order, shared and own.
    pub fn full_pages(&self) -> impl Iterator<Item = VirtId> {
        self.shared.iter().copied().chain(self.own.iter().map(|page| page.virt))
    }

    /// Pages that belong to this sequence alone, for recounts (I4).
    #[must_use]
    pub fn owned(&self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        let mut pages = own_pages(chain, &self.own);
        pages.extend(chain.states().iter().copied().zip(self.running.iter().copied()));
        pages
    }

    /// Closes it: everything of its own, and its lock, to be given back.
    #[must_use]
    pub fn give_back(self, chain: &Chain) -> GivenBack {
        let pages = self.owned(chain);
        GivenBack { pages, lock: self.lock }
    }
}

/// Every page of `own`, per pool; a full page after the window pages that are bound under it.
fn own_pages(chain: &Chain, own: &[OwnPage]) -> Vec<(PoolId, VirtId)> {
    let mut pages = Vec::with_capacity(own.len() * (1 + chain.windows().len()));
    for page in own {
        for (ordinal, &pool) in chain.windows().iter().enumerate() {
            if page.windows.contains(ordinal) {
                pages.push((pool, page.virt));
            }
        }
        pages.extend(chain.full().map(|full| (full, page.virt)));
    }
    pages
}

/// Tokens that one page of a pool counts for at the API's edge; a slot counts for one.
#[must_use]
pub fn tokens_of_page(chain: &Chain, pool: PoolId) -> Tokens {
    match chain.pool(pool).kind {
        PoolKind::State => Tokens(1),
        PoolKind::Full | PoolKind::Window { .. } => chain.page_tokens(),
    }
}

/// A demand's pages in one pool, asked for in tokens (of a token pool) or slots (of a state pool).
///
/// More than can be counted is as many as can be: more than any arena has, in either case.
#[must_use]
pub fn pages_of(chain: &Chain, pool: PoolId, amount: u64) -> Pages {
    let pages = amount.div_ceil(u64::from(tokens_of_page(chain, pool).0));
    Pages(u32::try_from(pages).unwrap_or(u32::MAX))
}
