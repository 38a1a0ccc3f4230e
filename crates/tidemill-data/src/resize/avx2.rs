//! The inner loops of the passes with AVX2. A weight is split into two halves of 16 bits, because
//! the instruction that multiplies 16-bit numbers and adds the products of neighbours is twice as
//! fast as the one for 32 bits. The sum of both halves is exact, so the pixels equal those of the
//! plain loops in `passes.rs`.

use std::arch::x86_64::__m256i;
use std::ops::Range;

use pulp::x86::V3;

use crate::resize::kernel::{Kernel, PRECISION, ROUNDING};

/// Bits of a weight's lower half, which is never negative.
const LOW_BITS: u32 = 15;

/// Rows that the horizontal pass computes at once, so that weights are loaded once for all of them.
const ROWS: usize = 4;

/// Output bytes that the vertical pass computes at once.
pub const STRIPE: usize = 32;

/// Taps that the horizontal pass computes at once.
const TAPS: usize = 4;

/// Red, green, blue and an unused byte.
type Pixel = [u8; 4];

/// The weights of two neighbouring taps: the upper halves as one number, then the lower halves.
type WeightPair = [i32; 2];

/// A kernel's weights in pairs, the same number for each output pixel. Those beyond the window are
/// 0.
struct WeightPairs {
    pairs: Vec<WeightPair>,
    per_pixel: usize,
}

impl WeightPairs {
    fn from_kernel(kernel: &Kernel) -> Self {
        let longest = kernel.taps().map(|(_, weights)| weights.len()).max().unwrap_or(0);
        let per_pixel = longest.next_multiple_of(TAPS) / 2;
        let mut pairs = vec![[0; 2]; kernel.len() * per_pixel];
        for (pairs, (_, weights)) in pairs.chunks_exact_mut(per_pixel.max(1)).zip(kernel.taps()) {
            for (pair, weights) in pairs.iter_mut().zip(weights.chunks(2)) {
                *pair = split_weights(weights[0], weights.get(1).copied().unwrap_or(0));
            }
        }
        Self { pairs, per_pixel }
    }

    /// The pairs of each output pixel.
    fn by_pixel(&self) -> impl Iterator<Item = &[WeightPair]> {
        self.pairs.chunks_exact(self.per_pixel.max(1))
    }
}

fn split_weights(first: i32, second: i32) -> WeightPair {
    let join = |first: i32, second: i32| (first & 0xffff) | (second << 16);
    let low = |weight: i32| weight & ((1 << LOW_BITS) - 1);
    [join(first >> LOW_BITS, second >> LOW_BITS), join(low(first), low(second))]
}

/// Weighted sums of eight values, separately for the upper and lower halves of the weights.
#[derive(Clone, Copy)]
struct Sums {
    high: __m256i,
    low: __m256i,
}

impl Sums {
    #[inline(always)]
    fn zero(simd: V3) -> Self {
        let zero = simd.avx._mm256_setzero_si256();
        Self { high: zero, low: zero }
    }

    /// Adds eight pairs of values, multiplied by the weights of a pair of taps.
    #[inline(always)]
    fn add(&mut self, simd: V3, values: __m256i, [high, low]: [__m256i; 2]) {
        self.high = simd.avx2._mm256_add_epi32(self.high, simd.avx2._mm256_madd_epi16(values, high));
        self.low = simd.avx2._mm256_add_epi32(self.low, simd.avx2._mm256_madd_epi16(values, low));
    }

    /// The sums as integers, rounded.
    #[inline(always)]
    fn round(self, simd: V3) -> __m256i {
        let high = simd.avx2._mm256_slli_epi32::<{ LOW_BITS as i32 }>(self.high);
        let sum = simd.avx2._mm256_add_epi32(high, self.low);
        let sum = simd.avx2._mm256_add_epi32(sum, simd.avx._mm256_set1_epi32(ROUNDING));
        simd.avx2._mm256_srai_epi32::<{ PRECISION as i32 }>(sum)
    }
}

#[inline(always)]
fn broadcast_pair(simd: V3, pair: &WeightPair) -> [__m256i; 2] {
    [simd.avx._mm256_set1_epi32(pair[0]), simd.avx._mm256_set1_epi32(pair[1])]
}

/// Resizes lines of `stride` bytes along the horizontal axis.
pub fn horizontal(simd: V3, input: &[u8], stride: usize, kernel: &Kernel, output: &mut [u8]) {
    let (pairs, range) = (WeightPairs::from_kernel(kernel), kernel.input_range());
    // If rows are missing in the last group, the previous ones are computed again and not written.
    // Pixels behind the last one have weight 0.
    let mut lines = [const { Vec::new() }; ROWS];
    lines.fill(vec![[0; 4]; range.end + TAPS]);
    let mut columns = vec![[[0; 4]; ROWS]; kernel.len()];
    let groups = input.chunks(ROWS * stride).zip(output.chunks_mut(ROWS * 3 * kernel.len()));
    for (input, output) in groups {
        for (line, input) in lines.iter_mut().zip(input.chunks_exact(stride)) {
            pad_pixels(simd, &input[3 * range.start..3 * range.end], &mut line[range.clone()]);
        }
        resize_columns(simd, lines.each_ref().map(Vec::as_slice), kernel, &pairs, &mut columns);
        for (row, output) in output.chunks_exact_mut(3 * kernel.len()).enumerate() {
            for (output, column) in output.as_chunks_mut::<3>().0.iter_mut().zip(&columns) {
                output.copy_from_slice(&column[row][..3]);
            }
        }
    }
}

/// Pads each pixel to four bytes.
fn pad_pixels(simd: V3, from: &[u8], to: &mut [Pixel]) {
    simd.vectorize(
        #[inline(always)]
        || {
            let (fours, rest) = to.as_chunks_mut::<4>();
            // Twelve of sixteen bytes are used. The last pixels, which have fewer bytes behind
            // them, are copied one by one.
            let whole = (from.len().saturating_sub(4) / 12).min(fours.len());
            for (i, four) in fours[..whole].iter_mut().enumerate() {
                let bytes = from[12 * i..].first_chunk::<16>().copied().unwrap_or_default();
                *four = pulp::cast(simd.ssse3._mm_shuffle_epi8(pulp::cast(bytes), pulp::cast(PADDED_ORDER)));
            }
            let rest = fours[whole..].iter_mut().flatten().chain(rest);
            for (to, from) in rest.zip(from[12 * whole..].as_chunks::<3>().0) {
                to[..3].copy_from_slice(from);
            }
        },
    );
}

const PADDED_ORDER: [i8; 16] = [0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1];

fn resize_columns(
    simd: V3,
    lines: [&[Pixel]; ROWS],
    kernel: &Kernel,
    pairs: &WeightPairs,
    columns: &mut [[Pixel; ROWS]],
) {
    simd.vectorize(
        #[inline(always)]
        || {
            for ((column, (window, _)), pairs) in columns.iter_mut().zip(kernel.taps()).zip(pairs.by_pixel())
            {
                let end = window.start + window.len().next_multiple_of(TAPS);
                *column = resize_column(simd, lines.map(|line| &line[window.start..end]), pairs);
            }
        },
    );
}

/// Computes one output pixel in each of the rows.
#[inline(always)]
fn resize_column(simd: V3, lines: [&[Pixel]; ROWS], pairs: &[WeightPair]) -> [Pixel; ROWS] {
    let order: __m256i = pulp::cast(PAIRED);
    let zero = simd.avx._mm256_setzero_si256();
    let [a, b, c, d] = lines.map(|line| line.as_chunks::<TAPS>().0);
    // Two rows share a register.
    let mut sums = [Sums::zero(simd); 2];
    for ((((a, b), c), d), pairs) in a.iter().zip(b).zip(c).zip(d).zip(pairs.as_chunks::<2>().0) {
        let (first, second) = (broadcast_pair(simd, &pairs[0]), broadcast_pair(simd, &pairs[1]));
        for (sums, rows) in sums.iter_mut().zip([[*a, *b], [*c, *d]]) {
            let bytes = simd.avx2._mm256_shuffle_epi8(pulp::cast(rows), order);
            sums.add(simd, simd.avx2._mm256_unpacklo_epi8(bytes, zero), first);
            sums.add(simd, simd.avx2._mm256_unpackhi_epi8(bytes, zero), second);
        }
    }
    let [ab, cd] = sums.map(|sums| sums.round(simd));
    let words = simd.avx2._mm256_packs_epi32(ab, cd);
    let bytes: [Pixel; 8] = pulp::cast(simd.avx2._mm256_packus_epi16(words, words));
    [bytes[0], bytes[4], bytes[1], bytes[5]]
}

/// Order of bytes for four pixels in each half of a register: the reds of the first two, their
/// greens, their blues, zeros; then the same of the other two.
const PAIRED: [[i8; 16]; 2] = [[0, 4, 1, 5, 2, 6, -1, -1, 8, 12, 9, 13, 10, 14, -1, -1]; 2];

/// Resizes the bytes `columns`, at least [`STRIPE`] of them, of lines of `stride` bytes along the
/// vertical axis.
pub fn vertical(
    simd: V3,
    input: &[u8],
    stride: usize,
    columns: Range<usize>,
    kernel: &Kernel,
    output: &mut [u8],
) {
    let pairs = WeightPairs::from_kernel(kernel);
    let outputs = output.chunks_exact_mut(columns.len());
    for ((output, (window, _)), pairs) in outputs.zip(kernel.taps()).zip(pairs.by_pixel()) {
        let input =
            &input[window.start * stride + columns.start..][..(window.len() - 1) * stride + columns.len()];
        vertical_line(simd, input, stride, pairs, output);
    }
}

/// Computes the weighted sum of the lines that start every `stride` bytes.
fn vertical_line(simd: V3, lines: &[u8], stride: usize, pairs: &[WeightPair], output: &mut [u8]) {
    simd.vectorize(
        #[inline(always)]
        || {
            let last = output.len().saturating_sub(STRIPE);
            let mut at = 0;
            loop {
                if let Some(output) = output[at..].first_chunk_mut() {
                    *output = vertical_stripe(simd, &lines[at..], stride, pairs);
                }
                if at == last {
                    break;
                }
                // The last stripe starts early and computes some bytes twice.
                at = (at + STRIPE).min(last);
            }
        },
    );
}

#[inline(always)]
fn vertical_stripe(simd: V3, lines: &[u8], stride: usize, pairs: &[WeightPair]) -> [u8; STRIPE] {
    let zero = simd.avx._mm256_setzero_si256();
    let load =
        |line: &[u8]| -> __m256i { pulp::cast(line.first_chunk::<STRIPE>().copied().unwrap_or([0; STRIPE])) };
    let mut sums = [Sums::zero(simd); 4];
    for (pair, two) in pairs.iter().zip(lines.chunks(2 * stride)) {
        let weights = broadcast_pair(simd, pair);
        // If there is no second line, its weight is 0.
        let (upper, lower) = (load(two), load(two.get(stride..).unwrap_or(two)));
        let low = simd.avx2._mm256_unpacklo_epi8(upper, lower);
        let high = simd.avx2._mm256_unpackhi_epi8(upper, lower);
        sums[0].add(simd, simd.avx2._mm256_unpacklo_epi8(low, zero), weights);
        sums[1].add(simd, simd.avx2._mm256_unpackhi_epi8(low, zero), weights);
        sums[2].add(simd, simd.avx2._mm256_unpacklo_epi8(high, zero), weights);
        sums[3].add(simd, simd.avx2._mm256_unpackhi_epi8(high, zero), weights);
    }
    let [a, b, c, d] = sums.map(|sums| sums.round(simd));
    let (low, high) = (simd.avx2._mm256_packs_epi32(a, b), simd.avx2._mm256_packs_epi32(c, d));
    pulp::cast(simd.avx2._mm256_packus_epi16(low, high))
}
