//! What a page is filled with, so that every misplaced byte shows.
//!
//! Word `i` of a page (8 bytes, little endian; the last one perhaps cut short) is a mix of the pool, the page's
//! tag and `i`. The mix is a bijection of each argument, with two uses: no two words of a page are alike, so a
//! shift, a swap or a neighbour's bytes never look right; and a wrong word can be read back into the tag or the
//! place that it came from, which is what a [`Mismatch`] reports.

use std::fmt;

use kvtide_core::unit::{PageId, PoolId};

/// What a page is filled with; whoever writes a page chooses its tag and remembers it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tag(pub u64);

/// The first word of a page that is not what its tag makes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mismatch {
    /// The page's pool.
    pub pool: PoolId,
    /// The page.
    pub page: PageId,
    /// The tag that it should hold.
    pub wanted: Tag,
    /// Index of the first wrong word.
    pub word: u64,
    /// What that word is.
    pub found: u64,
    /// What that looks like.
    pub looks_like: Content,
}

/// A guess at where a wrong word came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content {
    /// Zero: never written, or zeroed.
    Zero,
    /// The same word of a page of the same pool with another tag.
    Tagged(Tag),
    /// Another word of the right page: its bytes were shifted.
    Shifted {
        /// Index of the word that it is.
        from: u64,
    },
    /// Nothing that this pool's pages hold.
    Unknown,
}

/// What word `index` of a page of `pool` with `tag` holds.
#[must_use]
pub fn word(pool: PoolId, tag: Tag, index: u64) -> u64 {
    mix(base(pool, tag).wrapping_add(index.wrapping_mul(WORD_STEP)))
}

/// Fills a page of any length.
pub fn fill(pool: PoolId, tag: Tag, page: &mut [u8]) {
    let base = base(pool, tag);
    for (index, bytes) in (0u64..).zip(page.chunks_mut(8)) {
        let word = mix(base.wrapping_add(index.wrapping_mul(WORD_STEP)));
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// Compares a page with what `tag` makes it, and reports the first difference.
///
/// # Errors
/// The [`Mismatch`].
pub fn compare(pool: PoolId, page: PageId, wanted: Tag, bytes: &[u8]) -> Result<(), Mismatch> {
    let base = base(pool, wanted);
    for (word, chunk) in (0u64..).zip(bytes.chunks(8)) {
        let right = mix(base.wrapping_add(word.wrapping_mul(WORD_STEP)));
        if *chunk != right.to_le_bytes()[..chunk.len()] {
            let looks_like = decode(pool, wanted, word, bytes);
            let found = load(chunk);
            return Err(Mismatch { pool, page, wanted, word, found, looks_like });
        }
    }
    Ok(())
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { pool, page, wanted, word, found, looks_like } = self;
        write!(f, "page {} of pool {} should hold tag {}, ", page.0, pool.0, wanted.0)?;
        write!(f, "but its word {word} is {found:#018x}, {looks_like}")
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Zero => write!(f, "never written"),
            Content::Tagged(tag) => write!(f, "as in a page with tag {}", tag.0),
            Content::Shifted { from } => write!(f, "which belongs at word {from}"),
            Content::Unknown => write!(f, "which no page of the pool holds"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// A page with `wanted` is wrong from word `at` on: reads back what stands there.
fn decode(pool: PoolId, wanted: Tag, at: u64, bytes: &[u8]) -> Content {
    let words = bytes.len() as u64 / 8;
    if at >= words {
        return Content::Unknown; // the cut word at the end cannot be read back
    }
    let found_at = |index: u64| load(&bytes[index as usize * 8..index as usize * 8 + 8]);
    let found = found_at(at);
    if found == 0 {
        return Content::Zero;
    }
    let tag_of = |index: u64| {
        let base = unmix(found_at(index)).wrapping_sub(index.wrapping_mul(WORD_STEP));
        Tag(unmix(base.wrapping_sub(pool_step(pool))) ^ SALT)
    };
    let from = unmix(found).wrapping_sub(base(pool, wanted)).wrapping_mul(WORD_STEP_INVERSE);
    if from < words {
        return Content::Shifted { from };
    }
    // Any word decodes to some tag: believe it only where a neighbour says the same.
    let tag = tag_of(at);
    let neighbour = if at + 1 < words { at + 1 } else { at.saturating_sub(1) };
    if neighbour != at && tag_of(neighbour) == tag {
        return Content::Tagged(tag);
    }
    Content::Unknown
}

fn load(chunk: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..chunk.len()].copy_from_slice(chunk);
    u64::from_le_bytes(word)
}

fn base(pool: PoolId, tag: Tag) -> u64 {
    mix(tag.0 ^ SALT).wrapping_add(pool_step(pool))
}

fn pool_step(pool: PoolId) -> u64 {
    u64::from(pool.0).wrapping_mul(POOL_STEP)
}

/// The finaliser of splitmix64: a bijection in which every bit of the input moves about half of the output's.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(FIRST);
    x = (x ^ (x >> 27)).wrapping_mul(SECOND);
    x ^ (x >> 31)
}

fn unmix(mut x: u64) -> u64 {
    x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(inverse(SECOND));
    x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(inverse(FIRST));
    x ^ (x >> 30) ^ (x >> 60)
}

/// Of an odd number, modulo 2^64. Each step of Newton's doubles the right bits: 3, 6, 12, 24, 48, 96.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd; // right in the lowest 3 bits
    let mut step = 0;
    while step < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    x
}

const SALT: u64 = 0x6b76_7469_6465_2e31;
const WORD_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const WORD_STEP_INVERSE: u64 = inverse(WORD_STEP);
const POOL_STEP: u64 = 0xd1b5_4a32_d192_ed03;
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(1);
    const PAGE: PageId = PageId(7);

    fn page(tag: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(POOL, Tag(tag), &mut bytes);
        bytes
    }

    #[track_caller]
    fn looks_like(tag: u64, bytes: &[u8], word: u64, want: Content) {
        let found = compare(POOL, PAGE, Tag(tag), bytes).unwrap_err();
        assert_eq!((found.word, found.looks_like), (word, want), "{found}");
    }

    #[test]
    fn mixing_can_be_undone() {
        for x in [0, 1, 2, 63, u64::MAX, SALT, WORD_STEP, 1 << 63] {
            assert_eq!(unmix(mix(x)), x);
        }
    }

    #[test]
    fn every_length_holds_what_was_filled() {
        for len in 0..40 {
            assert_eq!(compare(POOL, PAGE, Tag(5), &page(5, len)), Ok(()));
        }
    }

    #[test]
    fn a_fill_is_the_words_that_are_documented() {
        let bytes = page(5, 20);
        assert_eq!(load(&bytes[8..16]), word(POOL, Tag(5), 1));
        assert_eq!(bytes[16..], word(POOL, Tag(5), 2).to_le_bytes()[..4]);
    }

    #[test]
    fn every_flipped_bit_is_found_even_in_the_cut_word() {
        for bit in 0..21 * 8 {
            let mut bytes = page(3, 21);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = compare(POOL, PAGE, Tag(3), &bytes).unwrap_err();
            assert_eq!(found.word, bit as u64 / 64);
            assert_eq!(found.looks_like, Content::Unknown);
        }
    }

    #[test]
    fn another_page_is_named_by_its_tag() {
        looks_like(3, &page(9, 64), 0, Content::Tagged(Tag(9)));
        let mut half = page(3, 64);
        half[32..].copy_from_slice(&page(9, 64)[32..]);
        looks_like(3, &half, 4, Content::Tagged(Tag(9)));
    }

    #[test]
    fn a_shift_is_named_by_its_distance() {
        let mut bytes = page(3, 64);
        bytes.rotate_left(16);
        looks_like(3, &bytes, 0, Content::Shifted { from: 2 });
    }

    #[test]
    fn an_untouched_page_looks_unwritten() {
        looks_like(3, &[0; 64], 0, Content::Zero);
    }

    #[test]
    fn another_pools_page_with_the_same_tag_is_wrong() {
        let mut bytes = vec![0; 64];
        fill(PoolId(0), Tag(3), &mut bytes);
        assert!(compare(POOL, PAGE, Tag(3), &bytes).is_err());
    }
}
