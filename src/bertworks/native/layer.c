/* A layer of BERT (attention, feed-forward, two norms), for inference.

   Products are of float32, bfloat16 or 8-bit integers; norms, softmax and activations are in float32.
   Each output is summed over its inputs in a fixed order, whatever the other rows are, so a text's
   vectors have the same bits in any batch and with any number of threads.

   A layer is a sequence of phases. Free threads take the items of a phase; a phase begins when all
   items of the previous phase are done. So any number of threads, even one, finishes the work. */

#include "attention.h"

#define BLOCK_BYTES 262144 /* of a block of inputs: it stays in the level 2 cache */
#define BATCH_BYTES 8388608 /* of the buffers of a batch: they stay in the level 3 cache */

enum activation { GELU = 0, GELU_TANH = 1, RELU = 2 };

typedef struct {
    team all;
    const layer *net;
    const int32_t *edges; /* of the sequences of this batch */
    int64_t sequences, rows;
    int64_t width, widths_of_heads; /* of hidden states and of all heads, in whole panels */
    const float *bias; /* null, or the numbers of `bias_of` */
    int64_t bias_length;
    const void *hidden; /* these have the numbers of `has_floats` */
    void *result, *qkv, *context, *middle, *between;
    uint8_t *codes;
    float *ranges, *sums; /* of each row: the step of its codes; the input of a norm */
} job;

INLINE int has_floats(int precision) { return precision >= FP32; }

INLINE int64_t bytes_of_numbers(int precision) { return has_floats(precision) ? 4 : 2; }

/* ------------------------------------------------------------------------------ linear maps */

enum ending { TO_NUMBERS, TO_ACTIVATION, TO_SUM };

/* How many bytes an input of a product has. */
INLINE int64_t bytes_of_input(int precision) {
    return has_codes(precision) ? 1 : bytes_of_numbers(precision);
}

static int64_t blocks_of(const job *all, const matrix *map) {
    int64_t rows = BLOCK_BYTES / (map->inputs * bytes_of_input(all->net->precision));
    if (rows < MOST_ROWS) rows = MOST_ROWS;
    return (all->rows + rows - 1) / rows;
}

static int64_t items_of(const job *all, const matrix *map) {
    return blocks_of(all, map) * (map->outputs / PANEL);
}

INLINE vfloat activate(vfloat y, int activation, int is_exact) {
    return activation == GELU        ? gelu(y, is_exact)
           : activation == GELU_TANH ? gelu_tanh(y, is_exact)
                                     : f_max(f_zero(), y); /* NaN stays */
}

/* Turn a tile's sums into outputs: add the bias, then apply the activation or add the residual. */
INLINE void finish(const job *all, const matrix *map, int precision, enum ending ending,
                   int activation, const float (*sums)[PANEL], int64_t row, int64_t rows,
                   int64_t column, const void *residual, void *to) {
    const float *ranges = has_codes(precision) && !map->slope ? all->ranges + row : NULL;
    int64_t outputs = map->outputs;
    int is_float = has_floats(precision);
    for (int half = 0; half < PANEL; half += LANES) {
        int64_t at = column + half, place = row * outputs + at;
        vfloat bias = f_load(map->bias + at), scale = f_zero();
        vint offset = i_zero();
        if (has_codes(precision)) {
            scale = f_load(map->scales + at);
            offset = i_load(map->offsets + at);
        }
        for (int64_t r = 0; r < rows; r++, place += outputs) {
            vfloat y = f_load(&sums[r][half]);
            if (has_codes(precision)) {
                vint sum = i_bits(y);
                if (!SIGNED_CODES) sum = i_sub(sum, offset);
                y = f_mul(f_from_ints(sum), scale);
                if (ranges) y = f_mul(y, f_set(ranges[r]));
            }
            y = f_add(y, bias);
            if (ending == TO_SUM) {
                y = f_add(y, load_number(residual, place, is_float));
                f_store((float *)to + place, y);
                continue;
            }
            if (ending == TO_ACTIVATION) y = activate(y, activation, is_float);
            store_number(to, place, is_float, y);
        }
    }
}

INLINE void multiply_in(int precision, const job *all, const matrix *map, int64_t item,
                        const void *x, enum ending ending, const void *residual, void *to) {
    int64_t panels = map->outputs / PANEL, blocks = blocks_of(all, map);
    int64_t block = item / panels, column = item % panels * PANEL;
    int64_t row = all->rows * block / blocks, end = all->rows * (block + 1) / blocks;
    int64_t bytes = map->inputs * bytes_of_input(precision), first = row, count = end - row;
    int64_t most = tile_rows(precision, bytes / 4), tiles = (count + most - 1) / most;
    const char *panel = (const char *)map->packed + column * bytes;
    const char *inputs = has_codes(precision) ? (const char *)all->codes : x;
    _Alignas(LINE) float sums[AMX_ROWS > MOST_ROWS ? AMX_ROWS : MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++, row = end) {
        end = first + count * (tile + 1) / tiles;
        multiply_tile(precision, (int)(end - row), inputs + row * bytes, bytes, panel, bytes / 4,
                      sums[0], PANEL);
        finish(all, map, precision, ending, all->net->activation, sums, row, end - row, column,
               residual, to);
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
    multiply(all, &all->net->query_key_value, item, all->hidden, TO_NUMBERS, NULL, all->qkv);
}

static void map_output(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    multiply(all, &all->net->output, item, all->context, TO_SUM, all->hidden, all->sums);
}

static void map_inner(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    multiply(all, &all->net->inner, item, all->middle, TO_ACTIVATION, NULL, all->between);
}

static void map_outer(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    multiply(all, &all->net->outer, item, all->between, TO_SUM, all->middle, all->sums);
}

/* -------------------------------------------------------------------------------- attention */

static void attend_item(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    int64_t heads = all->net->heads, sequence = item / heads, head = item % heads;
    int64_t start = all->edges[sequence] - all->edges[0];
    int64_t length = all->edges[sequence + 1] - all->edges[sequence];
    int64_t width = all->widths_of_heads, size = width / heads;
    int64_t padding = size - all->net->width / heads;
    if (has_floats(all->net->precision)) {
        const float *qkv = all->qkv;
        int32_t edges[2] = {(int32_t)start, (int32_t)(start + length)};
        attention_fp32 of = {qkv, qkv + width, qkv + 2 * width, {3 * width, 3 * width, 3 * width},
                             all->context, edges, edges, 1, heads, size, all->bias,
                             all->bias_length, padding};
        attend_fp32(&of, 0, head, scratch);
    } else {
        attention of = {.qkv = all->qkv, .context = all->context, .heads = heads, .size = size,
                        .padding = padding};
        attend(&of, start, length, head, 0, bias_of(all->bias, all->bias_length, head, 0), scratch);
    }
}

/* --------------------------------------------------------------------------- rows: norms, codes */

#define ROWS_AT_ONCE 8

static int64_t row_items(const job *all) { return (all->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; }

INLINE void normalize(const job *all, int64_t item, int which, void *to) {
    int64_t width = all->width, first = item * ROWS_AT_ONCE;
    for (int64_t r = first; r < first + ROWS_AT_ONCE && r < all->rows; r++)
        norm(all->sums + r * width, all->net->width, all->net->norms[which], all->net->epsilon[which], to,
             r * width, has_floats(all->net->precision));
}

static void norm_first(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    normalize(all, item, 0, all->middle);
}

static void norm_second(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    normalize(all, item, 1, all->result);
}

/* Compute the codes of some rows, from each row's range or each input's line. */
INLINE void encode_rows(const job *all, int64_t item, const matrix *map, const void *x,
                        int is_float) {
    int64_t inputs = map->inputs;
    for (int64_t r = item * ROWS_AT_ONCE; r < (item + 1) * ROWS_AT_ONCE && r < all->rows; r++) {
        int64_t row = r * inputs;
        vfloat slope = f_zero(), start = f_zero();
        if (!map->slope) {
            vfloat nothing = f_zero(); /* NaN if an input is not finite */
            for (int64_t at = 0; at < inputs; at += LANES) {
                vfloat input = load_number(x, row + at, is_float);
                slope = f_max(slope, f_abs(input));
                nothing = f_fma(input, f_zero(), nothing);
            }
            float largest = f_largest(slope);
            all->ranges[r] = (largest < 1e-30f ? 1e-30f : largest) / 127;
            slope = f_set(1 / all->ranges[r]);
            all->ranges[r] += f_sum(nothing);
        }
        for (int64_t at = 0; at < inputs; at += LANES) {
            if (map->slope) {
                slope = f_load(map->slope + at);
                start = f_load(map->start + at);
            }
            store_codes(all->codes + row + at,
                        f_fma(load_number(x, row + at, is_float), slope, start));
        }
    }
}

INLINE void encode(const job *all, int64_t item, const matrix *map, const void *x) {
    if (has_floats(all->net->precision))
        encode_rows(all, item, map, x, 1);
    else
        encode_rows(all, item, map, x, 0);
}

static void encode_hidden(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    encode(all, item, &all->net->query_key_value, all->hidden);
}

static void encode_context(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    encode(all, item, &all->net->output, all->context);
}

static void encode_middle(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    encode(all, item, &all->net->inner, all->middle);
}

static void encode_between(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    encode(all, item, &all->net->outer, all->between);
}

/* ---------------------------------------------------------------------------------- the layer */

static void layer_work(void *given) {
    job *all = given;
    const layer *net = all->net;
    team *team = &all->all;
    char *scratch = join_team(team);
    int64_t rows = row_items(all);
    int is_coded = has_codes((int)net->precision);
    if (is_coded) together(team, 0, rows, encode_hidden, all, scratch);
    together(team, 1, items_of(all, &net->query_key_value), map_qkv, all, scratch);
    together(team, 2, all->sequences * net->heads, attend_item, all, scratch);
    if (is_coded) together(team, 3, rows, encode_context, all, scratch);
    together(team, 4, items_of(all, &net->output), map_output, all, scratch);
    together(team, 5, rows, norm_first, all, scratch);
    if (is_coded) together(team, 6, rows, encode_middle, all, scratch);
    together(team, 7, items_of(all, &net->inner), map_inner, all, scratch);
    if (is_coded) together(team, 8, rows, encode_between, all, scratch);
    together(team, 9, items_of(all, &net->outer), map_outer, all, scratch);
    together(team, 10, rows, norm_second, all, scratch);
    release_tiles();
}

static char *take(char **from, int64_t bytes) {
    char *place = *from;
    *from += (bytes + LINE - 1) / LINE * LINE;
    return place;
}

/* The end of the batch that begins with `first`: one sequence, or more with up to `most` rows. */
static int64_t end_of_batch(const int32_t *edges, int64_t sequences, int64_t first, int64_t most) {
    int64_t end = first + 1;
    while (end < sequences && edges[end + 1] - edges[first] <= most) end++;
    return end;
}

/* Copy rows to shorter ones, or to longer ones, which are filled with zeros. */
static void copy_rows(const char *from, int64_t bytes_from, char *to, int64_t bytes_to,
                      int64_t rows) {
    int64_t bytes = bytes_from < bytes_to ? bytes_from : bytes_to;
    for (int64_t row = 0; row < rows; row++, from += bytes_from, to += bytes_to) {
        memcpy(to, from, bytes);
        memset(to + bytes, 0, bytes_to - bytes);
    }
}

int OF_ISA(layers)(const layer *nets, int64_t layers, const void *hidden, void *result,
                   const int32_t *edges, int64_t sequences, const float *bias,
                   int64_t bias_length, int64_t threads) {
    int64_t width = nets->output.outputs, inner = nets->inner.outputs, rows = 0, end;
    int64_t heads = nets->output.inputs, is_padded = width > nets->width;
    int64_t widest = inner > width ? inner : width, number = bytes_of_numbers(nets->precision);
    int64_t bytes_of_row = number * (3 * heads + heads + width + inner) + 4 * width + 4;
    if (heads > widest) widest = heads;
    bytes_of_row += widest + (is_padded ? number * width : 0);
    int64_t most = BATCH_BYTES / bytes_of_row, longest = longest_of(edges, sequences);
    for (int64_t first = 0; first < sequences; first = end) {
        end = end_of_batch(edges, sequences, first, most);
        if (edges[end] - edges[first] > rows) rows = edges[end] - edges[first];
    }
    job all = {.width = width, .widths_of_heads = heads, .bias = bias, .bias_length = bias_length};
    all.all.scratch_bytes = has_floats(nets->precision)
                                ? attention_fp32_bytes(longest, heads / nets->heads)
                                : attention_bytes(longest, heads / nets->heads);
    all.all.scratch_bytes = (all.all.scratch_bytes + LINE - 1) / LINE * LINE;
    int64_t bytes = rows * bytes_of_row + threads * all.all.scratch_bytes + 16 * LINE;
    char *memory = aligned_alloc(LINE, bytes / LINE * LINE), *free_from = memory;
    if (!memory) return 1;
    all.qkv = take(&free_from, rows * 3 * heads * number);
    all.context = take(&free_from, rows * heads * number);
    all.middle = take(&free_from, rows * width * number);
    all.between = take(&free_from, rows * inner * number);
    all.sums = (float *)take(&free_from, rows * width * 4);
    all.ranges = (float *)take(&free_from, rows * 4);
    all.codes = (uint8_t *)take(&free_from, rows * widest);
    char *padded = take(&free_from, is_padded ? rows * width * number : 0);
    if (is_padded) memset(all.middle, 0, rows * width * number); /* norms write no padding */
    all.all.scratch = take(&free_from, threads * all.all.scratch_bytes);
    for (int64_t first = 0; first < sequences; first = end) {
        end = end_of_batch(edges, sequences, first, most);
        all.edges = edges + first;
        all.sequences = end - first;
        all.rows = edges[end] - edges[first];
        int64_t bytes_of_state = nets->width * number, place = edges[first] * bytes_of_state;
        all.hidden = is_padded ? padded : (const char *)hidden + place;
        all.result = is_padded ? padded : (char *)result + place;
        if (is_padded)
            copy_rows((const char *)hidden + place, bytes_of_state, padded, width * number, all.rows);
        for (all.net = nets; all.net < nets + layers; all.net++) {
            run_team(&all.all, layer_work, &all, threads, NULL);
            all.hidden = all.result; /* in place: written after all of it was read */
        }
        if (is_padded)
            copy_rows(padded, width * number, (char *)result + place, bytes_of_state, all.rows);
    }
    free(memory);
    return 0;
}

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
        f_store(result + at, function == 3 ? power_of_two(y) : activate(y, function, is_exact));
    }
}
