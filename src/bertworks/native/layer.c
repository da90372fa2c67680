/* A layer of BERT (attention, feed-forward, two norms), for inference.

   Products are of float32, bfloat16 or 8-bit integers; norms, softmax and activations are in float32.
   Each output is summed over its inputs in a fixed order, whatever the other rows are, so a text's
   vectors have the same bits in any batch and with any number of threads.

   A layer is a sequence of phases. Free threads take the items of a phase; a phase begins when all
   items of the previous phase are done. So any number of threads, even one, finishes the work. */

#include "layer_maps.h"

#define BATCH_BYTES 8388608 /* of the buffers of a batch: they stay in the level 3 cache */

/* -------------------------------------------------------------------------------- attention */

static void attend_item(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    const layer *net = all->net;
    int64_t heads = net->heads, sequence = item / heads, head = item % heads;
    int64_t start = all->edges[sequence] - all->edges[0];
    int64_t length = all->edges[sequence + 1] - all->edges[sequence];
    int64_t width = all->widths_of_heads, size = width / heads, key_width = net->key_heads * size;
    int64_t padding = size - net->width / heads, stride = net->query_key_value.outputs;
    const float *bias = all->of->bias;
    if (has_floats(net->precision)) {
        const float *qkv = all->qkv;
        int32_t edges[2] = {(int32_t)start, (int32_t)(start + length)};
        attention_fp32 of = {qkv, qkv + width, qkv + width + key_width, {stride, stride, stride},
                             all->context, edges, edges, 1, heads, size, bias, all->of->bias_length,
                             padding, net->key_heads, net->window};
        attend_fp32(&of, 0, head, scratch);
    } else {
        attention of = {.qkv = all->qkv, .context = all->context, .heads = heads, .size = size,
                        .padding = padding, .key_heads = net->key_heads, .window = net->window};
        attend(&of, start, length, head, 0, bias_of(bias, all->of->bias_length, head, 0), scratch);
    }
}

/* ----------------------------------------------------------- rows: norms, rotations, codes */

#define ROWS_AT_ONCE 8

static int64_t row_items(const job *all) { return (all->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE; }

/* Normalise rows of `sums`, or of numbers. */
INLINE void normalize(const job *all, int64_t item, int which, const void *from, int from_float,
                      void *to) {
    const layer *net = all->net;
    int64_t first = item * ROWS_AT_ONCE;
    for (int64_t r = first; r < first + ROWS_AT_ONCE && r < all->rows; r++)
        norm(from, r * all->width, from_float, net->width, net->norms[which], net->epsilon,
             net->has_rms_norms, to, r * all->width, has_floats(net->precision));
}

static void norm_inputs(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    if (has_floats(all->net->precision))
        normalize(all, item, ATTENTION, all->hidden, 1, all->middle);
    else
        normalize(all, item, ATTENTION, all->hidden, 0, all->middle);
}

static void norm_middle(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    normalize(all, item, all->net->has_norms_first ? FEED_FORWARD : ATTENTION, all->sums, 1,
              all->middle);
}

static void norm_result(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    normalize(all, item, all->net->has_norms_first ? FINAL : FEED_FORWARD, all->sums, 1,
              all->result);
}

/* Rotate the halves of each head of queries and keys. */
INLINE void rotate_row(void *qkv, int64_t place, int64_t heads, int64_t size, int64_t half,
                       const float *cosines, int is_float) {
    const float *sines = cosines + half;
    for (int64_t head = 0; head < heads; head++, place += size)
        for (int64_t at = 0; at < half; at += LANES) {
            int64_t count = half - at;
            vfloat cosine = load_some(cosines, at, count, 1), sine = load_some(sines, at, count, 1);
            vfloat x = load_some(qkv, place + at, count, is_float);
            vfloat y = load_some(qkv, place + half + at, count, is_float);
            store_some(qkv, place + at, count, is_float, f_fnma(y, sine, f_mul(x, cosine)));
            store_some(qkv, place + half + at, count, is_float, f_fma(x, sine, f_mul(y, cosine)));
        }
}

static const float *rotations_of(const job *all) { return all->of->rotations[all->net->window >= 0]; }

static void rotate_rows(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    const layer *net = all->net;
    int64_t size = all->widths_of_heads / net->heads, half = net->width / net->heads / 2;
    int64_t heads = net->heads + net->key_heads, first = item * ROWS_AT_ONCE;
    const float *angles = rotations_of(all) + all->edges[0] * 2 * half;
    (void)scratch;
    for (int64_t r = first; r < first + ROWS_AT_ONCE && r < all->rows; r++) {
        int64_t place = r * net->query_key_value.outputs;
        if (has_floats(net->precision))
            rotate_row(all->qkv, place, heads, size, half, angles + r * 2 * half, 1);
        else
            rotate_row(all->qkv, place, heads, size, half, angles + r * 2 * half, 0);
    }
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
            store_codes(all->codes + (row + at) * CODE_BYTES,
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

static void encode_inputs(const void *given, int64_t item, char *scratch) {
    const job *all = given;
    (void)scratch;
    encode(all, item, &all->net->query_key_value, all->inputs);
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

static int has_norm_of_inputs(const layer *net) {
    return net->has_norms_first && net->norms[ATTENTION][0];
}

static void layer_work(void *given) {
    job *all = given;
    const layer *net = all->net;
    team *team = &all->all;
    char *scratch = join_team(team);
    int64_t rows = row_items(all);
    int is_coded = has_codes((int)net->precision), is_gated = net->is_gated;
    if (has_norm_of_inputs(net)) together(team, 0, rows, norm_inputs, all, scratch);
    if (is_coded) together(team, 1, rows, encode_inputs, all, scratch);
    together(team, 2, items_of(all, &net->query_key_value, 0), map_qkv, all, scratch);
    if (rotations_of(all)) together(team, 3, rows, rotate_rows, all, scratch);
    together(team, 4, all->sequences * net->heads, attend_item, all, scratch);
    if (is_coded) together(team, 5, rows, encode_context, all, scratch);
    together(team, 6, items_of(all, &net->output, 0), map_output, all, scratch);
    together(team, 7, rows, norm_middle, all, scratch);
    if (is_coded) together(team, 8, rows, encode_middle, all, scratch);
    together(team, 9, items_of(all, &net->inner, is_gated), map_inner, all, scratch);
    if (is_coded) together(team, 10, rows, encode_between, all, scratch);
    together(team, 11, items_of(all, &net->outer, 0), map_outer, all, scratch);
    if (!net->has_norms_first || net->norms[FINAL][0])
        together(team, 12, rows, norm_result, all, scratch);
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

/* Compute a batch of sequences by all layers. `padded` has its states as whole panels; null: they
   are such. */
static void run_layers(job *all, const layer *nets, int64_t layers, const char *hidden, char *result,
                       char *padded, int64_t threads) {
    int64_t number = bytes_of_numbers((int)nets->precision);
    int64_t bytes_of_state = nets->width * number, place = all->edges[0] * bytes_of_state;
    all->hidden = padded ? padded : hidden + place;
    all->result = padded ? padded : result + place;
    if (padded)
        copy_rows(hidden + place, bytes_of_state, padded, all->width * number, all->rows);
    for (all->net = nets; all->net < nets + layers; all->net++) {
        all->inputs = has_norm_of_inputs(all->net) ? all->middle : all->hidden;
        run_team(&all->all, layer_work, all, threads, NULL);
        all->hidden = all->result; /* in place: written after all of it was read */
    }
    if (padded)
        copy_rows(padded, all->width * number, result + place, bytes_of_state, all->rows);
}

int OF_ISA(layers)(const layer *nets, int64_t layers, const void *hidden, void *result,
                   const sequences *of, int64_t threads) {
    int64_t width = nets->output.outputs, inner = nets->outer.inputs, rows = 0, end;
    int64_t heads = nets->output.inputs, qkv = nets->query_key_value.outputs;
    int64_t widest = inner > width ? inner : width, is_padded = width > nets->width;
    int64_t number = bytes_of_numbers((int)nets->precision);
    int64_t bytes_of_row = number * (qkv + heads + width + inner) + 4 * width + 4;
    if (heads > widest) widest = heads;
    bytes_of_row += CODE_BYTES * widest + (is_padded ? number * width : 0);
    const int32_t *edges = of->edges;
    int64_t most = BATCH_BYTES / bytes_of_row, longest = longest_of(edges, of->sequences);
    for (int64_t first = 0; first < of->sequences; first = end) {
        end = end_of_batch(edges, of->sequences, first, most);
        if (edges[end] - edges[first] > rows) rows = edges[end] - edges[first];
    }
    job all = {.width = width, .widths_of_heads = heads, .of = of};
    all.all.scratch_bytes = has_floats((int)nets->precision)
                                ? attention_fp32_bytes(longest, heads / nets->heads)
                                : attention_bytes(longest, heads / nets->heads);
    all.all.scratch_bytes = (all.all.scratch_bytes + LINE - 1) / LINE * LINE;
    int64_t bytes = rows * bytes_of_row + threads * all.all.scratch_bytes + 16 * LINE;
    char *memory = aligned_alloc(LINE, bytes / LINE * LINE), *free_from = memory;
    if (!memory) return 1;
    all.qkv = take(&free_from, rows * qkv * number);
    all.context = take(&free_from, rows * heads * number);
    all.middle = take(&free_from, rows * width * number);
    all.between = take(&free_from, rows * inner * number);
    all.sums = (float *)take(&free_from, rows * width * 4);
    all.ranges = (float *)take(&free_from, rows * 4);
    all.codes = (uint8_t *)take(&free_from, rows * widest * CODE_BYTES);
    char *padded = is_padded ? take(&free_from, rows * width * number) : NULL;
    if (is_padded) memset(all.middle, 0, rows * width * number); /* norms write no padding */
    all.all.scratch = take(&free_from, threads * all.all.scratch_bytes);
    for (int64_t first = 0; first < of->sequences; first = end) {
        end = end_of_batch(edges, of->sequences, first, most);
        all.edges = edges + first;
        all.sequences = end - first;
        all.rows = edges[end] - edges[first];
        run_layers(&all, nets, layers, hidden, result, padded, threads);
    }
    free(memory);
    return 0;
}
