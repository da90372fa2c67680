/* Compares the kernels of all instruction sets with the scalar ones, on layers of random shapes.

       compare_kernels SEED SHAPES

   Prints the largest difference of each instruction set and precision, relative to the largest
   number, and that of linear maps from float64; and checks that a sequence or a vector alone and more
   threads change no bit. `build_native.link` compiles it with the kernels, for this machine or
   another. */

#include "native.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bertworks_choose(const char *name);
const char *bertworks_isa(int64_t number);
layers_fn bertworks_layers;
pack_fn bertworks_pack;
embeddings_fn bertworks_embeddings;
means_fn bertworks_means, bertworks_means_fp32;
function_fn bertworks_function;
linear_fn bertworks_linear;

static uint64_t state;

static uint32_t random_bits(void) { /* Source: Steele et al. (2014), SplitMix64 */
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 32);
}

static int64_t whole(int64_t least, int64_t most) {
    return least + random_bits() % (uint32_t)(most - least + 1);
}

static float normal(float scale) { /* nearly */
    float sum = 0;
    for (int at = 0; at < 4; at++) sum += (float)random_bits() / 4294967296.0f - 0.5f;
    return sum * 1.7f * scale;
}

static void *allocate(int64_t bytes) {
    void *memory = malloc((size_t)bytes);
    if (!memory) exit(2);
    return memory;
}

static float *normals(int64_t count, float scale, float mean) {
    float *numbers = allocate(count * 4);
    for (int64_t at = 0; at < count; at++) numbers[at] = mean + normal(scale);
    return numbers;
}

#define PANEL 32

/* Numbers of which there are `parts`, each of `size` and filled with zeros to whole panels. */
typedef struct {
    int64_t parts, size;
} numbers;

static int64_t padded(int64_t size) { return (size + PANEL - 1) / PANEL * PANEL; }

static int64_t whole_size(numbers of) { return of.parts * padded(of.size); }

static int is_padding(numbers of, int64_t at) { return at % padded(of.size) >= of.size; }

static matrix random_map(numbers from, numbers to, int precision, int has_line) {
    int64_t inputs = whole_size(from), outputs = whole_size(to);
    float *weights = normals(inputs * outputs, 1.5f / sqrtf((float)(from.parts * from.size)), 0);
    for (int64_t at = 0; at < inputs * outputs; at++)
        if (is_padding(to, at / inputs) || is_padding(from, at % inputs)) weights[at] = 0;
    int is_coded = precision == INT8 || precision == INT8_IN_FP32;
    int64_t bytes = is_coded ? 1 : precision == BF16 ? 2 : 4;
    void *packed = allocate(inputs * outputs * bytes);
    float *biases = normals(outputs, 0.1f, 0);
    for (int64_t at = 0; at < outputs; at++)
        if (is_padding(to, at)) biases[at] = 0;
    matrix map = {packed, biases, inputs, outputs, NULL, NULL, NULL, NULL};
    if (!is_coded) {
        bertworks_pack(weights, outputs, inputs * bytes / 4, inputs * 4, precision == BF16, packed, 1);
    } else {
        int8_t *codes = allocate(inputs * outputs);
        float *scales = allocate(outputs * 4);
        int32_t *offsets = allocate(outputs * 4);
        for (int64_t row = 0; row < outputs; row++) {
            float most = 1e-9f;
            for (int64_t at = 0; at < inputs; at++)
                most = fmaxf(most, fabsf(weights[row * inputs + at]));
            scales[row] = most / 127;
            offsets[row] = 0;
            for (int64_t at = 0; at < inputs; at++) {
                codes[row * inputs + at] = (int8_t)lrintf(weights[row * inputs + at] / scales[row]);
                offsets[row] += 128 * codes[row * inputs + at];
            }
        }
        bertworks_pack(codes, outputs, inputs / 4, inputs, 0, packed, 1);
        free(codes);
        map.scales = scales;
        map.offsets = offsets;
        if (has_line) {
            float *start = normals(inputs, 3, 0), *slope = normals(inputs, 5, 30);
            for (int64_t at = 0; at < inputs; at++)
                if (is_padding(from, at)) start[at] = slope[at] = 0;
            map.start = start;
            map.slope = slope;
            for (int64_t row = 0; row < outputs; row++) scales[row] /= 30;
        }
    }
    free(weights);
    return map;
}

static void free_map(matrix *map) {
    free((void *)map->packed);
    free((void *)map->bias);
    free((void *)map->scales);
    free((void *)map->offsets);
    free((void *)map->start);
    free((void *)map->slope);
}

static float number(const void *from, int64_t at, int is_float) {
    if (is_float) return ((const float *)from)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)from)[at] << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

/* A layer of random weights, with the norms and all else that `kind` says. */
static layer random_layer(layer kind, numbers one, numbers of_heads, numbers inner, int has_line) {
    int precision = (int)kind.precision;
    numbers all = {kind.heads + 2 * kind.key_heads, of_heads.size};
    numbers first = {inner.parts * (1 + kind.is_gated), inner.size};
    kind.query_key_value = random_map(one, all, precision, has_line);
    kind.output = random_map(of_heads, one, precision, has_line);
    kind.inner = random_map(one, first, precision, has_line);
    kind.outer = random_map(inner, one, precision, has_line);
    for (int norm = 0; norm < NORMS; norm++) {
        int is_missing = kind.has_norms_first ? norm == ATTENTION && whole(0, 1) : norm == FINAL;
        kind.norms[norm][0] = is_missing ? NULL : normals(kind.width, 0.2f, 1);
        kind.norms[norm][1] = is_missing || kind.has_rms_norms ? NULL : normals(kind.width, 0.1f, 0);
    }
    return kind;
}

/* Cosines and sines of the angles of tokens. */
static float *random_rotations(int64_t tokens, int64_t pairs) {
    float *rotations = allocate(tokens * 2 * pairs * 4 + 4);
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t at = 0; at < pairs; at++) {
            float angle = normal(3);
            rotations[token * 2 * pairs + at] = cosf(angle);
            rotations[(token * 2 + 1) * pairs + at] = sinf(angle);
        }
    return rotations;
}

static const char *const precisions[] = {"bf16", "int8", "fp32", "int8 in fp32"};
/* A code that is rounded otherwise is one of 255 steps; bfloat16 has 8 bits. */
static const float tolerances[] = {0.03f, 0.06f, 1e-5f, 0.06f};
static float worst[16][4];
static int is_wrong;

static void compare(int precision) {
    int64_t key_heads = whole(1, 2), heads = key_heads * whole(1, 2), size = whole(0, 1) ? 32 * whole(1, 2) : whole(1, 100);
    int64_t width = heads * size, count = whole(1, 4), is_float = precision >= FP32;
    numbers one = {1, width}, of_heads = {heads, size}, inner = {1, whole(1, 300)};
    int64_t number_bytes = is_float ? 4 : 2;
    int32_t edges[5] = {0};
    for (int64_t at = 0; at < count; at++)
        edges[at + 1] = edges[at] + (int32_t)(whole(0, 3) ? whole(1, 40) : whole(1, 512));
    int64_t tokens = edges[count], has_bias = whole(0, 1), has_line = whole(0, 1);
    layer nets[2], kind = {.heads = heads, .key_heads = key_heads, .precision = precision};
    kind.width = width;
    kind.epsilon = 1e-6f;
    kind.activation = whole(0, 3);
    kind.has_norms_first = (int32_t)whole(0, 1);
    kind.has_rms_norms = (int32_t)whole(0, 1);
    kind.is_gated = (int32_t)whole(0, 1);
    for (int at = 0; at < 2; at++) {
        kind.window = whole(0, 1) ? whole(0, 1) ? whole(0, 9) : whole(0, 100) : -1;
        nets[at] = random_layer(kind, one, of_heads, inner, (int)has_line);
    }
    const float *scale = nets[0].norms[FINAL][0], *shift = nets[0].norms[FINAL][1];
    nets[0].norms[FINAL][0] = nets[0].norms[FINAL][1] = NULL; /* the last layer alone has it */
    free((void *)scale);
    free((void *)shift);
    int is_rotated = size % 2 == 0 && whole(0, 1);
    float *rotations[2] = {NULL, NULL};
    for (int at = 0; at < 2 && is_rotated; at++) rotations[at] = random_rotations(tokens, size / 2);
    float *states = normals(tokens * width, 1, 0), *bias = normals(heads * 1023, 1, 0);
    char *hidden = allocate(tokens * width * number_bytes);
    char *result = allocate(tokens * width * number_bytes), *other = allocate(tokens * width * number_bytes);
    char *expected = allocate(tokens * width * number_bytes);
    memcpy(hidden, states, (size_t)(is_float ? tokens * width * 4 : 0));
    for (int64_t at = 0; !is_float && at < tokens * width; at++) {
        uint32_t bits;
        memcpy(&bits, states + at, 4);
        ((uint16_t *)hidden)[at] = (uint16_t)(bits >> 16);
    }
    for (int64_t isa = 0; bertworks_isa(isa); isa++) {
        if (bertworks_choose(bertworks_isa(isa))) continue; /* not on this processor */
        sequences of = {edges, count, has_bias ? bias : NULL, 512, {rotations[0], rotations[1]}};
        bertworks_layers(nets, 2, hidden, result, &of, 1);
        if (!isa) memcpy(expected, result, (size_t)(tokens * width * number_bytes));
        float most = 0, difference = 0;
        for (int64_t at = 0; at < tokens * width; at++) {
            float one = number(expected, at, (int)is_float), two = number(result, at, (int)is_float);
            if (isnan(one) || isnan(two)) is_wrong = 1;
            most = fmaxf(most, fabsf(one));
            difference = fmaxf(difference, fabsf(one - two));
        }
        worst[isa][precision] = fmaxf(worst[isa][precision], difference / most);
        if (!(difference / most < tolerances[precision])) {
            printf("%s, %s: %g\n", bertworks_isa(isa), precisions[precision], difference / most);
            is_wrong = 1;
        }
        bertworks_layers(nets, 2, hidden, other, &of, 3);
        if (memcmp(result, other, (size_t)(tokens * width * number_bytes))) {
            printf("%s, %s: three threads differ\n", bertworks_isa(isa), precisions[precision]);
            is_wrong = 1;
        }
        int64_t last = edges[count - 1] * width * number_bytes;
        const int32_t alone[2] = {0, edges[count] - edges[count - 1]};
        of.edges = alone;
        of.sequences = 1;
        for (int at = 0; at < 2 && is_rotated; at++)
            of.rotations[at] = rotations[at] + edges[count - 1] * (size / 2) * 2;
        bertworks_layers(nets, 2, hidden + last, other, &of, 1);
        if (memcmp(result + last, other, (size_t)(tokens * width * number_bytes - last))) {
            printf("%s, %s: a sequence alone differs\n", bertworks_isa(isa), precisions[precision]);
            is_wrong = 1;
        }
    }
    for (int at = 0; at < 2; at++) {
        free_map(&nets[at].query_key_value);
        free_map(&nets[at].output);
        free_map(&nets[at].inner);
        free_map(&nets[at].outer);
        for (int part = 0; part < 2 * NORMS; part++)
            free((void *)nets[at].norms[part / 2][part % 2]);
        free(rotations[at]);
    }
    free(states);
    free(bias);
    free(hidden);
    free(result);
    free(other);
    free(expected);
}

/* Linear maps of heads: beside float64, with more threads, and of a vector alone. */
static float compare_linear(void) {
    /* Every fourth map is large enough for more than one thread. */
    int64_t rows = whole(1, 9), inputs = whole(1, 130), outputs = whole(1, 70);
    if (!whole(0, 3)) inputs += 512, outputs += 128;
    float *x = normals(rows * inputs, 1, 0), *bias = normals(outputs, 1, 0);
    float *weight = normals(inputs * outputs, 1 / sqrtf((float)inputs), 0);
    const float *given_bias = whole(0, 1) ? bias : NULL;
    float *result = allocate(rows * outputs * 4), *other = allocate(rows * outputs * 4), error = 0;
    bertworks_linear(x, weight, given_bias, rows, inputs, outputs, result, 1);
    for (int64_t at = 0; at < rows * outputs; at++) {
        double sum = given_bias ? bias[at % outputs] : 0;
        for (int64_t in = 0; in < inputs; in++)
            sum += (double)x[at / outputs * inputs + in] * weight[at % outputs * inputs + in];
        error = fmaxf(error, (float)fabs(result[at] - sum));
        if (isnan(result[at])) is_wrong = 1;
    }
    bertworks_linear(x, weight, given_bias, rows, inputs, outputs, other, 3);
    int is_same = !memcmp(result, other, (size_t)(rows * outputs) * 4);
    int64_t last = rows - 1;
    bertworks_linear(x + last * inputs, weight, given_bias, 1, inputs, outputs, other, 1);
    is_same &= !memcmp(result + last * outputs, other, (size_t)outputs * 4);
    if (!is_same || !(error < 1e-5f)) {
        printf("linear map of %d vectors: %s\n", (int)rows, is_same ? "wrong" : "bits differ");
        is_wrong = 1;
    }
    free(x);
    free(bias);
    free(weight);
    free(result);
    free(other);
    return error;
}

/* The largest error of 2 to the power of x, GELU, its tanh form and SiLU, in units of 2⁻²⁴. */
static void compare_functions(int64_t isa) {
    enum { COUNT = 1 << 16 };
    static float x[COUNT], y[COUNT];
    static const char *const names[] = {"exp2", "GELU", "tanh GELU", "ReLU", "SiLU"};
    for (int64_t function = -1; function < 4; function++) {
        if (function == 2) continue; /* ReLU */
        double error = 0;
        for (int at = 0; at < COUNT; at++)
            x[at] = function < 0 ? -126.0f * at / COUNT : 24.0f * at / COUNT - 12.0f;
        bertworks_function(x, COUNT, function, 1, y);
        for (int at = 0; at < COUNT; at++) {
            double z = x[at], u = 0.7978845608028654 * (z + 0.044715 * z * z * z);
            double exact = function < 0    ? exp2(z)
                           : function == 0 ? z * 0.5 * erfc(-z / sqrt(2.0))
                                           : z / (1 + exp(function == 1 ? -2 * u : -z));
            /* An activation of a number is as exact as the number, the power as the power. */
            double unit = (function < 0 ? exact : fmax(fabs(exact), fabs(z) * 0.001)) / 16777216.0;
            if (unit) error = fmax(error, fabs(y[at] - exact) / unit);
        }
        printf(" %s %.1f", names[function + 1], error);
        if (!(error < 32)) is_wrong = 1;
    }
    printf("  (2^-24)  %s\n", bertworks_isa(isa));
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    state = (uint64_t)atoll(arguments[1]);
    for (int shape = 0; shape < atoi(arguments[2]); shape++) compare(shape % 4);
    for (int64_t isa = 0; bertworks_isa(isa); isa++) {
        if (bertworks_choose(bertworks_isa(isa))) continue;
        printf("%-12s", bertworks_isa(isa));
        for (int precision = 0; precision < 4; precision++)
            printf("  %s %.2g", precisions[precision], worst[isa][precision]);
        float error = 0;
        for (int map = 0; map < 40; map++) error = fmaxf(error, compare_linear());
        printf("  linear %.2g", error);
        compare_functions(isa);
    }
    return is_wrong;
}
