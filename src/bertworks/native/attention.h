/* Attention of one head of one sequence, without padding: softmax(Q Kᵀ / √d + bias) V. */

#ifndef BERTWORKS_ATTENTION
#define BERTWORKS_ATTENTION

#include "amx.h"

typedef struct {
    const bf16 *qkv; /* [tokens, heads + 2 key heads, size]: queries, keys and values */
    bf16 *context;   /* [tokens, heads, size] */
    int64_t heads, size;
    /* for training, otherwise null or zero: */
    float *logs;         /* [heads, tokens]: the binary logarithm of each query's sum */
    int64_t tokens;      /* of all sequences */
    uint32_t below;      /* a weight is dropped if its random number is less */
    float kept;          /* 1 / (1 - dropout) */
    uint64_t seed;       /* of dropout */
    int64_t padding;     /* how many of a head's numbers are zeros at its end */
    int64_t key_heads;
    int64_t window; /* of a layer */
} attention;

/* The seed of a head of the sequence that begins at `start`. Source: Steele et al. (2014). */
static inline uint32_t seed_of(const attention *all, int64_t start, int64_t head) {
    uint64_t x = all->seed + (uint64_t)(start * all->heads + head + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 32);
}

INLINE int64_t whole_panels(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

static inline int64_t longest_of(const int32_t *edges, int64_t sequences) {
    int64_t longest = 0;
    for (int64_t at = 0; at < sequences; at++)
        if (edges[at + 1] - edges[at] > longest) longest = edges[at + 1] - edges[at];
    return longest;
}

static inline int64_t attention_bytes(int64_t longest, int64_t size) {
    int64_t padded = whole_panels(longest);
    return (2 * padded * size + AMX_ROWS * padded) * 2 + AMX_ROWS * padded * 4;
}

/* The largest of a query's scores, times a factor. */
INLINE vfloat largest(const float *scores, int64_t length, vfloat factor) {
    vfloat most = f_set(-__builtin_inff());
    for (int64_t at = 0; at < length; at += LANES)
        most = f_max_some(before(at, length), most, f_load(scores + at));
    return f_mul(f_set(f_largest(most)), factor);
}

/* A score bias of the first query of a head, at the first key; null without a bias.

   `numbers` has a number for each distance of a key from a query, from 1 - length to length - 1:
   [heads, 2 length - 1], times the binary logarithm of e. `earlier` is the number of keys before
   the query. */
INLINE const float *bias_of(const float *numbers, int64_t length, int64_t head, int64_t earlier) {
    return numbers ? numbers + head * (2 * length - 1) + length - 1 - earlier : NULL;
}

/* Scale a query's scores, and add its bias. */
INLINE void add_bias(float *scores, int64_t length, vfloat scale, const float *bias) {
    for (int64_t at = 0; at < length; at += LANES) {
        vfloat term = f_load_some(before(at, length), bias + at);
        f_store(scores + at, f_fma(f_load(scores + at), scale, term));
    }
}

/* The keys that a query attends to: from `first` on, before `end`. */
typedef struct {
    int64_t first, end;
} span;

INLINE span span_of(int64_t query, int64_t keys, int64_t window) {
    if (window < 0) return (span){0, keys};
    int64_t first = query - window, end = query + window + 1;
    return (span){first > 0 ? first : 0, end < keys ? end : keys};
}

/* Exclude the scores before those of a query's keys. */
INLINE void exclude_before(float *scores, int64_t start, span keys) {
    for (int64_t at = start; at < keys.first; at++) scores[at] = -__builtin_inff();
}

/* `bias` is `bias_of` the head, or null. */
INLINE void attend(const attention *all, int64_t start, int64_t length, int64_t head, int trains,
                   const float *bias, char *scratch) {
    int64_t size = all->size, width = all->heads * size, key_width = all->key_heads * size;
    int64_t stride = width + 2 * key_width, key_head = head * all->key_heads / all->heads;
    int64_t padded = whole_panels(length), most_rows = tile_rows(BF16, size / 2);
    int64_t pairs = has_amx(BF16, padded / 2) ? padded / 2 : (length + 1) / 2;
    const bf16 *query = all->qkv + start * stride + head * size;
    const bf16 *key = all->qkv + start * stride + width + key_head * size, *value = key + key_width;
    bf16 *keys = (bf16 *)scratch, *values = keys + padded * size, *weights = values + padded * size;
    float *scores = (float *)(weights + most_rows * padded);
    vfloat scale = f_set(LOG2E / __builtin_sqrtf((float)(size - all->padding)));
    vfloat factor = bias ? f_set(1) : scale; /* of scores that have no scale yet */
#ifdef BERTWORKS_TRAINING
    uint32_t seed = trains ? seed_of(all, start, head) : 0;
#endif
    pack(key, length, size / 2, stride * 2, keys);
    pack_values(value, length, size, stride, pairs, values);
    int64_t tiles = (length + most_rows - 1) / most_rows, row = 0;
    _Alignas(LINE) float sums[AMX_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t end = length * (tile + 1) / tiles, rows = end - row;
        int64_t first = span_of(row, length, all->window).first / PANEL * PANEL;
        int64_t last = whole_panels(span_of(end - 1, length, all->window).end);
        vfloat inverse[AMX_ROWS];
        for (int64_t at = first; at < last; at += PANEL)
            multiply_tile(BF16, (int)rows, query + row * stride, stride * 2, keys + at * size,
                          size / 2, AHEAD, scores + at, padded);
        for (int64_t r = 0; r < rows; r++) {
            float *line = scores + r * padded;
            span own = span_of(row + r, length, all->window);
            if (bias) add_bias(line + first, own.end - first, scale, bias - (row + r) + first);
            exclude_before(line, first, own);
            vfloat most = largest(line + first, own.end - first, factor), total = f_zero();
            for (int64_t at = first; at < last; at += LANES) {
                vfloat x = f_fms(f_load(line + at), factor, most);
                vfloat p = f_keep(before(at, own.end), power_of_two(x));
                total = f_add(total, p);
#ifdef BERTWORKS_TRAINING
                if (trains && all->below) {
                    __m512i place = _mm512_add_epi32(_mm512_set1_epi32((int)((row + r) << 16 | at)),
                                                     counted());
                    p = f_keep(not_dropped(place, seed, all->below), p);
                }
#endif
                store_bf16(weights + r * padded + at, p);
            }
            memset(weights + r * padded + first, 0, (own.first - first) * sizeof(bf16));
            float sum = f_sum(total);
            inverse[r] = f_set((trains ? all->kept : 1) / sum);
            if (trains)
                all->logs[head * all->tokens + start + row + r] =
                    f_largest(most) + __builtin_log2f(sum);
        }
        int64_t end_of_pairs = last / 2 < pairs ? last / 2 : pairs;
        for (int64_t column = 0; column < size; column += PANEL) {
            multiply_tile(BF16, (int)rows, weights + first, padded * 2,
                          values + column * 2 * pairs + first * PANEL, end_of_pairs - first / 2,
                          AHEAD, sums[0], PANEL);
            for (int64_t r = 0; r < rows; r++)
                for (int half = 0; half < PANEL; half += LANES)
                    store_bf16(all->context + (start + row + r) * width + head * size + column +
                                   half,
                               f_mul(f_load(&sums[r][half]), inverse[r]));
        }
        row = end;
    }
}

/* The same in float32, with queries, keys and values of any origin. */

static inline int64_t attention_fp32_bytes(int64_t longest, int64_t size) {
    int64_t padded = whole_panels(longest);
    return (padded * size + longest * whole_panels(size) + MOST_ROWS * padded) * 4;
}

SHARED void attend_fp32(const attention_fp32 *of, int64_t sequence, int64_t head, char *scratch) {
    int64_t size = of->size, start = of->edges[sequence], queries = of->edges[sequence + 1] - start;
    int64_t from = of->key_edges[sequence], length = of->key_edges[sequence + 1] - from;
    int64_t padded = whole_panels(length), width = of->heads * size, earlier = length - queries;
    int64_t key_head = head * of->key_heads / of->heads;
    const float *query = of->query + start * of->strides[0] + head * size;
    const float *key = of->key + from * of->strides[1] + key_head * size;
    const float *value = of->value + from * of->strides[2] + key_head * size;
    float *context = of->context + start * width + head * size;
    float *keys = (float *)scratch, *values = keys + padded * size;
    float *scores = values + length * whole_panels(size);
    vfloat scale = f_set(LOG2E / __builtin_sqrtf((float)(size - of->padding)));
    const float *bias = bias_of(of->bias, of->bias_length, head, earlier);
    vfloat factor = bias ? f_set(1) : scale; /* of scores that have no scale yet */
    pack(key, length, size, of->strides[1] * 4, keys);
    for (int64_t column = 0; column < size; column += PANEL)
        for (int64_t at = 0; at < length; at++) {
            float *to = values + column * length + at * PANEL;
            int64_t count = size - column < PANEL ? size - column : PANEL;
            memcpy(to, value + at * of->strides[2] + column, count * sizeof(float));
            memset(to + count, 0, (PANEL - count) * sizeof(float));
        }
    int64_t tiles = (queries + MOST_ROWS - 1) / MOST_ROWS, row = 0;
    _Alignas(LINE) float sums[MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t end = queries * (tile + 1) / tiles, rows = end - row;
        int64_t first = span_of(earlier + row, length, of->window).first / PANEL * PANEL;
        int64_t last = span_of(earlier + end - 1, length, of->window).end;
        vfloat inverse[MOST_ROWS];
        for (int64_t at = first; at < last; at += PANEL)
            tiles_fp32(rows, query + row * of->strides[0], of->strides[0] * 4, keys + at * size,
                       size, AHEAD, scores + at, padded);
        for (int64_t r = 0; r < rows; r++) {
            float *line = scores + r * padded;
            span own = span_of(earlier + row + r, length, of->window);
            if (bias) add_bias(line + first, own.end - first, scale, bias - (row + r) + first);
            exclude_before(line, first, own);
            vfloat most = largest(line + first, own.end - first, factor), total = f_zero();
            for (int64_t at = first; at < last; at += LANES) {
                vfloat x = f_fms(f_load(line + at), factor, most);
                vfloat p = f_keep(before(at, own.end), power_of_two(x));
                total = f_add(total, p);
                f_store(line + at, p);
            }
            memset(line + first, 0, (own.first - first) * sizeof(float));
            inverse[r] = f_set(1 / f_sum(total));
        }
        for (int64_t column = 0; column < size; column += PANEL) {
            tiles_fp32(rows, scores + first, padded * 4, values + column * length + first * PANEL,
                       last - first, AHEAD, sums[0], PANEL);
            for (int64_t r = 0; r < rows; r++)
                for (int half = 0; half < PANEL; half += LANES)
                    store_some(context, (row + r) * width + column + half, size - column - half, 1,
                               f_mul(f_load(&sums[r][half]), inverse[r]));
        }
        row = end;
    }
}

#endif
