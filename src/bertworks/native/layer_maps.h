/* The linear maps of a layer, and the state of a layer's computation. */

#ifndef BERTWORKS_LAYER_MAPS
#define BERTWORKS_LAYER_MAPS

#include "attention.h"

#define BLOCK_BYTES 262144 /* of a block of inputs: it stays in the level 2 cache, if its rows suffice */
#ifndef LEAST_ROWS
#define LEAST_ROWS MOST_ROWS /* of a block */
#endif

typedef struct {
    team all;
    const layer *net;
    const sequences *of;
    const int32_t *edges; /* of the sequences of this batch */
    int64_t sequences, rows;
    int64_t width, widths_of_heads; /* of hidden states and of all heads, in whole panels */
    const void *hidden, *inputs; /* these have the numbers of `has_floats` */
    void *result, *qkv, *context, *middle, *between;
    uint8_t *codes;
    float *ranges, *sums; /* of each row: the step of its codes; a sum with a residual */
} job;

INLINE int has_floats(int precision) { return precision >= FP32; }

INLINE int64_t bytes_of_numbers(int precision) { return has_floats(precision) ? 4 : 2; }

/* ------------------------------------------------------------------------------ linear maps */

/* Outputs as numbers, through the activation, times gates, or added to numbers or to `sums`. */
enum ending { TO_NUMBERS, TO_ACTIVATION, TO_GATED, TO_SUM, TO_SUM_OF_SUMS, TO_RESULT };

/* How many bytes a weight of a product has. */
INLINE int64_t bytes_of_weight(int precision) {
    return has_codes(precision) ? 1 : bytes_of_numbers(precision);
}

/* How many bytes the inputs of a row have. */
INLINE int64_t bytes_of_inputs(const matrix *map, int precision) {
    return map->inputs * bytes_of_weight(precision) * (has_codes(precision) ? CODE_BYTES : 1);
}

static int64_t blocks_of(const job *all, const matrix *map) {
    int64_t rows = BLOCK_BYTES / bytes_of_inputs(map, (int)all->net->precision);
    if (rows < LEAST_ROWS) rows = LEAST_ROWS;
    return (all->rows + rows - 1) / rows;
}

/* The panels of a map's outputs, without those of gates. */
INLINE int64_t panels_of(const matrix *map, int is_gated) {
    return map->outputs / PANEL / (1 + is_gated);
}

static int64_t items_of(const job *all, const matrix *map, int is_gated) {
    return blocks_of(all, map) * panels_of(map, is_gated);
}

/* What makes outputs of sums. */
typedef struct {
    vfloat bias, scale;
    vint offset;
} scaling;

INLINE scaling scaling_of(const matrix *map, int precision, int64_t at) {
    scaling of = {f_load(map->bias + at), f_zero(), i_zero()};
    if (has_codes(precision)) {
        of.scale = f_load(map->scales + at);
        of.offset = i_load(map->offsets + at);
    }
    return of;
}

/* `ranges` are the steps of the rows' codes; null: each input has its own. */
INLINE vfloat output_of(vfloat sum, scaling of, int precision, const float *ranges, int64_t r) {
    if (has_codes(precision)) {
        vint codes = i_bits(sum);
        if (!SIGNED_CODES) codes = i_sub(codes, of.offset);
        sum = f_mul(f_from_ints(codes), of.scale);
        if (ranges) sum = f_mul(sum, f_set(ranges[r]));
    }
    return f_add(sum, of.bias);
}

/* Turn a tile's sums, and those of its gates, into outputs. */
INLINE void finish(const job *all, const matrix *map, int precision, enum ending ending,
                   const float (*sums)[PANEL], const float (*gates)[PANEL], int64_t row,
                   int64_t rows, int64_t column, const void *residual, void *to) {
    const float *ranges = has_codes(precision) && !map->slope ? all->ranges + row : NULL;
    int64_t outputs = panels_of(map, ending == TO_GATED) * PANEL;
    int is_float = has_floats(precision), activation = (int)all->net->activation;
    int from_float = is_float || ending > TO_SUM; /* numbers of the residual */
    int to_float = is_float || ending == TO_SUM || ending == TO_SUM_OF_SUMS;
    for (int half = 0; half < PANEL; half += LANES) {
        int64_t at = column + half, place = row * outputs + at;
        scaling own = scaling_of(map, precision, at), gate = own;
        if (ending == TO_GATED) gate = scaling_of(map, precision, outputs + at);
        for (int64_t r = 0; r < rows; r++, place += outputs) {
            vfloat y = output_of(f_load(&sums[r][half]), own, precision, ranges, r);
            if (ending == TO_ACTIVATION || ending == TO_GATED) y = activate(y, activation, is_float);
            if (ending == TO_GATED)
                y = f_mul(y, output_of(f_load(&gates[r][half]), gate, precision, ranges, r));
            if (ending >= TO_SUM) y = f_add(y, load_number(residual, place, from_float));
            store_number(to, place, to_float, y);
        }
    }
}

INLINE void multiply_in(int precision, const job *all, const matrix *map, int64_t item,
                        const void *x, enum ending ending, const void *residual, void *to) {
    int64_t panels = panels_of(map, ending == TO_GATED), blocks = blocks_of(all, map);
    int64_t block = item / panels, column = item % panels * PANEL;
    int64_t row = all->rows * block / blocks, end = all->rows * (block + 1) / blocks;
    int64_t bytes = map->inputs * bytes_of_weight(precision), first = row, count = end - row;
    int64_t stride = bytes_of_inputs(map, precision);
    int64_t most = tile_rows(precision, bytes / 4), tiles = (count + most - 1) / most;
    int64_t ahead = tiles <= FEW_TILES ? bytes * PANEL : AHEAD;
    const char *panel = (const char *)map->packed + column * bytes;
    const char *inputs = has_codes(precision) ? (const char *)all->codes : x;
    _Alignas(LINE) float sums[2][AMX_ROWS > MOST_ROWS ? AMX_ROWS : MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++, row = end) {
        end = first + count * (tile + 1) / tiles;
        for (int which = 0; which < 1 + (ending == TO_GATED); which++)
            multiply_tile(precision, (int)(end - row), inputs + row * stride, stride,
                          panel + which * panels * PANEL * bytes, bytes / 4, ahead, sums[which][0],
                          PANEL);
        finish(all, map, precision, ending, sums[0], sums[1], row, end - row, column, residual, to);
    }
}

/* One item of a linear map: a block of rows, and the outputs of a panel. */
INLINE void multiply(const job *all, const matrix *map, int64_t item, const void *x,
                     enum ending ending, const void *residual, void *to) {
    switch (all->net->precision) {
    case BF16: multiply_in(BF16, all, map, item, x, ending, residual, to); break;
    case INT8: multiply_in(INT8, all, map, item, x, ending, residual, to); break;
    case FP32: multiply_in(FP32, all, map, item, x, ending, residual, to); break;
    default: multiply_in(INT8_IN_FP32, all, map, item, x, ending, residual, to);
    }
}

static void map_qkv(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    multiply(all, &all->net->query_key_value, item, all->inputs, TO_NUMBERS, NULL, all->qkv);
}

static void map_output(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    multiply(all, &all->net->output, item, all->context, TO_SUM, all->hidden, all->sums);
}

static void map_inner(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    const matrix *inner = &all->net->inner;
    (void)scratch;
    if (all->net->is_gated)
        multiply(all, inner, item, all->middle, TO_GATED, NULL, all->between);
    else
        multiply(all, inner, item, all->middle, TO_ACTIVATION, NULL, all->between);
}

static void map_outer(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    const matrix *outer = &all->net->outer;
    (void)scratch;
    if (!all->net->has_norms_first)
        multiply(all, outer, item, all->between, TO_SUM, all->middle, all->sums);
    else if (all->net->norms[FINAL][0])
        multiply(all, outer, item, all->between, TO_SUM_OF_SUMS, all->sums, all->sums);
    else
        multiply(all, outer, item, all->between, TO_RESULT, all->sums, all->result);
}

#endif
