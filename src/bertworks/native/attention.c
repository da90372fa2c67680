/* Attention for training, forward and backward, with dropout of the attention weights.

   Forward keeps no weights, only the logarithm of each query's sum. Backward computes the weights
   again, transposed: queries are side by side, so that sums and logarithms are vectors. Dropout's
   random numbers are a function of a seed and a position, so they are the same in both passes.
   Source: Dao et al. (2022), "FlashAttention", appendix B. */

#include "training.h"

#include "attention.h"

typedef struct {
    team all;
    attention of;
    const int32_t *edges;
    int64_t sequences;
    const bf16 *gradient; /* of the context */
    bf16 *result;         /* the gradient of `qkv` */
} job;

static void forward_item(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    int64_t sequence = item / all->of.heads, start = all->edges[sequence];
    int64_t length = all->edges[sequence + 1] - start;
    attend(&all->of, start, length, item % all->of.heads, 1, NULL, scratch);
}

static int64_t backward_bytes(int64_t longest, int64_t size) {
    int64_t padded = whole_panels(longest);
    return 5 * padded * size * 2          /* queries, keys and gradients, packed */
           + 2 * (padded + 2) * padded * 2 /* the scores' gradient, unpacked and packed */
           + MOST_ROWS * padded * (4 + 4 + 2) + padded * 4;
}

/* Multiply a tile's sums by a factor, and store them as rows of `to`. */
INLINE void store_tile(float (*sums)[PANEL], int64_t rows, __m512 factor, bf16 *to, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int half = 0; half < PANEL; half += 16)
            store_bf16(to + r * stride + half,
                       _mm512_mul_ps(_mm512_load_ps(&sums[r][half]), factor));
}

static void backward_item(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    const attention *of = &all->of;
    int64_t sequence = item / of->heads, head = item % of->heads, start = all->edges[sequence];
    int64_t length = all->edges[sequence + 1] - start, padded = whole_panels(length);
    int64_t size = of->size, width = of->heads * size, stride = 3 * width, pairs = (length + 1) / 2;
    const bf16 *query = of->qkv + start * stride + head * size;
    const bf16 *key = query + width, *value = key + width;
    const bf16 *gradient = all->gradient + start * width + head * size;
    const bf16 *context = of->context + start * width + head * size;
    const float *logs = of->logs + head * of->tokens + start;
    bf16 *d_query = all->result + start * stride + head * size;
    bf16 *d_key = d_query + width, *d_value = d_key + width;

    bf16 *queries = (bf16 *)scratch, *query_pairs = queries + padded * size;
    bf16 *gradients = query_pairs + padded * size, *gradient_pairs = gradients + padded * size;
    bf16 *key_pairs = gradient_pairs + padded * size, *d_scores = key_pairs + padded * size;
    bf16 *crossed = d_scores + (padded + 2) * padded, *used = crossed + (padded + 2) * padded;
    float *scores = (float *)(used + MOST_ROWS * padded), *d_weights = scores + MOST_ROWS * padded;
    float *common = d_weights + MOST_ROWS * padded;
    pack(query, length, size / 2, stride * 2, queries);
    pack_values(query, length, size, stride, pairs, query_pairs);
    pack(gradient, length, size / 2, width * 2, gradients);
    pack_values(gradient, length, size, width, pairs, gradient_pairs);
    pack_values(key, length, size, stride, pairs, key_pairs);
    for (int64_t row = 0; row < length; row++) { /* each query's term in softmax's gradient */
        __m512 total = _mm512_setzero_ps();
        for (int64_t at = 0; at < size; at += 16)
            total = _mm512_fmadd_ps(load_bf16(gradient + row * width + at),
                                    load_bf16(context + row * width + at), total);
        common[row] = _mm512_reduce_add_ps(total);
    }

    float root = 1 / __builtin_sqrtf((float)size);
    __m512 factor = _mm512_set1_ps(root * LOG2E), kept = _mm512_set1_ps(of->kept);
    __m512i by_query = _mm512_slli_epi32(counted(), 16);
    uint32_t seed = seed_of(of, start, head);
    _Alignas(LINE) float sums[MOST_ROWS][PANEL];
    int64_t tiles = (length + MOST_ROWS - 1) / MOST_ROWS, row = 0;
    for (int64_t tile = 0; tile < tiles; tile++) { /* tiles of keys */
        int64_t end = length * (tile + 1) / tiles, rows = end - row;
        for (int64_t at = 0; at < padded; at += PANEL) {
            tiles_bf16(rows, key + row * stride, stride * 2, queries + at * size, size / 2,
                       AHEAD, scores + at, padded);
            tiles_bf16(rows, value + row * stride, stride * 2, gradients + at * size, size / 2,
                       AHEAD, d_weights + at, padded);
        }
        for (int64_t at = 0; at < padded; at += 16) {
            __mmask16 some = before(at, length);
            __m512 log = _mm512_maskz_loadu_ps(some, logs + at);
            __m512 less = _mm512_maskz_loadu_ps(some, common + at);
            for (int64_t r = 0; r < rows; r++) {
                __m512 x = _mm512_fmsub_ps(_mm512_load_ps(scores + r * padded + at), factor, log);
                __m512 p = _mm512_maskz_mov_ps(some, power_of_two(x));
                __m512 d = _mm512_mul_ps(_mm512_load_ps(d_weights + r * padded + at), kept), u = p;
                if (of->below) {
                    __m512i place = _mm512_add_epi32(
                        _mm512_set1_epi32((int)(at << 16 | (row + r))), by_query);
                    __mmask16 stays = not_dropped(place, seed, of->below);
                    u = _mm512_maskz_mov_ps(stays, u);
                    d = _mm512_maskz_mov_ps(stays, d);
                }
                store_bf16(used + r * padded + at, u);
                store_bf16(d_scores + (row + r) * padded + at,
                           _mm512_mul_ps(p, _mm512_sub_ps(d, less)));
            }
        }
        for (int64_t column = 0; column < size; column += PANEL) {
            tiles_bf16(rows, used, padded * 2, gradient_pairs + column * 2 * pairs, pairs, AHEAD,
                       sums[0], PANEL);
            store_tile(sums, rows, kept, d_value + row * stride + column, stride);
            tiles_bf16(rows, d_scores + row * padded, padded * 2, query_pairs + column * 2 * pairs,
                       pairs, AHEAD, sums[0], PANEL);
            store_tile(sums, rows, _mm512_set1_ps(root), d_key + row * stride + column, stride);
        }
        row = end;
    }
    /* The gradient of queries sums over keys, so pairs of keys must be side by side. */
    pack_values(d_scores, length, padded, padded, pairs, crossed);
    for (int64_t panel = 0; panel < length; panel += PANEL) {
        int64_t last = length - panel < PANEL ? length - panel : PANEL;
        tiles = (last + MOST_ROWS - 1) / MOST_ROWS;
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t from = last * tile / tiles, rows = last * (tile + 1) / tiles - from;
            for (int64_t column = 0; column < size; column += PANEL) {
                tiles_bf16_across(rows, crossed + panel * 2 * pairs + from * 2, 4, 2 * LINE,
                                  key_pairs + column * 2 * pairs, pairs, sums[0], PANEL);
                store_tile(sums, rows, _mm512_set1_ps(root),
                           d_query + (panel + from) * stride + column, stride);
            }
        }
    }
}

static void attention_work(void *given) {
    job *all = given;
    together(&all->all, 0, all->sequences * all->of.heads,
             all->gradient ? backward_item : forward_item, all, join_team(&all->all));
}

/* Attention of packed sequences or, if the gradient of the context is given, the gradient of
   queries, keys and values. Returns 0, or 1 if there is no memory. */
int bertworks_attention(const attention *of, const int32_t *edges, int64_t sequences,
                        const bf16 *gradient, bf16 *result, int64_t threads, parallel_fn parallel) {
    int64_t longest = longest_of(edges, sequences);
    job all = {.of = *of, .edges = edges, .sequences = sequences};
    all.of.key_heads = of->heads;
    all.of.window = -1;
    all.gradient = gradient;
    all.result = result;
    int64_t bytes = gradient ? backward_bytes(longest, of->size) : attention_bytes(longest, of->size);
    return run_with_scratch(&all.all, bytes, attention_work, &all, threads, parallel);
}
