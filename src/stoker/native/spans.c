/* What is in packed rows: the arithmetic of compose/packs/pack_tables.py, from rows to spans of documents, and where these lie. */

#include "native.h"

/* Numbers one after the other in parts: number i of part p is flat[elements[p] + i - starts[p]]. */
struct parts {
    const void *flat;
    int64_t num_values, bytes;       /* of flat, and of each of its values */
    const int64_t *starts, *elements; /* starts has one more: how many numbers there are */
    int64_t num_parts;
    const uint8_t *seen; /* of each block of flat, of 2 to the power of `shift` bytes, whether it may be read; 0: all */
    int64_t shift;
};

struct slot {
    int64_t base, step, place, count, size, piece; /* as FittedRows puts them together */
};

struct tables {
    const int64_t *row_starts, *slot_starts; /* num_sections + 1 each */
    int64_t num_sections;
    const struct slot *slots;
    int64_t num_slots, length, is_cut;
    struct parts order, pieces, offsets, values; /* offsets has a part for each of values, and one more number in it */
};

/* Return the last of `count` ascending numbers that is not greater than `value`, or else the first. */
static inline int64_t last_up_to(const int64_t *numbers, int64_t count, int64_t value)
{
    int64_t first = 0;
    while (count > 1) {
        int64_t half = count / 2;
        first = numbers[first + half] <= value ? first + half : first;
        count -= half;
    }
    return first;
}

static inline int was_seen(const struct parts *in, int64_t element, int64_t count)
{
    if (!in->seen) return 1;
    int64_t last = ((element + count) * in->bytes - 1) >> in->shift;
    for (int64_t block = (element * in->bytes) >> in->shift; block <= last; block++)
        if (!in->seen[block]) return 0;
    return 1;
}

/* Return which element of flat a number is, if it and as many as `count` from it on may be read, or else -1. */
static inline int64_t element_of(const struct parts *in, int64_t number, int64_t count, int64_t *part)
{
    if (number < 0 || number >= in->starts[in->num_parts]) return -1;
    *part = last_up_to(in->starts, in->num_parts, number);
    int64_t element = in->elements[*part] + (number - in->starts[*part]);
    if (element < 0 || element > in->num_values - count || !was_seen(in, element, count)) return -1;
    return element;
}

static inline const char *address_of(const struct parts *in, int64_t element)
{
    return (const char *)in->flat + element * in->bytes;
}

static inline int64_t value_at(const struct parts *in, int64_t element)
{
    const char *from = address_of(in, element);
    return in->bytes == 4 ? (int64_t) * (const uint32_t *)from : *(const int64_t *)from;
}

struct finding {
    const struct tables *tables;
    const int64_t *rows;
    int64_t num_rows;
    int64_t *out; /* row_starts [num_rows + 1]; documents, offsets, sizes, begins, elements [room]; has_next, bytes [room] */
    int64_t room;
};

/* NO_ROOM if there are more spans than room, and row_starts then say how many; UNFOUND if something is invalid, or
   its checksum is not verified yet: NumPy then does it, or raises. The outputs are worth nothing in either case. */
EXPORTED int64_t stoker_find_spans(const struct finding *given)
{
    const struct tables *tables = given->tables;
    const struct parts *order = &tables->order, *offsets = &tables->offsets, *values = &tables->values;
    const int64_t *rows = given->rows, num_rows = given->num_rows, room = given->room, length = tables->length;
    int64_t *row_starts = given->out, *documents = row_starts + num_rows + 1, *begin_in = documents + room;
    int64_t *sizes = begin_in + room, *begins = sizes + room, *elements = begins + room;
    uint8_t *has_next = (uint8_t *)(elements + room);

    /* Each step asks for the memory that the next one needs, for all spans, so that they wait for it together. */
    int64_t num_spans = 0, part;
    for (int64_t r = 0; r < num_rows; r++) {
        int64_t section = last_up_to(tables->row_starts, tables->num_sections, rows[r]);
        int64_t first = tables->row_starts[section], slot = tables->slot_starts[section];
        int64_t end = tables->slot_starts[section + 1];
        row_starts[r] = num_spans;
        if (first < 0 || rows[r] < first || rows[r] >= tables->row_starts[section + 1]) return WRONG(UNFOUND, r);
        if (slot < 0 || end < slot || end > tables->num_slots) return WRONG(UNFOUND, r);
        if (end - slot > room - num_spans) { /* go on, to count them */
            num_spans += end - slot;
            continue;
        }
        for (; slot < end; slot++, num_spans++) {
            __builtin_prefetch(tables->slots + slot);
            begin_in[num_spans] = rows[r] - first, sizes[num_spans] = slot;
        }
    }
    row_starts[num_rows] = num_spans;
    if (num_spans > room) return WRONG(NO_ROOM, 0);
    for (int64_t s = 0; s < num_spans; s++) {
        const struct slot *slot = tables->slots + sizes[s];
        int64_t rank;
        if (slot->count <= 0 || slot->base < 0 || slot->step < 0 || slot->place < 0) return WRONG(UNFOUND, s);
        if (__builtin_mul_overflow(begin_in[s], slot->step, &rank) || __builtin_add_overflow(rank, slot->base, &rank) ||
            __builtin_add_overflow(rank % slot->count, slot->place, begins + s))
            return WRONG(UNFOUND, s);
        elements[s] = element_of(order, begins[s], 1, &part);
        if (elements[s] < 0) return WRONG(UNFOUND, s);
        __builtin_prefetch(address_of(order, elements[s]));
    }
    for (int64_t s = 0; s < num_spans; s++) {
        documents[s] = value_at(order, elements[s]);
        elements[s] = element_of(offsets, documents[s], 2, &part);
        if (elements[s] < 0) return WRONG(UNFOUND, s);
        __builtin_prefetch(address_of(offsets, elements[s]));
        begin_in[s] = part;
    }
    for (int64_t s = 0; s < num_spans; s++) {
        const struct slot *slot = tables->slots + sizes[s];
        int64_t begin = value_at(offsets, elements[s]), end = value_at(offsets, elements[s] + 1), size = slot->size;
        part = begin_in[s];
        if (begin < 0 || end < begin || end > values->starts[part + 1] - values->starts[part]) return WRONG(UNFOUND, s);
        int64_t whole = end - begin, offset = whole - size, more = 0;
        if (size <= 0 || size > whole) return WRONG(UNFOUND, s);
        if (size == length && !tables->is_cut) offset = 0;
        if (size == length && tables->is_cut) {
            int64_t number, ignored, piece;
            if (__builtin_add_overflow(begins[s] - slot->place, slot->piece, &number)) return WRONG(UNFOUND, s);
            int64_t element = element_of(&tables->pieces, number, 1, &ignored);
            if (element < 0) return WRONG(UNFOUND, s);
            piece = value_at(&tables->pieces, element);
            if (piece < 0 || piece > offset / length) return WRONG(UNFOUND, s);
            more = offset > piece * length;
            offset = piece * length;
        }
        if (tables->is_cut ? offset % length : offset) return WRONG(UNFOUND, s);
        int64_t element = values->elements[part] + begin + offset;
        if (element < 0 || element > values->num_values - size - more || !was_seen(values, element, size + more))
            return WRONG(UNFOUND, s);
        sizes[s] = size, begin_in[s] = offset, has_next[s] = (uint8_t)more;
        begins[s] = values->starts[part] + begin + offset, elements[s] = element;
    }
    return FINE;
}

struct writing {
    const struct tables *tables;
    const int64_t *rows;
    int64_t num_rows;
    const struct filling *filling; /* with outputs counted from `memory`, and nothing yet to fill them from */
    char *memory;
};

/* Look up spans, and fill rows from them. What NumPy has to look at is UNFOUND, and nothing is written then. */
EXPORTED int64_t stoker_write_rows(const struct writing *given)
{
    const struct parts *values = &given->tables->values;
    struct filling filling = *given->filling;
    struct finding finding = {given->tables, given->rows, given->num_rows, NULL, 8 * given->num_rows};
    int64_t wrong;
    if (given->num_rows != filling.num_rows) return WRONG(UNFOUND, 0);
    for (;;) {
        size_t num_bytes = (size_t)(given->num_rows + 1 + 6 * finding.room) * 8;
        finding.out = malloc(num_bytes);
        if (!finding.out) return WRONG(NO_MEMORY, 0);
        wrong = stoker_find_spans(&finding);
        if ((wrong & 15) != NO_ROOM) break;
        finding.room = finding.out[given->num_rows];
        free(finding.out);
    }
    if (!wrong) {
        int64_t *spans = finding.out + given->num_rows + 1, room = finding.room;
        filling.flat = values->flat, filling.num_values = values->num_values;
        filling.row_starts = finding.out, filling.num_spans = finding.out[given->num_rows];
        filling.sizes = spans + 2 * room, filling.elements = spans + 4 * room;
        filling.has_next = (uint8_t *)(spans + 5 * room);
        filling.tokens = given->memory + (intptr_t)filling.tokens;
        filling.labels = given->memory + (intptr_t)filling.labels;
        filling.positions = (int32_t *)(given->memory + (intptr_t)filling.positions);
        filling.document_ids = (int32_t *)(given->memory + (intptr_t)filling.document_ids);
        filling.cu_seqlens = (int32_t *)(given->memory + (intptr_t)filling.cu_seqlens);
        wrong = stoker_fill_rows(&filling);
    }
    free(finding.out);
    return wrong;
}
