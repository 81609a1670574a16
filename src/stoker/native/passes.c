/* Weighted sums of bytes: across a row and down the rows. Every way gives the same bits. */

#include "resize.h"

#define HALF (1 << (PRECISION - 1))

static inline uint8_t rounded(int32_t sum)
{
    uint32_t found = (uint32_t)sum >> PRECISION; /* no weight is below 0 */
    return found > 255 ? 255 : (uint8_t)found;
}

/* ------------------------------------------------------------ for all processors */

CLONED static void across_plain(const struct weights *weights, int64_t channels, const uint8_t *const from[2],
                                uint8_t *const to[2], int64_t plane)
{
    const int64_t taps = 2 * weights->pairs, pixel_step = plane ? 1 : channels, channel_step = plane ? plane : 1;
    for (int row = 0; row < 2; row++)
        for (int64_t i = 0; i < weights->num; i++) {
            const uint8_t *at = from[row] + weights->first[i] * channels;
            const int32_t *weight = weights->whole + i * taps;
            const int64_t count = weights->end[i] - weights->first[i];
            for (int64_t channel = 0; channel < channels; channel++) {
                int32_t sum = HALF;
                for (int64_t k = 0; k < count; k++) sum += weight[k] * at[k * channels + channel];
                to[row][i * pixel_step + channel * channel_step] = rounded(sum);
            }
        }
}

#define PIECE 64

CLONED static void down_plain(const struct weights *weights, int64_t number, const uint8_t *const *rows, int64_t count,
                              uint8_t *to)
{
    const int32_t *weight = weights->whole + number * 2 * weights->pairs;
    const int64_t taps = weights->end[number] - weights->first[number];
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int32_t sums[PIECE];
        for (int i = 0; i < PIECE; i++) sums[i] = HALF;
        for (int64_t k = 0; k < taps; k++) /* behind rows there is room to read */
            for (int i = 0; i < PIECE; i++) sums[i] += weight[k] * rows[k][begin + i];
        const int64_t size = count - begin < PIECE ? count - begin : PIECE;
        for (int64_t i = 0; i < size; i++) to[begin + i] = rounded(sums[i]);
    }
}

static const struct passes plain = {across_plain, down_plain};

/* ------------------------------------------------------------ AVX2 */

#if defined(__x86_64__) && !defined(STOKER_PLAIN)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX2_INLINE __attribute__((target("avx2"), always_inline)) static inline

AVX2_INLINE __m256i twice(__m128i value)
{
    return _mm256_broadcastsi128_si256(value);
}

/* Two numbers of 16 bits, everywhere. */
AVX2_INLINE __m256i pair_at(const int16_t *at)
{
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return _mm256_set1_epi32(pair);
}

AVX2_INLINE __m256i joined(__m256i high, __m256i low)
{
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low);
    return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(HALF)), PRECISION);
}

/* One pixel of three or four channels in both rows, as 32-bit numbers: row 0 in the lower half. 16 bytes hold four pixels
   to come from, of which `even` and `odd` take two each, channel by channel. */
AVX2_INLINE __m256i pixel(const uint8_t *a, const uint8_t *b, const int16_t *high, const int16_t *low, int64_t pairs,
                          int64_t channels, __m256i even, __m256i odd)
{
    __m256i sum_high = _mm256_setzero_si256(), sum_low = sum_high;
    int64_t k = 0;
    for (; k + 2 <= pairs; k += 2, a += 4 * channels, b += 4 * channels) {
        __m256i four = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                               _mm_loadu_si128((const __m128i *)b), 1);
        __m256i first = _mm256_shuffle_epi8(four, even), second = _mm256_shuffle_epi8(four, odd);
        sum_high = _mm256_add_epi32(sum_high, _mm256_madd_epi16(first, pair_at(high + 2 * k)));
        sum_low = _mm256_add_epi32(sum_low, _mm256_madd_epi16(first, pair_at(low + 2 * k)));
        sum_high = _mm256_add_epi32(sum_high, _mm256_madd_epi16(second, pair_at(high + 2 * k + 2)));
        sum_low = _mm256_add_epi32(sum_low, _mm256_madd_epi16(second, pair_at(low + 2 * k + 2)));
    }
    if (k < pairs) {
        __m256i two = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)a)),
                                              _mm_loadl_epi64((const __m128i *)b), 1);
        __m256i first = _mm256_shuffle_epi8(two, even);
        sum_high = _mm256_add_epi32(sum_high, _mm256_madd_epi16(first, pair_at(high + 2 * k)));
        sum_low = _mm256_add_epi32(sum_low, _mm256_madd_epi16(first, pair_at(low + 2 * k)));
    }
    return joined(sum_high, sum_low);
}

/* Four pixels, channel by channel. */
AVX2_INLINE void put_planes(uint8_t *to, int64_t plane, int64_t channels, __m128i pixels)
{
    _mm_storeu_si32(to, pixels);
    _mm_storeu_si32(to + plane, _mm_shuffle_epi32(pixels, 1));
    _mm_storeu_si32(to + 2 * plane, _mm_shuffle_epi32(pixels, 2));
    if (channels == 4) _mm_storeu_si32(to + 3 * plane, _mm_shuffle_epi32(pixels, 3));
}

AVX2_INLINE void across_pixels(const struct weights *weights, int64_t pairs, int64_t channels,
                               const uint8_t *const from[2], uint8_t *const to[2], int64_t plane)
{
    const __m256i even = channels == 3 ? twice(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1))
                                       : twice(_mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i odd = _mm256_add_epi8(even, twice(_mm_set1_epi16((short)(2 * channels))));
    const __m256i by_channel = twice(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i by_pixel = channels == 3
                                 ? twice(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1))
                                 : twice(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const uint8_t *a = from[0], *b = from[1];
    uint8_t *to_a = to[0], *to_b = to[1];
    const int32_t *first = weights->first;
    const int16_t *high = weights->high, *low = weights->low;
    for (int64_t i = 0; i < weights->padded; i += GROUP) {
        __m256i found[GROUP];
        for (int j = 0; j < GROUP; j++, high += 2 * pairs, low += 2 * pairs) {
            const int64_t at = first[i + j] * channels;
            found[j] = pixel(a + at, b + at, high, low, pairs, channels, even, odd);
        }
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(found[0], found[1]), _mm256_packus_epi32(found[2], found[3]));
        if (plane) {
            bytes = _mm256_shuffle_epi8(bytes, by_channel);
            __m128i of_a = _mm256_castsi256_si128(bytes), of_b = _mm256_extracti128_si256(bytes, 1);
            put_planes(to_a + i, plane, channels, of_a);
            put_planes(to_b + i, plane, channels, of_b);
        } else { /* what is beyond the pixels of three channels is written over by the next ones */
            bytes = _mm256_shuffle_epi8(bytes, by_pixel);
            _mm_storeu_si128((__m128i *)(to_a + i * channels), _mm256_castsi256_si128(bytes));
            _mm_storeu_si128((__m128i *)(to_b + i * channels), _mm256_extracti128_si256(bytes, 1));
        }
    }
}

/* One channel: eight bytes to come from at once, of which pairs are summed last. The pairs are a multiple of four. */
AVX2_INLINE __m256i gray(const uint8_t *a, const uint8_t *b, const int16_t *high, const int16_t *low, int64_t pairs)
{
    __m256i sum_high = _mm256_setzero_si256(), sum_low = sum_high;
    for (int64_t k = 0; k < 2 * pairs; k += 8) {
        __m256i eight = _mm256_cvtepu8_epi16(
            _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(a + k)), _mm_loadl_epi64((const __m128i *)(b + k))));
        __m256i of_high = twice(_mm_loadu_si128((const __m128i *)(high + k)));
        __m256i of_low = twice(_mm_loadu_si128((const __m128i *)(low + k)));
        sum_high = _mm256_add_epi32(sum_high, _mm256_madd_epi16(eight, of_high));
        sum_low = _mm256_add_epi32(sum_low, _mm256_madd_epi16(eight, of_low));
    }
    return _mm256_add_epi32(_mm256_slli_epi32(sum_high, LOW_BITS), sum_low);
}

AVX2_INLINE void across_gray(const struct weights *weights, int64_t pairs, const uint8_t *const from[2],
                             uint8_t *const to[2])
{
    const int16_t *high = weights->high, *low = weights->low;
    for (int64_t i = 0; i < weights->padded; i += GROUP) {
        __m256i parts[GROUP];
        for (int j = 0; j < GROUP; j++, high += 2 * pairs, low += 2 * pairs) {
            const int64_t at = weights->first[i + j];
            parts[j] = gray(from[0] + at, from[1] + at, high, low, pairs);
        }
        __m256i sum = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[0], parts[1]), _mm256_hadd_epi32(parts[2], parts[3]));
        sum = _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(HALF)), PRECISION);
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(sum, sum), sum);
        uint32_t of_a = (uint32_t)_mm256_extract_epi32(bytes, 0), of_b = (uint32_t)_mm256_extract_epi32(bytes, 4);
        memcpy(to[0] + i, &of_a, 4);
        memcpy(to[1] + i, &of_b, 4);
    }
}

AVX2 static void across_avx2(const struct weights *weights, int64_t channels, const uint8_t *const from[2],
                             uint8_t *const to[2], int64_t plane)
{
    const int64_t pairs = weights->pairs;
    if (channels == 1)
        pairs == 4 ? across_gray(weights, 4, from, to) : across_gray(weights, pairs, from, to);
    else if (channels == 4)
        across_pixels(weights, pairs, 4, from, to, plane);
    else if (pairs == 1) /* numbers that are known let loops go */
        across_pixels(weights, 1, 3, from, to, plane);
    else if (pairs == 2)
        across_pixels(weights, 2, 3, from, to, plane);
    else if (pairs == 3)
        across_pixels(weights, 3, 3, from, to, plane);
    else
        across_pixels(weights, pairs, 3, from, to, plane);
}

AVX2_INLINE __m256i down_32(const int16_t *high, const int16_t *low, const uint8_t *const *rows, int64_t pairs, int64_t at)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum_high[4] = {zero, zero, zero, zero}, sum_low[4] = {zero, zero, zero, zero};
    for (int64_t k = 0; k < pairs; k++) {
        const __m256i of_high = pair_at(high + 2 * k), of_low = pair_at(low + 2 * k);
        const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[2 * k] + at));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[2 * k + 1] + at));
        const __m256i lower = _mm256_unpacklo_epi8(a, b), upper = _mm256_unpackhi_epi8(a, b);
        const __m256i both[4] = {_mm256_unpacklo_epi8(lower, zero), _mm256_unpackhi_epi8(lower, zero),
                                 _mm256_unpacklo_epi8(upper, zero), _mm256_unpackhi_epi8(upper, zero)};
        for (int j = 0; j < 4; j++) {
            sum_high[j] = _mm256_add_epi32(sum_high[j], _mm256_madd_epi16(both[j], of_high));
            sum_low[j] = _mm256_add_epi32(sum_low[j], _mm256_madd_epi16(both[j], of_low));
        }
    }
    for (int j = 0; j < 4; j++) sum_high[j] = joined(sum_high[j], sum_low[j]);
    return _mm256_packus_epi16(_mm256_packus_epi32(sum_high[0], sum_high[1]), _mm256_packus_epi32(sum_high[2], sum_high[3]));
}

AVX2_INLINE void down_rows(const struct weights *weights, int64_t number, const uint8_t *const *rows, int64_t pairs,
                           int64_t count, uint8_t *to)
{
    const int16_t *high = weights->high + number * 2 * weights->pairs, *low = weights->low + number * 2 * weights->pairs;
    int64_t at = 0;
    for (; at + 32 <= count; at += 32) _mm256_storeu_si256((__m256i *)(to + at), down_32(high, low, rows, pairs, at));
    if (at < count) {
        uint8_t last[32];
        _mm256_storeu_si256((__m256i *)last, down_32(high, low, rows, pairs, at));
        memcpy(to + at, last, (size_t)(count - at));
    }
}

AVX2 static void down_avx2(const struct weights *weights, int64_t number, const uint8_t *const *rows, int64_t count,
                           uint8_t *to)
{
    const int64_t pairs = (weights->end[number] - weights->first[number] + 1) / 2;
    if (pairs == 1)
        down_rows(weights, number, rows, 1, count, to);
    else if (pairs == 2)
        down_rows(weights, number, rows, 2, count, to);
    else
        down_rows(weights, number, rows, pairs, count, to);
}

static const struct passes avx2 = {across_avx2, down_avx2};

const struct passes *the_passes(void)
{
    return __builtin_cpu_supports("avx2") ? &avx2 : &plain;
}

#else

const struct passes *the_passes(void)
{
    return &plain;
}

#endif
