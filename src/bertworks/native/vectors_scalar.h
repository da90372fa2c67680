/* 4 numbers in plain C, for any processor; the reference of the others in tests. */

#define LANES 4
#define REGISTERS 2 /* of weights, in a tile */
#define MOST_ROWS 4 /* of a tile */
#define INT8_ROWS 4
#define SIGNED_CODES 1

typedef struct { float n[LANES]; } vfloat;
typedef struct { int32_t n[LANES]; } vint;
typedef struct { int n[LANES]; } vmask;

#define EACH for (int i = 0; i < LANES; i++)
#define ROUNDER 12582912.0f /* 1.5 · 2²³: a sum with it is rounded to a whole number */

INLINE vfloat f_set(float x) { vfloat y; EACH y.n[i] = x; return y; }
INLINE vfloat f_zero(void) { return f_set(0); }
INLINE vfloat f_load(const float *from) { vfloat y; memcpy(&y, from, sizeof y); return y; }
INLINE vfloat f_load_some(vmask some, const float *from) {
    vfloat y;
    EACH y.n[i] = some.n[i] ? from[i] : 0;
    return y;
}
INLINE void f_store(float *to, vfloat x) { memcpy(to, &x, sizeof x); }
INLINE vfloat f_add(vfloat a, vfloat b) { EACH a.n[i] += b.n[i]; return a; }
INLINE vfloat f_sub(vfloat a, vfloat b) { EACH a.n[i] -= b.n[i]; return a; }
INLINE vfloat f_mul(vfloat a, vfloat b) { EACH a.n[i] *= b.n[i]; return a; }
INLINE vfloat f_div(vfloat a, vfloat b) { EACH a.n[i] /= b.n[i]; return a; }
INLINE vfloat f_max(vfloat a, vfloat b) { EACH a.n[i] = a.n[i] > b.n[i] ? a.n[i] : b.n[i]; return a; }
INLINE vfloat f_max_some(vmask some, vfloat a, vfloat b) {
    EACH if (some.n[i] && !(a.n[i] > b.n[i])) a.n[i] = b.n[i];
    return a;
}
INLINE vfloat f_abs(vfloat x) { EACH x.n[i] = __builtin_fabsf(x.n[i]); return x; }
INLINE vfloat f_fma(vfloat a, vfloat b, vfloat c) { EACH c.n[i] += a.n[i] * b.n[i]; return c; }
INLINE vfloat f_fms(vfloat a, vfloat b, vfloat c) { EACH c.n[i] = a.n[i] * b.n[i] - c.n[i]; return c; }
INLINE vfloat f_fnma(vfloat a, vfloat b, vfloat c) { EACH c.n[i] -= a.n[i] * b.n[i]; return c; }
INLINE vfloat f_keep(vmask some, vfloat x) { EACH if (!some.n[i]) x.n[i] = 0; return x; }
INLINE float f_sum(vfloat x) { return (x.n[0] + x.n[2]) + (x.n[1] + x.n[3]); }
INLINE float f_largest(vfloat x) {
    float most = x.n[0];
    EACH most = most > x.n[i] ? most : x.n[i];
    return most;
}
INLINE vfloat f_bits(vint x) { vfloat y; memcpy(&y, &x, sizeof y); return y; }
INLINE vint i_bits(vfloat x) { vint y; memcpy(&y, &x, sizeof y); return y; }
INLINE vfloat f_round(vfloat x) { EACH x.n[i] = (x.n[i] + ROUNDER) - ROUNDER; return x; }
INLINE vfloat f_scale(vfloat x, vfloat whole) { /* of at least -126 */
    vint bits = i_bits(f_add(whole, f_set(ROUNDER + 127)));
    EACH bits.n[i] = (int32_t)((uint32_t)bits.n[i] << 23); /* the low bits are the whole number */
    return f_mul(x, f_bits(bits));
}
INLINE vfloat f_inverse(vfloat x) { EACH x.n[i] = 1 / x.n[i]; return x; }
INLINE vfloat f_rough_inverse(vfloat x) { return f_inverse(x); }
INLINE vfloat f_from_ints(vint x) { vfloat y; EACH y.n[i] = (float)x.n[i]; return y; }
INLINE vint i_set(int x) { vint y; EACH y.n[i] = x; return y; }
INLINE vint i_zero(void) { return i_set(0); }
INLINE vint i_load(const void *from) { vint y; memcpy(&y, from, sizeof y); return y; }
INLINE vint i_load_some(vmask some, const void *from) {
    vint y = i_zero();
    EACH if (some.n[i]) memcpy(&y.n[i], (const char *)from + 4 * i, 4);
    return y;
}
INLINE void i_store(void *to, vint x) { memcpy(to, &x, sizeof x); }
INLINE vint i_sub(vint a, vint b) { EACH a.n[i] -= b.n[i]; return a; }

/* Which of the numbers from `at` on are before `end`. */
INLINE vmask before(int64_t at, int64_t end) { vmask m; EACH m.n[i] = at + i < end; return m; }

INLINE vfloat load_bf16(const bf16 *from) {
    vint y;
    EACH y.n[i] = (int32_t)((uint32_t)from[i] << 16);
    return f_bits(y);
}

INLINE void store_bf16(bf16 *to, vfloat x) {
    vint bits = i_bits(x);
    EACH {
        uint32_t b = (uint32_t)bits.n[i];
        to[i] = x.n[i] != x.n[i] ? 0x7fc0 : (bf16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
}

/* Round numbers to codes of 8 bits from -128 to 127. */
INLINE void store_codes(uint8_t *to, vfloat x) {
    EACH {
        float code = x.n[i] >= -128 ? (x.n[i] <= 127 ? x.n[i] : 127) : -128; /* NaN too */
        to[i] = (uint8_t)(int8_t)((code + ROUNDER) - ROUNDER);
    }
}

INLINE vfloat dot_fp32(vfloat sum, vint x, vint w) { return f_fma(f_bits(x), f_bits(w), sum); }

INLINE vint halves(vint x, int shift) {
    EACH x.n[i] = (int32_t)((uint32_t)x.n[i] << shift & 0xffff0000u);
    return x;
}
INLINE vfloat dot_bf16(vfloat sum, vint x, vint w) {
    return dot_fp32(dot_fp32(sum, halves(x, 16), halves(w, 16)), halves(x, 0), halves(w, 0));
}

INLINE vint dot_int8(vint sum, vint x, vint w) {
    for (int shift = 0; shift < 32; shift += 8)
        EACH sum.n[i] += (int8_t)((uint32_t)x.n[i] >> shift) * (int8_t)((uint32_t)w.n[i] >> shift);
    return sum;
}

INLINE void prefetch(const char *from) { (void)from; }

/* Transpose 4 × 4 numbers. */
INLINE void transpose(vint r[4]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            int32_t other = r[i].n[j];
            r[i].n[j] = r[j].n[i];
            r[j].n[i] = other;
        }
}

/* Write pairs of bfloat16 numbers, of two rows of 32, side by side. */
INLINE void store_pairs(bf16 *to, const bf16 *even, const bf16 *odd) {
    for (int at = 0; at < 32; at++) {
        to[2 * at] = even[at];
        to[2 * at + 1] = odd ? odd[at] : 0;
    }
}
