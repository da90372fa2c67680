/* A layer of BERT (attention, feed-forward, two norms) for processors with AVX-512.

   Products are of bfloat16 or of 8-bit integers; norms, softmax and activations are in float32.
   Each output is summed over its inputs in a fixed order, whatever the other rows are, so a text's
   vectors have the same bits in any batch and with any number of threads.

   A layer is a sequence of phases. Free threads take the items of a phase; a phase begins when all
   items of the previous phase are done. So any number of threads, even one, finishes the work. */

#include "attention.h"

#define BLOCK_BYTES 262144 /* of a block of inputs: it stays in the level 2 cache */
#define BATCH_BYTES 8388608 /* of the buffers of a batch: they stay in the level 3 cache */

enum activation { GELU = 0, GELU_TANH = 1, RELU = 2 };

/* A linear map. Python's `native/library.py` has the same structures. */
typedef struct {
    const void *packed;
    const float *bias;
    int64_t inputs, outputs;
    /* for 8-bit weights, otherwise null: */
    const float *scales;    /* of each output */
    const int32_t *offsets; /* 128 times the sum of each output's codes */
    const float *start, *slope; /* code of an input x: start + slope · x; null: by row's range */
} matrix;

typedef struct {
    matrix query_key_value, output, inner, outer;
    const float *norms[2][2]; /* scale and shift of each norm */
    float epsilon[2];
    int64_t heads, activation;
    int64_t is_int8;
} layer;

typedef struct {
    team all;
    const layer *net;
    const int32_t *edges; /* of the sequences of this batch */
    int64_t sequences, rows, width;
    const float *bias; /* null, or the numbers of `bias_of` */
    int64_t bias_length;
    const bf16 *hidden;
    bf16 *result, *qkv, *context, *middle, *between;
    uint8_t *codes;
    float *ranges, *sums; /* of each row: the step of its codes; the input of a norm */
} job;

/* ------------------------------------------------------------------------------ linear maps */

enum ending { TO_BF16, TO_ACTIVATION, TO_SUM };

static int64_t rows_of_block(const matrix *map, int is_int8) {
    int64_t rows = BLOCK_BYTES / (map->inputs * (is_int8 ? 1 : 2));
    return rows < MOST_ROWS ? MOST_ROWS : rows;
}

static int64_t blocks_of(const job *all, const matrix *map) {
    int64_t rows = rows_of_block(map, all->net->is_int8);
    return (all->rows + rows - 1) / rows;
}

static int64_t items_of(const job *all, const matrix *map) {
    return blocks_of(all, map) * (map->outputs / PANEL);
}

/* Turn a tile's sums into outputs: add the bias, then apply the activation or add the residual. */
INLINE void finish(const job *all, const matrix *map, int is_int8, enum ending ending,
                   int activation, const float (*sums)[PANEL], int64_t row, int64_t rows,
                   int64_t column, const bf16 *residual, void *to) {
    const float *ranges = is_int8 && !map->slope ? all->ranges + row : NULL;
    int64_t outputs = map->outputs;
    for (int half = 0; half < PANEL; half += 16) {
        int64_t at = column + half, place = row * outputs + at;
        __m512 bias = _mm512_loadu_ps(map->bias + at), scale;
        __m512i offset;
        if (is_int8) {
            scale = _mm512_loadu_ps(map->scales + at);
            offset = _mm512_loadu_si512(map->offsets + at);
        }
        for (int64_t r = 0; r < rows; r++, place += outputs) {
            __m512 y = _mm512_load_ps(&sums[r][half]);
            if (is_int8) {
                __m512i sum = _mm512_sub_epi32(_mm512_castps_si512(y), offset);
                y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                if (ranges) y = _mm512_mul_ps(y, _mm512_set1_ps(ranges[r]));
            }
            y = _mm512_add_ps(y, bias);
            if (ending == TO_SUM) {
                y = _mm512_add_ps(y, load_bf16(residual + place));
                _mm512_storeu_ps((float *)to + place, y);
                continue;
            }
            if (ending == TO_ACTIVATION)
                y = activation == GELU        ? gelu(y)
                    : activation == GELU_TANH ? gelu_tanh(y)
                                              : _mm512_max_ps(_mm512_setzero_ps(), y); /* NaN stays */
            store_bf16((bf16 *)to + place, y);
        }
    }
}

/* One item of a linear map: a block of rows, and the outputs of a panel. */
INLINE void multiply(const job *all, const matrix *map, int64_t item, const bf16 *x, enum ending ending,
                     const bf16 *residual, void *to) {
    int is_int8 = all->net->is_int8, activation = all->net->activation;
    int64_t panels = map->outputs / PANEL, blocks = blocks_of(all, map);
    int64_t block = item / panels, column = item % panels * PANEL;
    int64_t row = all->rows * block / blocks, end = all->rows * (block + 1) / blocks;
    int64_t tiles = (end - row + MOST_ROWS - 1) / MOST_ROWS;
    int64_t groups = map->inputs / (is_int8 ? 4 : 2), first = row, count = end - row;
    const char *panel = (const char *)map->packed + column / PANEL * groups * 2 * LINE;
    _Alignas(LINE) float sums[MOST_ROWS][PANEL];
    for (int64_t tile = 0; tile < tiles; tile++, row = end) {
        end = first + count * (tile + 1) / tiles;
        int64_t rows = end - row;
        if (is_int8) {
            tiles_int8(rows, all->codes + row * map->inputs, map->inputs, panel, groups, sums[0],
                       PANEL);
            finish(all, map, 1, ending, activation, sums, row, rows, column, residual, to);
        } else {
            tiles_bf16(rows, x + row * map->inputs, map->inputs * 2, panel, groups, sums[0], PANEL);
            finish(all, map, 0, ending, activation, sums, row, rows, column, residual, to);
        }
    }
}

static void map_qkv(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    multiply(all, &all->net->query_key_value, item, all->hidden, TO_BF16, NULL, all->qkv);
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
    attention of = {.qkv = all->qkv, .context = all->context};
    of.heads = heads;
    of.size = all->width / heads;
    attend(&of, start, length, head, 0, bias_of(all->bias, all->bias_length, head, 0), scratch);
}

/* --------------------------------------------------------------------------- rows: norms, codes */

#define ROWS_AT_ONCE 8

static int64_t row_items(const job *all) { return (all->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; }

INLINE void normalize(const job *all, int64_t item, int which, bf16 *to) {
    int64_t width = all->width, first = item * ROWS_AT_ONCE;
    for (int64_t r = first; r < first + ROWS_AT_ONCE && r < all->rows; r++)
        norm(all->sums + r * width, width, all->net->norms[which], all->net->epsilon[which],
             to + r * width);
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

/* Compute the codes of some rows, from each row's range or each input's line. They are shifted by
   128 to be unsigned. */
INLINE void encode(const job *all, int64_t item, const matrix *map, const bf16 *x) {
    int64_t inputs = map->inputs;
    for (int64_t r = item * ROWS_AT_ONCE; r < (item + 1) * ROWS_AT_ONCE && r < all->rows; r++) {
        const bf16 *row = x + r * inputs;
        __m512 slope = _mm512_setzero_ps(), start = _mm512_setzero_ps();
        if (!map->slope) {
            __m512 nothing = _mm512_setzero_ps(); /* NaN if an input is not finite */
            for (int64_t at = 0; at < inputs; at += 16) {
                __m512 input = load_bf16(row + at);
                slope = _mm512_max_ps(slope, _mm512_abs_ps(input));
                nothing = _mm512_fmadd_ps(input, _mm512_setzero_ps(), nothing);
            }
            float largest = _mm512_reduce_max_ps(slope);
            all->ranges[r] = (largest < 1e-30f ? 1e-30f : largest) / 127;
            slope = _mm512_set1_ps(1 / all->ranges[r]);
            all->ranges[r] += _mm512_reduce_add_ps(nothing);
        }
        for (int64_t at = 0; at < inputs; at += 16) {
            if (map->slope) {
                slope = _mm512_loadu_ps(map->slope + at);
                start = _mm512_loadu_ps(map->start + at);
            }
            __m512 code = _mm512_fmadd_ps(load_bf16(row + at), slope, start);
            __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(code)); /* to -128 … 127 */
            bytes = _mm_xor_si128(bytes, _mm_set1_epi8((char)128));
            _mm_storeu_si128((__m128i *)(all->codes + r * inputs + at), bytes);
        }
    }
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
    if (net->is_int8) together(team, 0, rows, encode_hidden, all, scratch);
    together(team, 1, items_of(all, &net->query_key_value), map_qkv, all, scratch);
    together(team, 2, all->sequences * net->heads, attend_item, all, scratch);
    if (net->is_int8) together(team, 3, rows, encode_context, all, scratch);
    together(team, 4, items_of(all, &net->output), map_output, all, scratch);
    together(team, 5, rows, norm_first, all, scratch);
    if (net->is_int8) together(team, 6, rows, encode_middle, all, scratch);
    together(team, 7, items_of(all, &net->inner), map_inner, all, scratch);
    if (net->is_int8) together(team, 8, rows, encode_between, all, scratch);
    together(team, 9, items_of(all, &net->outer), map_outer, all, scratch);
    together(team, 10, rows, norm_second, all, scratch);
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

/* Run a stack of layers with the same geometry on `hidden`; `result` is the output of the last.
   Both are [tokens, width], of packed sequences.

   `edges` has the beginning of each sequence, and the end of the last. `bias` is null or the score
   bias of all layers: the numbers of `bias_of`, for sequences of up to `bias_length` tokens.
   `parallel` runs a function in at most `threads` threads, including the caller. Returns 0, or 1 if
   there is no memory. */
int bertworks_layers(const layer *nets, int64_t layers, const bf16 *hidden, bf16 *result,
                     const int32_t *edges, int64_t sequences, const float *bias,
                     int64_t bias_length, int64_t threads, parallel_fn parallel) {
    int64_t width = nets->output.outputs, inner = nets->inner.outputs, rows = 0, end;
    int64_t widest = inner > width ? inner : width;
    int64_t bytes_of_row = 2 * (3 * width + width + width + inner) + 4 * width + 4 + widest;
    int64_t most = BATCH_BYTES / bytes_of_row;
    for (int64_t first = 0; first < sequences; first = end) {
        end = end_of_batch(edges, sequences, first, most);
        if (edges[end] - edges[first] > rows) rows = edges[end] - edges[first];
    }
    job all = {.width = width, .bias = bias, .bias_length = bias_length};
    all.all.scratch_bytes = attention_bytes(longest_of(edges, sequences), width / nets->heads);
    int64_t bytes = rows * bytes_of_row + threads * all.all.scratch_bytes + 16 * LINE;
    char *memory = aligned_alloc(LINE, bytes / LINE * LINE), *free_from = memory;
    if (!memory) return 1;
    all.qkv = (bf16 *)take(&free_from, rows * 3 * width * 2);
    all.context = (bf16 *)take(&free_from, rows * width * 2);
    all.middle = (bf16 *)take(&free_from, rows * width * 2);
    all.between = (bf16 *)take(&free_from, rows * inner * 2);
    all.sums = (float *)take(&free_from, rows * width * 4);
    all.ranges = (float *)take(&free_from, rows * 4);
    all.codes = (uint8_t *)take(&free_from, rows * widest);
    all.all.scratch = take(&free_from, threads * all.all.scratch_bytes);
    for (int64_t first = 0; first < sequences; first = end) {
        end = end_of_batch(edges, sequences, first, most);
        all.edges = edges + first;
        all.sequences = end - first;
        all.rows = edges[end] - edges[first];
        all.hidden = hidden + edges[first] * width;
        all.result = result + edges[first] * width;
        for (all.net = nets; all.net < nets + layers; all.net++) {
            run_team(&all.all, layer_work, &all, threads, parallel);
            all.hidden = all.result; /* in place: written after all of it was read */
        }
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
    char *to = all->to + item * all->groups * 2 * LINE;
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

/* Pack `[outputs, groups]` numbers of 32 bits, or twice as many float32 ones as bfloat16; rows are
   `stride` bytes apart. */
void bertworks_pack(const void *from, int64_t outputs, int64_t groups, int64_t stride,
                    int64_t are_floats, void *to, int64_t threads, parallel_fn parallel) {
    packing all = {.from = from, .to = to, .outputs = outputs, .groups = groups, .stride = stride};
    all.are_floats = are_floats;
    run_team(&all.all, pack_work, &all, threads, parallel);
}
