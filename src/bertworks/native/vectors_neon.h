/* 4 numbers: NEON of ARM64; and dot products, bfloat16 and products of 8-bit matrices, where the
   compiler may use them. */

#include <arm_neon.h>

#define LANES 4
#define REGISTERS 4 /* of weights, in a tile */
#define MOST_ROWS 6 /* of a tile: each takes 4 of the 32 registers */
#define INT8_ROWS 6
#define SIGNED_CODES 1

typedef float32x4_t vfloat;
typedef int32x4_t vint;
typedef uint32x4_t vmask; /* all bits of a number, or none */

INLINE vfloat f_zero(void) { return vdupq_n_f32(0); }
INLINE vfloat f_set(float x) { return vdupq_n_f32(x); }
INLINE vfloat f_load(const float *from) { return vld1q_f32(from); }
INLINE void f_store(float *to, vfloat x) { vst1q_f32(to, x); }
INLINE vfloat f_add(vfloat a, vfloat b) { return vaddq_f32(a, b); }
INLINE vfloat f_sub(vfloat a, vfloat b) { return vsubq_f32(a, b); }
INLINE vfloat f_mul(vfloat a, vfloat b) { return vmulq_f32(a, b); }
INLINE vfloat f_div(vfloat a, vfloat b) { return vdivq_f32(a, b); }
INLINE vfloat f_max(vfloat a, vfloat b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE vfloat f_max_some(vmask some, vfloat a, vfloat b) { return vbslq_f32(some, f_max(a, b), a); }
INLINE vfloat f_abs(vfloat x) { return vabsq_f32(x); }
INLINE vfloat f_fma(vfloat a, vfloat b, vfloat c) { return vfmaq_f32(c, a, b); }
INLINE vfloat f_fms(vfloat a, vfloat b, vfloat c) { return vfmaq_f32(vnegq_f32(c), a, b); }
INLINE vfloat f_fnma(vfloat a, vfloat b, vfloat c) { return vfmsq_f32(c, a, b); }
INLINE vint i_bits(vfloat x) { return vreinterpretq_s32_f32(x); }
INLINE vfloat f_bits(vint x) { return vreinterpretq_f32_s32(x); }
INLINE vfloat f_keep(vmask some, vfloat x) {
    return f_bits(vandq_s32(vreinterpretq_s32_u32(some), i_bits(x)));
}
INLINE float f_sum(vfloat x) { return vaddvq_f32(x); }
INLINE float f_largest(vfloat x) { return vmaxvq_f32(x); }
INLINE vfloat f_round(vfloat x) { return vrndnq_f32(x); }
INLINE vfloat f_scale(vfloat x, vfloat whole) { /* of at least -126 */
    vint exponent = vaddq_s32(vcvtq_s32_f32(whole), vdupq_n_s32(127));
    return vmulq_f32(x, f_bits(vshlq_n_s32(exponent, 23)));
}
INLINE vfloat f_inverse(vfloat x) { return vdivq_f32(vdupq_n_f32(1), x); }
INLINE vfloat f_rough_inverse(vfloat x) { return f_inverse(x); }
INLINE vfloat f_from_ints(vint x) { return vcvtq_f32_s32(x); }
INLINE vint i_zero(void) { return vdupq_n_s32(0); }
INLINE vint i_set(int x) { return vdupq_n_s32(x); }
INLINE vint i_load(const void *from) { return vreinterpretq_s32_u8(vld1q_u8(from)); }
INLINE void i_store(void *to, vint x) { vst1q_u8(to, vreinterpretq_u8_s32(x)); }
INLINE vint i_sub(vint a, vint b) { return vsubq_s32(a, b); }

INLINE int32_t count_of(vmask some) {
    return -vaddvq_s32(vreinterpretq_s32_u32(some));
}
INLINE vint i_load_some(vmask some, const void *from) { /* the first ones */
    int32_t all[LANES] = {0};
    memcpy(all, from, 4 * (size_t)count_of(some));
    return vld1q_s32(all);
}
INLINE vfloat f_load_some(vmask some, const float *from) { return f_bits(i_load_some(some, from)); }

/* Which of the numbers from `at` on are before `end`. */
INLINE vmask before(int64_t at, int64_t end) {
    static const int32_t places[LANES] = {0, 1, 2, 3};
    int32_t count = end - at >= LANES ? LANES : end > at ? (int32_t)(end - at) : 0;
    return vcltq_s32(vld1q_s32(places), vdupq_n_s32(count));
}

INLINE vfloat load_bf16(const bf16 *from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}

INLINE void store_bf16(bf16 *to, vfloat x) {
    uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    bits = vbslq_u32(vceqq_f32(x, x), bits, vdupq_n_u32(0x7fc00000));
    vst1_u16(to, vshrn_n_u32(bits, 16));
}

/* Round numbers to codes of 8 bits from -128 to 127. */
INLINE void store_codes(uint8_t *to, vfloat x) {
    int16x4_t half = vqmovn_s32(vcvtnq_s32_f32(x));
    int8x8_t bytes = vqmovn_s16(vcombine_s16(half, half));
    int32_t codes = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    memcpy(to, &codes, 4);
}

INLINE vfloat dot_fp32(vfloat sum, vint x, vint w) { return vfmaq_f32(sum, f_bits(x), f_bits(w)); }

INLINE vfloat dot_bf16(vfloat sum, vint x, vint w) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return vbfdotq_f32(sum, vreinterpretq_bf16_s32(x), vreinterpretq_bf16_s32(w));
#else
    vint high = vdupq_n_s32((int32_t)0xffff0000);
    sum = dot_fp32(sum, vshlq_n_s32(x, 16), vshlq_n_s32(w, 16));
    return dot_fp32(sum, vandq_s32(x, high), vandq_s32(w, high));
#endif
}

INLINE vint dot_int8(vint sum, vint x, vint w) {
    int8x16_t codes = vreinterpretq_s8_s32(x), weights = vreinterpretq_s8_s32(w);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, codes, weights);
#else
    int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(weights));
    int16x8_t high = vmull_high_s8(codes, weights);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

#ifdef __ARM_FEATURE_MATMUL_INT8
#define HAS_INT8_TILE

/* Like TILE of kernels.h, by products of two rows and two outputs, over 8 inputs; the number of groups
   is even. */
INLINE void tile_int8(int rows, const char *a, int64_t stride, int64_t step, const char *packed,
                      int64_t groups, int64_t ahead, float *sums, int64_t apart) {
    (void)ahead;
    enum { OUTPUTS = 16, BYTES = 128 }; /* of a tile; of a group of a panel */
    for (int first = 0; first < BYTES / 4; first += OUTPUTS) {
        int32x4_t total[INT8_ROWS / 2][OUTPUTS / 2];
        const char *panel = packed + first * 4;
        for (int pair = 0; pair < (rows + 1) / 2; pair++)
            for (int v = 0; v < OUTPUTS / 2; v++) total[pair][v] = vdupq_n_s32(0);
        for (int64_t at = 0; at < groups; at += 2, panel += 2 * BYTES) {
            int8x16_t x[INT8_ROWS / 2];
            for (int r = 0; r < rows; r += 2) {
                const int8_t *row = (const int8_t *)a + r * stride + at * step;
                int8x8_t next = r + 1 < rows ? vld1_s8(row + stride) : vdup_n_s8(0);
                x[r / 2] = vcombine_s8(vld1_s8(row), next);
            }
            for (int v = 0; v < OUTPUTS / 4; v++) {
                int32x4_t low = i_load(panel + 16 * v), high = i_load(panel + BYTES + 16 * v);
                int8x16_t even = vreinterpretq_s8_s32(vzip1q_s32(low, high));
                int8x16_t odd = vreinterpretq_s8_s32(vzip2q_s32(low, high));
                for (int pair = 0; pair < (rows + 1) / 2; pair++) {
                    total[pair][2 * v] = vmmlaq_s32(total[pair][2 * v], x[pair], even);
                    total[pair][2 * v + 1] = vmmlaq_s32(total[pair][2 * v + 1], x[pair], odd);
                }
            }
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < OUTPUTS / 4; v++) {
                int32x4_t one = total[r / 2][2 * v], two = total[r / 2][2 * v + 1];
                int32x4_t row = r % 2 ? vcombine_s32(vget_high_s32(one), vget_high_s32(two))
                                      : vcombine_s32(vget_low_s32(one), vget_low_s32(two));
                i_store(sums + r * apart + first + 4 * v, row);
            }
    }
}
#endif

INLINE void prefetch(const char *from) { __builtin_prefetch(from); }

/* Transpose 4 × 4 numbers. */
INLINE void transpose(vint r[4]) {
    int32x4x2_t a = vtrnq_s32(r[0], r[1]), b = vtrnq_s32(r[2], r[3]);
    r[0] = vcombine_s32(vget_low_s32(a.val[0]), vget_low_s32(b.val[0]));
    r[1] = vcombine_s32(vget_low_s32(a.val[1]), vget_low_s32(b.val[1]));
    r[2] = vcombine_s32(vget_high_s32(a.val[0]), vget_high_s32(b.val[0]));
    r[3] = vcombine_s32(vget_high_s32(a.val[1]), vget_high_s32(b.val[1]));
}

/* Write pairs of bfloat16 numbers, of two rows of 32, side by side. */
INLINE void store_pairs(bf16 *to, const bf16 *even, const bf16 *odd) {
    for (int at = 0; at < 32; at += 8) {
        uint16x8x2_t pairs = {{vld1q_u16(even + at), odd ? vld1q_u16(odd + at) : vdupq_n_u16(0)}};
        vst2q_u16(to + 2 * at, pairs);
    }
}
