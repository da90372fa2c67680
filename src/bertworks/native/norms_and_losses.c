/* Operations between the products of training, row by row: the norm of a residual plus values after
   dropout; GELU; and the cross-entropy of logits. Forward and backward are one pass each. */

#include "training.h"

#define ROWS_OF_ITEM 16

/* Norm of `residual + dropout(x)`, all [rows, width]. */
typedef struct {
    const bf16 *x, *residual;
    bf16 *sums, *result;         /* the norm's input and its result */
    float *means, *inverses;     /* of each row: the mean, and 1 / standard deviation */
    const float *scale, *shift;  /* the norm's weights */
    int64_t rows, width;
    float epsilon;
    float kept;                  /* 1 / (1 - dropout) */
    uint32_t below;              /* a value is dropped if its random number is less */
    uint32_t seed;
    /* for backward only: */
    const bf16 *gradient;        /* of the result */
    bf16 *d_x, *d_residual;
    float *d_scale, *d_shift;    /* [items, width]: of each item's rows */
} add_and_norm;

typedef struct {
    team all;
    const add_and_norm *of;
} add_and_norm_job;

INLINE __mmask16 stays(const add_and_norm *of, int64_t row, int64_t at) {
    __m512i place = _mm512_add_epi32(_mm512_set1_epi32((int)(row * of->width + at)), counted());
    return not_dropped(place, of->seed, of->below);
}

static void add_forward(const void *given, int64_t item, char *scratch) {
    const add_and_norm *of = ((const add_and_norm_job *)given)->of;
    int64_t width = of->width, end = (item + 1) * ROWS_OF_ITEM;
    __m512 kept = _mm512_set1_ps(of->kept);
    (void)scratch;
    for (int64_t r = item * ROWS_OF_ITEM; r < end && r < of->rows; r++) {
        bf16 *sums = of->sums + r * width;
        __m512 total = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (int64_t at = 0; at < width; at += 16) {
            __m512 x = load_bf16(of->x + r * width + at);
            if (of->below) x = _mm512_maskz_mul_ps(stays(of, r, at), x, kept);
            store_bf16(sums + at, _mm512_add_ps(x, load_bf16(of->residual + r * width + at)));
            total = _mm512_add_ps(total, load_bf16(sums + at));
        }
        float mean = _mm512_reduce_add_ps(total) / width;
        for (int64_t at = 0; at < width; at += 16) {
            __m512 d = _mm512_sub_ps(load_bf16(sums + at), _mm512_set1_ps(mean));
            squares = _mm512_fmadd_ps(d, d, squares);
        }
        float inverse = 1 / __builtin_sqrtf(_mm512_reduce_add_ps(squares) / width + of->epsilon);
        for (int64_t at = 0; at < width; at += 16) {
            __m512 d = _mm512_sub_ps(load_bf16(sums + at), _mm512_set1_ps(mean));
            d = _mm512_mul_ps(d, _mm512_set1_ps(inverse));
            store_bf16(of->result + r * width + at,
                       _mm512_fmadd_ps(d, _mm512_loadu_ps(of->scale + at),
                                       _mm512_loadu_ps(of->shift + at)));
        }
        of->means[r] = mean;
        of->inverses[r] = inverse;
    }
}

static void add_backward(const void *given, int64_t item, char *scratch) {
    const add_and_norm *of = ((const add_and_norm_job *)given)->of;
    int64_t width = of->width, end = (item + 1) * ROWS_OF_ITEM;
    float *d_scale = of->d_scale + item * width, *d_shift = of->d_shift + item * width;
    __m512 kept = _mm512_set1_ps(of->kept);
    (void)scratch;
    memset(d_scale, 0, width * sizeof(float));
    memset(d_shift, 0, width * sizeof(float));
    for (int64_t r = item * ROWS_OF_ITEM; r < end && r < of->rows; r++) {
        const bf16 *sums = of->sums + r * width, *gradient = of->gradient + r * width;
        __m512 mean = _mm512_set1_ps(of->means[r]), inverse = _mm512_set1_ps(of->inverses[r]);
        __m512 total = _mm512_setzero_ps(), along = _mm512_setzero_ps();
        for (int64_t at = 0; at < width; at += 16) {
            __m512 z = _mm512_mul_ps(_mm512_sub_ps(load_bf16(sums + at), mean), inverse);
            __m512 g = load_bf16(gradient + at), d = _mm512_mul_ps(g, _mm512_loadu_ps(of->scale + at));
            total = _mm512_add_ps(total, d);
            along = _mm512_fmadd_ps(d, z, along);
            _mm512_storeu_ps(d_scale + at, _mm512_fmadd_ps(g, z, _mm512_loadu_ps(d_scale + at)));
            _mm512_storeu_ps(d_shift + at, _mm512_add_ps(g, _mm512_loadu_ps(d_shift + at)));
        }
        __m512 common = _mm512_set1_ps(_mm512_reduce_add_ps(total) / width);
        __m512 share = _mm512_set1_ps(_mm512_reduce_add_ps(along) / width);
        for (int64_t at = 0; at < width; at += 16) {
            __m512 z = _mm512_mul_ps(_mm512_sub_ps(load_bf16(sums + at), mean), inverse);
            __m512 d = _mm512_mul_ps(load_bf16(gradient + at), _mm512_loadu_ps(of->scale + at));
            d = _mm512_sub_ps(_mm512_sub_ps(d, common), _mm512_mul_ps(z, share));
            d = _mm512_mul_ps(d, inverse);
            store_bf16(of->d_residual + r * width + at, d);
            if (of->below) d = _mm512_maskz_mul_ps(stays(of, r, at), d, kept);
            store_bf16(of->d_x + r * width + at, d);
        }
    }
}

int64_t bertworks_add_and_norm_items(int64_t rows) { return (rows + ROWS_OF_ITEM - 1) / ROWS_OF_ITEM; }

static void add_and_norm_work(void *given) {
    add_and_norm_job *all = given;
    together(&all->all, 0, bertworks_add_and_norm_items(all->of->rows),
             all->of->gradient ? add_backward : add_forward, all, NULL);
}

/* The norm of a sum or, if the norm's gradient is given, the gradients of its inputs. */
void bertworks_add_and_norm(const add_and_norm *of, int64_t threads, parallel_fn parallel) {
    add_and_norm_job all = {.of = of};
    run_team(&all.all, add_and_norm_work, &all, threads, parallel);
}

/* GELU of `x` or, if GELU's gradient is given, the gradient of `x`. */
typedef struct {
    team all;
    const bf16 *x, *gradient;
    bf16 *result;
    int64_t count;
} gelu_job;

#define NUMBERS_OF_ITEM 65536

static void gelu_item(const void *given, int64_t item, char *scratch) {
    const gelu_job *all = given;
    int64_t end = (item + 1) * NUMBERS_OF_ITEM;
    (void)scratch;
    for (int64_t at = item * NUMBERS_OF_ITEM; at < end && at < all->count; at += 16) {
        __m512 x = load_bf16(all->x + at), y;
        if (all->gradient)
            y = _mm512_mul_ps(load_bf16(all->gradient + at), gelu_slope(x));
        else
            y = gelu(x, 0);
        store_bf16(all->result + at, y);
    }
}

static void gelu_work(void *given) {
    gelu_job *all = given;
    together(&all->all, 0, (all->count + NUMBERS_OF_ITEM - 1) / NUMBERS_OF_ITEM, gelu_item, all,
             NULL);
}

/* `count` is a multiple of 16. */
void bertworks_gelu(const bf16 *x, const bf16 *gradient, bf16 *result, int64_t count,
                    int64_t threads, parallel_fn parallel) {
    gelu_job all = {.x = x, .gradient = gradient, .result = result, .count = count};
    run_team(&all.all, gelu_work, &all, threads, parallel);
}

/* Cross-entropy of logits [rows, classes]. These are replaced by exponentials, the highest of each
   row being 1. */
typedef struct {
    bf16 *logits;
    const float *bias;      /* of each class, or null */
    const int64_t *labels;  /* of the first `labelled` rows */
    float *losses;          /* of each labelled row */
    float *inverses;        /* of each row: 1 / the sum of the exponentials; 0 without a label */
    int64_t rows, labelled, classes;
} entropy;

typedef struct {
    team all;
    const entropy *of;
} entropy_job;

/* Up to 16 logits from `at` on; negative infinity after the last class. */
INLINE __m512 logits_at(const entropy *of, const bf16 *row, int64_t at, __mmask16 some) {
    __m512 x = floats_of(_mm256_maskz_loadu_epi16(some, row + at));
    if (of->bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(some, of->bias + at));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), some, x);
}

static void entropy_item(const void *given, int64_t r, char *scratch) {
    const entropy *of = ((const entropy_job *)given)->of;
    int64_t classes = of->classes, label = r < of->labelled ? of->labels[r] : 0;
    bf16 *row = of->logits + r * classes;
    __m512 most = _mm512_set1_ps(-__builtin_inff()), total = _mm512_setzero_ps();
    int is_class = label >= 0 && label < classes; /* else the loss is NaN */
    float wanted = is_class ? _mm512_cvtss_f32(logits_at(of, row, label, 1)) : __builtin_nanf("");
    (void)scratch;
    for (int64_t at = 0; at < classes; at += 16)
        most = _mm512_max_ps(logits_at(of, row, at, before(at, classes)), most);
    float highest = _mm512_reduce_max_ps(most);
    __m512 factor = _mm512_set1_ps(LOG2E), shift = _mm512_set1_ps(-highest * LOG2E);
    for (int64_t at = 0; at < classes; at += 16) {
        __mmask16 some = before(at, classes);
        __m512 x = _mm512_fmadd_ps(logits_at(of, row, at, some), factor, shift);
        __m512 e = _mm512_maskz_mov_ps(some, power_of_two(x));
        total = _mm512_add_ps(total, e);
        _mm256_mask_storeu_epi16(row + at, some, (__m256i)_mm512_cvtneps_pbh(e));
    }
    float sum = _mm512_reduce_add_ps(total);
    of->inverses[r] = r < of->labelled ? 1 / sum : 0;
    if (r < of->labelled) of->losses[r] = __builtin_logf(sum) + highest - wanted;
}

static void entropy_work(void *given) {
    entropy_job *all = given;
    together(&all->all, 0, all->of->rows, entropy_item, all, NULL);
}

void bertworks_entropy(const entropy *of, int64_t threads, parallel_fn parallel) {
    entropy_job all = {.of = of};
    run_team(&all.all, entropy_work, &all, threads, parallel);
}
