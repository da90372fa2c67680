#define AMX_ROWS 1
INLINE int has_amx(int precision, int64_t groups) { (void)precision; (void)groups; return 0; }
#define tiles_amx(...) (void)0
