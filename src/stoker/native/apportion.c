/* Who is next: a sequence in which everyone's share of any beginning is as exact as it can be.

   Tijdeman's chairman assignment. Of k with shares weight / period, each is to have its n-th turn so that at no time it
   has had more or less than its share by more than 1 - 1 / (2k - 2). That is a window of slots for each turn, and to take
   the turn whose window ends first, of those that have begun, always succeeds. */

#include "native.h"

typedef struct {
    int64_t key; /* the first or the last slot of a turn's window */
    int64_t who;
} entry;

/* The smallest key comes first, of equal ones the first of them. */
static inline int before(entry a, entry b) { return a.key < b.key || (a.key == b.key && a.who < b.who); }

static void push(entry *heap, int64_t *size, entry item)
{
    int64_t at = (*size)++;
    while (at && before(item, heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = item;
}

static entry pop(entry *heap, int64_t *size)
{
    entry top = heap[0], item = heap[--*size];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < *size) {
        if (child + 1 < *size && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], item)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = item;
    return top;
}

/* Slots are counted from 1. With a period of at most 2**22 and 2**16 weights all products are below 2**63. */
struct apportioning {
    const int64_t *weights;
    int64_t num_weights;
    uint16_t *out;
    int64_t period;
};

EXPORTED int64_t stoker_apportion(const struct apportioning *given)
{
    const int64_t *weights = given->weights, num_weights = given->num_weights, period = given->period;
    uint16_t *out = given->out;
    if (overlap(out, period * 2, weights, num_weights * 8)) return WRONG(OVERLAP, 0);
    int64_t sum = 0, num_shares = 0;
    for (int64_t who = 0; who < num_weights; who++) {
        if (weights[who] < 0 || weights[who] > period - sum) return WRONG(BAD_WEIGHT, who);
        sum += weights[who];
        num_shares += weights[who] > 0;
    }
    if (sum != period) return WRONG(BAD_WEIGHT, num_weights);
    if (num_shares <= 1) {
        uint16_t only = 0;
        while (only + 1 < num_weights && !weights[only]) only++;
        for (int64_t slot = 0; slot < period; slot++) out[slot] = only;
        return FINE;
    }

    int64_t *turns = calloc((size_t)num_weights, sizeof *turns);
    entry *waiting = malloc((size_t)num_shares * sizeof *waiting), *ready = malloc((size_t)num_shares * sizeof *ready);
    if (!turns || !waiting || !ready) {
        free(turns), free(waiting), free(ready);
        return WRONG(NO_MEMORY, 0);
    }
    const int64_t parts = 2 * num_shares - 2;
    int64_t num_waiting = 0, num_ready = 0;
    for (int64_t who = 0; who < num_weights; who++) {
        int64_t width = parts * weights[who];
        if (width) push(waiting, &num_waiting, (entry){(period + width - 1) / width, who});
    }
    for (int64_t slot = 1; slot <= period; slot++) {
        while (num_waiting && waiting[0].key <= slot) {
            int64_t who = pop(waiting, &num_waiting).who;
            int64_t last = ((turns[who] + 1) * parts - 1) * period / (parts * weights[who]) + 1;
            push(ready, &num_ready, (entry){last, who});
        }
        if (!num_ready) { /* cannot be: the windows always leave one */
            free(turns), free(waiting), free(ready);
            return WRONG(BAD_WEIGHT, num_weights);
        }
        int64_t who = pop(ready, &num_ready).who;
        out[slot - 1] = (uint16_t)who;
        int64_t turn = ++turns[who], width = parts * weights[who];
        if (turn < weights[who])
            push(waiting, &num_waiting, (entry){((turn * parts + 1) * period + width - 1) / width, who});
    }
    free(turns), free(waiting), free(ready);
    return FINE;
}
