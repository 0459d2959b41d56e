//! The generator's random numbers: splitmix64, integers only, the same on every platform.

/// A stream of random numbers that its seed alone decides.
#[derive(Clone, Debug)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    /// The stream of `seed`.
    pub(super) fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    /// 64 random bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Uniform below `bound`, which is at least 1; its bias is below 2^-32.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Below `bound`, the smaller of two draws: low values often, high ones seldom, `bound / 3` on average.
    pub(super) fn skewed(&mut self, bound: u32) -> u32 {
        self.below(bound).min(self.below(bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_is_fixed() {
        // The first outputs of splitmix64 for seed 0.
        let mut random = SplitMix::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(random.next(), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn draws_stay_below_their_bound() {
        let mut random = SplitMix::new(1);
        for bound in [1, 2, 3, 1000, u32::MAX] {
            assert!((0..1000).all(|_| random.below(bound) < bound));
            assert!((0..1000).all(|_| random.skewed(bound) < bound));
        }
    }
}
