/* Attention in float32, for inference: softmax(Q Kᵀ / √d + bias) V within each sequence. */

#include "attention.h"

#define DOT_FP32(sum, x, w) _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), sum)
TILE(tile_fp32, _mm512_setzero_ps, DOT_FP32, __m512)

static void tiles_fp32(int rows, const void *a, int64_t stride, const void *panel, int64_t groups,
                       float *sums, int64_t apart) {
    CASES(fp32, 4)
}

/* Python's `native/library.py` has the same structure. */
typedef struct {
    const float *query, *key, *value; /* [tokens, heads, size]; queries may be of other tokens */
    int64_t strides[3];               /* numbers from one token to the next, of each of them */
    float *context;                   /* [queries, heads, size] */
    const int32_t *edges, *key_edges; /* of sequences in the queries, and in the keys */
    int64_t sequences, heads, size;
    const float *bias; /* null, or the numbers of `bias_of` */
    int64_t bias_length;
} attention_fp32;

typedef struct {
    team all;
    const attention_fp32 *of;
} attention_fp32_job;

static int64_t attention_fp32_bytes(int64_t longest, int64_t size) {
    int64_t padded = whole_panels(longest);
    return (padded * size + longest * size + MOST_ROWS * padded) * 4;
}

static void attention_fp32_item(const void *given, int64_t item, char *scratch) {
    const attention_fp32 *of = ((const attention_fp32_job *)given)->of;
    int64_t sequence = item / of->heads, head = item % of->heads, size = of->size;
    int64_t start = of->edges[sequence], queries = of->edges[sequence + 1] - start;
    int64_t first = of->key_edges[sequence], length = of->key_edges[sequence + 1] - first;
    int64_t padded = whole_panels(length), width = of->heads * size;
    const float *query = of->query + start * of->strides[0] + head * size;
    const float *key = of->key + first * of->strides[1] + head * size;
    const float *value = of->value + first * of->strides[2] + head * size;
    float *context = of->context + start * width + head * size;
    float *keys = (float *)scratch, *values = keys + padded * size, *scores = values + length * size;
    __m512 scale = _mm512_set1_ps(LOG2E / __builtin_sqrtf((float)size));
    const float *bias = bias_of(of->bias, of->bias_length, head, length - queries);
    __m512 factor = bias ? _mm512_set1_ps(1) : scale; /* of scores that have no scale yet */
    pack(key, length, size, of->strides[1] * 4, keys);
    for (int64_t column = 0; column < size; column += PANEL)
        for (int64_t at = 0; at < length; at++)
            memcpy(values + column * length + at * PANEL, value + at * of->strides[2] + column,
                   PANEL * sizeof(float));
    int64_t tiles = (queries + MOST_ROWS - 1) / MOST_ROWS, row = 0;
    _Alignas(LINE) float sums[MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t end = queries * (tile + 1) / tiles, rows = end - row;
        __m512 inverse[MOST_ROWS];
        for (int64_t at = 0; at < padded; at += PANEL)
            tiles_fp32(rows, query + row * of->strides[0], of->strides[0] * 4, keys + at * size,
                       size, scores + at, padded);
        for (int64_t r = 0; r < rows; r++) {
            float *line = scores + r * padded;
            if (bias) add_bias(line, length, scale, bias - (row + r));
            __m512 most = largest(line, length, factor), total = _mm512_setzero_ps();
            for (int64_t at = 0; at < length; at += 16) {
                __m512 x = _mm512_fmsub_ps(_mm512_load_ps(line + at), factor, most);
                __m512 p = _mm512_maskz_mov_ps(before(at, length), power_of_two(x));
                total = _mm512_add_ps(total, p);
                _mm512_store_ps(line + at, p);
            }
            inverse[r] = _mm512_set1_ps(1 / _mm512_reduce_add_ps(total));
        }
        for (int64_t column = 0; column < size; column += PANEL) {
            tiles_fp32(rows, scores, padded * 4, values + column * length, length, sums[0], PANEL);
            for (int64_t r = 0; r < rows; r++)
                for (int half = 0; half < PANEL; half += 16)
                    _mm512_storeu_ps(context + (row + r) * width + column + half,
                                     _mm512_mul_ps(_mm512_load_ps(&sums[r][half]), inverse[r]));
        }
        row = end;
    }
}

static void attention_fp32_work(void *given) {
    attention_fp32_job *all = given;
    together(&all->all, 0, all->of->sequences * all->of->heads, attention_fp32_item, all,
             join_team(&all->all));
}

/* Returns 0, or 1 if there is no memory. */
int bertworks_attention_fp32(const attention_fp32 *of, int64_t threads, parallel_fn parallel) {
    attention_fp32_job all = {.of = of};
    int64_t bytes = attention_fp32_bytes(longest_of(of->key_edges, of->sequences), of->size);
    return run_with_scratch(&all.all, bytes, attention_fp32_work, &all, threads, parallel);
}
