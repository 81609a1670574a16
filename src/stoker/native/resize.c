/* Antialiased bilinear resizing, bit for bit as Pillow does it: a triangle as wide as two new pixels (or two old ones,
   whichever is more), first across, rounded to bytes, then down. Rows come one by one, and no more of them are kept than
   a new row is made of: they stay in the cache. */

#include "resize.h"

#include <math.h>

/* ------------------------------------------------------------ weights */

/* How many old numbers a new one can be made of. */
static int64_t widest(double begin_d, double end_d, int64_t num)
{
    const float begin = (float)begin_d, end = (float)end_d;
    double scale = (double)(end - begin) / (double)num;
    if (scale < 1.0) scale = 1.0;
    return (int64_t)ceil(scale) * 2 + 1;
}

struct layout {
    int64_t taps, padded, first, end, high, low, whole, num_bytes;
};

static int64_t taken(struct layout *at, int64_t num_bytes)
{
    const int64_t begin = at->num_bytes;
    at->num_bytes += (num_bytes + 63) / 64 * 64;
    return begin;
}

/* Where the tables of an axis lie, from `start` on. Pairs are a multiple of four: the passes of one channel take eight
   at once. */
static struct layout layout_from(int64_t start, int64_t taps, int64_t num)
{
    struct layout at = {.taps = (taps + 7) / 8 * 8, .padded = (num + GROUP - 1) / GROUP * GROUP, .num_bytes = start};
    at.first = taken(&at, at.padded * 4);
    at.end = taken(&at, at.padded * 4);
    at.high = taken(&at, at.padded * at.taps * 2);
    at.low = taken(&at, at.padded * at.taps * 2);
    at.whole = taken(&at, at.padded * at.taps * 4);
    return at;
}

/* What Pillow computes, in the same order and the same types, as each rounding counts. */
static void weigh(struct weights *it, const struct layout *at, uint8_t *memory, double *scratch, int64_t size,
                  double begin_d, double end_d, int64_t num, int multiple, int is_mirrored)
{
    const float begin = (float)begin_d, end = (float)end_d;
    double scale = (double)(end - begin) / (double)num, wide = scale < 1.0 ? 1.0 : scale;
    const double support = wide, narrow = 1.0 / wide;

    it->num = num, it->padded = at->padded;
    it->first = (int32_t *)(memory + at->first), it->end = (int32_t *)(memory + at->end);
    it->high = (int16_t *)(memory + at->high), it->low = (int16_t *)(memory + at->low);
    it->whole = (int32_t *)(memory + at->whole);
    it->first_used = size, it->end_used = 0, it->is_copy = it->is_shift = 1;

    /* First as many for each as there can be, then what none has at its end is left out. */
    int64_t most = 1;
    for (int64_t i = 0; i < num; i++) {
        const double center = (double)begin + ((double)i + 0.5) * scale;
        int64_t first = (int64_t)(center - support + 0.5), last = (int64_t)(center + support + 0.5);
        if (first < 0) first = 0;
        if (last > size) last = size;
        int64_t count = last - first;
        double sum = 0.0;
        for (int64_t k = 0; k < count; k++) {
            double distance = ((double)(k + first) - center + 0.5) * narrow;
            if (distance < 0.0) distance = -distance;
            scratch[k] = distance < 1.0 ? 1.0 - distance : 0.0;
            sum += scratch[k];
        }
        const int64_t number = is_mirrored ? num - 1 - i : i;
        int32_t *whole = it->whole + number * at->taps;
        for (int64_t k = 0; k < count; k++) {
            double weight = sum != 0.0 ? scratch[k] / sum : scratch[k];
            whole[k] = (int32_t)(0.5 + weight * (1 << PRECISION));
        }
        while (count > 1 && !whole[count - 1]) count--;
        if (count < 1) { /* a box without width at the very end: Pillow's sum of nothing */
            count = 1, whole[0] = 0;
            if (first > size - 1) first = size - 1;
        }
        it->first[number] = (int32_t)first, it->end[number] = (int32_t)(first + count);
        if (count > most) most = count;
        if (first < it->first_used) it->first_used = first;
        if (first + count > it->end_used) it->end_used = first + count;
        it->is_copy &= count == 1 && whole[0] == 1 << PRECISION;
        it->is_shift &= first == it->first[is_mirrored ? num - 1 : 0] + i;
    }

    const int64_t taps = (most + multiple - 1) / multiple * multiple;
    it->pairs = taps / 2;
    for (int64_t i = 0; i < it->padded; i++) { /* forwards: what moves, moves towards the beginning */
        if (i >= num) it->first[i] = it->end[i] = it->first[num - 1];
        const int64_t count = it->end[i] - it->first[i];
        const int32_t *from = it->whole + i * at->taps;
        int32_t *to = it->whole + i * taps;
        for (int64_t k = 0; k < taps; k++) {
            const int32_t weight = k < count ? from[k] : 0;
            to[k] = weight;
            it->high[i * taps + k] = (int16_t)(weight >> LOW_BITS);
            it->low[i * taps + k] = (int16_t)(weight & ((1 << LOW_BITS) - 1));
        }
    }
}

/* ------------------------------------------------------------ rows */

#define LARGEST 0x7fffffff

int resizing_begin(struct resizing *it, int64_t width, int64_t height, const double box[4], const struct target *target)
{
    memset(it, 0, sizeof *it);
    const float left = (float)box[0], top = (float)box[1], right = (float)box[2], bottom = (float)box[3];
    if (!(left >= 0 && top >= 0 && left <= right && top <= bottom && right <= width && bottom <= height)) return BAD_BOX;
    if (width < 1 || height < 1 || width > LARGEST || height > LARGEST) return BAD_BOX;
    it->target = *target;
    it->passes = the_passes();

    const int64_t channels = target->channels;
    const int is_mirrored = target->pixel_step < 0;
    const int64_t pixel_step = is_mirrored ? -target->pixel_step : target->pixel_step;
    const int is_planar = channels == 1 || pixel_step == 1;
    const int is_direct = pixel_step == 1 || (pixel_step == channels && target->channel_step == 1);

    int64_t taps_x = widest(box[0], box[2], target->width), taps_y = widest(box[1], box[3], target->height);
    if (taps_x > width) taps_x = width;
    if (taps_y > height) taps_y = height;
    const struct layout x = layout_from(0, taps_x, target->width);
    const struct layout y = layout_from(x.num_bytes, taps_y, target->height);
    it->plane = is_planar ? x.padded : 0;
    const int64_t row_bytes = (x.padded * channels + ROW_PADDING + 63) / 64 * 64;
    const int64_t most_kept = taps_y + 3;

    struct layout all = y;
    const int64_t scratch = taken(&all, (taps_x > taps_y ? taps_x : taps_y) * 8);
    const int64_t kept = taken(&all, most_kept * 8), used = taken(&all, (y.taps + 1) * 8);
    const int64_t line = taken(&all, row_bytes), rows = taken(&all, most_kept * row_bytes);
    uint8_t *memory = it->memory = malloc((size_t)all.num_bytes);
    if (!memory) return NO_MEMORY;

    weigh(&it->x, &x, memory, (double *)(memory + scratch), width, box[0], box[2], target->width, channels == 1 ? 8 : 2,
          is_mirrored);
    weigh(&it->y, &y, memory, (double *)(memory + scratch), height, box[1], box[3], target->height, 2, 0);

    int64_t end = 0, most = 1;
    for (int64_t i = 0; i < it->y.num; i++) { /* ends need not ascend, as weights may be rounded to 0 */
        if (it->y.end[i] > end) end = it->y.end[i];
        if (end - it->y.first[i] > most) most = end - it->y.first[i];
    }
    it->num_kept = most + 2 < most_kept ? most + 2 : most_kept; /* two come at once */
    it->kept = (uint8_t **)(memory + kept), it->used = (const uint8_t **)(memory + used);
    for (int64_t i = 0; i < it->num_kept; i++) it->kept[i] = memory + rows + i * row_bytes;
    it->line = is_direct ? 0 : memory + line;
    it->next_row = it->y.first_used;
    return FINE;
}

void resizing_shift(struct resizing *it, int64_t columns)
{
    for (int64_t i = 0; i < it->x.padded; i++) {
        it->x.first[i] -= (int32_t)columns;
        it->x.end[i] -= (int32_t)columns;
    }
}

static void put_line(const struct resizing *it, uint8_t *to)
{
    const struct target *target = &it->target;
    const int64_t from_pixel = it->plane ? 1 : target->channels, from_channel = it->plane ? it->plane : 1;
    const int64_t pixel_step = target->pixel_step < 0 ? -target->pixel_step : target->pixel_step;
    for (int64_t channel = 0; channel < target->channels; channel++)
        for (int64_t i = 0; i < target->width; i++)
            to[i * pixel_step + channel * target->channel_step] = it->line[i * from_pixel + channel * from_channel];
}

/* New rows, as far as what they are made of has come. */
static void put_rows(struct resizing *it)
{
    const struct target *target = &it->target;
    const int64_t width = target->width, channels = target->channels;
    /* mirrored rows begin with the pixel that is last */
    const int64_t begin = target->pixel_step < 0 ? (width - 1) * target->pixel_step : 0;
    for (; it->next_out < target->height && it->y.end[it->next_out] <= it->next_row; it->next_out++) {
        const int64_t number = it->next_out, count = it->y.end[number] - it->y.first[number];
        int64_t slot = it->y.first[number] % it->num_kept;
        for (int64_t k = 0; k < count; k++) {
            it->used[k] = it->kept[slot];
            if (++slot == it->num_kept) slot = 0;
        }
        it->used[count] = it->used[count - 1]; /* the second one of a pair, with a weight of 0 */
        uint8_t *to = target->pixels + number * target->row_step + begin;
        const int64_t parts = it->plane ? channels : 1, size = it->plane ? width : width * channels;
        for (int64_t part = 0; part < parts; part++) {
            uint8_t *at = it->line ? it->line + part * it->plane : to + part * target->channel_step;
            if (it->y.is_copy)
                memcpy(at, it->used[0], (size_t)size);
            else
                it->passes->down(&it->y, number, it->used, size, at);
            for (int64_t k = 0; k <= count; k++) it->used[k] += it->plane;
        }
        if (it->line) put_line(it, to);
    }
}

void resizing_feed(struct resizing *it, const uint8_t *first, const uint8_t *second)
{
    const int64_t slot = it->next_row % it->num_kept, next = slot + 1 == it->num_kept ? 0 : slot + 1;
    const uint8_t *const from[2] = {first, second ? second : first};
    uint8_t *const to[2] = {it->kept[slot], it->kept[next]}; /* one more than is needed is kept, so that it can be written */
    if (it->x.is_copy && it->x.is_shift && !it->plane && it->target.pixel_step > 0) {
        const int64_t channels = it->target.channels;
        for (int i = 0; i < 2; i++) memcpy(to[i], from[i] + it->x.first[0] * channels, (size_t)(it->x.num * channels));
    } else
        it->passes->across(&it->x, it->target.channels, from, to, it->plane);
    it->next_row += second ? 2 : 1;
    put_rows(it);
}

void resizing_end(struct resizing *it)
{
    free(it->memory);
    it->memory = 0;
}

/* ------------------------------------------------------------ an image in memory */

struct resize {
    const uint8_t *pixels; /* rows of width * channels bytes, row_step from each to the next */
    int64_t height, width, channels, row_step;
    double box[4];
    struct target target;
};

EXPORTED int64_t stoker_resize(const struct resize *given)
{
    const int64_t height = given->height, channels = given->channels, row_step = given->row_step;
    const int64_t row_bytes = given->width * channels;
    const uint8_t *begin = given->pixels + (row_step < 0 ? (height - 1) * row_step : 0);
    const uint8_t *end = given->pixels + (row_step < 0 ? 0 : (height - 1) * row_step) + row_bytes;

    const struct target *target = &given->target;
    const int64_t steps[] = {target->row_step, target->pixel_step, target->channel_step};
    const int64_t counts[] = {target->height, target->width, channels};
    const uint8_t *target_begin = target->pixels, *target_end = target->pixels + 1;
    for (int i = 0; i < 3; i++) *(steps[i] < 0 ? &target_begin : &target_end) += steps[i] * (counts[i] - 1);
    if (overlap(begin, end - begin, target_begin, target_end - target_begin)) return WRONG(OVERLAP, 0);

    struct resizing it;
    int wrong = resizing_begin(&it, given->width, height, given->box, target);
    /* Of the last rows in memory there is nothing behind that could be read: they are copied. */
    const int64_t padding = wrong ? 0 : INPUT_PADDING(&it.x, channels);
    uint8_t *copies = 0;
    if (!wrong && !(copies = malloc((size_t)(2 * (row_bytes + padding))))) wrong = NO_MEMORY;
    for (int64_t row = it.y.first_used; !wrong && row < it.y.end_used; row += 2) {
        const uint8_t *rows[2] = {0, 0};
        for (int i = 0; i < 2 && row + i < it.y.end_used; i++) {
            rows[i] = given->pixels + (row + i) * row_step;
            if (end - rows[i] < row_bytes + padding)
                rows[i] = memcpy(copies + i * (row_bytes + padding), rows[i], (size_t)row_bytes);
        }
        resizing_feed(&it, rows[0], rows[1]);
    }
    free(copies);
    resizing_end(&it);
    return WRONG(wrong, 0);
}
