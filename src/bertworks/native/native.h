/* The structures of calls from Python, and the functions that exist for each instruction set.

   Python's `native/library.py` has the same structures. */

#ifndef BERTWORKS_NATIVE
#define BERTWORKS_NATIVE

#include <stdint.h>

/* The precision of a layer: of its products, and of the numbers between them. */
enum precision { BF16 = 0, INT8 = 1, FP32 = 2, INT8_IN_FP32 = 3 };

/* A linear map. */
typedef struct {
    const void *packed;
    const float *bias;
    int64_t inputs, outputs;
    /* for 8-bit weights, otherwise null: */
    const float *scales;    /* of each output */
    const int32_t *offsets; /* 128 times the sum of each output's codes */
    const float *start, *slope; /* code of an input x: start + slope · x; null: by row's range */
} matrix;

/* The norms of a layer. With norms first, those of attention's and the feed-forward layer's inputs,
   and one after the last layer of a stack; else those of the two sums. */
enum { ATTENTION, FEED_FORWARD, FINAL, NORMS };

/* The inputs and outputs of maps are whole panels: hidden states, each head, and the inner states of
   the feed-forward layer are filled with zeros. So all numbers that follow from them are zeros, and
   only norms, rotations and the scale of scores need the width without them. */
typedef struct {
    matrix query_key_value, output;
    matrix inner, outer;         /* a gated layer's inner map has twice the outputs: gates follow */
    const float *norms[NORMS][2]; /* scale and shift; null: there is no such norm, or no shift */
    int64_t heads, key_heads;    /* of queries; of keys and of values */
    int64_t activation, precision;
    int64_t width;  /* of hidden states; a head's size is a part of it */
    int64_t window; /* the largest distance at which tokens attend to each other; negative: any */
    float epsilon;
    int32_t has_norms_first, has_rms_norms, is_gated;
} layer;

/* The sequences of tokens, and what attention needs to know of their positions. */
typedef struct {
    const int32_t *edges; /* the beginning of each sequence, and the end of the last */
    int64_t sequences;
    const float *bias; /* null, or the score bias of all layers: the numbers of `bias_of` */
    int64_t bias_length; /* the longest sequence for which there are numbers */
    /* null, or of layers without and with a window: each token's cosines, then its sines, of the
       angles by which pairs of queries' and keys' numbers are rotated: those of a head's halves */
    const float *rotations[2];
} sequences;

enum { WORD, POSITION, TYPE, TABLES };

typedef struct {
    const float *tables[TABLES]; /* [entries, width]; null: the network has no such table */
    const float *norm[2];        /* scale and shift; null: there is no norm, or no shift */
    int64_t entries[TABLES];
    int64_t width;
    int64_t offset; /* of positions */
    float epsilon;
    int32_t is_fp32; /* the result's numbers, which else are bfloat16 */
    int32_t has_rms_norm;
} embeddings;

typedef struct {
    const float *query;       /* [queries, heads, size] */
    const float *key, *value; /* [tokens, key heads, size] */
    int64_t strides[3];               /* numbers from one token to the next, of each of them */
    float *context;                   /* [queries, heads, size] */
    const int32_t *edges, *key_edges; /* of sequences in the queries, and in the keys */
    int64_t sequences, heads, size;
    const float *bias; /* null, or the numbers of `bias_of` */
    int64_t bias_length;
    int64_t padding; /* how many of a head's numbers are zeros at its end */
    int64_t key_heads;
    int64_t window; /* of a layer */
} attention_fp32;

/* Run a stack of layers with the same geometry and precision on `hidden`; `result` is the output of
   the last. Both are [tokens, width], of packed sequences, float32 or bfloat16 as the precision says.
   At most `threads` threads work, including the caller. Returns 0, or 1 if there is no memory. */
typedef int layers_fn(const layer *nets, int64_t layers, const void *hidden, void *result,
                      const sequences *of, int64_t threads);

/* The normalised sums of tokens' embeddings, [tokens, width]. Returns 0; 1 if there is no memory; 2
   if a token, position or type is not in its table. */
typedef int embeddings_fn(const embeddings *of, const int64_t *ids, const int64_t *positions,
                          const int64_t *types, int64_t tokens, void *result, int64_t threads);

/* The mean of each sequence's vectors, float32 [sequences, width]; with `unit`, of length 1. */
typedef void means_fn(const void *hidden, const int32_t *edges, int64_t sequences, int64_t width,
                      int64_t unit, float *means, int64_t threads);

/* Pack `[outputs, groups]` numbers of 32 bits, or twice as many float32 ones as bfloat16; rows are
   `stride` bytes apart. */
typedef void pack_fn(const void *from, int64_t outputs, int64_t groups, int64_t stride,
                     int64_t are_floats, void *to, int64_t threads);

/* softmax(Q Kᵀ / √d + bias) V in float32. Returns 0, or 1 if there is no memory. */
typedef int attention_fp32_fn(const attention_fp32 *of, int64_t threads);

/* `x Wᵀ + b` in float32: `x` is [rows, inputs], the weight [outputs, inputs]; the bias may be null. */
typedef void linear_fn(const float *x, const float *weight, const float *bias, int64_t rows,
                       int64_t inputs, int64_t outputs, float *result, int64_t threads);

/* The mean of each text's rows, [texts, width]; zero for a text without rows; with `unit`, of
   length 1. Text `i` has the rows `ids[starts[i]]` up to `ids[starts[i + 1]]`. Returns 0; 1 if
   an id is not in the table of `rows` rows. */
typedef int mean_of_rows_fn(const float *table, int64_t rows, int64_t width, const int32_t *ids,
                            const int64_t *starts, int64_t texts, int64_t unit, float *means,
                            int64_t threads);

/* A function, number by number, for heads and tests: 0 and on, the activations; -1, 2 to the power
   of x. */
typedef void function_fn(const float *x, int64_t count, int64_t function, int64_t is_exact,
                         float *result);

#define FOR_EACH_FUNCTION(DO, isa)                                                                 \
    DO(layers, isa) DO(embeddings, isa) DO(means, isa) DO(means_fp32, isa) DO(pack, isa)           \
    DO(attention_fp32, isa) DO(linear, isa) DO(mean_of_rows, isa) DO(function, isa)

typedef means_fn means_fp32_fn;

#endif
