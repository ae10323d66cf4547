//! Pseudo-random numbers that are reproducible from a seed: for synthetic inputs, and for tests that print their seed.

use std::hash::{BuildHasher, RandomState};

/// SplitMix64, by Steele, Lea and Flood (2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Any seed is valid.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Varies from process to process and from time to time.
    pub fn anew() -> Random {
        Random(RandomState::new().hash_one(0))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform, from 0 to less than 1.
    pub fn unit(&mut self) -> f64 {
        // The 53 bits of precision that a double has.
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Approximately normal, with mean 0 and variance 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Less than `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match (high - low).checked_add(1) {
            Some(width) => low + self.bits() % width,
            None => self.bits(),
        }
    }

    /// True with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.bits() % 100 < chance
    }

    /// One of the choices.
    ///
    /// # Panics
    /// If there are none.
    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        // The first numbers of SplitMix64's reference implementation for the seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
        assert_ne!(Random::anew().bits(), Random::anew().bits());
    }

    #[test]
    fn a_number_between_bounds_is_within_them_also_where_all_numbers_are() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| (7..=9).contains(&random.between(7, 9))));
        let all: Vec<u64> = (0..100).map(|_| random.between(0, u64::MAX)).collect();
        assert!(
            all.iter().any(|number| *number > u64::MAX / 2)
                && all.iter().any(|number| *number < u64::MAX / 2)
        );
    }
}
