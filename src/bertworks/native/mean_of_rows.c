/* Means of rows of a table: the vectors of texts of a static model. */

#include "native.h"
#include "threads.h"
#include "vectors.h"

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>

#define TEXTS_OF_ITEM 64
#define FEW_TEXTS 256 /* for which waking other threads takes longer than the work */
#define BLOCK 64      /* columns summed together, in registers */

typedef struct {
    const float *table;
    int64_t width;
    const int32_t *ids;
    const int64_t *starts;
    int64_t texts, unit;
    float *means;
    atomic_long next;
} mean_job;

static void mean_of_text(const mean_job *all, int64_t text) {
    int64_t width = all->width, start = all->starts[text], end = all->starts[text + 1];
    float *restrict mean = all->means + text * width;
    float squares[BLOCK] = {0}, total = 0, count = end > start ? (float)(end - start) : 1;
    for (int64_t first = 0; first < width; first += BLOCK) {
        int64_t size = width - first < BLOCK ? width - first : BLOCK;
        float sums[BLOCK] = {0};
        for (int64_t token = start; token < end; token++) {
            const float *restrict row = all->table + all->ids[token] * width + first;
            if (size == BLOCK)
                for (int side = 0; side < BLOCK; side++) sums[side] += row[side];
            else
                for (int64_t side = 0; side < size; side++) sums[side] += row[side];
        }
        for (int side = 0; side < BLOCK; side++) sums[side] /= count;
        for (int side = 0; side < BLOCK; side++) squares[side] += sums[side] * sums[side];
        for (int64_t side = 0; side < size; side++) mean[first + side] = sums[side];
    }
    if (!all->unit) return;
    for (int side = 0; side < BLOCK; side++) total += squares[side];
    float length = sqrtf(total);
    if (length < 1e-12f) length = 1e-12f; /* NaN stays */
    for (int64_t at = 0; at < width; at++) mean[at] /= length;
}

static void mean_work(void *given) {
    mean_job *all = given;
    int64_t first;
    while ((first = atomic_fetch_add(&all->next, TEXTS_OF_ITEM)) < all->texts)
        for (int64_t text = first; text < first + TEXTS_OF_ITEM && text < all->texts; text++)
            mean_of_text(all, text);
}

int OF_ISA(mean_of_rows)(const float *table, int64_t rows, int64_t width, const int32_t *ids,
                         const int64_t *starts, int64_t texts, int64_t unit, float *means,
                         int64_t threads) {
    mean_job all = {.table = table, .width = width, .ids = ids, .starts = starts};
    all.texts = texts;
    all.unit = unit;
    all.means = means;
    for (int64_t at = 0; at < starts[texts]; at++)
        if (ids[at] < 0 || ids[at] >= rows) return 1;
    bertworks_run(mean_work, &all, texts < FEW_TEXTS ? 1 : threads);
    return 0;
}
