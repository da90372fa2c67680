/* Matrices are packed into panels; and functions of vectors, for heads and tests. */

#include "kernels.h"

/* A matrix to pack, panel by panel. */
typedef struct {
    team all;
    const char *from;
    char *to;
    int64_t outputs, groups, stride, are_floats;
} packing;

static void pack_panel(const void *given, int64_t item, char *scratch) {
    const packing *all = given;
    int64_t first = item * PANEL, rest = all->outputs - first, rows = rest < PANEL ? rest : PANEL;
    const char *from = all->from + first * all->stride;
    char *to = all->to + item * all->groups * 4 * PANEL;
    (void)scratch;
    if (all->are_floats)
        pack_rows(from, rows, all->groups, all->stride, to, 1);
    else
        pack(from, rows, all->groups, all->stride, to);
}

static void pack_work(void *given) {
    packing *all = given;
    together(&all->all, 0, (all->outputs + PANEL - 1) / PANEL, pack_panel, all, NULL);
}

void OF_ISA(pack)(const void *from, int64_t outputs, int64_t groups, int64_t stride,
                  int64_t are_floats, void *to, int64_t threads) {
    packing all = {.from = from, .to = to, .outputs = outputs, .groups = groups, .stride = stride};
    all.are_floats = are_floats;
    run_team(&all.all, pack_work, &all, threads, NULL);
}

void OF_ISA(function)(const float *x, int64_t count, int64_t function, int64_t is_exact,
                      float *result) {
    for (int64_t at = 0; at < count; at += LANES) {
        vfloat y = f_load(x + at);
        f_store(result + at, function < 0 ? power_of_two(y) : activate(y, function, is_exact));
    }
}
