/* Attention in float32, for inference: softmax(Q Kᵀ / √d + bias) V within each sequence. */

#include "attention.h"

typedef struct {
    team all;
    const attention_fp32 *of;
} attention_fp32_job;

static void attention_fp32_item(const void *given, int64_t item, char *scratch) {
    const attention_fp32 *of = ((const attention_fp32_job *)given)->of;
    attend_fp32(of, item / of->heads, item % of->heads, scratch);
}

static void attention_fp32_work(void *given) {
    attention_fp32_job *all = given;
    together(&all->all, 0, all->of->sequences * all->of->heads, attention_fp32_item, all,
             join_team(&all->all));
}

int OF_ISA(attention_fp32)(const attention_fp32 *of, int64_t threads) {
    attention_fp32_job all = {.of = of};
    int64_t bytes = attention_fp32_bytes(longest_of(of->key_edges, of->sequences), of->size);
    return run_with_scratch(&all.all, bytes, attention_fp32_work, &all, threads, NULL);
}
