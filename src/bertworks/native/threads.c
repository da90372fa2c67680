/* The pool. A caller opens a job, and works on it itself. A thread that is free takes one of the
   job's places and works too; one that is late, since it slept, finds none. So a caller waits for
   threads that work, and never for those that have not begun. */

#include "threads.h"

#ifdef _WIN32

void bertworks_run(void (*work)(void *), void *job, int64_t threads) {
    (void)threads; /* there are no others */
    work(job);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#define PAUSES 2000 /* of a waiting thread, before it sleeps or yields its processor: 30 to 100 µs */

static struct {
    atomic_int is_busy;  /* a caller has the pool; what has no note is the caller's */
    atomic_uint number;  /* of the job */
    atomic_long places;  /* for how many threads more the job is open */
    atomic_long leavers; /* threads that have finished the job */
    void (*work)(void *);
    void *job;
    int64_t threads;     /* that were started */
    int64_t sleepers;    /* guarded by the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t is_opened;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .is_opened = PTHREAD_COND_INITIALIZER};

static int take_place(void) {
    long places = atomic_load(&pool.places);
    while (places > 0)
        if (atomic_compare_exchange_weak(&pool.places, &places, places - 1)) return 1;
    return 0;
}

/* Wait until there is another job than the one that was seen last; returns its number. */
static unsigned next_job(unsigned seen) {
    for (int tries = 0; tries < PAUSES; tries++) {
        if (atomic_load(&pool.number) != seen) return atomic_load(&pool.number);
        pause_thread();
    }
    pthread_mutex_lock(&pool.mutex);
    pool.sleepers++;
    while (atomic_load(&pool.number) == seen) pthread_cond_wait(&pool.is_opened, &pool.mutex);
    pool.sleepers--;
    pthread_mutex_unlock(&pool.mutex);
    return atomic_load(&pool.number);
}

static void *run_jobs(void *before) {
    for (unsigned seen = (unsigned)(uintptr_t)before;;) {
        seen = next_job(seen);
        if (!take_place()) continue;
        pool.work(pool.job);
        atomic_fetch_add(&pool.leavers, 1);
    }
    return NULL;
}

/* Start threads until there are so many; there may be fewer, if the system has no more. */
static void start_threads(int64_t count) {
    pthread_attr_t detached;
    sigset_t all, before;
    if (pool.threads >= count || pthread_attr_init(&detached)) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of the program */
    void *number = (void *)(uintptr_t)atomic_load(&pool.number);
    pthread_t thread;
    while (pool.threads < count && !pthread_create(&thread, &detached, run_jobs, number))
        pool.threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

static void wake_threads(int64_t count) {
    pthread_mutex_lock(&pool.mutex);
    if (pool.sleepers < count) count = pool.sleepers;
    for (int64_t at = 0; at < count; at++) pthread_cond_signal(&pool.is_opened);
    pthread_mutex_unlock(&pool.mutex);
}

void bertworks_run(void (*work)(void *), void *job, int64_t threads) {
    if (threads <= 1 || atomic_exchange(&pool.is_busy, 1)) {
        work(job);
        return;
    }
    start_threads(threads - 1);
    long places = (long)(pool.threads < threads ? pool.threads : threads - 1);
    pool.work = work;
    pool.job = job;
    atomic_store(&pool.leavers, 0);
    atomic_store(&pool.places, places);
    atomic_fetch_add(&pool.number, 1);
    wake_threads(places);
    work(job);
    long workers = places - atomic_exchange(&pool.places, 0); /* and nobody begins any more */
    for (int tries = 0; atomic_load(&pool.leavers) < workers; tries++)
        if (tries < PAUSES)
            pause_thread();
        else
            sched_yield();
    atomic_store(&pool.is_busy, 0);
}

/* A forked child has none of its parent's threads, and begins without any. */
static void forget_threads(void) {
    memset(&pool, 0, sizeof pool);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.is_opened, NULL);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_threads);
}

#endif
