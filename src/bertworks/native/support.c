/* The version of this library, and the instructions that this processor supports. */

/* The checksum of the compiled source files, so that an outdated library is not used. */
unsigned bertworks_source(void) { return SOURCE; }

/* The supported instructions: bit 0 for those of bfloat16, bit 1 also for those of 8 bits. */
int bertworks_kernels(void) {
    __builtin_cpu_init();
    int base = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bf16");
    return base ? 1 + 2 * !!__builtin_cpu_supports("avx512vnni") : 0;
}
