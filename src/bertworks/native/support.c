/* What this library is, and whether this processor has the instructions that it needs. */

/* What was compiled: the checksum of these files, so that no older library is taken. */
unsigned bertworks_source(void) { return SOURCE; }

/* Which of the instructions this processor has: bit 0 for bfloat16, bit 1 for 8 bits too. */
int bertworks_kernels(void) {
    __builtin_cpu_init();
    int base = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bf16");
    return base ? 1 + 2 * !!__builtin_cpu_supports("avx512vnni") : 0;
}
