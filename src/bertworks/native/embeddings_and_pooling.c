/* Both ends of an encoder: the embeddings of tokens, and the mean of each sequence's vectors. */

#include "kernels.h"

#define TOKENS_OF_ITEM 16
#define FEW_TOKENS 256 /* for which waking other threads takes longer than the work */

typedef struct {
    team all;
    const embeddings *of;
    const int64_t *indices[TABLES];
    int64_t tokens;
    void *result;
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
        for (int64_t at = 0; at < width; at += LANES) {
            vfloat x = load_some(rows[0], at, width - at, 1);
            for (int which = 1; which < count; which++)
                x = f_add(x, load_some(rows[which], at, width - at, 1));
            f_store(sum + at, x);
        }
        if (of->norm[0])
            norm(sum, 0, 1, width, of->norm, of->epsilon, of->has_rms_norm, all->result,
                 token * width, of->is_fp32);
        for (int64_t at = 0; !of->norm[0] && at < width; at += LANES)
            store_some(all->result, token * width + at, width - at, of->is_fp32, f_load(sum + at));
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

int OF_ISA(embeddings)(const embeddings *of, const int64_t *ids, const int64_t *positions,
                       const int64_t *types, int64_t tokens, void *result, int64_t threads) {
    embeddings_job all = {.of = of, .indices = {ids, positions, types}, .tokens = tokens};
    for (int which = 0; which < TABLES; which++) {
        int is_used = of->tables[which] && (which != TYPE || of->entries[which] > 1);
        int64_t offset = which == POSITION ? of->offset : 0;
        if (is_used && !are_within(all.indices[which], tokens, offset, of->entries[which])) return 2;
    }
    if (tokens < FEW_TOKENS) threads = 1;
    all.result = result;
    return run_with_scratch(&all.all, (of->width + LANES) * 4, embeddings_work, &all, threads, NULL);
}

typedef struct {
    team all;
    const void *hidden;
    const int32_t *edges;
    float *means;
    int64_t sequences, width, unit, is_fp32;
} means_job;

INLINE void mean_of(const means_job *all, int64_t item, int is_fp32) {
    int64_t width = all->width, start = all->edges[item], end = all->edges[item + 1];
    float *mean = all->means + item * width;
    vfloat squares = f_zero();
    for (int64_t at = 0; at < width; at += LANES) {
        vfloat sum = f_zero();
        for (int64_t token = start; token < end; token++)
            sum = f_add(sum, load_some(all->hidden, token * width + at, width - at, is_fp32));
        sum = f_div(sum, f_set((float)(end - start)));
        squares = f_fma(sum, sum, squares);
        store_some(mean, at, width - at, 1, sum);
    }
    if (!all->unit) return;
    float length = __builtin_sqrtf(f_sum(squares));
    vfloat inverse = f_set(length < 1e-12f ? 1e-12f : length); /* NaN stays */
    for (int64_t at = 0; at < width; at += LANES)
        store_some(mean, at, width - at, 1, f_div(load_some(mean, at, width - at, 1), inverse));
}

static void mean_item(const void *given, int64_t item, char *scratch) {
    const means_job *all = given;
    (void)scratch;
    if (all->is_fp32)
        mean_of(all, item, 1);
    else
        mean_of(all, item, 0);
}

static void means_work(void *given) {
    means_job *all = given;
    together(&all->all, 0, all->sequences, mean_item, all, NULL);
}

static void run_means(means_job *all, int64_t threads) {
    if (all->edges[all->sequences] - all->edges[0] < FEW_TOKENS) threads = 1;
    run_team(&all->all, means_work, all, threads, NULL);
}

void OF_ISA(means)(const void *hidden, const int32_t *edges, int64_t sequences, int64_t width,
                   int64_t unit, float *means, int64_t threads) {
    means_job all = {.hidden = hidden, .edges = edges, .means = means, .sequences = sequences,
                     .width = width, .unit = unit};
    run_means(&all, threads);
}

/* The same, of vectors in float32. */
void OF_ISA(means_fp32)(const void *hidden, const int32_t *edges, int64_t sequences, int64_t width,
                        int64_t unit, float *means, int64_t threads) {
    means_job all = {.hidden = hidden, .edges = edges, .means = means, .sequences = sequences,
                     .width = width, .unit = unit, .is_fp32 = 1};
    run_means(&all, threads);
}
