/* Images made smaller or larger, row by row as they come: what resize.c, passes.c and jpeg.c share. */

#ifndef STOKER_RESIZE_H
#define STOKER_RESIZE_H

#include "native.h"

#define PRECISION 22 /* bits of a weight that is 1 */
#define LOW_BITS 11  /* of those, how many are in its lower half */

/* How the numbers along one side become fewer or more: number `i` of the new ones is the sum of `2 * pairs` old ones from
   `first[i]` on, each times its weight. Weights have more bits than processors multiply quickly by the dozen, so each is
   kept whole and in halves too. Of number `i` they begin at `i * pairs`, two at a time. */
struct weights {
    int64_t num;       /* new numbers */
    int64_t padded;    /* of which there are a multiple of GROUP here, the last ones without meaning */
    int64_t pairs;
    int64_t first_used, end_used; /* old numbers of which any has a weight */
    int is_copy;       /* each new number is one old one, as it is */
    int is_shift;      /* ... and they begin at old numbers that follow each other */
    int32_t *first, *end; /* old numbers that count lie before `end` */
    int16_t *high, *low;  /* weight = high << LOW_BITS | low */
    int32_t *whole;
};

#define GROUP 4 /* pixels that are made at once */

/* Beyond the end of a row of an input this many bytes may be read, and of what lies behind a row of an output written. */
#define INPUT_PADDING(weights, channels) (2 * (weights)->pairs * (channels) + 16)
#define ROW_PADDING 64

/* Two rows at once, from `from` into `to`: one pixel after the other where `plane` is 0, and otherwise one channel after
   the other, `plane` bytes from each to the next. */
typedef void (*across_function)(const struct weights *weights, int64_t channels, const uint8_t *const from[2],
                                uint8_t *const to[2], int64_t plane);

/* `count` bytes, each from those of `2 * pairs` rows. */
typedef void (*down_function)(const struct weights *weights, int64_t number, const uint8_t *const *rows, int64_t count,
                              uint8_t *to);

struct passes {
    across_function across;
    down_function down;
};

/* The quickest that this processor can do. */
const struct passes *the_passes(void);

/* ------------------------------------------------------------ an image */

/* Where the new image goes: bytes from one row, pixel and channel to the next, any of them. */
struct target {
    uint8_t *pixels;
    int64_t height, width, channels;
    int64_t row_step, pixel_step, channel_step;
};

struct resizing {
    struct weights x, y;
    struct target target;
    const struct passes *passes;
    void *memory;
    uint8_t **kept;       /* rows of the old image that have their new width, in a ring */
    const uint8_t **used; /* those of one new row */
    int64_t num_kept, plane, next_row, next_out;
    uint8_t *line; /* a new row that goes where it belongs byte by byte; 0 if it goes there at once */
};

/* From an image of `width * height`, or its part `box` (left, top, right, bottom). Returns FINE, BAD_BOX or NO_MEMORY;
   resizing_end has to be called in any case. Rows come from y.first_used to before y.end_used. */
int resizing_begin(struct resizing *it, int64_t width, int64_t height, const double box[4], const struct target *target);

/* Has rows begin `columns` further on: none of the pixels before those counts. */
void resizing_shift(struct resizing *it, int64_t columns);

/* The next row, or the next two if `second` is not 0. Behind each, INPUT_PADDING bytes can be read. */
void resizing_feed(struct resizing *it, const uint8_t *first, const uint8_t *second);

void resizing_end(struct resizing *it);

#endif
