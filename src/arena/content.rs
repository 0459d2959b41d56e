//! What a page must contain, in one word.

use crate::unit::{PoolId, VirtId};

/// What a page must contain: who wrote it, in one word.
///
/// Mixes the pool, the virtual id and the id's generation at the time it was bound, so that no neighbour, no older
/// owner and no other pool's page looks right. Engines and tests write it through pages to see bytes that strayed.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ContentTag(pub u64);

impl ContentTag {
    /// The tag of the `generation`th page bound under `virt`.
    pub(super) fn of(pool: PoolId, virt: VirtId, generation: u32) -> Self {
        let name = mix(u64::from(pool.0) << 32 | u64::from(virt.0));
        ContentTag(mix(name ^ u64::from(generation)))
    }
}

/// The finalizer of splitmix64: a bijection in which every input bit reaches every output bit.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
