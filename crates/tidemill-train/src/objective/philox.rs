//! Random numbers that depend only on (seed, epoch, sample, purpose): Philox 4x32-10 (Salmon et
//! al., 2011), a counter-based generator. A run draws the same noise for a sample on any number of
//! ranks, in any order, and after any resume, and has no generator state to save.

/// The purpose of a draw. Each purpose has its own stream of numbers. The values are part of the
/// generator's key and must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// The VAE's posterior sample.
    Moments = 1,
    /// The noise added to the latents.
    Noise = 2,
    /// The timestep.
    Timestep = 3,
    /// Whether the caption is dropped.
    CaptionDropout = 4,
    /// The initial noise of an image that is sampled from a prompt.
    InitialNoise = 5,
    /// The offset that is added to the noise of a whole channel.
    NoiseOffset = 6,
    /// The offset of a step's timestep strata; the step number takes the place of the sample id.
    Stratum = 7,
}

/// The random numbers of one sample, epoch and purpose.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    key: [u32; 2],
    counter: [u32; 4],
}

impl Draw {
    /// The stream of (`seed`, `epoch`, `sample`, `purpose`). Epochs count to 2^24.
    pub fn new(seed: u64, epoch: u32, sample: u64, purpose: Purpose) -> Self {
        Self {
            key: split(seed),
            counter: [0, (epoch << 8) | purpose as u32, split(sample)[0], split(sample)[1]],
        }
    }

    /// A number in [0, 1) with 24 random bits.
    pub fn uniform(self) -> f32 {
        self.uniforms()[0]
    }

    /// Four numbers in [0, 1), of which the first is [`uniform`](Self::uniform).
    pub fn uniforms(mut self) -> [f32; 4] {
        self.next_block().map(to_unit)
    }

    /// An integer in [0, `n`). The bias is negligible as long as `n` is far below 2^32.
    pub fn uniform_below(mut self, n: u32) -> u32 {
        ((u64::from(self.next_block()[0]) * u64::from(n)) >> 32) as u32
    }

    /// One standard normal number.
    pub fn normal(self) -> f64 {
        let mut one = [0.0];
        self.fill_normal(&mut one);
        f64::from(one[0])
    }

    /// Fills `out` with standard normal numbers (Box & Muller, 1958).
    pub fn fill_normal(mut self, out: &mut [f32]) {
        for four in out.chunks_mut(4) {
            let [a, b, c, d] = self.next_block();
            let (pair, other) = (box_muller(a, b), box_muller(c, d));
            for (value, drawn) in four.iter_mut().zip([pair.0, pair.1, other.0, other.1]) {
                *value = drawn;
            }
        }
    }

    fn next_block(&mut self) -> [u32; 4] {
        let block = philox4x32_10(self.counter, self.key);
        self.counter[0] = self.counter[0].wrapping_add(1);
        block
    }
}

/// The low and the high half.
fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Converts to [0, 1), with 24 bits.
fn to_unit(bits: u32) -> f32 {
    (bits >> 8) as f32 / (1u32 << 24) as f32
}

/// Two normal numbers from 64 random bits.
fn box_muller(a: u32, b: u32) -> (f32, f32) {
    // 1 - u is in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * (1.0 - to_unit(a)).ln()).sqrt();
    let (sin, cos) = (std::f32::consts::TAU * to_unit(b)).sin_cos();
    (radius * cos, radius * sin)
}

/// Four random numbers of a counter and a key.
fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let products = [MULTIPLIERS[0] * u64::from(counter[0]), MULTIPLIERS[1] * u64::from(counter[2])];
        let (low, high) = (products.map(|p| p as u32), products.map(|p| (p >> 32) as u32));
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors of the authors' Random123 library (kat_vectors).
    #[test]
    fn philox_matches_published_vectors() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut numbers = vec![0f32; 100_000];
        Draw::new(7, 3, 11, Purpose::Noise).fill_normal(&mut numbers);
        let n = numbers.len() as f64;
        let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn draws_depend_on_every_part_of_the_key() {
        let draw = |seed, epoch, sample, purpose| Draw::new(seed, epoch, sample, purpose).uniform();
        let base = draw(1, 2, 3, Purpose::Noise);
        assert_eq!(base, draw(1, 2, 3, Purpose::Noise));
        for other in [
            draw(2, 2, 3, Purpose::Noise),
            draw(1 << 40, 2, 3, Purpose::Noise),
            draw(1, 3, 3, Purpose::Noise),
            draw(1, 2, 4, Purpose::Noise),
            draw(1, 2, 3 | (1 << 40), Purpose::Noise),
            draw(1, 2, 3, Purpose::Timestep),
        ] {
            assert_ne!(base, other);
        }
    }
}
