/* The pass over rows without Python's lock: clip, scale, weigh, multiply and add a few hundred rows at a time.
 *
 * kernel.py says what goes in and comes out. The order of additions is fixed; loops marked `omp simd reduction` add in several lanes.
 */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 256          /* rows whose columns stay in the first cache */
#define STRIDE (CHUNK + 8) /* columns a power of two apart would drive each other out of it */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define FOR_ALL_MACHINES __attribute__((target_clones("avx512f", "avx2", "default")))
#define INLINE static inline __attribute__((always_inline))
#else
#define FOR_ALL_MACHINES
#define INLINE static inline
#endif

/* x = (clip(cell) - shift) / scale and h = clip(x / half, -1, 1), or h = x where half is NaN. */
typedef struct {
    double low, high, fill, shift, scale, half;
} Scaling;

/* Totals of blocks (blocks x width); what rounding lost of them, or NULL; and `run`, the sum of the latest rows of `block`, which is not
 * added to its totals yet. */
typedef struct {
    double *totals, *lost, *run;
    int64_t width, block;
} Totals;

INLINE void scale_cells(const double *restrict cells, const Scaling *s, int64_t rows, double *restrict x)
{
    const double low = s->low, high = s->high, fill = s->fill, shift = s->shift, scale = s->scale;
    for (int64_t i = 0; i < rows; i++) {
        double value = fabs(cells[i]) <= DBL_MAX ? cells[i] : fill;
        value = value < low ? low : value;
        value = value > high ? high : value;
        x[i] = value - shift;
    }
    if (scale != 1.0)
        for (int64_t i = 0; i < rows; i++)
            x[i] /= scale;
}

INLINE void clip_instrument(const double *restrict x, double half, int64_t rows, double *restrict h)
{
    if (isnan(half)) {
        memcpy(h, x, rows * sizeof(double));
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        double value = x[i] / half;
        value = value < -1.0 ? -1.0 : value;
        h[i] = value > 1.0 ? 1.0 : value;
    }
}

INLINE double add_up(const double *restrict x, int64_t rows)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < rows; i++)
        sum += x[i];
    return sum;
}

INLINE double multiply(const double *restrict x, const double *restrict y, int64_t rows)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < rows; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Four columns at once: x is loaded once for them. */
INLINE void multiply_four(const double *restrict x, const double *restrict y, int64_t rows, double *restrict sums)
{
    const double *restrict y1 = y + STRIDE, *restrict y2 = y1 + STRIDE, *restrict y3 = y2 + STRIDE;
    double sum0 = 0.0, sum1 = 0.0, sum2 = 0.0, sum3 = 0.0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
    for (int64_t i = 0; i < rows; i++) {
        sum0 += x[i] * y[i];
        sum1 += x[i] * y1[i];
        sum2 += x[i] * y2[i];
        sum3 += x[i] * y3[i];
    }
    sums[0] += sum0;
    sums[1] += sum1;
    sums[2] += sum2;
    sums[3] += sum3;
}

/* Add the run to its block; what rounding loses is the exact difference (Neumaier's summation). */
INLINE void end_run(Totals *t)
{
    if (t->block < 0)
        return;
    double *restrict totals = t->totals + t->block * t->width, *restrict lost = t->lost ? t->lost + t->block * t->width : 0;
    for (int64_t j = 0; j < t->width; j++) {
        const double before = totals[j], run = t->run[j], sum = before + run;
        if (lost)
            lost[j] += fabs(before) >= fabs(run) ? (before - sum) + run : (run - sum) + before;
        totals[j] = sum;
    }
}

INLINE void add_run(Totals *t, int64_t block, const double *restrict totalled, int64_t rows)
{
    if (block != t->block) {
        end_run(t);
        t->block = block;
        for (int64_t j = 0; j < t->width; j++)
            t->run[j] = 0.0;
    }
    for (int64_t j = 0; j < t->width; j++)
        t->run[j] += rows == 1 ? totalled[j * STRIDE] : add_up(totalled + j * STRIDE, rows);
}

INLINE void add_blocks(Totals *t, const int32_t *codes, const double *totalled, int64_t rows)
{
    for (int64_t start = 0, stop; start < rows; start = stop) {
        for (stop = start + 1; stop < rows && codes[stop] == codes[start];)
            stop++;
        add_run(t, codes[start], totalled + start, stop - start);
    }
}

/* Whether all codes are numbers of blocks; `same` tells whether they are one and the same. */
INLINE int check_codes(const int32_t *codes, int64_t rows, int64_t blocks, int *same)
{
    int outside = 0, equal = 1;
    for (int64_t i = 0; i < rows; i++) {
        outside |= codes[i] < 0 || codes[i] >= blocks;
        equal &= codes[i] == codes[0];
    }
    *same = equal;
    return !outside;
}

INLINE void weigh(const double *restrict x, const int32_t *codes, const double *a, int same, int64_t columns, int64_t rows,
                  double *restrict weighted)
{
    double weights[CHUNK];
    for (int64_t i = 0; i < rows; i++)
        weights[i] = same ? a[codes ? codes[0] : 0] : a[codes[i]];
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            weighted[j * STRIDE + i] = x[j * STRIDE + i] * weights[i];
}

/* Tells which source this was built from, so that what an older one left behind is never called. */
uint32_t dplinked_source(void) { return SOURCE; }

int64_t dplinked_workspace(int64_t columns) { return (3 * columns + 1) * STRIDE + 2 * columns; }

/* Returns 0 where a code is no block's number, else 1. */
FOR_ALL_MACHINES int dplinked_sum(int64_t rows, int64_t columns, const double *const *cells, const Scaling *scaling, int clipped,
                                  int64_t blocks, const int32_t *codes, const double *a, double *totals, double *lost,
                                  double *sums, double *workspace)
{
    const int64_t d = columns;
    double *x = workspace, *h = clipped ? x + d * STRIDE : x, *weighted = x + 2 * d * STRIDE, *z = weighted + d * STRIDE;
    double *b = sums + d * d, *sum_h = b + d, *sum_x = sum_h + d, *sum_z = sum_x + d;
    Totals t = {totals, lost, z + STRIDE, clipped ? 2 * d : d, -1};
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        const int32_t *code = codes ? codes + first : 0;
        int same = 1;
        if (code && !check_codes(code, n, blocks, &same))
            return 0;
        for (int64_t j = 0; j < d; j++) {
            scale_cells(cells[j] + first, scaling + j, n, x + j * STRIDE);
            if (clipped)
                clip_instrument(x + j * STRIDE, scaling[j].half, n, h + j * STRIDE);
        }
        scale_cells(cells[d] + first, scaling + d, n, z);
        weigh(x, code, a, same, d, n, weighted);
        for (int64_t j = 0; j < d; j++) {
            const double *hj = h + j * STRIDE;
            int64_t k = clipped ? 0 : j;
            for (; k + 4 <= d; k += 4)
                multiply_four(hj, weighted + k * STRIDE, n, sums + j * d + k);
            for (; k < d; k++)
                sums[j * d + k] += multiply(hj, weighted + k * STRIDE, n);
            b[j] += multiply(hj, z, n);
            sum_h[j] += add_up(hj, n);
            sum_x[j] += clipped ? add_up(x + j * STRIDE, n) : 0.0;
        }
        *sum_z += add_up(z, n);
        if (totals && same)
            add_run(&t, code ? code[0] : 0, x, n);
        else if (totals)
            add_blocks(&t, code, x, n);
    }
    if (totals)
        end_run(&t);
    return 1;
}
