/* What the sources of the library share. None of them depends on Python: NumPy arrays arrive as addresses.

   Each function takes one structure of addresses, 64-bit integers and doubles: Python packs a structure far quicker than
   it passes arguments one by one. structures.py reads the declarations from these files, so a field may be added, renamed
   or moved here alone; every field must take 8 bytes. Addresses of outputs may be 0 where a comment says so.

   Every function checks all of its input before it writes, so that no input makes it read or write outside the arrays.
   It returns 0, or what is wrong and in which row: WRONG(what, row). */

#ifndef STOKER_NATIVE_H
#define STOKER_NATIVE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* Loops are compiled for several generations of processors, and the right one is taken when the library is loaded. */
#ifdef STOKER_CLONES
#define CLONED __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONED
#endif

/* faults.py has the messages, by these names. */
enum {
    FINE,
    NO_MEMORY,     /* nothing is wrong with the input */
    OVERLAP,       /* an output shares memory with an input */
    BAD_STARTS,    /* row_starts go back, or beyond the spans */
    BAD_ROW,       /* there is no such row in the outputs */
    BAD_SPAN,      /* what is to be read lies outside flat */
    TOO_LONG,      /* the spans of a row are longer than the row */
    TOO_MANY,      /* a row has more spans than cu_seqlens has room for */
    BAD_WEIGHT,    /* weights are negative, or their sum is not the period */
    BAD_OFFSETS,   /* cu_seqlens do not go from 0 to the length */
    NO_ROOM,       /* there are more spans than room for them: no fault, and never raised, like the next */
    UNFOUND,       /* a span is not where the tables say, or not known to be */
    BAD_BOX,       /* a box is not within its image */
    BAD_JPEG,      /* a file is damaged, or not of a kind that is decoded: jpeg.c has the words */
};

#define WRONG(what, row) ((int64_t)(row) << 4 | (what))

static inline int overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    uintptr_t a_begin = (uintptr_t)a, b_begin = (uintptr_t)b;
    return a && b && a_bytes > 0 && b_bytes > 0 && a_begin < b_begin + (uintptr_t)b_bytes &&
           b_begin < a_begin + (uintptr_t)a_bytes;
}

/* What rows.c fills rows from, and the outputs. */
struct filling {
    const char *flat;
    int64_t num_values, source;
    const int64_t *elements, *sizes;
    const uint8_t *has_next;
    int64_t num_spans;
    const int64_t *row_starts, *rows;
    int64_t num_rows, num_places, length;
    char *tokens; /* this and the outputs below may be 0 */
    int64_t token_bytes, pad;
    char *labels;
    int64_t label_bytes, ignored;
    int32_t *positions, *document_ids, *cu_seqlens;
    int64_t width;
};

EXPORTED int64_t stoker_fill_rows(const struct filling *given);

#endif
