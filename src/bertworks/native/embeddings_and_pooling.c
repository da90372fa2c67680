/* Both ends of an encoder: the embeddings of tokens, and the mean of each sequence's vectors. */

#include "kernels.h"

#define TOKENS_OF_ITEM 16
#define FEW_TOKENS 256 /* for which waking other threads takes longer than the work */

enum { WORD, POSITION, TYPE, TABLES };

/* Python's `native/library.py` has the same structure. */
typedef struct {
    const float *tables[TABLES]; /* [entries, width]; null: the network has no such table */
    const float *norm[2];        /* scale and shift */
    int64_t entries[TABLES];
    int64_t width;
    int64_t offset; /* of positions */
    float epsilon;
} embeddings;

typedef struct {
    team all;
    const embeddings *of;
    const int64_t *indices[TABLES];
    int64_t tokens;
    bf16 *result;
} embeddings_job;

static void embed_tokens(const void *given, int64_t item, char *scratch) {
    const embeddings_job *all = given;
    const embeddings *of = all->of;
    int64_t width = of->width, first = item * TOKENS_OF_ITEM;
    float *sum = (float *)scratch;
    for (int64_t token = first; token < first + TOKENS_OF_ITEM && token < all->tokens; token++) {
        const float *rows[TABLES];
        int count = 0;
        for (int which = 0; which < TABLES; which++) {
            if (!of->tables[which]) continue;
            int64_t index = all->indices[which][token];
            if (which == POSITION) index += of->offset;
            if (which == TYPE && of->entries[TYPE] == 1) index = 0; /* whatever the types are */
            rows[count++] = of->tables[which] + index * width;
        }
        for (int64_t at = 0; at < width; at += 16) {
            __m512 x = _mm512_loadu_ps(rows[0] + at);
            for (int which = 1; which < count; which++)
                x = _mm512_add_ps(x, _mm512_loadu_ps(rows[which] + at));
            _mm512_storeu_ps(sum + at, x);
        }
        norm(sum, width, of->norm, of->epsilon, all->result + token * width);
    }
}

static void embeddings_work(void *given) {
    embeddings_job *all = given;
    int64_t items = (all->tokens + TOKENS_OF_ITEM - 1) / TOKENS_OF_ITEM;
    together(&all->all, 0, items, embed_tokens, all, join_team(&all->all));
}

/* Whether all indices are in a table. */
static int are_within(const int64_t *indices, int64_t count, int64_t offset, int64_t entries) {
    int64_t least = 0, most = 0;
    for (int64_t at = 0; at < count; at++) {
        int64_t index = indices[at] + offset;
        least = index < least ? index : least;
        most = index > most ? index : most;
    }
    return least >= 0 && most < entries;
}

/* The normalised sums of tokens' embeddings, bfloat16 [tokens, width]. Returns 0; 1 if there is no
   memory; 2 if a token, position or type is not in its table. */
int bertworks_embeddings(const embeddings *of, const int64_t *ids, const int64_t *positions,
                         const int64_t *types, int64_t tokens, bf16 *result, int64_t threads,
                         parallel_fn parallel) {
    embeddings_job all = {.of = of, .indices = {ids, positions, types}, .tokens = tokens};
    for (int which = 0; which < TABLES; which++) {
        int is_used = of->tables[which] && (which != TYPE || of->entries[which] > 1);
        int64_t offset = which == POSITION ? of->offset : 0;
        if (is_used && !are_within(all.indices[which], tokens, offset, of->entries[which])) return 2;
    }
    if (tokens < FEW_TOKENS) threads = 1;
    all.result = result;
    return run_with_scratch(&all.all, of->width * 4, embeddings_work, &all, threads, parallel);
}

typedef struct {
    team all;
    const bf16 *hidden;
    const int32_t *edges;
    float *means;
    int64_t sequences, width, unit;
} means_job;

static void mean_of(const void *given, int64_t item, char *scratch) {
    const means_job *all = given;
    int64_t width = all->width, start = all->edges[item], end = all->edges[item + 1];
    float *mean = all->means + item * width;
    __m512 squares = _mm512_setzero_ps();
    (void)scratch;
    for (int64_t at = 0; at < width; at += 16) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t token = start; token < end; token++)
            sum = _mm512_add_ps(sum, load_bf16(all->hidden + token * width + at));
        sum = _mm512_div_ps(sum, _mm512_set1_ps((float)(end - start)));
        squares = _mm512_fmadd_ps(sum, sum, squares);
        _mm512_storeu_ps(mean + at, sum);
    }
    if (!all->unit) return;
    float length = __builtin_sqrtf(_mm512_reduce_add_ps(squares));
    __m512 inverse = _mm512_set1_ps(length < 1e-12f ? 1e-12f : length); /* NaN stays */
    for (int64_t at = 0; at < width; at += 16)
        _mm512_storeu_ps(mean + at, _mm512_div_ps(_mm512_loadu_ps(mean + at), inverse));
}

static void means_work(void *given) {
    means_job *all = given;
    together(&all->all, 0, all->sequences, mean_of, all, NULL);
}

/* The mean of each sequence's vectors, float32 [sequences, width]; with `unit`, of length 1. */
void bertworks_means(const bf16 *hidden, const int32_t *edges, int64_t sequences, int64_t width,
                     int64_t unit, float *means, int64_t threads, parallel_fn parallel) {
    means_job all = {.hidden = hidden, .edges = edges, .means = means, .sequences = sequences};
    all.width = width;
    all.unit = unit;
    if (edges[sequences] - edges[0] < FEW_TOKENS) threads = 1;
    run_team(&all.all, means_work, &all, threads, parallel);
}
