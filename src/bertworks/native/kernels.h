/* Shared by all native code: products of tiles, packing, functions, teams of threads.

   Matrices are packed into panels of 32 outputs: for each group of inputs that one instruction
   takes (1 of float32, 2 of bfloat16, 4 of 8 bits: 32 bits each), the weights of the 32 outputs are
   side by side, whatever the instruction set is. Keys and values are packed in the same way, so that
   one kernel computes all products. */

#ifndef BERTWORKS_KERNELS
#define BERTWORKS_KERNELS

#include "native.h"
#include "threads.h"
#include "vectors.h"

#include "activations.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define PANEL 32     /* outputs of a panel */
#define LINE 64      /* bytes of a cache line */
#define COLUMNS (REGISTERS * LANES) /* outputs of a tile */
#define AHEAD 2048   /* how many bytes ahead a panel is prefetched */
#ifndef CODE_BYTES
#define CODE_BYTES 1 /* of an input's code */
#endif
#ifndef FEW_TILES
#define FEW_TILES 0 /* of rows, for which the next panel is prefetched */
#endif
#define PAUSES 2000  /* of a waiting thread, before it yields its processor */

/* ------------------------------------------------------------------------------- one product */

/* Multiply rows by a panel: rows of 32 sums, float32 or, for 8-bit numbers, int32 (same size). */
#define TILE(kind, VECTOR, ZERO)                                                                   \
    INLINE void tile_##kind(int rows, const char *a, int64_t stride, int64_t step,                 \
                            const char *packed, int64_t groups, int64_t ahead, float *sums,        \
                            int64_t apart) {                                                       \
        for (int first = 0; first < PANEL; first += COLUMNS) {                                     \
            VECTOR total[MOST_ROWS][REGISTERS];                                                    \
            const char *row[MOST_ROWS / 3 + 1], *panel = packed + first * 4;                       \
            for (int r = 0; r < rows; r++)                                                         \
                for (int v = 0; v < REGISTERS; v++) total[r][v] = ZERO();                          \
            for (int r = 0; r < rows; r += 3) row[r / 3] = a + r * stride;                         \
            for (int64_t at = 0; at < groups; at++, panel += 4 * PANEL) {                          \
                vint weights[REGISTERS];                                                           \
                for (int v = 0; v < REGISTERS; v++) weights[v] = i_load(panel + v * 4 * LANES);    \
                for (int line = 0; line < 4 * COLUMNS; line += LINE)                               \
                    prefetch(panel + ahead + line);                                                \
                for (int r = 0; r < rows; r++) {                                                   \
                    vint x = i_broadcast(row[r / 3] + (r % 3) * stride);                           \
                    for (int v = 0; v < REGISTERS; v++)                                            \
                        total[r][v] = dot_##kind(total[r][v], x, weights[v]);                      \
                }                                                                                  \
                for (int r = 0; r < rows; r += 3) row[r / 3] += step;                              \
            }                                                                                      \
            for (int r = 0; r < rows; r++)                                                         \
                for (int v = 0; v < REGISTERS; v++)                                                \
                    i_store(sums + r * apart + first + v * LANES, total_bits(total[r][v]));        \
        }                                                                                          \
    }

INLINE vint i_broadcast(const char *from) {
    int x;
    memcpy(&x, from, sizeof x);
    return i_set(x);
}

#define total_bits i_bits
TILE(fp32, vfloat, f_zero)
TILE(bf16, vfloat, f_zero)
#undef total_bits
#define total_bits
#ifndef HAS_INT8_TILE
TILE(int8, vint, i_zero)
#endif
#undef total_bits

#define CASE(kind, count, step)                                                                    \
    case count: tile_##kind(count, a, stride, step, panel, groups, ahead, sums, apart); break;
#if MOST_ROWS == 14
#define MORE_CASES(kind, step)                                                                     \
    CASE(kind, 5, step) CASE(kind, 6, step) CASE(kind, 7, step) CASE(kind, 8, step)                \
    CASE(kind, 9, step) CASE(kind, 10, step) CASE(kind, 11, step) CASE(kind, 12, step)             \
    CASE(kind, 13, step) CASE(kind, 14, step)
#elif MOST_ROWS == 6
#define MORE_CASES(kind, step) CASE(kind, 5, step) CASE(kind, 6, step)
#else
#define MORE_CASES(kind, step)
#endif
#define CASES(kind, step)                                                                          \
    switch (rows) {                                                                                \
        CASE(kind, 1, step) CASE(kind, 2, step) CASE(kind, 3, step) CASE(kind, 4, step)            \
        MORE_CASES(kind, step)                                                                     \
    }

/* Up to `MOST_ROWS` rows, `stride` bytes apart; their sums are `apart` numbers apart. The weights that
   are `ahead` bytes further are prefetched. */
SHARED void tiles_fp32(int rows, const void *a, int64_t stride, const void *panel, int64_t groups,
                       int64_t ahead, float *sums, int64_t apart) {
    CASES(fp32, 4)
}

SHARED void tiles_bf16(int rows, const void *a, int64_t stride, const void *panel, int64_t groups,
                       int64_t ahead, float *sums, int64_t apart) {
    CASES(bf16, 4)
}

/* Up to `INT8_ROWS` rows. */
SHARED void tiles_int8(int rows, const void *a, int64_t stride, const void *panel, int64_t groups,
                       int64_t ahead, float *sums, int64_t apart) {
    CASES(int8, 4 * CODE_BYTES)
}

/* ---------------------------------------------------------------------------------- packing */

/* Up to LANES groups of a row from `at` on: unchanged, or pairs of float32 numbers as bfloat16. */
INLINE vint groups_at(const char *row, int64_t at, int64_t groups, int are_floats) {
    if (!are_floats) return i_load_some(before(at, groups), row + at * 4);
    const float *from = (const float *)row + 2 * at;
    bf16 pairs[2 * LANES];
    for (int half = 0; half < 2; half++)
        store_bf16(pairs + half * LANES,
                   f_load_some(before(2 * at + half * LANES, 2 * groups), from + half * LANES));
    return i_load(pairs);
}

/* Pack `[outputs, groups]` numbers of 32 bits, or twice as many float32 ones; the last panel is
   filled with zeros. */
INLINE void pack_rows(const void *from, int64_t outputs, int64_t groups, int64_t stride, void *to,
                      int are_floats) {
    int64_t padded = (outputs + PANEL - 1) / PANEL * PANEL;
    for (int64_t first = 0; first < padded; first += LANES) {
        char *panel = (char *)to + first / PANEL * groups * 4 * PANEL + first % PANEL * 4;
        for (int64_t at = 0; first >= outputs && at < groups; at++)
            i_store(panel + at * 4 * PANEL, i_zero());
        for (int64_t at = 0; first < outputs && at < groups; at += LANES) {
            vint r[LANES];
            for (int i = 0; i < LANES; i++) {
                const char *row = (const char *)from + (first + i) * stride;
                r[i] = first + i < outputs ? groups_at(row, at, groups, are_floats) : i_zero();
            }
            transpose(r);
            for (int i = 0; i < LANES && at + i < groups; i++)
                i_store(panel + (at + i) * 4 * PANEL, r[i]);
        }
    }
}

static inline void pack(const void *from, int64_t outputs, int64_t groups, int64_t stride, void *to) {
    pack_rows(from, outputs, groups, stride, to, 0);
}

/* Pack values `[keys, size]`, which are summed over keys: pairs of keys side by side. There are
   `pairs` of them, the last ones zeros. */
static inline void pack_values(const bf16 *from, int64_t keys, int64_t size, int64_t stride,
                               int64_t pairs, bf16 *to) {
    static const bf16 zeros[PANEL];
    for (int64_t column = 0; column < size; column += PANEL)
        for (int64_t key = 0; key < 2 * pairs; key += 2, to += 2 * PANEL) {
            const bf16 *row = key < keys ? from + key * stride + column : zeros;
            store_pairs(to, row, key + 1 < keys ? row + stride : NULL);
        }
}

/* -------------------------------------------------------------- numbers of float32 or bfloat16 */

INLINE vfloat load_number(const void *from, int64_t at, int is_float) {
    return is_float ? f_load((const float *)from + at) : load_bf16((const bf16 *)from + at);
}

INLINE void store_number(void *to, int64_t at, int is_float, vfloat x) {
    if (is_float)
        f_store((float *)to + at, x);
    else
        store_bf16((bf16 *)to + at, x);
}

/* The same of the first `count` numbers, if that is less than LANES; the others are zeros. */
INLINE vfloat load_some(const void *from, int64_t at, int64_t count, int is_float) {
    uint32_t some[LANES] = {0};
    int64_t bytes = is_float ? 4 : 2;
    if (count >= LANES) return load_number(from, at, is_float);
    if (count > 0) memcpy(some, (const char *)from + at * bytes, count * bytes);
    return load_number(some, 0, is_float);
}

INLINE void store_some(void *to, int64_t at, int64_t count, int is_float, vfloat x) {
    uint32_t all[LANES];
    int64_t bytes = is_float ? 4 : 2;
    if (count >= LANES) {
        store_number(to, at, is_float, x);
    } else if (count > 0) {
        store_number(all, 0, is_float, x);
        memcpy((char *)to + at * bytes, all, count * bytes);
    }
}

/* The norm of numbers from `start` on, as numbers from `place` on: less their mean unless `is_rms`,
   divided by the root of their mean square, times a scale, plus a shift, which may be null. */
INLINE void norm(const void *x, int64_t start, int from_float, int64_t width,
                 const float *const weights[2], float epsilon, int is_rms, void *to, int64_t place,
                 int is_float) {
    vfloat mean = f_zero(), squares = f_zero();
    if (!is_rms) {
        for (int64_t at = 0; at < width; at += LANES)
            mean = f_add(mean, load_some(x, start + at, width - at, from_float));
        mean = f_set(f_sum(mean) / width);
    }
    for (int64_t at = 0; at < width; at += LANES) {
        vfloat d = f_sub(load_some(x, start + at, width - at, from_float), mean);
        if (width - at < LANES) d = f_keep(before(at, width), d);
        squares = f_fma(d, d, squares);
    }
    float variance = f_sum(squares) / width + epsilon;
    vfloat inverse = f_set(1 / __builtin_sqrtf(variance));
    for (int64_t at = 0; at < width; at += LANES) {
        vfloat d = f_sub(load_some(x, start + at, width - at, from_float), mean);
        vfloat scale = load_some(weights[0], at, width - at, 1);
        vfloat shift = weights[1] ? load_some(weights[1], at, width - at, 1) : f_zero();
        store_some(to, place + at, width - at, is_float, f_fma(f_mul(d, inverse), scale, shift));
    }
}

/* ----------------------------------------------------------------------------------- a team */

typedef struct {
    _Alignas(LINE) atomic_long next;
    _Alignas(LINE) atomic_long done;
} phase;

enum { PHASES = 13 };

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
            pause_thread();
        else
            sched_yield(); /* other threads may need the processor */
}

/* Reset the phases, and run a function in at most `threads` threads, including this one: the
   package's own, or those of `parallel`. */
static inline void run_team(team *all, void (*work)(void *), void *job, int64_t threads,
                            parallel_fn parallel) {
    memset(all->phases, 0, sizeof all->phases);
    all->workers = 0;
    if (parallel && threads > 1)
        parallel(work, job, (unsigned)threads, 0);
    else
        bertworks_run(work, job, threads);
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
