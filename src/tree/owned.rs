//! What the tree owns, page by page, for recounts.

use super::Tree;
use crate::unit::{PoolId, VirtId};

impl Tree {
    /// Every page that the tree owns, node by node (I4). Victims that are detached are not among them. O(pages).
    #[must_use]
    pub fn owned(&self) -> Vec<(PoolId, VirtId)> {
        let mut pages = Vec::new();
        for (_, node) in self.slab.live() {
            for (index, &virt) in (0..).zip(&node.virts) {
                pages.push((self.shape.full, virt));
                let windows = self.shape.windows.iter().zip(&node.vitals.windows);
                let present = windows.filter(|(_, window)| window.present.contains(index));
                pages.extend(present.map(|(&pool, _)| (pool, virt)));
            }
            for (ordinal, &pool) in self.shape.states.iter().enumerate() {
                if node.vitals.states.contains(ordinal) {
                    pages.push((pool, node.states[ordinal]));
                }
            }
        }
        pages
    }
}
