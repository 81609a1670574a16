/* JPEG files decoded no further than is needed, and resized while they are decoded: rows above the part that counts and
   columns outside it are skipped, rows below it never read, and what comes goes through resize.c at once.

   This is a library of its own, as it needs libjpeg-turbo, which not every machine has. */

#include "resize.h"

#include <limits.h>
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

/* Files of many scans keep all coefficients until the last one is read, and each scan goes over all of them, even if it
   has next to no data: a small file of many scans could take minutes. Encoders write about ten. */
#define MOST_SCANS 100
#define MOST_BYTES ((int64_t)1 << 30) /* of coefficients: 178 million pixels without subsampling */

/* Rows begin so many bytes beyond what is aligned: those that are libjpeg-turbo writes past the cache, and the next reader
   waits for memory. A face of 250 pixels took 1.7 times as long. */
#define UNALIGNED 8

struct jpeg_request {
    const uint8_t *data;
    int64_t num_bytes;
    int64_t region[4]; /* left, top, right, bottom: nothing outside of it counts */
    double box[4];     /* what goes into the target */
    double shrink;     /* decoded smaller while the box has so many times the target's pixels; 0 for never */
    struct target target;
};

struct decoder {
    struct jpeg_decompress_struct jpeg; /* first, as libjpeg hands it back */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf fault;
    int found;
    struct resizing resizing;
    uint8_t *rows;
};

/* ------------------------------------------------------------ what goes wrong */

static _Thread_local char message[JMSG_LENGTH_MAX];

/* What the last call in this thread that returned BAD_JPEG had to say. */
EXPORTED const char *stoker_jpeg_message(void)
{
    return message;
}

__attribute__((noreturn)) static void leave(struct decoder *it, int found)
{
    it->found = found;
    longjmp(it->fault, 1);
}

__attribute__((noreturn)) static void on_error(j_common_ptr jpeg)
{
    jpeg->err->format_message(jpeg, message);
    leave((struct decoder *)jpeg, BAD_JPEG);
}

/* Of warnings, those count that say that pixels are not what they were. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level >= 0) return;
    switch (jpeg->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
        on_error(jpeg);
    }
}

static void on_output(j_common_ptr jpeg)
{
    (void)jpeg; /* nothing is printed */
}

static void on_progress(j_common_ptr jpeg)
{
    if (((j_decompress_ptr)jpeg)->input_scan_number > MOST_SCANS) {
        snprintf(message, sizeof message, "it has more than %d scans", MOST_SCANS);
        leave((struct decoder *)jpeg, BAD_JPEG);
    }
}

/* ------------------------------------------------------------ decoding */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* 1, or 2, 4 or 8 if the image can be decoded at a fraction: libjpeg does that for about the price of its pixels. */
static int divisor(const struct jpeg_request *given)
{
    const double width = given->box[2] - given->box[0], height = given->box[3] - given->box[1];
    const double wanted_width = given->shrink * (double)given->target.width;
    const double wanted_height = given->shrink * (double)given->target.height;
    if (!(given->shrink > 0)) return 1;
    int found = 8;
    while (found > 1 && !(width >= wanted_width * found && height >= wanted_height * found)) found /= 2;
    return found;
}

static void check_colors(struct decoder *it)
{
    const struct jpeg_decompress_struct *jpeg = &it->jpeg;
    if ((jpeg->num_components != 1 && jpeg->num_components != 3) || jpeg->jpeg_color_space == JCS_UNKNOWN) {
        snprintf(message, sizeof message, "its %d components are not colors that can be decoded here",
                 jpeg->num_components);
        leave(it, BAD_JPEG);
    }
}

static void check_scans(struct decoder *it)
{
    struct jpeg_decompress_struct *jpeg = &it->jpeg;
    if (!jpeg_has_multiple_scans(jpeg)) return;
    int64_t num_bytes = 0;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *component = &jpeg->comp_info[i];
        num_bytes += (int64_t)component->width_in_blocks * component->height_in_blocks * (int64_t)sizeof(JBLOCK);
    }
    if (num_bytes <= MOST_BYTES) return;
    snprintf(message, sizeof message, "to decode its scans takes %lld MiB", (long long)(num_bytes >> 20));
    leave(it, BAD_JPEG);
}

/* Skips the columns outside `left` to `right`, as far as libjpeg can; returns where rows then begin.
   Subsampled colors of a pixel come from its neighbors too, which have to be there. */
static int64_t crop(struct decoder *it, int64_t left, int64_t right)
{
    struct jpeg_decompress_struct *jpeg = &it->jpeg;
    const int64_t width = jpeg->output_width;
    left = larger(0, left - 4), right = smaller(width, right + 4);
    if (right - left < 32) right = smaller(width, left + 32); /* narrow images are interpolated in another way */
    if (right - left < 32) left = larger(0, right - 32);
    if (left == 0 && right == width) return 0;
    /* libjpeg-turbo 2.1 counts colors wrongly that are decoded at a larger fraction than the image, and yet smaller */
    if (jpeg->scale_denom > 1 && (jpeg->max_h_samp_factor > 2 || jpeg->max_v_samp_factor > 2)) return 0;
    JDIMENSION from = (JDIMENSION)left, count = (JDIMENSION)(right - left);
    jpeg_crop_scanline(jpeg, &from, &count);
    return from;
}

/* Whatever is wrong jumps out of here. */
static void decode(struct decoder *it, const struct jpeg_request *given)
{
    struct jpeg_decompress_struct *jpeg = &it->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg->progress = &it->progress;
    jpeg_mem_src(jpeg, (unsigned char *)given->data, (unsigned long)given->num_bytes);
    jpeg_read_header(jpeg, TRUE);

    const int64_t *region = given->region;
    if (region[0] < 0 || region[1] < 0 || region[0] >= region[2] || region[1] >= region[3] ||
        region[2] > jpeg->image_width || region[3] > jpeg->image_height)
        leave(it, BAD_BOX);
    check_colors(it);
    check_scans(it);

    const int by = divisor(given);
    const int64_t channels = given->target.channels;
    jpeg->scale_num = 1, jpeg->scale_denom = (unsigned)by;
    jpeg->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    jpeg->do_block_smoothing = FALSE; /* it makes up what a scan has yet to bring: here all have come */
    jpeg_start_decompress(jpeg);

    /* All in pixels of the image as it is decoded: a region that ends between two of them has both. */
    const int64_t left = region[0] / by, top = region[1] / by;
    const int64_t right = smaller((region[2] + by - 1) / by, jpeg->output_width);
    const int64_t bottom = smaller((region[3] + by - 1) / by, jpeg->output_height);
    const double width = (double)(right - left), height = (double)(bottom - top);
    double box[4] = {given->box[0] / by - (double)left, given->box[1] / by - (double)top,
                     given->box[2] / by - (double)left, given->box[3] / by - (double)top};
    if (by > 1 && box[2] > width) box[2] = width; /* the last pixel may be of fewer than the others */
    if (by > 1 && box[3] > height) box[3] = height;
    struct resizing *resizing = &it->resizing;
    const int wrong = resizing_begin(resizing, right - left, bottom - top, box, &given->target);
    if (wrong) leave(it, wrong);

    const int64_t begin = crop(it, left + resizing->x.first_used, left + resizing->x.end_used);
    resizing_shift(resizing, begin - left);
    const int64_t stride = ((int64_t)jpeg->output_width * channels + INPUT_PADDING(&resizing->x, channels) + 63) / 64 * 64;
    it->rows = malloc((size_t)(2 * stride + UNALIGNED + 64));
    if (!it->rows) leave(it, NO_MEMORY);
    JSAMPROW first = (JSAMPROW)(((uintptr_t)it->rows + 63) / 64 * 64 + UNALIGNED);
    JSAMPROW rows[2] = {first, first + stride};

    int64_t row = top + resizing->y.first_used;
    const int64_t end = top + resizing->y.end_used;
    if (row > 0) jpeg_skip_scanlines(jpeg, (JDIMENSION)row);
    while (row < end) {
        const int64_t wanted = smaller(2, end - row);
        for (int64_t count = 0; count < wanted;)
            count += jpeg_read_scanlines(jpeg, rows + count, (JDIMENSION)(wanted - count));
        resizing_feed(resizing, rows[0], wanted == 2 ? rows[1] : 0);
        row += wanted;
    }
}

EXPORTED int64_t stoker_decode_jpeg(const struct jpeg_request *given)
{
    struct decoder it;
    memset(&it, 0, sizeof it);
    it.jpeg.err = jpeg_std_error(&it.errors);
    it.errors.error_exit = on_error;
    it.errors.emit_message = on_message;
    it.errors.output_message = on_output;
    it.progress.progress_monitor = on_progress;
    if (!setjmp(it.fault)) decode(&it, given);
    jpeg_destroy_decompress(&it.jpeg);
    resizing_end(&it.resizing);
    free(it.rows);
    return WRONG(it.found, 0);
}

/* Returns 0 if the libjpeg that was found is of the kind this was compiled for, and has all that is called. */
EXPORTED int64_t stoker_check_jpeg(const void *given)
{
    (void)given;
    struct decoder it;
    memset(&it, 0, sizeof it);
    it.jpeg.err = jpeg_std_error(&it.errors);
    it.errors.error_exit = on_error;
    it.errors.output_message = on_output;
    if (!setjmp(it.fault)) jpeg_create_decompress(&it.jpeg);
    jpeg_destroy_decompress(&it.jpeg);
    return WRONG(it.found, 0);
}
