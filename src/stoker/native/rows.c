/* Rows of tokens, gathered and widened in one pass. */

#include "native.h"

/* ------------------------------------------------------------ stretches of one type into another

   The sign is in the source: what is written has the same bits for signed and unsigned. */

typedef void (*copy_function)(const void *restrict from, void *restrict to, int64_t count);

#define COPY(name, source, target)                                                                                     \
    CLONED static void name(const void *restrict from, void *restrict to, int64_t count)                               \
    {                                                                                                                  \
        const source *restrict a = from;                                                                               \
        target *restrict b = to;                                                                                       \
        for (int64_t i = 0; i < count; i++) b[i] = (target)a[i];                                                       \
    }

#define SAME(name, bytes)                                                                                              \
    static void name(const void *restrict from, void *restrict to, int64_t count)                                     \
    {                                                                                                                  \
        memcpy(to, from, (size_t)count * bytes);                                                                       \
    }

COPY(u8_16, uint8_t, uint16_t)
COPY(u8_32, uint8_t, uint32_t)
COPY(u8_64, uint8_t, uint64_t)
SAME(same_16, 2)
COPY(u16_32, uint16_t, uint32_t)
COPY(u16_64, uint16_t, uint64_t)
COPY(u32_16, uint32_t, uint16_t)
SAME(same_32, 4)
COPY(u32_64, uint32_t, uint64_t)
COPY(i32_64, int32_t, int64_t)
COPY(i64_16, uint64_t, uint16_t)
COPY(i64_32, uint64_t, uint32_t)
SAME(same_64, 8)

/* By the source's type, in the order of arrays.py, and the bytes of the target's: 2, 4, 8. */
static const copy_function copies[5][3] = {
    {u8_16, u8_32, u8_64},     /* uint8 */
    {same_16, u16_32, u16_64}, /* uint16 */
    {u32_16, same_32, u32_64}, /* uint32 */
    {u32_16, same_32, i32_64}, /* int32 */
    {i64_16, i64_32, same_64}, /* int64 */
};
static const int64_t source_bytes[5] = {1, 2, 4, 4, 8};

static copy_function copy_for(int64_t source, int64_t bytes)
{
    return copies[source][bytes == 2 ? 0 : bytes == 4 ? 1 : 2];
}

/* ------------------------------------------------------------ one number, and numbers that count */

CLONED static void put(void *to, int64_t bytes, int64_t first, int64_t count, int64_t value)
{
    if (bytes == 2) {
        uint16_t *out = (uint16_t *)to + first;
        for (int64_t i = 0; i < count; i++) out[i] = (uint16_t)value;
    } else if (bytes == 4) {
        uint32_t *out = (uint32_t *)to + first;
        for (int64_t i = 0; i < count; i++) out[i] = (uint32_t)value;
    } else {
        uint64_t *out = (uint64_t *)to + first;
        for (int64_t i = 0; i < count; i++) out[i] = (uint64_t)value;
    }
}

CLONED static void count_up(int32_t *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = (int32_t)i;
}

/* ------------------------------------------------------------ rows */

/* Rows and spans lie anywhere, and most of the time would go into waiting for memory. So while a PIECE of what is there
   is written, as much is asked for of what comes next: of rows the next one, of spans what is AHEAD bytes further on. */
#define PIECE 128
#define AHEAD 8192

static inline void ask_for(const char *from, int64_t num_bytes)
{
    for (int64_t at = 0; at < num_bytes; at += 64) __builtin_prefetch(from + at);
}

/* Up to where spans were asked for. */
struct asking {
    int64_t span, at, due; /* which, bytes of it, and bytes that are to be asked for now */
};

static inline void ask_on(struct asking *asking, const char *flat, int64_t value_bytes, const int64_t *elements,
                          const int64_t *sizes, int64_t num_spans)
{
    while (asking->due > 0 && asking->span < num_spans) {
        const char *from = flat + elements[asking->span] * value_bytes + asking->at;
        int64_t left = sizes[asking->span] * value_bytes - asking->at;
        int64_t now = left < asking->due ? left : asking->due;
        ask_for(from, now);
        asking->due -= now, asking->at += now;
        if (now == left) asking->span++, asking->at = 0;
    }
}

EXPORTED int64_t stoker_fill_rows(const struct filling *given)
{
    const char *flat = given->flat;
    const int64_t num_values = given->num_values, source = given->source, num_spans = given->num_spans;
    const int64_t *elements = given->elements, *sizes = given->sizes, *row_starts = given->row_starts, *rows = given->rows;
    const uint8_t *has_next = given->has_next;
    const int64_t num_rows = given->num_rows, num_places = given->num_places, length = given->length;
    char *tokens = given->tokens, *labels = given->labels;
    const int64_t token_bytes = given->token_bytes, label_bytes = given->label_bytes, width = given->width;
    const int64_t pad = given->pad, ignored = given->ignored;
    int32_t *positions = given->positions, *document_ids = given->document_ids, *cu_seqlens = given->cu_seqlens;

    const int64_t value_bytes = source_bytes[source];
    const int64_t places = num_places * length;
    const void *outs[] = {tokens, labels, positions, document_ids, cu_seqlens};
    const int64_t out_bytes[] = {places * token_bytes, places * label_bytes, places * 4, places * 4, num_places * width * 4};
    const void *ins[] = {flat, elements, sizes, has_next, row_starts, rows};
    const int64_t in_bytes[] = {num_values * value_bytes, num_spans * 8, num_spans * 8, num_spans, num_rows * 8 + 8, num_rows * 8};
    for (int out = 0; out < 5; out++)
        for (int in = 0; in < 6; in++)
            if (overlap(outs[out], out_bytes[out], ins[in], in_bytes[in])) return WRONG(OVERLAP, 0);

    if (row_starts[0] < 0 || row_starts[num_rows] > num_spans) return WRONG(BAD_STARTS, 0);
    for (int64_t r = 0; r < num_rows; r++) {
        int64_t begin = row_starts[r], end = row_starts[r + 1], room = length;
        if (end < begin || end > num_spans) return WRONG(BAD_STARTS, r);
        if (rows[r] < 0 || rows[r] >= num_places) return WRONG(BAD_ROW, r);
        for (int64_t s = begin; s < end; s++) {
            if (sizes[s] < 0 || sizes[s] > num_values || elements[s] < 0) return WRONG(BAD_SPAN, r);
            if (elements[s] > num_values - sizes[s] - (has_next[s] && sizes[s])) return WRONG(BAD_SPAN, r);
            if (sizes[s] > room) return WRONG(TOO_LONG, r);
            room -= sizes[s];
        }
        if (cu_seqlens && end - begin + (room > 0) > width - 1) return WRONG(TOO_MANY, r);
    }

    const copy_function to_tokens = copy_for(source, token_bytes), to_labels = copy_for(source, label_bytes);
    struct asking asking = {row_starts[0], 0, AHEAD};
    for (int64_t r = 0; r < num_rows; r++) {
        int64_t begin = row_starts[r], end = row_starts[r + 1], column = 0;
        char *row_tokens = tokens ? tokens + rows[r] * length * token_bytes : NULL;
        char *row_labels = labels ? labels + rows[r] * length * label_bytes : NULL;
        int32_t *row_positions = positions ? positions + rows[r] * length : NULL;
        int32_t *row_ids = document_ids ? document_ids + rows[r] * length : NULL;
        int32_t *row_offsets = cu_seqlens ? cu_seqlens + rows[r] * width : NULL;
        if (row_offsets) row_offsets[0] = 0;
        for (int64_t s = begin; s < end; s++) {
            int64_t size = sizes[s];
            const char *from = flat + elements[s] * value_bytes;
            if (row_offsets) row_offsets[s - begin + 1] = (int32_t)(column + size);
            if (!size) continue;
            for (int64_t at = 0; at < size; at += PIECE) {
                int64_t count = size - at < PIECE ? size - at : PIECE, place = column + at;
                int64_t num_labels = count - (at + count == size && !has_next[s]);
                asking.due += count * value_bytes;
                ask_on(&asking, flat, value_bytes, elements, sizes, row_starts[num_rows]);
                if (row_tokens) to_tokens(from + at * value_bytes, row_tokens + place * token_bytes, count);
                if (row_labels) to_labels(from + (at + 1) * value_bytes, row_labels + place * label_bytes, num_labels);
            }
            if (row_labels && !has_next[s]) put(row_labels, label_bytes, column + size - 1, 1, ignored);
            if (row_positions) count_up(row_positions + column, size);
            if (row_ids) put(row_ids, 4, column, size, s - begin);
            column += size;
        }
        int64_t rest = length - column;
        if (rest) {
            if (row_tokens) put(row_tokens, token_bytes, column, rest, pad);
            if (row_labels) put(row_labels, label_bytes, column, rest, ignored);
            if (row_positions) count_up(row_positions + column, rest);
            if (row_ids) put(row_ids, 4, column, rest, -1);
        }
        if (row_offsets) put(row_offsets, 4, end - begin + 1, width - 1 - (end - begin), length);
    }
    return FINE;
}

struct gathering {
    const char *flat;
    int64_t num_values, source;
    const int64_t *elements;
    int64_t num_rows, length;
    char *tokens; /* this and labels may be 0 */
    int64_t token_bytes;
    char *labels;
    int64_t label_bytes;
};

EXPORTED int64_t stoker_gather_rows(const struct gathering *given)
{
    const char *flat = given->flat;
    const int64_t num_values = given->num_values, source = given->source;
    const int64_t *elements = given->elements;
    const int64_t num_rows = given->num_rows, length = given->length;
    char *tokens = given->tokens, *labels = given->labels;
    const int64_t token_bytes = given->token_bytes, label_bytes = given->label_bytes;

    const int64_t value_bytes = source_bytes[source], places = num_rows * length;
    if (overlap(tokens, places * token_bytes, flat, num_values * value_bytes) ||
        overlap(tokens, places * token_bytes, elements, num_rows * 8) ||
        overlap(labels, places * label_bytes, flat, num_values * value_bytes) ||
        overlap(labels, places * label_bytes, elements, num_rows * 8))
        return WRONG(OVERLAP, 0);
    const int64_t last = num_values - length - (labels != NULL);
    for (int64_t r = 0; r < num_rows; r++)
        if (elements[r] < 0 || elements[r] > last) return WRONG(BAD_SPAN, r);

    const copy_function to_tokens = copy_for(source, token_bytes), to_labels = copy_for(source, label_bytes);
    for (int64_t r = 0; r < num_rows; r++) {
        const char *from = flat + elements[r] * value_bytes;
        const char *next = r + 1 < num_rows ? flat + elements[r + 1] * value_bytes : NULL;
        char *row_tokens = tokens ? tokens + r * length * token_bytes : NULL;
        char *row_labels = labels ? labels + r * length * label_bytes : NULL;
        for (int64_t column = 0; column < length; column += PIECE) {
            int64_t size = length - column < PIECE ? length - column : PIECE;
            if (next) ask_for(next + column * value_bytes, size * value_bytes);
            if (tokens) to_tokens(from + column * value_bytes, row_tokens + column * token_bytes, size);
            if (labels) to_labels(from + (column + 1) * value_bytes, row_labels + column * label_bytes, size);
        }
    }
    return FINE;
}
