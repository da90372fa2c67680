/* 8 numbers: AVX2 with FMA; and AVX-VNNI, where the compiler may use it. */

#include <immintrin.h>

#define LANES 8
#define REGISTERS 2 /* of weights, in a tile */
#define MOST_ROWS 6 /* of a tile: each takes 2 of the 16 registers */
#define INT8_ROWS 6
#define LEAST_ROWS 168 /* of a block of inputs: for each, all weights come from memory */
#ifndef __AVXVNNI__
#define CODE_BYTES 2
#define FEW_TILES 4
#endif

typedef __m256 vfloat;
typedef int vint __attribute__((vector_size(32)));
typedef vint vmask; /* all bits of a number, or none */

#define I(x) ((__m256i)(x))

INLINE vfloat f_zero(void) { return _mm256_setzero_ps(); }
INLINE vfloat f_set(float x) { return _mm256_set1_ps(x); }
INLINE vfloat f_load(const float *from) { return _mm256_loadu_ps(from); }
INLINE vfloat f_load_some(vmask some, const float *from) { return _mm256_maskload_ps(from, I(some)); }
INLINE void f_store(float *to, vfloat x) { _mm256_storeu_ps(to, x); }
INLINE vfloat f_add(vfloat a, vfloat b) { return _mm256_add_ps(a, b); }
INLINE vfloat f_sub(vfloat a, vfloat b) { return _mm256_sub_ps(a, b); }
INLINE vfloat f_mul(vfloat a, vfloat b) { return _mm256_mul_ps(a, b); }
INLINE vfloat f_div(vfloat a, vfloat b) { return _mm256_div_ps(a, b); }
INLINE vfloat f_max(vfloat a, vfloat b) { return _mm256_max_ps(a, b); }
INLINE vfloat f_max_some(vmask some, vfloat a, vfloat b) {
    return _mm256_blendv_ps(a, _mm256_max_ps(a, b), (__m256)some);
}
INLINE vfloat f_abs(vfloat x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
INLINE vfloat f_fma(vfloat a, vfloat b, vfloat c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vfloat f_fms(vfloat a, vfloat b, vfloat c) { return _mm256_fmsub_ps(a, b, c); }
INLINE vfloat f_fnma(vfloat a, vfloat b, vfloat c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vfloat f_keep(vmask some, vfloat x) { return _mm256_and_ps((__m256)some, x); }
INLINE float f_sum(vfloat x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(y) + _mm_cvtss_f32(_mm_shuffle_ps(y, y, 1));
}
INLINE float f_largest(vfloat x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}
INLINE vfloat f_round(vfloat x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vfloat f_scale(vfloat x, vfloat whole) { /* of at least -126 */
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
INLINE vfloat f_inverse(vfloat x) { return _mm256_div_ps(_mm256_set1_ps(1), x); }
INLINE vfloat f_rough_inverse(vfloat x) { return f_inverse(x); }
INLINE vfloat f_bits(vint x) { return (vfloat)x; }
INLINE vint i_bits(vfloat x) { return (vint)x; }
INLINE vfloat f_from_ints(vint x) { return _mm256_cvtepi32_ps(I(x)); }
INLINE vint i_zero(void) { return (vint)_mm256_setzero_si256(); }
INLINE vint i_set(int x) { return (vint)_mm256_set1_epi32(x); }
INLINE vint i_load(const void *from) { return (vint)_mm256_loadu_si256((const __m256i *)from); }
INLINE vint i_load_some(vmask some, const void *from) {
    return (vint)_mm256_maskload_epi32((const int *)from, I(some));
}
INLINE void i_store(void *to, vint x) { _mm256_storeu_si256((__m256i *)to, I(x)); }
INLINE vint i_sub(vint a, vint b) { return (vint)_mm256_sub_epi32(I(a), I(b)); }

/* Which of the numbers from `at` on are before `end`. */
INLINE vmask before(int64_t at, int64_t end) {
    int count = end - at >= LANES ? LANES : end > at ? (int)(end - at) : 0;
    return (vint)_mm256_cmpgt_epi32(_mm256_set1_epi32(count),
                                    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vfloat load_bf16(const bf16 *from) {
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

INLINE void store_bf16(bf16 *to, vfloat x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    bits = _mm256_srli_epi32(bits, 16);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc0),
                              _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128((__m128i *)to, half);
}

/* Round numbers to codes of 8 bits from -128 to 127; unsigned codes are shifted by 128, signed ones
   have 16 bits: those of each group with an even place, then the others. */
INLINE void store_codes(uint8_t *to, vfloat x) {
    __m256i whole = _mm256_cvtps_epi32(x);
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    __m128i bytes = _mm_packs_epi16(half, half);
#ifdef __AVXVNNI__
    _mm_storel_epi64((__m128i *)to, _mm_xor_si128(bytes, _mm_set1_epi8((char)128)));
#else
    half = _mm_shufflelo_epi16(_mm_cvtepi8_epi16(bytes), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128((__m128i *)to, _mm_shufflehi_epi16(half, _MM_SHUFFLE(3, 1, 2, 0)));
#endif
}

INLINE vfloat dot_fp32(vfloat sum, vint x, vint w) {
    return _mm256_fmadd_ps((__m256)x, (__m256)w, sum);
}

INLINE vfloat dot_bf16(vfloat sum, vint x, vint w) {
    __m256i high = _mm256_set1_epi32((int)0xffff0000);
    sum = dot_fp32(sum, (vint)_mm256_slli_epi32(I(x), 16), (vint)_mm256_slli_epi32(I(w), 16));
    return dot_fp32(sum, (vint)_mm256_and_si256(I(x), high), (vint)_mm256_and_si256(I(w), high));
}

#ifdef __AVXVNNI__
#define SIGNED_CODES 0
INLINE vint dot_int8(vint sum, vint x, vint w) {
    return (vint)_mm256_dpbusd_avx_epi32(I(sum), I(x), I(w));
}
#else
#define SIGNED_CODES 1
#define HAS_INT8_TILE

/* Like TILE of kernels.h, by products of 16 bits, whose sums are exact. Products of 8 bits would be
   so with a sign and an absolute value, for which Zen 3 has the same units as for products. */
INLINE void tile_int8(int rows, const char *a, int64_t stride, int64_t step, const char *packed,
                      int64_t groups, int64_t ahead, float *sums, int64_t apart) {
    enum { BYTES = 128 }; /* of a group of a panel */
    for (int first = 0; first < BYTES / 4; first += REGISTERS * LANES) {
        vint total[MOST_ROWS][REGISTERS];
        const char *row[MOST_ROWS / 3 + 1], *panel = packed + first * 4;
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < REGISTERS; v++) total[r][v] = i_zero();
        for (int r = 0; r < rows; r += 3) row[r / 3] = a + r * stride;
        for (int64_t at = 0; at < groups; at++, panel += BYTES) {
            _mm_prefetch(panel + ahead, _MM_HINT_T0);
            for (int is_odd = 0; is_odd < 2; is_odd++) {
                __m256i weights[REGISTERS];
                for (int v = 0; v < REGISTERS; v++) {
                    weights[v] = I(i_load(panel + v * 4 * LANES));
                    if (!is_odd) weights[v] = _mm256_slli_epi16(weights[v], 8);
                    weights[v] = _mm256_srai_epi16(weights[v], 8);
                }
                for (int r = 0; r < rows; r++) {
                    int pair;
                    memcpy(&pair, row[r / 3] + (r % 3) * stride + 4 * is_odd, sizeof pair);
                    __m256i x = _mm256_set1_epi32(pair);
                    for (int v = 0; v < REGISTERS; v++) {
                        __m256i products = _mm256_madd_epi16(x, weights[v]);
                        total[r][v] = (vint)_mm256_add_epi32(I(total[r][v]), products);
                        __asm__("" : "+x"(total[r][v])); /* else GCC adds products first, and spills */
                    }
                }
            }
            for (int r = 0; r < rows; r += 3) row[r / 3] += step;
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < REGISTERS; v++)
                i_store(sums + r * apart + first + v * LANES, total[r][v]);
    }
}
#endif

INLINE void prefetch(const char *from) { _mm_prefetch(from, _MM_HINT_T0); }

/* Transpose 8 × 8 numbers. */
INLINE void transpose(vint r[8]) {
    __m256i t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(I(r[i]), I(r[i + 1]));
        t[i + 1] = _mm256_unpackhi_epi32(I(r[i]), I(r[i + 1]));
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = (vint)_mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        r[i + 4] = (vint)_mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

/* Write pairs of bfloat16 numbers, of two rows of 32, side by side. */
INLINE void store_pairs(bf16 *to, const bf16 *even, const bf16 *odd) {
    for (int at = 0; at < 32; at += 8) {
        __m128i first = _mm_loadu_si128((const __m128i *)(even + at));
        __m128i second = odd ? _mm_loadu_si128((const __m128i *)(odd + at)) : _mm_setzero_si128();
        _mm_storeu_si128((__m128i *)(to + 2 * at), _mm_unpacklo_epi16(first, second));
        _mm_storeu_si128((__m128i *)(to + 2 * at + 8), _mm_unpackhi_epi16(first, second));
    }
}
