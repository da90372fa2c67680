/* Products by the tiles of AMX: 16 rows of 64 bytes each. A panel is two tiles for each 16 groups. */

#ifndef BERTWORKS_AMX
#define BERTWORKS_AMX

#include "kernels.h"

INLINE int has_codes(int precision) { return precision == INT8 || precision == INT8_IN_FP32; }

#ifdef __AMX_TILE__
#define AMX_ROWS 32 /* of two tiles */

/* The compiler must neither delay what tiles read nor read too early what they write. */
#define BARRIER() __asm__ volatile("" ::: "memory")

/* For how many rows this thread's tiles are configured; 0: not, or another library may have. */
static __thread int rows_of_tiles;

/* Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights. */
SHARED void configure_tiles(int rows) {
    _Alignas(LINE) struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {.palette = 1};
    uint8_t first = (uint8_t)(rows < 16 ? rows : 16), second = (uint8_t)(rows < 32 ? rows - 16 : 16);
    if (rows <= 16) second = first; /* unused */
    const uint8_t rows_of[8] = {first, first, second, second, first, second, 16, 16};
    for (int tile = 0; tile < 8; tile++) {
        tiles.bytes[tile] = 64;
        tiles.rows[tile] = rows_of[tile];
    }
    BARRIER();
    _tile_loadconfig(&tiles);
    rows_of_tiles = rows;
}

SHARED void release_tiles(void) {
    if (rows_of_tiles) _tile_release();
    rows_of_tiles = 0;
}

INLINE int has_amx(int precision, int64_t groups) { return precision != FP32 && groups % 16 == 0; }

/* Multiply up to 32 rows, `stride` bytes apart, by a panel; the sums are `apart` numbers apart. */
#define AMX_TILES(name, dot)                                                                       \
    SHARED void name(int rows, const char *a, int64_t stride, const char *panel, int64_t groups,   \
                     float *sums, int64_t apart) {                                                 \
        const char *end = panel + groups * 4 * PANEL, *b = a + 16 * stride;                        \
        if (rows != rows_of_tiles) configure_tiles(rows);                                          \
        BARRIER();                                                                                 \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        if (rows <= 16) {                                                                          \
            for (; panel < end; panel += 64 * PANEL, a += 64) {                                    \
                for (int line = 0; line < 64 * PANEL; line += LINE)                                \
                    prefetch(panel + 2 * AHEAD + line);                                            \
                _tile_loadd(4, a, stride);                                                         \
                _tile_loadd(6, panel, 4 * PANEL);                                                  \
                _tile_loadd(7, panel + LINE, 4 * PANEL);                                           \
                dot(0, 4, 6);                                                                      \
                dot(1, 4, 7);                                                                      \
            }                                                                                      \
        } else {                                                                                   \
            _tile_zero(2);                                                                         \
            _tile_zero(3);                                                                         \
            for (; panel < end; panel += 64 * PANEL, a += 64, b += 64) {                           \
                _tile_loadd(6, panel, 4 * PANEL);                                                  \
                _tile_loadd(4, a, stride);                                                         \
                _tile_loadd(7, panel + LINE, 4 * PANEL);                                           \
                dot(0, 4, 6);                                                                      \
                _tile_loadd(5, b, stride);                                                         \
                dot(1, 4, 7);                                                                      \
                dot(2, 5, 6);                                                                      \
                dot(3, 5, 7);                                                                      \
            }                                                                                      \
            _tile_stored(2, sums + 16 * apart, apart * 4);                                         \
            _tile_stored(3, sums + 16 * apart + 16, apart * 4);                                    \
        }                                                                                          \
        _tile_stored(0, sums, apart * 4);                                                          \
        _tile_stored(1, sums + 16, apart * 4);                                                     \
        BARRIER();                                                                                 \
    }

AMX_TILES(amx_bf16, _tile_dpbf16ps)
AMX_TILES(amx_int8, _tile_dpbusd)
#else
#define AMX_ROWS MOST_ROWS

INLINE void release_tiles(void) {}
INLINE int has_amx(int precision, int64_t groups) { (void)precision; (void)groups; return 0; }

#define amx_bf16(rows, a, stride, panel, groups, sums, apart) (void)0
#define amx_int8(rows, a, stride, panel, groups, sums, apart) (void)0
#endif

/* Multiply at most `tile_rows` rows, `stride` bytes apart, by a panel. */
INLINE void multiply_tile(int precision, int rows, const void *a, int64_t stride,
                          const void *panel, int64_t groups, int64_t ahead, float *sums,
                          int64_t apart) {
    if (has_amx(precision, groups) && has_codes(precision))
        amx_int8(rows, a, stride, panel, groups, sums, apart);
    else if (has_amx(precision, groups))
        amx_bf16(rows, a, stride, panel, groups, sums, apart);
    else if (has_codes(precision))
        tiles_int8(rows, a, stride, panel, groups, ahead, sums, apart);
    else if (precision == BF16)
        tiles_bf16(rows, a, stride, panel, groups, ahead, sums, apart);
    else
        tiles_fp32(rows, a, stride, panel, groups, ahead, sums, apart);
}

INLINE int64_t tile_rows(int precision, int64_t groups) {
    if (has_amx(precision, groups)) return AMX_ROWS;
    return has_codes(precision) ? INT8_ROWS : MOST_ROWS;
}

#endif
