/* 16 numbers: AVX-512 with F, BW, VL and DQ; and VNNI and BF16, where the compiler may use them. */

#include <immintrin.h>

#define LANES 16
#define REGISTERS 2 /* of weights, in a tile */
#define MOST_ROWS 14 /* of a tile: each takes 2 of the 32 registers */
#define INT8_ROWS 14

typedef __m512 vfloat;
typedef int vint __attribute__((vector_size(64))); /* __m512i has 64-bit numbers: GCC spills it */
typedef __mmask16 vmask;

#define I(x) ((__m512i)(x))

INLINE vfloat f_zero(void) { return _mm512_setzero_ps(); }
INLINE vfloat f_set(float x) { return _mm512_set1_ps(x); }
INLINE vfloat f_load(const float *from) { return _mm512_loadu_ps(from); }
INLINE vfloat f_load_some(vmask some, const float *from) { return _mm512_maskz_loadu_ps(some, from); }
INLINE void f_store(float *to, vfloat x) { _mm512_storeu_ps(to, x); }
INLINE vfloat f_add(vfloat a, vfloat b) { return _mm512_add_ps(a, b); }
INLINE vfloat f_sub(vfloat a, vfloat b) { return _mm512_sub_ps(a, b); }
INLINE vfloat f_mul(vfloat a, vfloat b) { return _mm512_mul_ps(a, b); }
INLINE vfloat f_div(vfloat a, vfloat b) { return _mm512_div_ps(a, b); }
INLINE vfloat f_max(vfloat a, vfloat b) { return _mm512_max_ps(a, b); }
INLINE vfloat f_max_some(vmask some, vfloat a, vfloat b) { return _mm512_mask_max_ps(a, some, a, b); }
INLINE vfloat f_abs(vfloat x) { return _mm512_abs_ps(x); }
INLINE vfloat f_fma(vfloat a, vfloat b, vfloat c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vfloat f_fms(vfloat a, vfloat b, vfloat c) { return _mm512_fmsub_ps(a, b, c); }
INLINE vfloat f_fnma(vfloat a, vfloat b, vfloat c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE vfloat f_keep(vmask some, vfloat x) { return _mm512_maskz_mov_ps(some, x); }
INLINE float f_sum(vfloat x) { return _mm512_reduce_add_ps(x); }
INLINE float f_largest(vfloat x) { return _mm512_reduce_max_ps(x); }
INLINE vfloat f_round(vfloat x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vfloat f_scale(vfloat x, vfloat whole) { return _mm512_scalef_ps(x, whole); }
INLINE vfloat f_rough_inverse(vfloat x) { return _mm512_rcp14_ps(x); } /* 14 bits */
INLINE vfloat f_inverse(vfloat x) { /* to a unit in the last place */
    vfloat y = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(x, y, _mm512_set1_ps(1)), y, y);
}
INLINE vfloat f_bits(vint x) { return _mm512_castsi512_ps(I(x)); }
INLINE vint i_bits(vfloat x) { return (vint)_mm512_castps_si512(x); }
INLINE vfloat f_from_ints(vint x) { return _mm512_cvtepi32_ps(I(x)); }
INLINE vint i_zero(void) { return (vint)_mm512_setzero_si512(); }
INLINE vint i_set(int x) { return (vint)_mm512_set1_epi32(x); }
INLINE vint i_load(const void *from) { return (vint)_mm512_loadu_si512(from); }
INLINE vint i_load_some(vmask some, const void *from) {
    return (vint)_mm512_maskz_loadu_epi32(some, from);
}
INLINE void i_store(void *to, vint x) { _mm512_storeu_si512(to, I(x)); }
INLINE vint i_sub(vint a, vint b) { return (vint)_mm512_sub_epi32(I(a), I(b)); }

/* Which of the numbers from `at` on are before `end`. */
INLINE vmask before(int64_t at, int64_t end) {
    return end - at >= 16 ? 0xffff : end > at ? (__mmask16)((1u << (end - at)) - 1) : 0;
}

INLINE vfloat floats_of(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE vfloat load_bf16(const bf16 *from) {
    return floats_of(_mm256_loadu_si256((const __m256i *)from));
}

INLINE void store_bf16(bf16 *to, vfloat x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(x));
#else
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16),
                                                                  _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
#endif
}

/* Round numbers to codes of 8 bits from -128 to 127; with unsigned codes they are shifted by 128. */
INLINE void store_codes(uint8_t *to, vfloat x) {
    __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x));
#ifdef __AVX512VNNI__
    bytes = _mm_xor_si128(bytes, _mm_set1_epi8((char)128));
#endif
    _mm_storeu_si128((__m128i *)to, bytes);
}

INLINE vfloat dot_fp32(vfloat sum, vint x, vint w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(I(x)), _mm512_castsi512_ps(I(w)), sum);
}

INLINE vfloat dot_bf16(vfloat sum, vint x, vint w) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w));
#else
    __m512i high = _mm512_set1_epi32((int)0xffff0000);
    sum = dot_fp32(sum, (vint)_mm512_slli_epi32(I(x), 16), (vint)_mm512_slli_epi32(I(w), 16));
    return dot_fp32(sum, (vint)_mm512_and_si512(I(x), high), (vint)_mm512_and_si512(I(w), high));
#endif
}

#ifdef __AVX512VNNI__
#define SIGNED_CODES 0
INLINE vint dot_int8(vint sum, vint x, vint w) {
    return (vint)_mm512_dpbusd_epi32(I(sum), I(x), I(w));
}
#else
#define SIGNED_CODES 1
INLINE vint dot_int8(vint sum, vint x, vint w) { /* even and odd bytes, each in 16 bits */
    __m512i even = _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(I(x), 8), 8),
                                     _mm512_srai_epi16(_mm512_slli_epi16(I(w), 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srai_epi16(I(x), 8), _mm512_srai_epi16(I(w), 8));
    return (vint)_mm512_add_epi32(_mm512_add_epi32(I(sum), even), odd);
}
#endif

INLINE void prefetch(const char *from) { _mm_prefetch(from, _MM_HINT_T0); }

/* Transpose 16 × 16 numbers. */
INLINE void transpose(vint r[16]) {
    __m512i t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(I(r[i]), I(r[i + 1]));
        t[i + 1] = _mm512_unpackhi_epi32(I(r[i]), I(r[i + 1]));
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i low = _mm512_shuffle_i32x4(u[i], u[i + 4], 0x88);
        __m512i high = _mm512_shuffle_i32x4(u[i], u[i + 4], 0xdd);
        __m512i low2 = _mm512_shuffle_i32x4(u[i + 8], u[i + 12], 0x88);
        __m512i high2 = _mm512_shuffle_i32x4(u[i + 8], u[i + 12], 0xdd);
        r[i] = (vint)_mm512_shuffle_i32x4(low, low2, 0x88);
        r[i + 8] = (vint)_mm512_shuffle_i32x4(low, low2, 0xdd);
        r[i + 4] = (vint)_mm512_shuffle_i32x4(high, high2, 0x88);
        r[i + 12] = (vint)_mm512_shuffle_i32x4(high, high2, 0xdd);
    }
}

/* Write pairs of bfloat16 numbers, of two rows of 32, side by side. */
INLINE void store_pairs(bf16 *to, const bf16 *even, const bf16 *odd) {
    static const uint16_t order[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    __m512i low = _mm512_loadu_si512(order[0]), high = _mm512_loadu_si512(order[1]);
    __m512i first = _mm512_loadu_si512(even);
    __m512i second = odd ? _mm512_loadu_si512(odd) : _mm512_setzero_si512();
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, low, second));
    _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(first, high, second));
}
