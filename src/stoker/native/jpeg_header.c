/* Read the header of a JPEG file. jpeg_headers.py says the same in Python. */

#include "native.h"

struct header_request {
    const uint8_t *data;
    int64_t num_bytes;
    int64_t *found; /* in the order below */
};

enum { WIDTH, HEIGHT, COMPONENTS, BITS, ORIENTATION, IS_PROGRESSIVE, ADOBE, HAS_END, IS_ARITHMETIC };

#define UNKNOWN (-1)
#define TAG_ORIENTATION 0x112

static int64_t two(const uint8_t *at, int is_little)
{
    return is_little ? at[0] | at[1] << 8 : at[0] << 8 | at[1];
}

static int64_t four(const uint8_t *at, int is_little)
{
    return is_little ? two(at, 1) | two(at + 2, 1) << 16 : two(at, 0) << 16 | two(at + 2, 0);
}

static int starts(const uint8_t *at, const uint8_t *end, const char *with, int64_t size)
{
    return end - at >= size && !memcmp(at, with, (size_t)size);
}

/* The orientation in EXIF, a TIFF file inside: the first tag of that number which is a whole number. */
static int64_t of_exif(const uint8_t *at, const uint8_t *end)
{
    if (starts(at, end, "Exif\0\0", 6)) at += 6; /* some write it twice */
    if (end - at < 8) return UNKNOWN;
    const int is_little = at[0] == 'I';
    if ((at[0] != 'I' && at[0] != 'M') || at[1] != at[0]) return UNKNOWN;
    if (!(at[2] == 0 && at[3] == 42) && !(at[2] == 42 && at[3] == 0)) return UNKNOWN; /* Pillow takes either */
    const int64_t size = end - at, table = four(at + 4, is_little);
    if (table + 2 > size) return UNKNOWN;
    const int64_t count = two(at + table, is_little);
    for (int64_t i = 0, entry = table + 2; i < count && entry + 12 <= size; i++, entry += 12) {
        const uint8_t *tag = at + entry;
        if (two(tag, is_little) != TAG_ORIENTATION) continue;
        const int64_t type = two(tag + 2, is_little), num_values = four(tag + 4, is_little);
        const int is_short = type == 3 || type == 8, is_long = type == 4 || type == 9;
        if (!is_short && !is_long) continue;
        if (num_values != 1) return 0; /* there is one, and it means nothing */
        return is_short ? two(tag + 8, is_little) : four(tag + 8, is_little);
    }
    return UNKNOWN;
}

/* The orientation in XMP, which is text: tiff:Orientation="6" or <tiff:Orientation>6. */
static int64_t of_xmp(const uint8_t *at, const uint8_t *end)
{
    static const char name[] = "tiff:Orientation";
    const int64_t size = sizeof name - 1;
    for (; (at = end - at > size ? memchr(at, 't', (size_t)(end - at - size)) : 0); at++) {
        if (memcmp(at, name, (size_t)size)) continue;
        const uint8_t *next = at + size;
        if (starts(next, end, "=\"", 2))
            next += 2;
        else if (starts(next, end, ">", 1))
            next += 1;
        else
            continue;
        if (next < end && *next >= '0' && *next <= '9') return *next - '0';
    }
    return UNKNOWN;
}

/* Where the data of the first scan begin, its header included; 0 if that is unknown. */
static const uint8_t *read_header(const uint8_t *at, const uint8_t *end, int64_t *found)
{
    static const char xmp_name[] = "http://ns.adobe.com/xap/1.0/";
    int64_t exif = UNKNOWN;
    const uint8_t *xmp = 0, *xmp_end = 0;
    int has_exif = 0, has_frame = 0;
    if (!starts(at, end, "\xff\xd8", 2)) return 0;
    at += 2;
    for (;;) {
        while (at < end && *at != 0xff) at++; /* what does not belong there is passed over, as libjpeg does */
        while (at < end && *at == 0xff) at++;
        if (at == end) return 0;
        const int marker = *at++;
        if (!marker || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd7)) continue;
        if (marker == 0xda) break;
        const int is_frame = marker == 0xc0 || marker == 0xc1 || marker == 0xc2 || marker == 0xc9 || marker == 0xca;
        const int is_table = marker == 0xc4 || marker == 0xcc || (marker >= 0xdb && marker <= 0xdd);
        const int is_note = (marker >= 0xe0 && marker <= 0xef) || marker == 0xfe;
        if (!is_frame && !is_table && !is_note) return 0;
        if (end - at < 2) return 0;
        const int64_t size = two(at, 0);
        if (size < 2 || size > end - at) return 0;
        const uint8_t *body = at + 2;
        at += size;
        if (is_frame) {
            if (has_frame || size < 8 || size != 8 + 3 * body[5]) return 0;
            has_frame = 1;
            found[BITS] = body[0], found[HEIGHT] = two(body + 1, 0), found[WIDTH] = two(body + 3, 0);
            found[COMPONENTS] = body[5];
            if (!found[HEIGHT] || !found[WIDTH] || !found[COMPONENTS]) return 0;
            found[IS_PROGRESSIVE] = marker == 0xc2 || marker == 0xca;
            found[IS_ARITHMETIC] = marker >= 0xc9;
        } else if (marker == 0xe1 && !has_exif && starts(body, at, "Exif\0\0", 6)) {
            has_exif = 1;
            exif = of_exif(body + 6, at);
        } else if (marker == 0xe1 && starts(body, at, xmp_name, sizeof xmp_name)) {
            xmp = body + sizeof xmp_name, xmp_end = at;
        } else if (marker == 0xee && size >= 14 && starts(body, at, "Adobe", 5)) {
            found[ADOBE] = body[11];
        }
    }
    if (!has_frame) return 0;
    if (exif == UNKNOWN && xmp) exif = of_xmp(xmp, xmp_end);
    found[ORIENTATION] = exif >= 1 && exif <= 8 ? exif : 1;
    return at;
}

/* Returns 0, or 1 if it is no JPEG file or its header cannot be read. */
EXPORTED int64_t stoker_jpeg_header(const struct header_request *given)
{
    const uint8_t *end = given->data + given->num_bytes;
    given->found[ADOBE] = UNKNOWN, given->found[HAS_END] = 0;
    const uint8_t *scan = read_header(given->data, end, given->found);
    if (!scan) return 1;
    /* From the end, where it is in most files: in the data of a scan no such pair of bytes can be. */
    for (const uint8_t *at = end - 2; at >= scan; at--)
        if (at[0] == 0xff && at[1] == 0xd9) {
            given->found[HAS_END] = 1;
            break;
        }
    return 0;
}
