/* Shared by all native code: products of tiles, packing, functions, teams of threads.

   Matrices are packed into panels of 32 outputs: for each group of inputs that one instruction
   takes (2 of bfloat16, 4 of 8 bits: 32 bits either way), the weights of the 32 outputs are side by
   side. Keys and values are packed in the same way, so that one kernel computes all products. */

#ifndef BERTWORKS_KERNELS
#define BERTWORKS_KERNELS

#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PANEL 32     /* outputs of a panel: two registers of float32 */
#define MOST_ROWS 14 /* rows of a tile: each takes 2 of the 32 registers */
#define LINE 64      /* bytes of a register, and of a cache line */
#define AHEAD 2048   /* how many bytes ahead a panel is prefetched */
#define LOG2E 1.44269504f
#define PAUSES 2000  /* of a waiting thread, before it yields its processor */

typedef uint16_t bf16;
typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */

/* `bertworks_kernels` in support.c checks whether the processor has these. */
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,fma")
#define INLINE static inline __attribute__((always_inline))
#define SHARED __attribute__((unused)) static /* not every file uses it */

/* ------------------------------------------------------------------------------- one product */

INLINE __m512 floats_of(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __m512 load_bf16(const bf16 *from) {
    return floats_of(_mm256_loadu_si256((const __m256i *)from));
}

INLINE void store_bf16(bf16 *to, __m512 x) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(x));
}

/* Which of 16 numbers from `at` on are before `end`. */
INLINE __mmask16 before(int64_t at, int64_t end) {
    return end - at >= 16 ? 0xffff : end > at ? (__mmask16)((1u << (end - at)) - 1) : 0;
}

/* Multiply rows by a panel: rows of 32 sums, float32 or, for 8-bit numbers, int32 (same size). */
#define TILE(name, ZERO, DOT, VECTOR)                                                              \
    INLINE void name(int rows, const char *a, int64_t stride, int64_t step, const char *panel,      \
                     int64_t groups, float *sums, int64_t apart) {                                                                 \
        VECTOR total[MOST_ROWS][2];                                                                \
        const char *row[MOST_ROWS / 3 + 1];                                                        \
        for (int r = 0; r < rows; r++) total[r][0] = total[r][1] = ZERO();                         \
        for (int r = 0; r < rows; r += 3) row[r / 3] = a + r * stride;                             \
        for (int64_t at = 0; at < groups; at++, panel += 2 * LINE) {                               \
            __m512i left = _mm512_loadu_si512(panel), right = _mm512_loadu_si512(panel + LINE);    \
            _mm_prefetch(panel + AHEAD, _MM_HINT_T0);                                              \
            _mm_prefetch(panel + AHEAD + LINE, _MM_HINT_T0);                                       \
            for (int r = 0; r < rows; r++) {                                                       \
                __m512i x = _mm512_set1_epi32(*(const int *)(row[r / 3] + (r % 3) * stride));      \
                total[r][0] = DOT(total[r][0], x, left);                                           \
                total[r][1] = DOT(total[r][1], x, right);                                          \
            }                                                                                      \
            for (int r = 0; r < rows; r += 3) row[r / 3] += step;                                  \
        }                                                                                          \
        for (int r = 0; r < rows; r++, sums += apart) {                                            \
            _mm512_store_si512(sums, (__m512i)total[r][0]);                                        \
            _mm512_store_si512(sums + 16, (__m512i)total[r][1]);                                   \
        }                                                                                          \
    }

#define DOT_BF16(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
TILE(tile_bf16, _mm512_setzero_ps, DOT_BF16, __m512)

typedef int ints __attribute__((vector_size(64))); /* __m512i has 64-bit numbers: GCC spills it */
#define ZERO_INTS() (ints)_mm512_setzero_si512()
#define DOT_INT8(sum, x, w) (ints)_mm512_dpbusd_epi32((__m512i)(sum), x, w)
TILE(tile_int8, ZERO_INTS, DOT_INT8, ints)

#define CASE(kind, count, step)                                                                    \
    case count: tile_##kind(count, a, stride, step, panel, groups, sums, apart); break;
#define CASES(kind, step)                                                                          \
    switch (rows) {                                                                                \
        CASE(kind, 1, step) CASE(kind, 2, step) CASE(kind, 3, step) CASE(kind, 4, step)            \
        CASE(kind, 5, step) CASE(kind, 6, step) CASE(kind, 7, step) CASE(kind, 8, step)            \
        CASE(kind, 9, step) CASE(kind, 10, step) CASE(kind, 11, step) CASE(kind, 12, step)         \
        CASE(kind, 13, step) CASE(kind, 14, step)                                                  \
    }

/* Up to 14 rows, `stride` bytes apart; their sums are `apart` numbers apart. */
SHARED void tiles_bf16(int rows, const void *a, int64_t stride, const void *panel, int64_t groups,
                       float *sums, int64_t apart) {
    CASES(bf16, 4)
}

/* The same for a matrix in which the groups of a row are `step` bytes apart. */
SHARED void tiles_bf16_across(int rows, const void *a, int64_t stride, int64_t step,
                              const void *panel, int64_t groups, float *sums, int64_t apart) {
    CASES(bf16, step)
}

SHARED void tiles_int8(int rows, const void *a, int64_t stride, const void *panel, int64_t groups,
                       float *sums, int64_t apart) {
    CASES(int8, 4)
}

/* ---------------------------------------------------------------------------------- packing */

/* Transpose 16 × 16 numbers of 32 bits. */
INLINE void transpose(__m512i r[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i low = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        __m512i high = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        __m512i low2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        __m512i high2 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
        t[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        t[i + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
    for (int i = 0; i < 16; i++) r[i] = t[i];
}

/* Up to 16 groups of a row from `at` on: unchanged, or pairs of float32 numbers as bfloat16. */
INLINE __m512i groups_at(const char *row, int64_t at, int64_t groups, int are_floats) {
    if (!are_floats) return _mm512_maskz_loadu_epi32(before(at, groups), row + at * 4);
    const float *from = (const float *)row + 2 * at;
    __m512 low = _mm512_maskz_loadu_ps(before(2 * at, 2 * groups), from);
    __m512 high = _mm512_maskz_loadu_ps(before(2 * at + 16, 2 * groups), from + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Pack `[outputs, groups]` numbers of 32 bits, or twice as many float32 ones; the last panel is
   filled with zeros. */
INLINE void pack_rows(const void *from, int64_t outputs, int64_t groups, int64_t stride, void *to,
                      int are_floats) {
    for (int64_t first = 0; first < outputs; first += 16) {
        char *panel = (char *)to + first / PANEL * groups * 2 * LINE + first % PANEL * 4;
        for (int64_t at = 0; at < groups; at += 16) {
            __m512i r[16];
            for (int i = 0; i < 16; i++) {
                const char *row = (const char *)from + (first + i) * stride;
                r[i] = first + i < outputs ? groups_at(row, at, groups, are_floats)
                                           : _mm512_setzero_si512();
            }
            transpose(r);
            for (int i = 0; i < 16 && at + i < groups; i++)
                _mm512_storeu_si512(panel + (at + i) * 2 * LINE, r[i]);
        }
    }
    if ((outputs + 15) / 16 % 2) { /* the second half of the last panel */
        char *panel = (char *)to + outputs / PANEL * groups * 2 * LINE + LINE;
        for (int64_t at = 0; at < groups; at++)
            _mm512_storeu_si512(panel + at * 2 * LINE, _mm512_setzero_si512());
    }
}

static inline void pack(const void *from, int64_t outputs, int64_t groups, int64_t stride, void *to) {
    pack_rows(from, outputs, groups, stride, to, 0);
}

/* Pack values `[keys, size]`, which are summed over keys: pairs of keys side by side. */
static inline void pack_values(const bf16 *from, int64_t keys, int64_t size, int64_t stride, bf16 *to) {
    static const uint16_t order[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    __m512i low = _mm512_loadu_si512(order[0]), high = _mm512_loadu_si512(order[1]);
    for (int64_t column = 0; column < size; column += PANEL)
        for (int64_t key = 0; key < keys; key += 2, to += 2 * PANEL) {
            const bf16 *row = from + key * stride + column;
            __m512i even = _mm512_loadu_si512(row);
            __m512i odd = key + 1 < keys ? _mm512_loadu_si512(row + stride) : _mm512_setzero_si512();
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(to + PANEL, _mm512_permutex2var_epi16(even, high, odd));
        }
}

/* -------------------------------------------------------------------------------- functions */

/* 2 to the power of x, for x up to 0, by a polynomial fitted to 1e-7; NaN stays NaN. */
INLINE __m512 power_of_two(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126), x); /* if one is NaN: the second operand */
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 part = _mm512_sub_ps(x, whole);
    __m512 y = _mm512_set1_ps(1.326472718e-3f);
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(9.67151265e-3f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(5.550733743e-2f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(2.402224209e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(6.931469776e-1f));
    y = _mm512_fmadd_ps(y, part, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, whole);
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

/* Φ(-|x|), and its factor exp(-x² / 2). Source: Abramowitz and Stegun (1964), 7.1.26. */
INLINE __m512 tail_of(__m512 x, __m512 *density) {
    __m512 z = _mm512_abs_ps(x);
    __m512 t = _mm512_rcp14_ps(_mm512_fmadd_ps(z, _mm512_set1_ps(0.2316418882f), _mm512_set1_ps(1)));
    __m512 y = _mm512_set1_ps(0.5f * 1.061405429f);
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * -1.453152027f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * 1.421413741f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * -0.284496736f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * 0.254829592f));
    y = _mm512_mul_ps(y, t);
    *density = power_of_two(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-0.5f * LOG2E)));
    return _mm512_mul_ps(y, *density);
}

/* x Φ(x). */
INLINE __m512 gelu(__m512 x) {
    __m512 density, tail = tail_of(x, &density);
    return _mm512_fnmadd_ps(tail, _mm512_abs_ps(x), _mm512_max_ps(x, _mm512_setzero_ps()));
}

/* Φ(x) + x φ(x). */
INLINE __m512 gelu_slope(__m512 x) {
    __m512 density, tail = tail_of(x, &density);
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512 y = _mm512_mask_mov_ps(_mm512_sub_ps(_mm512_set1_ps(1), tail), below, tail);
    return _mm512_fmadd_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.3989422804f)), density, y);
}

/* x σ(2u) with u = √(2/π) (x + 0.044715 x³), which is x (1 + tanh u) / 2. */
INLINE __m512 gelu_tanh(__m512 x) {
    __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    __m512 u = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
    __m512 z = _mm512_mul_ps(_mm512_abs_ps(u), _mm512_set1_ps(-2 * 0.7978845608f * LOG2E));
    __m512 e = power_of_two(z); /* exp(-2|u|) */
    __m512 y = _mm512_mul_ps(_mm512_mul_ps(_mm512_abs_ps(x), e),
                             _mm512_rcp14_ps(_mm512_add_ps(e, _mm512_set1_ps(1))));
    return _mm512_sub_ps(_mm512_max_ps(x, _mm512_setzero_ps()), y);
}

/* The norm of a row, with its scale and shift. */
INLINE void norm(const float *x, int64_t width, const float *const weights[2], float epsilon,
                 bf16 *to) {
    __m512 total = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    for (int64_t at = 0; at < width; at += 16) total = _mm512_add_ps(total, _mm512_loadu_ps(x + at));
    __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
    for (int64_t at = 0; at < width; at += 16) {
        __m512 d = _mm512_sub_ps(_mm512_loadu_ps(x + at), mean);
        squares = _mm512_fmadd_ps(d, d, squares);
    }
    float variance = _mm512_reduce_add_ps(squares) / width + epsilon;
    __m512 inverse = _mm512_set1_ps(1 / __builtin_sqrtf(variance));
    for (int64_t at = 0; at < width; at += 16) {
        __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + at), mean), inverse);
        __m512 scale = _mm512_loadu_ps(weights[0] + at), shift = _mm512_loadu_ps(weights[1] + at);
        store_bf16(to + at, _mm512_fmadd_ps(d, scale, shift));
    }
}

/* ----------------------------------------------------------------------------------- a team */

typedef struct {
    _Alignas(LINE) atomic_long next;
    _Alignas(LINE) atomic_long done;
} phase;

enum { PHASES = 11 };

/* Threads that work on phases together. `scratch` has `scratch_bytes` for each thread. */
typedef struct {
    phase phases[PHASES];
    atomic_long workers;
    char *scratch;
    int64_t scratch_bytes;
} team;

typedef void (*work_fn)(const void *job, int64_t item, char *scratch);

static inline char *join_team(team *all) {
    return all->scratch + atomic_fetch_add(&all->workers, 1) * all->scratch_bytes;
}

/* Work on a phase's items together with the other threads, and wait until all are done. */
static inline void together(team *all, int number, int64_t items, work_fn work, const void *job,
                            char *scratch) {
    phase *now = &all->phases[number];
    int64_t item;
    while ((item = atomic_fetch_add(&now->next, 1)) < items) {
        work(job, item, scratch);
        atomic_fetch_add_explicit(&now->done, 1, memory_order_release);
    }
    for (int tries = 0; atomic_load_explicit(&now->done, memory_order_acquire) < items; tries++)
        if (tries < PAUSES)
            _mm_pause();
        else
            sched_yield(); /* other threads may need the processor */
}

/* Reset the phases, and run a function in at most `threads` threads, including this one. */
static inline void run_team(team *all, void (*work)(void *), void *job, int64_t threads,
                            parallel_fn parallel) {
    memset(all->phases, 0, sizeof all->phases);
    all->workers = 0;
    if (parallel && threads > 1)
        parallel(work, job, (unsigned)threads, 0);
    else
        work(job);
}

/* The same with `bytes` of scratch for each thread. Returns 0, or 1 if there is no memory. */
SHARED int run_with_scratch(team *all, int64_t bytes, void (*work)(void *), void *job,
                            int64_t threads, parallel_fn parallel) {
    all->scratch_bytes = (bytes + LINE - 1) / LINE * LINE;
    all->scratch = aligned_alloc(LINE, threads * all->scratch_bytes);
    if (!all->scratch) return 1;
    run_team(all, work, job, threads, parallel);
    free(all->scratch);
    return 0;
}

#endif
