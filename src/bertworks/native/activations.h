/* Activations of vectors, and the functions that they need. */

#ifndef BERTWORKS_ACTIVATIONS
#define BERTWORKS_ACTIVATIONS

#include "vectors.h"

#define LOG2E 1.44269504f

/* 2 to the power of x, for x up to 0, by a polynomial fitted to 1e-7; NaN stays NaN. */
INLINE vfloat power_of_two(vfloat x) {
    x = f_max(f_set(-126), x); /* if one is NaN: the second operand */
    vfloat whole = f_round(x);
    vfloat part = f_sub(x, whole);
    vfloat y = f_set(1.326472718e-3f);
    y = f_fma(y, part, f_set(9.67151265e-3f));
    y = f_fma(y, part, f_set(5.550733743e-2f));
    y = f_fma(y, part, f_set(2.402224209e-1f));
    y = f_fma(y, part, f_set(6.931469776e-1f));
    y = f_fma(y, part, f_set(1.0f));
    return f_scale(y, whole);
}

/* exp(-z² / 2). */
INLINE vfloat bell(vfloat z) { return power_of_two(f_mul(f_mul(z, z), f_set(-0.5f * LOG2E))); }

/* Φ(-|x|) to 2e-7, and its factor exp(-x² / 2), for results in bfloat16.
   Source: Abramowitz and Stegun (1964), 7.1.26. */
INLINE vfloat tail_of(vfloat x, vfloat *density) {
    vfloat z = f_abs(x);
    vfloat t = f_rough_inverse(f_fma(z, f_set(0.2316418882f), f_set(1)));
    vfloat y = f_set(0.5f * 1.061405429f);
    y = f_fma(y, t, f_set(0.5f * -1.453152027f));
    y = f_fma(y, t, f_set(0.5f * 1.421413741f));
    y = f_fma(y, t, f_set(0.5f * -0.284496736f));
    y = f_fma(y, t, f_set(0.5f * 0.254829592f));
    y = f_mul(y, t);
    *density = power_of_two(f_mul(f_mul(z, z), f_set(-0.5f * LOG2E)));
    return f_mul(y, *density);
}

/* Φ(-|x|) by a formula of the same form, with a polynomial fitted to a relative error of 3e-8. */
INLINE vfloat exact_tail_of(vfloat x) {
    vfloat z = f_abs(x), t = f_inverse(f_fma(z, f_set(0.35f), f_set(1)));
    vfloat y = f_set(-2.914708281e-2f);
    y = f_fma(y, t, f_set(1.439771323e-1f));
    y = f_fma(y, t, f_set(-2.557250624e-1f));
    y = f_fma(y, t, f_set(1.591859460e-1f));
    y = f_fma(y, t, f_set(-2.311750012e-2f));
    y = f_fma(y, t, f_set(1.055110296e-1f));
    y = f_fma(y, t, f_set(1.198321647e-1f));
    y = f_fma(y, t, f_set(1.398619569e-1f));
    y = f_fma(y, t, f_set(1.396213999e-1f));
    return f_mul(f_mul(y, t), bell(z));
}

/* x Φ(x). */
INLINE vfloat gelu(vfloat x, int is_exact) {
    vfloat density, tail = is_exact ? exact_tail_of(x) : tail_of(x, &density);
    return f_fnma(tail, f_abs(x), f_max(x, f_zero()));
}

/* x σ(u), from e = exp(-|u|), for u of the sign of x. */
INLINE vfloat times_sigmoid(vfloat x, vfloat e, int is_exact) {
    vfloat sum = f_add(e, f_set(1));
    vfloat y = f_mul(f_mul(f_abs(x), e), is_exact ? f_inverse(sum) : f_rough_inverse(sum));
    return f_sub(f_max(x, f_zero()), y);
}

/* x σ(2u) with u = √(2/π) (x + 0.044715 x³), which is x (1 + tanh u) / 2. */
INLINE vfloat gelu_tanh(vfloat x, int is_exact) {
    vfloat cube = f_mul(f_mul(x, x), x);
    vfloat u = f_fma(cube, f_set(0.044715f), x);
    vfloat z = f_mul(f_abs(u), f_set(-2 * 0.7978845608f * LOG2E));
    return times_sigmoid(x, power_of_two(z), is_exact);
}

INLINE vfloat silu(vfloat x, int is_exact) {
    return times_sigmoid(x, power_of_two(f_mul(f_abs(x), f_set(-LOG2E))), is_exact);
}

enum activation { GELU = 0, GELU_TANH = 1, RELU = 2, SILU = 3 };

/* Conditions, which GCC moves out of loops; it would leave a `switch` in them. */
INLINE vfloat activate(vfloat y, int activation, int is_exact) {
    return activation == GELU        ? gelu(y, is_exact)
           : activation == GELU_TANH ? gelu_tanh(y, is_exact)
           : activation == SILU      ? silu(y, is_exact)
                                     : f_max(f_zero(), y); /* NaN stays */
}

#endif
