/* BERT's tokenizer for texts in ASCII: words, and the longest known pieces from the left.

   Of its clean-up, ASCII needs three steps: control characters are removed, white space separates
   words, and each punctuation mark is a word. */

#include "threads.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define TEXTS_OF_ITEM 256
#define FEW_TEXTS 512 /* for which waking other threads takes longer than the work */
#define LONGEST_WORD 256

/* Pieces by their bytes: a hash table with linear probing. Python's `native/library.py` has the
   same structures. */
typedef struct {
    const char *bytes;     /* of all pieces */
    const int64_t *starts; /* [pieces + 1]: where each piece's bytes begin */
    const int32_t *ids;    /* [pieces] */
    int32_t *slots;        /* [mask + 1]: a piece's number, or -1 */
    int64_t mask;          /* the number of slots, a power of 2, less 1 */
    int64_t pieces;
    int64_t longest; /* the most bytes of a piece */
} pieces_table;

typedef struct {
    pieces_table first, later; /* pieces at the start of a word, and those that continue one */
    int64_t unknown;
    int64_t drops_unknown;
    int64_t lowercase;
    int64_t longest_word; /* at most LONGEST_WORD; a longer word is unknown */
} wordpiece;

enum { LETTER, REMOVED, SPACE, PUNCTUATION };

static inline int kind_of(unsigned char c) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return SPACE;
    if (c < 32 || c == 127) return REMOVED;
    if ((c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
        (c >= '{' && c <= '~'))
        return PUNCTUATION;
    return LETTER;
}

/* Source: Fowler, Noll and Vo, FNV-1a. */
static const uint64_t FNV_BASIS = 14695981039346656037u, FNV_PRIME = 1099511628211u;

static inline uint64_t add_byte(uint64_t hash, char c) { return (hash ^ (unsigned char)c) * FNV_PRIME; }

static inline int64_t slot_of(uint64_t hash, int64_t mask) { return (int64_t)(hash ^ (hash >> 32)) & mask; }

/* Fill the slots of a table, which are -1, with the numbers of its pieces. */
void bertworks_wordpiece_fill(pieces_table *table) {
    for (int64_t piece = 0; piece < table->pieces; piece++) {
        uint64_t hash = FNV_BASIS;
        for (int64_t at = table->starts[piece]; at < table->starts[piece + 1]; at++)
            hash = add_byte(hash, table->bytes[at]);
        int64_t slot = slot_of(hash, table->mask);
        while (table->slots[slot] >= 0) slot = (slot + 1) & table->mask;
        table->slots[slot] = (int32_t)piece;
    }
}

/* The id of the piece with these bytes; -1 if there is none. */
static inline int32_t find_piece(const pieces_table *table, uint64_t hash, const char *bytes,
                                 int64_t length) {
    for (int64_t slot = slot_of(hash, table->mask); table->slots[slot] >= 0;
         slot = (slot + 1) & table->mask) {
        int32_t piece = table->slots[slot];
        int64_t start = table->starts[piece];
        if (table->starts[piece + 1] - start == length && !memcmp(table->bytes + start, bytes, length))
            return table->ids[piece];
    }
    return -1;
}

typedef struct {
    int32_t *ids;
    int64_t count; /* of all tokens */
    int64_t limit; /* how many are stored */
} tokens;

static inline void add_token(tokens *to, int32_t id) {
    if (to->count < to->limit) to->ids[to->count] = id;
    to->count++;
}

/* Add the pieces of a word, or the unknown one. `length` is LONGEST_WORD + 1 if it is longer. */
static void add_word(const wordpiece *of, const char *word, int64_t length, tokens *to) {
    int64_t count = to->count, start = 0;
    uint64_t hashes[LONGEST_WORD];
    int is_known = length <= of->longest_word;
    while (is_known && start < length) {
        const pieces_table *table = start ? &of->later : &of->first;
        int64_t most = length - start < table->longest ? length - start : table->longest;
        uint64_t hash = FNV_BASIS;
        for (int64_t at = 0; at < most; at++) hashes[at] = hash = add_byte(hash, word[start + at]);
        int32_t id = -1;
        for (; most > 0 && id < 0; most--)
            id = find_piece(table, hashes[most - 1], word + start, most);
        is_known = id >= 0;
        if (is_known) add_token(to, id);
        start += most + 1;
    }
    if (is_known) return;
    to->count = count;
    if (!of->drops_unknown) add_token(to, (int32_t)of->unknown);
}

static int64_t split_text(const wordpiece *of, const char *text, int64_t length, int32_t *ids,
                          int64_t limit) {
    tokens to = {ids, 0, limit};
    char word[LONGEST_WORD + 1];
    int64_t size = 0;
    for (int64_t at = 0; at < length; at++) {
        char c = text[at];
        int kind = kind_of((unsigned char)c);
        if (kind == LETTER) {
            if (of->lowercase && c >= 'A' && c <= 'Z') c += 'a' - 'A';
            if (size <= LONGEST_WORD) word[size++] = c;
            continue;
        }
        if (kind == REMOVED) continue;
        if (size) add_word(of, word, size, &to);
        size = 0;
        if (kind == PUNCTUATION) add_word(of, &c, 1, &to);
    }
    if (size) add_word(of, word, size, &to);
    return to.count;
}

typedef struct {
    const wordpiece *of;
    const char *bytes;
    const int64_t *starts;
    int64_t texts, limit;
    int32_t *ids;
    int64_t *counts;
    atomic_long next;
} wordpiece_job;

static void wordpiece_work(void *given) {
    wordpiece_job *all = given;
    int64_t first;
    while ((first = atomic_fetch_add(&all->next, TEXTS_OF_ITEM)) < all->texts)
        for (int64_t at = first; at < first + TEXTS_OF_ITEM && at < all->texts; at++) {
            int64_t start = all->starts[at], length = all->starts[at + 1] - start;
            all->counts[at] =
                split_text(all->of, all->bytes + start, length, all->ids + start, all->limit);
        }
}

/* Split texts, whose bytes are laid end to end. `ids` has room for as many ids as there are bytes;
   at its beginning are those of all texts, of each at most `limit`, and `counts` has the number of
   all ids of each text. Returns how many ids there are. */
int64_t bertworks_wordpiece(const wordpiece *of, const char *bytes, const int64_t *starts,
                            int64_t texts, int64_t limit, int32_t *ids, int64_t *counts,
                            int64_t threads) {
    wordpiece_job all = {.of = of, .bytes = bytes, .starts = starts, .texts = texts};
    all.limit = limit;
    all.ids = ids;
    all.counts = counts;
    bertworks_run(wordpiece_work, &all, texts < FEW_TEXTS ? 1 : threads);
    int64_t total = 0;
    for (int64_t at = 0; at < texts; at++) {
        int64_t count = counts[at] < limit ? counts[at] : limit;
        memmove(ids + total, ids + starts[at], count * sizeof *ids);
        total += count;
    }
    return total;
}
