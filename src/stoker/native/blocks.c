/* FlexAttention's block tables; compose/packs/block_tables.py says what is in them. */

#include "native.h"

/* Write `count` blocks from `first` on, then zeros. */
static inline void list(int32_t *to, int64_t count, int64_t first, int64_t num_blocks)
{
    for (int64_t i = 0; i < count; i++) to[i] = (int32_t)(first + i);
    memset(to + count, 0, (size_t)(num_blocks - count) * 4);
}

struct tabling {
    const int32_t *cu_seqlens;
    int64_t num_rows, width, length, size;
    const int64_t *rows;
    int64_t num_places;
    int32_t *kv_num, *kv, *full_kv_num, *full_kv, *q_num, *q, *full_q_num, *full_q;
};

EXPORTED int64_t stoker_block_tables(const struct tabling *given)
{
    const int32_t *cu_seqlens = given->cu_seqlens;
    const int64_t num_rows = given->num_rows, width = given->width, length = given->length, size = given->size;
    const int64_t *rows = given->rows, num_places = given->num_places;
    int32_t *kv_num = given->kv_num, *kv = given->kv, *full_kv_num = given->full_kv_num, *full_kv = given->full_kv;
    int32_t *q_num = given->q_num, *q = given->q, *full_q_num = given->full_q_num, *full_q = given->full_q;
    const int64_t num = (length + size - 1) / size;
    int32_t *counts[] = {kv_num, full_kv_num, q_num, full_q_num}, *lists[] = {kv, full_kv, q, full_q};
    for (int t = 0; t < 4; t++)
        if (overlap(counts[t], num_places * num * 4, cu_seqlens, num_rows * width * 4) ||
            overlap(counts[t], num_places * num * 4, rows, num_rows * 8) ||
            overlap(lists[t], num_places * num * num * 4, cu_seqlens, num_rows * width * 4) ||
            overlap(lists[t], num_places * num * num * 4, rows, num_rows * 8))
            return WRONG(OVERLAP, 0);
    for (int64_t r = 0; r < num_rows; r++) {
        const int32_t *offsets = cu_seqlens + r * width;
        if (rows[r] < 0 || rows[r] >= num_places) return WRONG(BAD_ROW, r);
        if (offsets[0] != 0 || offsets[width - 1] != length) return WRONG(BAD_OFFSETS, r);
        for (int64_t i = 1; i < width; i++)
            if (offsets[i] < offsets[i - 1]) return WRONG(BAD_OFFSETS, r);
    }
    for (int64_t r = 0; r < num_rows; r++) {
        const int32_t *offsets = cu_seqlens + r * width;
        int64_t place = rows[r] * num, after = 1; /* offsets[after - 1] <= column < offsets[after] */
        for (int64_t i = 0; i < num; i++) {
            int64_t begin = i * size, end = begin + size < length ? begin + size : length;
            while (offsets[after] <= begin) after++;
            int64_t first = offsets[after - 1] / size, whole = offsets[after] / size;
            while (offsets[after] <= end - 1) after++;
            int64_t solid = (offsets[after - 1] + size - 1) / size, last = (offsets[after] - 1) / size;
            if (solid > i || end - begin < size) solid = i;
            if (whole < i + 1) whole = i + 1;
            if (last < i) last = i;

            int64_t at = place + i;
            kv_num[at] = (int32_t)(solid - first + 1);
            list(kv + at * num, solid - first, first, num);
            kv[at * num + solid - first] = (int32_t)i;
            full_kv_num[at] = (int32_t)(i - solid);
            list(full_kv + at * num, i - solid, solid, num);
            q_num[at] = (int32_t)(last - whole + 2);
            q[at * num] = (int32_t)i;
            list(q + at * num + 1, last - whole + 1, whole, num - 1);
            full_q_num[at] = (int32_t)(whole - i - 1);
            list(full_q + at * num, whole - i - 1, i + 1, num);
        }
    }
    return FINE;
}
