/* For training only, with AVX-512: dropout, and products of matrices that are not by rows. */

#ifndef BERTWORKS_TRAINING
#define BERTWORKS_TRAINING

#include "kernels.h"

/* Up to 14 rows of a matrix in which the groups of a row are `step` bytes apart. */
SHARED void tiles_bf16_across(int rows, const void *a, int64_t stride, int64_t step,
                              const void *panel, int64_t groups, float *sums, int64_t apart) {
    const int64_t ahead = AHEAD;
    CASES(bf16, step)
}

/* 32 random bits for each position, a number of 32 bits, and a seed.
   Source: the last steps of MurmurHash3 (Appleby). */
INLINE __m512i random_bits(__m512i place, uint32_t seed) {
    __m512i x = _mm512_xor_si512(place, _mm512_set1_epi32((int)seed));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32((int)0x85ebca6b));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 13));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32((int)0xc2b2ae35));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

/* Which of 16 positions dropout keeps: those whose random number is not below a bound. */
INLINE __mmask16 not_dropped(__m512i places, uint32_t seed, uint32_t below) {
    return _mm512_cmpge_epu32_mask(random_bits(places, seed), _mm512_set1_epi32((int)below));
}

/* 0 to 15. */
INLINE __m512i counted(void) {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Φ(x) + x φ(x). */
INLINE __m512 gelu_slope(__m512 x) {
    __m512 density, tail = tail_of(x, &density);
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512 y = _mm512_mask_mov_ps(_mm512_sub_ps(_mm512_set1_ps(1), tail), below, tail);
    return _mm512_fmadd_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.3989422804f)), density, y);
}

#endif
