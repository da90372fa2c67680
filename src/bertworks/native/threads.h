/* Threads of the package's own: a pool that all calls of this process share. */

#ifndef BERTWORKS_THREADS
#define BERTWORKS_THREADS

#include <stdint.h>

#if defined(__x86_64__)
#define pause_thread() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define pause_thread() __asm__ volatile("yield")
#else
#define pause_thread() ((void)0)
#endif

/* Run `work(job)` in this thread and, as far as they are free, in up to `threads - 1` others.

   `work` finishes the job whatever the number of threads that run it is, and each takes what the
   others have left. Returns when all of them have returned. May be called in any thread: while the
   pool works for another caller, this thread works alone. A forked child has a pool of its own. */
void bertworks_run(void (*work)(void *), void *job, int64_t threads);

/* OpenMP's own entry, `GOMP_parallel`: training takes PyTorch's threads, since they spin after each
   of its operators, and others would have no processor meanwhile. */
typedef void (*parallel_fn)(void (*work)(void *), void *job, unsigned threads, unsigned flags);

#endif
