/* Vectors of 32-bit numbers for one instruction set: the only place that knows instructions.

   The files of kernels are compiled once for each instruction set, with the compiler's flags for it
   and its name as the macro ISA (`build_native.py`). Each `vectors_*.h` defines the same types and
   functions for LANES numbers: `f_…` of float32, `i_…` of integers, `m_…` of masks. */

#ifndef BERTWORKS_VECTORS
#define BERTWORKS_VECTORS

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define SHARED __attribute__((unused)) static /* not every file uses it */

typedef uint16_t bf16;

#if defined(__AVX512F__)
#include "vectors_avx512.h"
#elif defined(__AVX2__)
#include "vectors_avx2.h"
#elif defined(__ARM_NEON) && !defined(SCALAR)
#include "vectors_neon.h"
#else
#include "vectors_scalar.h"
#endif

/* The name of a function of this instruction set. */
#define JOINED(name, isa) name##_##isa
#define JOIN(name, isa) JOINED(name, isa)
#define OF_ISA(name) JOIN(name, ISA)

#endif
