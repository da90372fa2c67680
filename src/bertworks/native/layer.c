/* A layer of BERT (attention, feed-forward, two norms) for processors with AVX-512.

   Products are of bfloat16 or of 8-bit numbers; norms, softmax and activations of float32. Each
   output is summed over its inputs in one order, whatever the other rows, so a text's vectors have
   the same bits in any batch and with any number of threads.

   A layer is seven phases. The items of a phase are dealt to whoever is free; a phase begins when
   all items of the one before are done. So any number of threads, also one, finishes the work.

   Matrices are packed into panels of 32 outputs: for each group of inputs that one instruction
   takes (2 of bfloat16, 4 of 8 bits: 32 bits either way) the 32 outputs' weights side by side.
   Keys and values are packed likewise, so that one kernel computes all products. */

#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PANEL 32            /* outputs of a panel: two registers of float32 */
#define MOST_ROWS 14        /* of a tile: with two registers each, they fill the 32 there are */
#define BLOCK_BYTES 262144  /* of a block of inputs: it stays in the second cache */
#define BATCH_ROWS 1024     /* that go through the phases at once: they stay in the third */
#define LINE 64             /* bytes of a register, and of a cache line */
#define AHEAD 2048          /* bytes of a panel that are asked for before they are needed */
#define PAUSES 2000         /* until a thread that waits lets others have its processor */

typedef uint16_t bf16;
typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */

enum activation { GELU = 0, GELU_TANH = 1, RELU = 2 };

/* A linear map. Python's `native/__init__.py` has the same structures. */
typedef struct {
    const void *packed;
    const float *bias;
    int64_t inputs, outputs;
    /* of 8-bit weights, otherwise null: */
    const float *scales;    /* of each output */
    const int32_t *offsets; /* 128 times the sum of each output's codes */
    const float *start, *slope; /* code of an input x: start + slope · x; null: by each row's range */
} matrix;

typedef struct {
    matrix query_key_value, output, inner, outer;
    const float *norms[2][2]; /* scale and shift of each norm */
    float epsilon[2];
    int64_t heads, activation;
    int64_t is_int8;
} layer;

/* What was compiled: the checksum of this file, so that no older library is taken. */
unsigned bertworks_source(void) { return SOURCE; }

/* Which of the instructions this processor has: bit 0 for bfloat16, bit 1 for 8 bits too. */
int bertworks_kernels(void) {
    __builtin_cpu_init();
    int base = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bf16");
    return base ? 1 + 2 * !!__builtin_cpu_supports("avx512vnni") : 0;
}

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,fma")
#define INLINE static inline __attribute__((always_inline))

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

/* Rows times a panel: rows of 32 sums, float32 or, of 8-bit numbers, int32 of the same size. */
#define TILE(name, ZERO, DOT, VECTOR)                                                              \
    INLINE void name(int rows, const char *a, int64_t stride, const char *panel, int64_t groups,   \
                     float *sums, int64_t apart) {                                                                 \
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
            for (int r = 0; r < rows; r += 3) row[r / 3] += 4;                                     \
        }                                                                                          \
        for (int r = 0; r < rows; r++, sums += apart) {                                            \
            _mm512_store_si512(sums, (__m512i)total[r][0]);                                        \
            _mm512_store_si512(sums + 16, (__m512i)total[r][1]);                                   \
        }                                                                                          \
    }

#define DOT_BF16(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
TILE(tile_bf16, _mm512_setzero_ps, DOT_BF16, __m512)

typedef int ints __attribute__((vector_size(64))); /* __m512i is of 64-bit numbers: GCC spills it */
#define ZERO_INTS() (ints)_mm512_setzero_si512()
#define DOT_INT8(sum, x, w) (ints)_mm512_dpbusd_epi32((__m512i)(sum), x, w)
TILE(tile_int8, ZERO_INTS, DOT_INT8, ints)

#define CASE(kind, count)                                                                          \
    case count: tile_##kind(count, a, stride, panel, groups, sums, apart); break;
#define TILES(kind)                                                                                \
    static void tiles_##kind(int rows, const void *a, int64_t stride, const void *panel,           \
                             int64_t groups, float *sums, int64_t apart) {                                      \
        switch (rows) {                                                                            \
            CASE(kind, 1) CASE(kind, 2) CASE(kind, 3) CASE(kind, 4) CASE(kind, 5) CASE(kind, 6)    \
            CASE(kind, 7) CASE(kind, 8) CASE(kind, 9) CASE(kind, 10) CASE(kind, 11)                \
            CASE(kind, 12) CASE(kind, 13) CASE(kind, 14)                                           \
        }                                                                                          \
    }
TILES(bf16)
TILES(int8)

/* ---------------------------------------------------------------------------------- packing */

/* 16 × 16 numbers of 32 bits, transposed. */
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

/* Pack `[outputs, groups]` numbers of 32 bits; outputs up to a whole panel are zeros. */
void bertworks_pack(const void *from, int64_t outputs, int64_t groups, int64_t stride, void *to) {
    for (int64_t first = 0; first < outputs; first += 16) {
        char *panel = (char *)to + first / PANEL * groups * 2 * LINE + first % PANEL * 4;
        for (int64_t at = 0; at < groups; at += 16) {
            __mmask16 some = groups - at < 16 ? (1u << (groups - at)) - 1 : 0xffff;
            __m512i r[16];
            for (int i = 0; i < 16; i++) {
                const char *row = (const char *)from + (first + i) * stride + at * 4;
                r[i] = first + i < outputs ? _mm512_maskz_loadu_epi32(some, row)
                                           : _mm512_setzero_si512();
            }
            transpose(r);
            for (int i = 0; i < 16 && at + i < groups; i++)
                _mm512_storeu_si512(panel + (at + i) * 2 * LINE, r[i]);
        }
    }
    if ((outputs + 15) / 16 % 2) { /* half of the last panel */
        char *panel = (char *)to + outputs / PANEL * groups * 2 * LINE + LINE;
        for (int64_t at = 0; at < groups; at++)
            _mm512_storeu_si512(panel + at * 2 * LINE, _mm512_setzero_si512());
    }
}

/* Pack values `[keys, size]`, whose sums are over keys: pairs of keys side by side. */
static void pack_values(const bf16 *from, int64_t keys, int64_t size, int64_t stride, bf16 *to) {
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
    x = _mm512_max_ps(_mm512_set1_ps(-126), x); /* of NaN and a number, the second operand */
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

#define LOG2E 1.44269504f

/* x Φ(x), by Φ(-z) of z = |x|. Source: Abramowitz and Stegun (1964), 7.1.26. */
INLINE __m512 gelu(__m512 x) {
    __m512 z = _mm512_abs_ps(x);
    __m512 t = _mm512_rcp14_ps(_mm512_fmadd_ps(z, _mm512_set1_ps(0.2316418882f), _mm512_set1_ps(1)));
    __m512 y = _mm512_set1_ps(0.5f * 1.061405429f);
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * -1.453152027f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * 1.421413741f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * -0.284496736f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(0.5f * 0.254829592f));
    y = _mm512_mul_ps(y, t);
    __m512 tail = power_of_two(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-0.5f * LOG2E)));
    y = _mm512_mul_ps(_mm512_mul_ps(y, tail), z); /* z Φ(-z) */
    return _mm512_sub_ps(_mm512_max_ps(x, _mm512_setzero_ps()), y);
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

/* ----------------------------------------------------------------------------------- a team */

typedef struct {
    _Alignas(LINE) atomic_long next;
    _Alignas(LINE) atomic_long done;
} phase;

enum { PHASES = 11 };

typedef struct {
    const layer *net;
    const int32_t *edges; /* of the sequences of this batch */
    int64_t sequences, rows, width, head_size;
    const bf16 *hidden;
    bf16 *result, *qkv, *context, *middle, *between;
    uint8_t *codes;
    float *ranges, *sums; /* of each row: the step of its codes; what a norm takes */
    char *scratch;        /* of each worker, for attention */
    int64_t scratch_bytes;
    phase phases[PHASES];
    atomic_long workers;
} job;

typedef void (*work_fn)(job *, int64_t item, char *scratch);

/* Do a phase's items together with the others of the team, and wait until all are done. */
static void together(job *all, int number, int64_t items, work_fn work, char *scratch) {
    phase *now = &all->phases[number];
    int64_t item;
    while ((item = atomic_fetch_add(&now->next, 1)) < items) {
        work(all, item, scratch);
        atomic_fetch_add_explicit(&now->done, 1, memory_order_release);
    }
    for (int tries = 0; atomic_load_explicit(&now->done, memory_order_acquire) < items; tries++)
        if (tries < PAUSES)
            _mm_pause();
        else
            sched_yield(); /* the others may have no processor */
}

/* ------------------------------------------------------------------------------ linear maps */

enum ending { TO_BF16, TO_ACTIVATION, TO_SUM };

static int64_t rows_of_block(const matrix *map, int is_int8) {
    int64_t rows = BLOCK_BYTES / (map->inputs * (is_int8 ? 1 : 2));
    return rows < MOST_ROWS ? MOST_ROWS : rows;
}

static int64_t blocks_of(const job *all, const matrix *map) {
    int64_t rows = rows_of_block(map, all->net->is_int8);
    return (all->rows + rows - 1) / rows;
}

static int64_t items_of(const job *all, const matrix *map) {
    return blocks_of(all, map) * (map->outputs / PANEL);
}

/* What becomes of a tile's sums. */
INLINE void finish(const job *all, const matrix *map, int is_int8, enum ending ending,
                   int activation, const float (*sums)[PANEL], int64_t row, int64_t rows,
                   int64_t column, const bf16 *residual, void *to) {
    const float *ranges = is_int8 && !map->slope ? all->ranges + row : NULL;
    int64_t outputs = map->outputs;
    for (int half = 0; half < PANEL; half += 16) {
        int64_t at = column + half, place = row * outputs + at;
        __m512 bias = _mm512_loadu_ps(map->bias + at), scale;
        __m512i offset;
        if (is_int8) {
            scale = _mm512_loadu_ps(map->scales + at);
            offset = _mm512_loadu_si512(map->offsets + at);
        }
        for (int64_t r = 0; r < rows; r++, place += outputs) {
            __m512 y = _mm512_load_ps(&sums[r][half]);
            if (is_int8) {
                __m512i sum = _mm512_sub_epi32(_mm512_castps_si512(y), offset);
                y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                if (ranges) y = _mm512_mul_ps(y, _mm512_set1_ps(ranges[r]));
            }
            y = _mm512_add_ps(y, bias);
            if (ending == TO_SUM) {
                y = _mm512_add_ps(y, load_bf16(residual + place));
                _mm512_storeu_ps((float *)to + place, y);
                continue;
            }
            if (ending == TO_ACTIVATION)
                y = activation == GELU        ? gelu(y)
                    : activation == GELU_TANH ? gelu_tanh(y)
                                              : _mm512_max_ps(_mm512_setzero_ps(), y); /* NaN stays */
            store_bf16((bf16 *)to + place, y);
        }
    }
}

/* One item of a linear map: some rows, the outputs of a panel. */
INLINE void multiply(job *all, const matrix *map, int64_t item, const bf16 *x, enum ending ending,
                     const bf16 *residual, void *to) {
    int is_int8 = all->net->is_int8, activation = all->net->activation;
    int64_t panels = map->outputs / PANEL, blocks = blocks_of(all, map);
    int64_t block = item / panels, column = item % panels * PANEL;
    int64_t row = all->rows * block / blocks, end = all->rows * (block + 1) / blocks;
    int64_t tiles = (end - row + MOST_ROWS - 1) / MOST_ROWS;
    int64_t groups = map->inputs / (is_int8 ? 4 : 2), first = row, count = end - row;
    const char *panel = (const char *)map->packed + column / PANEL * groups * 2 * LINE;
    _Alignas(LINE) float sums[MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++, row = end) {
        end = first + count * (tile + 1) / tiles;
        int64_t rows = end - row;
        if (is_int8) {
            tiles_int8(rows, all->codes + row * map->inputs, map->inputs, panel, groups, sums[0],
                       PANEL);
            finish(all, map, 1, ending, activation, sums, row, rows, column, residual, to);
        } else {
            tiles_bf16(rows, x + row * map->inputs, map->inputs * 2, panel, groups, sums[0], PANEL);
            finish(all, map, 0, ending, activation, sums, row, rows, column, residual, to);
        }
    }
}

static void map_qkv(job *all, int64_t item, char *scratch) {
    (void)scratch;
    multiply(all, &all->net->query_key_value, item, all->hidden, TO_BF16, NULL, all->qkv);
}

static void map_output(job *all, int64_t item, char *scratch) {
    (void)scratch;
    multiply(all, &all->net->output, item, all->context, TO_SUM, all->hidden, all->sums);
}

static void map_inner(job *all, int64_t item, char *scratch) {
    (void)scratch;
    multiply(all, &all->net->inner, item, all->middle, TO_ACTIVATION, NULL, all->between);
}

static void map_outer(job *all, int64_t item, char *scratch) {
    (void)scratch;
    multiply(all, &all->net->outer, item, all->between, TO_SUM, all->middle, all->sums);
}

/* -------------------------------------------------------------------------------- attention */

/* One item: a head of a sequence. */
static void attend(job *all, int64_t item, char *scratch) {
    int64_t heads = all->net->heads, size = all->head_size, stride = 3 * all->width;
    int64_t sequence = item / heads, head = item % heads;
    int64_t start = all->edges[sequence] - all->edges[0];
    int64_t length = all->edges[sequence + 1] - all->edges[sequence];
    int64_t padded = (length + PANEL - 1) / PANEL * PANEL, pairs = (length + 1) / 2;
    const bf16 *query = all->qkv + start * stride + head * size;
    const bf16 *key = query + all->width, *value = key + all->width;
    bf16 *keys = (bf16 *)scratch, *values = keys + padded * size, *weights = values + padded * size;
    float *scores = (float *)(weights + MOST_ROWS * padded);
    float scale = LOG2E / __builtin_sqrtf((float)size);
    bertworks_pack(key, length, size / 2, stride * 2, keys);
    pack_values(value, length, size, stride, values);
    int64_t tiles = (length + MOST_ROWS - 1) / MOST_ROWS, row = 0;
    _Alignas(LINE) float sums[MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t end = length * (tile + 1) / tiles, rows = end - row;
        __m512 inverse[MOST_ROWS];
        for (int64_t at = 0; at < padded; at += PANEL)
            tiles_bf16(rows, query + row * stride, stride * 2, keys + at * size, size / 2,
                       scores + at, padded);
        for (int64_t r = 0; r < rows; r++) {
            float *line = scores + r * padded;
            __m512 most = _mm512_set1_ps(-__builtin_inff()), total = _mm512_setzero_ps();
            for (int64_t at = 0; at < length; at += 16) {
                __mmask16 some = length - at < 16 ? (1u << (length - at)) - 1 : 0xffff;
                most = _mm512_mask_max_ps(most, some, most, _mm512_load_ps(line + at));
            }
            __m512 factor = _mm512_set1_ps(scale);
            most = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(most)), factor);
            for (int64_t at = 0; at < padded; at += 16) {
                __mmask16 some = length - at >= 16 ? 0xffff
                                 : length > at     ? (1u << (length - at)) - 1
                                                   : 0;
                __m512 x = _mm512_fmsub_ps(_mm512_load_ps(line + at), factor, most);
                __m512 p = _mm512_maskz_mov_ps(some, power_of_two(x));
                total = _mm512_add_ps(total, p);
                store_bf16(weights + r * padded + at, p);
            }
            inverse[r] = _mm512_set1_ps(1 / _mm512_reduce_add_ps(total));
        }
        for (int64_t column = 0; column < size; column += PANEL) {
            tiles_bf16(rows, weights, padded * 2, values + column * 2 * pairs, pairs, sums[0], PANEL);
            for (int64_t r = 0; r < rows; r++)
                for (int half = 0; half < PANEL; half += 16)
                    store_bf16(all->context + (start + row + r) * all->width + head * size + column +
                                   half,
                               _mm512_mul_ps(_mm512_load_ps(&sums[r][half]), inverse[r]));
        }
        row = end;
    }
}

static int64_t attention_bytes(int64_t longest, int64_t size) {
    int64_t padded = (longest + PANEL - 1) / PANEL * PANEL;
    return (2 * padded * size + MOST_ROWS * padded) * 2 + MOST_ROWS * padded * 4;
}

/* --------------------------------------------------------------------------- rows: norms, codes */

#define ROWS_AT_ONCE 8

static int64_t row_items(const job *all) { return (all->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; }

INLINE void normalize(job *all, int64_t item, int which, bf16 *to) {
    int64_t width = all->width;
    const float *scale = all->net->norms[which][0], *shift = all->net->norms[which][1];
    for (int64_t r = item * ROWS_AT_ONCE; r < (item + 1) * ROWS_AT_ONCE && r < all->rows; r++) {
        const float *x = all->sums + r * width;
        __m512 total = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (int64_t at = 0; at < width; at += 16) total = _mm512_add_ps(total, _mm512_loadu_ps(x + at));
        __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
        for (int64_t at = 0; at < width; at += 16) {
            __m512 d = _mm512_sub_ps(_mm512_loadu_ps(x + at), mean);
            squares = _mm512_fmadd_ps(d, d, squares);
        }
        float variance = _mm512_reduce_add_ps(squares) / width + all->net->epsilon[which];
        __m512 inverse = _mm512_set1_ps(1 / __builtin_sqrtf(variance));
        for (int64_t at = 0; at < width; at += 16) {
            __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + at), mean), inverse);
            __m512 s = _mm512_loadu_ps(scale + at), b = _mm512_loadu_ps(shift + at);
            store_bf16(to + r * width + at, _mm512_fmadd_ps(d, s, b));
        }
    }
}

static void norm_first(job *all, int64_t item, char *scratch) {
    (void)scratch;
    normalize(all, item, 0, all->middle);
}

static void norm_second(job *all, int64_t item, char *scratch) {
    (void)scratch;
    normalize(all, item, 1, all->result);
}

/* Some rows' codes: unsigned, 128 for zero, by each row's range or by each input's line. */
INLINE void encode(job *all, int64_t item, const matrix *map, const bf16 *x) {
    int64_t inputs = map->inputs;
    for (int64_t r = item * ROWS_AT_ONCE; r < (item + 1) * ROWS_AT_ONCE && r < all->rows; r++) {
        const bf16 *row = x + r * inputs;
        __m512 slope = _mm512_setzero_ps(), start = _mm512_setzero_ps();
        if (!map->slope) {
            __m512 nothing = _mm512_setzero_ps(); /* or NaN, if an input is not finite */
            for (int64_t at = 0; at < inputs; at += 16) {
                __m512 input = load_bf16(row + at);
                slope = _mm512_max_ps(slope, _mm512_abs_ps(input));
                nothing = _mm512_fmadd_ps(input, _mm512_setzero_ps(), nothing);
            }
            float largest = _mm512_reduce_max_ps(slope);
            all->ranges[r] = (largest < 1e-30f ? 1e-30f : largest) / 127;
            slope = _mm512_set1_ps(1 / all->ranges[r]);
            all->ranges[r] += _mm512_reduce_add_ps(nothing);
        }
        for (int64_t at = 0; at < inputs; at += 16) {
            if (map->slope) {
                slope = _mm512_loadu_ps(map->slope + at);
                start = _mm512_loadu_ps(map->start + at);
            }
            __m512 code = _mm512_fmadd_ps(load_bf16(row + at), slope, start);
            __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(code)); /* to ±128 */
            bytes = _mm_xor_si128(bytes, _mm_set1_epi8((char)128));
            _mm_storeu_si128((__m128i *)(all->codes + r * inputs + at), bytes);
        }
    }
}

static void encode_hidden(job *all, int64_t item, char *scratch) {
    (void)scratch;
    encode(all, item, &all->net->query_key_value, all->hidden);
}

static void encode_context(job *all, int64_t item, char *scratch) {
    (void)scratch;
    encode(all, item, &all->net->output, all->context);
}

static void encode_middle(job *all, int64_t item, char *scratch) {
    (void)scratch;
    encode(all, item, &all->net->inner, all->middle);
}

static void encode_between(job *all, int64_t item, char *scratch) {
    (void)scratch;
    encode(all, item, &all->net->outer, all->between);
}

/* ---------------------------------------------------------------------------------- the layer */

static void layer_work(void *given) {
    job *all = given;
    const layer *net = all->net;
    char *scratch = all->scratch + atomic_fetch_add(&all->workers, 1) * all->scratch_bytes;
    int64_t rows = row_items(all);
    if (net->is_int8) together(all, 0, rows, encode_hidden, scratch);
    together(all, 1, items_of(all, &net->query_key_value), map_qkv, scratch);
    together(all, 2, all->sequences * net->heads, attend, scratch);
    if (net->is_int8) together(all, 3, rows, encode_context, scratch);
    together(all, 4, items_of(all, &net->output), map_output, scratch);
    together(all, 5, rows, norm_first, scratch);
    if (net->is_int8) together(all, 6, rows, encode_middle, scratch);
    together(all, 7, items_of(all, &net->inner), map_inner, scratch);
    if (net->is_int8) together(all, 8, rows, encode_between, scratch);
    together(all, 9, items_of(all, &net->outer), map_outer, scratch);
    together(all, 10, rows, norm_second, scratch);
}

static char *take(char **from, int64_t bytes) {
    char *place = *from;
    *from += (bytes + LINE - 1) / LINE * LINE;
    return place;
}

/* The end of the batch of sequences that begins with one: whole sequences, at least one. */
static int64_t end_of_batch(const int32_t *edges, int64_t sequences, int64_t first) {
    int64_t end = first + 1;
    while (end < sequences && edges[end + 1] - edges[first] <= BATCH_ROWS) end++;
    return end;
}

/* `result` is what the layer makes of `hidden`, both [tokens, width] of sequences laid end to end.

   `edges` are where the sequences begin, and the end of the last. `parallel` runs a function in
   at most so many threads, the caller among them. Returns 0, or 1 where there is no memory. */
int bertworks_layer(const layer *net, const bf16 *hidden, bf16 *result, const int32_t *edges,
                    int64_t sequences, int64_t threads, parallel_fn parallel) {
    int64_t width = net->output.outputs, inner = net->inner.outputs, rows = 0, longest = 0, end;
    for (int64_t first = 0; first < sequences; first = end) {
        end = end_of_batch(edges, sequences, first);
        if (edges[end] - edges[first] > rows) rows = edges[end] - edges[first];
    }
    for (int64_t at = 0; at < sequences; at++)
        if (edges[at + 1] - edges[at] > longest) longest = edges[at + 1] - edges[at];
    job all = {.net = net, .width = width, .head_size = width / net->heads};
    all.scratch_bytes = attention_bytes(longest, all.head_size);
    int64_t widest = inner > width ? inner : width;
    int64_t bytes = rows * (2 * (3 * width + width + width + inner) + 4 * width + 4 + widest) +
                    threads * all.scratch_bytes + 16 * LINE;
    char *memory = aligned_alloc(LINE, bytes / LINE * LINE), *free_from = memory;
    if (!memory) return 1;
    all.qkv = (bf16 *)take(&free_from, rows * 3 * width * 2);
    all.context = (bf16 *)take(&free_from, rows * width * 2);
    all.middle = (bf16 *)take(&free_from, rows * width * 2);
    all.between = (bf16 *)take(&free_from, rows * inner * 2);
    all.sums = (float *)take(&free_from, rows * width * 4);
    all.ranges = (float *)take(&free_from, rows * 4);
    all.codes = (uint8_t *)take(&free_from, rows * widest);
    all.scratch = take(&free_from, threads * all.scratch_bytes);
    for (int64_t first = 0; first < sequences; first = end) {
        end = end_of_batch(edges, sequences, first);
        all.edges = edges + first;
        all.sequences = end - first;
        all.rows = edges[end] - edges[first];
        all.hidden = hidden + edges[first] * width;
        all.result = result + edges[first] * width;
        memset(all.phases, 0, sizeof all.phases);
        all.workers = 0;
        if (parallel && threads > 1)
            parallel(layer_work, &all, (unsigned)threads, 0);
        else
            layer_work(&all);
    }
    free(memory);
    return 0;
}
