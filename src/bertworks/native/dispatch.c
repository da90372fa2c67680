/* The kernels of the best instruction set that the processor has, or of the one that is chosen.

   `build_native.py` compiles the kernels for each instruction set of ISAS, the best one last. */

#include "native.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* The checksum of the compiled source files, so that an outdated library is not used. */
unsigned bertworks_source(void) { return SOURCE; }

#define JOINED(name, isa) name##_##isa
#define DECLARE(name, isa) extern name##_fn JOINED(name, isa);
#define POINTER(name, isa) name##_fn *name;
#define ADDRESS(name, isa) JOINED(name, isa),

#define DO(isa) FOR_EACH_FUNCTION(DECLARE, isa)
ISAS
#undef DO

/* The kernels that are faster than PyTorch's. */
enum { IN_BF16 = 1, IN_INT8 = 2, IN_FP32 = 4, IN_TRAINING = 8 };

typedef struct {
    const char *name;
    FOR_EACH_FUNCTION(POINTER, )
} instruction_set;

#define DO(isa) {#isa, FOR_EACH_FUNCTION(ADDRESS, isa)},
static const instruction_set all[] = {ISAS};
#undef DO

#define COUNT ((int)(sizeof all / sizeof all[0]))

#if defined(__x86_64__)
/* By `cpuid` itself: a compiler's own function is not the same in each of them. */
enum { EAX, EBX, ECX, EDX };

static int has_bit(unsigned leaf, unsigned subleaf, int word, int bit) {
    unsigned words[4];
    return __get_cpuid_count(leaf, subleaf, &words[EAX], &words[EBX], &words[ECX], &words[EDX]) &&
           words[word] >> bit & 1;
}

/* Whether the system saves all of these registers, of which XCR0 has a bit each. */
static int saves(unsigned registers) {
    unsigned low, high;
    if (!has_bit(1, 0, ECX, 27)) return 0; /* OSXSAVE */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

static int has_avx2(void) { return saves(0x6) && has_bit(7, 0, EBX, 5) && has_bit(1, 0, ECX, 12); }

/* With F, DQ, BW and VL. */
static int has_avx512(void) {
    return has_avx2() && saves(0xe6) && has_bit(7, 0, EBX, 16) && has_bit(7, 0, EBX, 17) &&
           has_bit(7, 0, EBX, 30) && has_bit(7, 0, EBX, 31);
}

static int has_vnni(void) { return has_avx512() && has_bit(7, 0, ECX, 11); }

static int has_bf16(void) { return has_vnni() && has_bit(7, 1, EAX, 5); }

/* Whether the processor has AMX and the kernel lets this process use its tiles (ARCH_REQ_XCOMP_PERM
   of XTILEDATA). */
static int has_amx(void) {
#ifdef __linux__
    return has_bf16() && has_bit(7, 0, EDX, 24) && has_bit(7, 0, EDX, 25) && has_bit(7, 0, EDX, 22) &&
           !syscall(SYS_arch_prctl, 0x1023, 18);
#else
    return 0;
#endif
}

static int is_supported(const char *name) {
    if (!strcmp(name, "avx2")) return has_avx2();
    if (!strcmp(name, "avxvnni")) return has_avx2() && has_bit(7, 1, EAX, 4);
    if (!strcmp(name, "avx512")) return has_avx512();
    if (!strcmp(name, "avx512vnni")) return has_vnni();
    if (!strcmp(name, "avx512bf16")) return has_bf16();
    if (!strcmp(name, "amx")) return has_amx();
    return !strcmp(name, "scalar");
}
#elif defined(__aarch64__) && defined(__linux__)
static int is_supported(const char *name) {
    if (!strcmp(name, "neondot")) return !!(getauxval(AT_HWCAP) & 1ul << 20);   /* ASIMDDP */
    if (!strcmp(name, "neonbf16"))
        return getauxval(AT_HWCAP) & 1ul << 20 && getauxval(AT_HWCAP2) & 1ul << 14; /* BF16 */
    if (!strcmp(name, "neoni8mm")) /* and I8MM */
        return is_supported("neonbf16") && getauxval(AT_HWCAP2) & 1ul << 13;
    return 1;
}
#elif defined(__aarch64__) && defined(__APPLE__)
static int has_feature(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}

static int is_supported(const char *name) {
    if (!strcmp(name, "neondot")) return has_feature("hw.optional.arm.FEAT_DotProd");
    if (!strcmp(name, "neonbf16"))
        return has_feature("hw.optional.arm.FEAT_DotProd") && has_feature("hw.optional.arm.FEAT_BF16");
    if (!strcmp(name, "neoni8mm"))
        return is_supported("neonbf16") && has_feature("hw.optional.arm.FEAT_I8MM");
    return 1;
}
#else
static int is_supported(const char *name) { return !strcmp(name, "scalar") || !strcmp(name, "neon"); }
#endif

static const instruction_set *chosen;

static const instruction_set *isa(void) {
    for (int at = COUNT - 1; !chosen; at--)
        if (is_supported(all[at].name)) chosen = &all[at]; /* the first is for every processor */
    return chosen;
}

/* Choose an instruction set by its name; an empty name: the best one. Returns 0; 1 if there is none
   of this name; 2 if the processor lacks it. */
int bertworks_choose(const char *name) {
    chosen = NULL;
    if (!*name) return !isa();
    for (int at = 0; at < COUNT; at++) {
        if (strcmp(all[at].name, name)) continue;
        if (!is_supported(name)) return 2;
        chosen = &all[at];
        return 0;
    }
    return 1;
}

/* The name of an instruction set: the chosen one, or, from 0 on, each that was compiled; null after
   the last. */
const char *bertworks_isa(int64_t number) {
    return number < 0 ? isa()->name : number < COUNT ? all[number].name : NULL;
}

int bertworks_kernels(void) {
    const char *name = isa()->name;
    if (!strcmp(name, "scalar")) return 0;
    if (!strcmp(name, "avx512bf16")) return IN_FP32 | IN_INT8 | IN_BF16 | IN_TRAINING;
    int is_fast = !strcmp(name, "amx") || !strcmp(name, "neonbf16") || !strcmp(name, "neoni8mm");
    return IN_FP32 | IN_INT8 | (is_fast ? IN_BF16 : 0);
}

int bertworks_layers(const layer *nets, int64_t layers, const void *hidden, void *result,
                     const sequences *of, int64_t threads) {
    return isa()->layers(nets, layers, hidden, result, of, threads);
}

int bertworks_embeddings(const embeddings *of, const int64_t *ids, const int64_t *positions,
                         const int64_t *types, int64_t tokens, void *result, int64_t threads) {
    return isa()->embeddings(of, ids, positions, types, tokens, result, threads);
}

void bertworks_means(const void *hidden, const int32_t *edges, int64_t sequences, int64_t width,
                     int64_t unit, float *means, int64_t threads) {
    isa()->means(hidden, edges, sequences, width, unit, means, threads);
}

void bertworks_means_fp32(const void *hidden, const int32_t *edges, int64_t sequences,
                          int64_t width, int64_t unit, float *means, int64_t threads) {
    isa()->means_fp32(hidden, edges, sequences, width, unit, means, threads);
}

void bertworks_pack(const void *from, int64_t outputs, int64_t groups, int64_t stride,
                    int64_t are_floats, void *to, int64_t threads) {
    isa()->pack(from, outputs, groups, stride, are_floats, to, threads);
}

int bertworks_attention_fp32(const attention_fp32 *of, int64_t threads) {
    return isa()->attention_fp32(of, threads);
}

void bertworks_linear(const float *x, const float *weight, const float *bias, int64_t rows,
                      int64_t inputs, int64_t outputs, float *result, int64_t threads) {
    isa()->linear(x, weight, bias, rows, inputs, outputs, result, threads);
}

int bertworks_mean_of_rows(const float *table, int64_t rows, int64_t width, const int32_t *ids,
                           const int64_t *starts, int64_t texts, int64_t unit, float *means,
                           int64_t threads) {
    return isa()->mean_of_rows(table, rows, width, ids, starts, texts, unit, means, threads);
}

void bertworks_function(const float *x, int64_t count, int64_t function, int64_t is_exact,
                        float *result) {
    isa()->function(x, count, function, is_exact, result);
}
