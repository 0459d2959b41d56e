//! Dropping computed tokens, and writing on where the page under way is somebody else's too.
//!
//! A sequence that is truncated inside a page of the tree keeps its hold on that page; before it writes there again, it
//! gets a copy of its own (copy on write).

use super::{Sequence, SequenceError, own_pages};
use crate::chain::{Chain, PoolKind};
use crate::tree::OwnPage;
use crate::unit::{Pages, PoolId, Tokens, VirtId};

/// Whose the page is that the next token goes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageUnderWay {
    /// There is none: the next token starts a page.
    None,
    /// The tree's; it may not be written.
    Tree(VirtId),
    /// The sequence's own; other continuations may share it.
    Own(OwnPage),
}

impl Sequence {
    /// Pages of the tree that a sequence truncated to `count` tokens still uses.
    ///
    /// # Errors
    /// [`SequenceError::PastComputed`], and [`SequenceError::WindowGivenBack`] for its own pages; whether the tree's
    /// window pages are there, the tree knows.
    pub fn can_truncate(&self, chain: &Chain, count: Tokens) -> Result<Pages, SequenceError> {
        if count > self.computed {
            return Err(SequenceError::PastComputed { asked: count, computed: self.computed });
        }
        let page = chain.page_tokens();
        let (boundary, end) = (self.boundary().index(), count.pages_up(page).index());
        for (ordinal, &pool) in chain.windows().iter().enumerate() {
            let PoolKind::Window { window } = chain.pool(pool).kind else { continue };
            let from = Tokens(count.0.saturating_sub(window.0)).pages_down(page).index();
            let missing = (from.max(boundary)..end)
                .find(|&position| !self.own[position - boundary].windows.contains(ordinal));
            if let Some(missing) = missing {
                let missing = Pages(missing as u32).tokens(page);
                return Err(SequenceError::WindowGivenBack { asked: count, missing });
            }
        }
        Ok(Pages(boundary.min(end) as u32))
    }

    /// Drops computed tokens beyond `count`, which [`can_truncate`](Self::can_truncate) allowed: the pages to free. Known
    /// tokens of the prompt stay, later ones go.
    pub fn truncate(&mut self, chain: &Chain, count: Tokens) -> Vec<(PoolId, VirtId)> {
        let freed = self.undo_to(chain, count);
        self.shared.truncate(count.pages_up(chain.page_tokens()).index());
        self.tokens.truncate(count.max(self.prompt).0 as usize);
        self.lock_shed = Tokens(0);
        for (ordinal, &pool) in chain.windows().iter().enumerate() {
            let PoolKind::Window { window } = chain.pool(pool).kind else { continue };
            let from = Tokens(count.0.saturating_sub(window.0)).pages_down(chain.page_tokens());
            self.shed[ordinal] = self.shed[ordinal].min(from);
        }
        freed
    }

    /// The page that the next token goes to, if it is partly filled.
    #[must_use]
    pub fn page_under_way(&self, chain: &Chain) -> PageUnderWay {
        if self.starts_page(chain) {
            return PageUnderWay::None;
        }
        let position = self.computed.pages_down(chain.page_tokens()).index();
        match self.shared.get(position) {
            Some(&virt) => PageUnderWay::Tree(virt),
            None => self
                .own
                .get(position - self.shared.len())
                .map_or(PageUnderWay::None, |&page| PageUnderWay::Own(page)),
        }
    }

    /// Puts a copy in the place of the page `from`: what is to be freed of the old one, if it was the sequence's own.
    pub fn replace_page(
        &mut self,
        chain: &Chain,
        from: VirtId,
        copy: OwnPage,
    ) -> Vec<(PoolId, VirtId)> {
        if self.shared.last() == Some(&from) {
            self.shared.pop();
            self.own.insert(0, copy);
            return Vec::new();
        }
        match self.own.iter_mut().find(|page| page.virt == from) {
            Some(page) => own_pages(chain, &[std::mem::replace(page, copy)]),
            None => Vec::new(),
        }
    }
}
