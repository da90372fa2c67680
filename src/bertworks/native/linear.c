/* A linear map of vectors in float32, for the heads of networks.

   The matrix is as files hold it, a row for each output: it is often used once, for few vectors, and
   may be a table that others use too. Each sum is computed in the same order, whatever the other
   vectors and outputs are. */

#include "kernels.h"

#define OUTPUTS_OF_ITEM 16
#define ROWS_OF_BLOCK 4
#define FEW_PRODUCTS (1 << 18) /* that one thread computes faster */

typedef struct {
    team all;
    const float *x, *weight, *bias; /* the bias may be null */
    float *result;
    int64_t rows, inputs, outputs;
} linear_job;

INLINE void linear_block(const linear_job *all, int64_t row, int64_t output, int rows, int outputs) {
    const float *x = all->x + row * all->inputs, *weight = all->weight + output * all->inputs;
    vfloat sums[ROWS_OF_BLOCK][2], weights[2];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) sums[r][o] = f_zero();
    int64_t at = 0, inputs = all->inputs;
    for (; at + LANES <= inputs; at += LANES) {
        for (int o = 0; o < outputs; o++) weights[o] = f_load(weight + o * inputs + at);
        for (int r = 0; r < rows; r++) {
            vfloat part = f_load(x + r * inputs + at);
            for (int o = 0; o < outputs; o++) sums[r][o] = f_fma(part, weights[o], sums[r][o]);
        }
    }
    if (at < inputs) {
        vmask rest = before(at, inputs);
        for (int o = 0; o < outputs; o++) weights[o] = f_load_some(rest, weight + o * inputs + at);
        for (int r = 0; r < rows; r++) {
            vfloat part = f_load_some(rest, x + r * inputs + at);
            for (int o = 0; o < outputs; o++) sums[r][o] = f_fma(part, weights[o], sums[r][o]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++)
            all->result[(row + r) * all->outputs + output + o] =
                f_sum(sums[r][o]) + (all->bias ? all->bias[output + o] : 0);
}

static void linear_item(const void *given, int64_t item, char *scratch) {
    const linear_job *all = given;
    int64_t first = item * OUTPUTS_OF_ITEM, end = first + OUTPUTS_OF_ITEM, row = 0, output;
    (void)scratch;
    if (end > all->outputs) end = all->outputs;
    for (; row + ROWS_OF_BLOCK <= all->rows; row += ROWS_OF_BLOCK) {
        for (output = first; output + 2 <= end; output += 2)
            linear_block(all, row, output, ROWS_OF_BLOCK, 2);
        if (output < end) linear_block(all, row, output, ROWS_OF_BLOCK, 1);
    }
    for (; row < all->rows; row++) {
        for (output = first; output + 2 <= end; output += 2) linear_block(all, row, output, 1, 2);
        if (output < end) linear_block(all, row, output, 1, 1);
    }
}

static void linear_work(void *given) {
    linear_job *all = given;
    int64_t items = (all->outputs + OUTPUTS_OF_ITEM - 1) / OUTPUTS_OF_ITEM;
    together(&all->all, 0, items, linear_item, all, NULL);
}

void OF_ISA(linear)(const float *x, const float *weight, const float *bias, int64_t rows,
                    int64_t inputs, int64_t outputs, float *result, int64_t threads) {
    linear_job all = {.x = x, .weight = weight, .bias = bias, .result = result, .rows = rows,
                      .inputs = inputs, .outputs = outputs};
    if (rows * inputs * outputs < FEW_PRODUCTS) threads = 1;
    run_team(&all.all, linear_work, &all, threads, NULL);
}
