/* The passes over rows without Python's lock: clip, scale, weigh, multiply and add a few hundred rows at a time.
 *
 * kernel.py says what goes in and comes out. The order of additions is fixed; loops marked `omp simd reduction` add in several lanes.
 */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 256          /* rows whose columns stay in the first cache */
#define STRIDE (CHUNK + 8) /* columns a power of two apart would drive each other out of it */
#define NEARBY 0.7         /* of a residual's clip, as partners.py has it */
#define PARTNERS 16        /* of a row in blocks of more rows than that, as partners.py has it */
#define NEAR 512           /* responses of a block, and of the partners after its last, that are at hand at once */
#define LANES 8            /* whole numbers that are shuffled at once */
#define ROUNDS 4           /* of a permutation, as circle.py has it */
#define LEAST_ETA -30.0    /* as family.py has it */
#define ROOM (1.0 + 1e-12) /* for the last digits of a norm */
#define GAP INT32_MIN      /* stands for a missing response in a circle, as circle.py has it */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define FOR_ALL_MACHINES __attribute__((target_clones("avx512f", "avx2", "default")))
#define INLINE static inline __attribute__((always_inline))
#else
#define FOR_ALL_MACHINES
#define INLINE static inline
#endif

/* x = (clip(cell) - shift) / scale and h = clip(x / half, -1, 1), or h = x where half is NaN. Unless `lowest` is NaN, the logarithm of the clipped cell, itself clipped to
 * between that and `highest`, takes its place. */
typedef struct {
    double low, high, fill, shift, scale, half, lowest, highest;
} Scaling;

/* What types.py calls a ResidualClip, with the line's level and, for squares of rows, the norm that contributions are cut to; what the
 * whole numbers in a circle mean: middle + unit * number is a response; `reach`, the norm of a Whitening; and the curve that means follow: `events`,
 * `counts` up to so many, or neither; `factorial` is ln (counts - 1)!. Unless `around` is NaN, outcomes are taken around it in the place of the curve's means, and a
 * missing one that is dropped counts as the mean. */
typedef struct {
    double level, limit, intercept_weight, widest, norm, middle, unit, reach, events, counts, highest, steepest, factorial, around;
} Clip;

/* Totals of blocks (blocks x width); what rounding lost of them, or NULL; and `run`, the sum of the latest rows of `block`, which is not
 * added to its totals yet. If rows are `counted`, the last total of a block is the number of its rows. */
typedef struct {
    double *totals, *lost, *run;
    int64_t width, block, counted;
} Totals;

/* ln x of normal numbers above 0, to the last digits, so that the compiler can do several at once: x = 2^k m with m near 1, and
 * ln m = 2 (f + f^3/3 + f^5/5 + ...) with f = (m - 1) / (m + 1). */
INLINE void take_logarithms(double *restrict x, int64_t rows)
{
    const uint64_t root = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000, whole = 0x4330000000000000, mantissa = 0x000fffffffffffff;
    const double high = 0x1.62e42fee00000p-1, low = 1.9082149292705877e-10;
    double power[CHUNK];
    uint64_t bits[CHUNK], powers[CHUNK];
    memcpy(bits, x, rows * sizeof(double));
    for (int64_t i = 0; i < rows; i++) {
        const uint64_t moved = bits[i] + (one - root);
        powers[i] = (moved >> 52) | whole;
        bits[i] = (moved & mantissa) + root;
    }
    memcpy(power, powers, rows * sizeof(double));
    memcpy(x, bits, rows * sizeof(double));
    for (int64_t i = 0; i < rows; i++) {
        const double f = (x[i] - 1.0) / (x[i] + 1.0), square = f * f, k = power[i] - (0x1p52 + 1023.0);
        double sum = 1.0 / 23.0;
        for (int j = 21; j > 1; j -= 2)
            sum = sum * square + 1.0 / j;
        x[i] = k * high + (2.0 * f + (2.0 * f * square * sum + k * low));
    }
}

INLINE void scale_cells(const double *restrict cells, const Scaling *s, int64_t rows, double *restrict x)
{
    for (int64_t i = 0; i < rows; i += 8)
        __builtin_prefetch(cells + CHUNK + i); /* the next rows, which the processor does not foresee among so many columns */
    const int logged = !isnan(s->lowest);
    const double low = s->low, high = s->high, fill = s->fill, shift = logged ? 0.0 : s->shift, scale = s->scale;
    for (int64_t i = 0; i < rows; i++) {
        double value = fabs(cells[i]) <= DBL_MAX ? cells[i] : fill;
        value = value < low ? low : value;
        value = value > high ? high : value;
        x[i] = value - shift;
    }
    if (logged) {
        take_logarithms(x, rows);
        for (int64_t i = 0; i < rows; i++) {
            const double value = x[i] < s->lowest ? s->lowest : x[i];
            x[i] = (value > s->highest ? s->highest : value) - s->shift;
        }
    }
    if (scale != 1.0)
        for (int64_t i = 0; i < rows; i++)
            x[i] /= scale;
}

/* A cell that is not finite is missing: keep what is there, and turn the rest of `kept` into zeros. */
INLINE void keep_present(const double *restrict cells, int64_t rows, double *restrict kept)
{
    for (int64_t i = 0; i < rows; i++)
        kept[i] = fabs(cells[i]) <= DBL_MAX ? kept[i] : 0.0;
}

/* Where rows do not all count the same, what they count, 0 to 1, stands behind the response's cells; elsewhere nothing does. */
INLINE void keep_counted(const double *counted, int64_t first, int64_t rows, double *restrict kept)
{
    for (int64_t i = 0; counted && i < rows; i++)
        kept[i] *= counted[first + i];
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

/* A residual that lies beyond NEARBY times its clip counts as the clip. */
INLINE double clip_residual(double residual, double width)
{
    const double near = NEARBY * width;
    double value = residual < -near ? -width : residual;
    return residual > near ? width : value;
}

INLINE void clip_all(double *restrict x, const double *restrict width, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        x[i] = clip_residual(x[i], width[i]);
}

/* line = level + slopes'x */
INLINE void fit_line(const double *restrict x, const double *slopes, double level, int64_t columns, int64_t rows, double *restrict line)
{
    for (int64_t i = 0; i < rows; i++)
        line[i] = level;
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++)
            line[i] += slopes[j] * x[j * STRIDE + i];
}

/* e^x for |x| < 700, to the last digits: 2^k times a polynomial of what is left, so that the compiler can do several at once. */
INLINE void exponentiate(double *restrict x, int64_t rows)
{
    static const double terms[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                   1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2,     1.0, 1.0};
    const double round = 0x1.8p52, log2e = 1.4426950408889634, high = 0x1.62e42fee00000p-1, low = 1.9082149292705877e-10;
    double power[CHUNK];
    int64_t bits[CHUNK], whole[CHUNK];
    for (int64_t i = 0; i < rows; i++) {
        power[i] = x[i] * log2e + round; /* the last digits are those of k */
        const double k = power[i] - round, rest = (x[i] - k * high) - k * low;
        double sum = terms[0];
        for (int j = 1; j < 13; j++)
            sum = sum * rest + terms[j];
        x[i] = sum;
    }
    memcpy(whole, power, rows * sizeof(double));
    memcpy(bits, x, rows * sizeof(double));
    for (int64_t i = 0; i < rows; i++)
        bits[i] += (int64_t)((uint64_t)whole[i] << 52);
    memcpy(x, bits, rows * sizeof(double));
}

/* Turn a line into a curve's means and, where they are asked for, its slopes, as family.py has them. Of counts: if P is the chance of fewer than L by Poisson's law, and
 * p that of L - 1, the mean is L (1 - P) + rate (P - p), and its slope rate * P. */
INLINE void follow_curve(double *restrict line, double *restrict slope, const Clip *c, int64_t rows)
{
    double eta[CHUNK], none[CHUNK], last[CHUNK], below[CHUNK];
    const double most = c->events ? 1.0 : c->counts, steepest = c->steepest, highest = c->highest, sign = c->events ? -1.0 : 1.0;
    for (int64_t i = 0; i < rows; i++) {
        const double low = line[i] < LEAST_ETA ? LEAST_ETA : line[i];
        last[i] = low > highest ? highest : low;
        eta[i] = sign * last[i];
        below[i] = 1.0;
    }
    exponentiate(eta, rows);
    for (double k = 4.0 * ceil((c->counts - 1.0) / 4.0); k > 0.0; k -= 4.0) { /* Horner's rule, four terms at a time; there are none from L on */
        const double step = k < most ? 1.0 / k : 0.0, second = k - 1.0 < most ? 1.0 / (k - 1.0) : 0.0;
        const double third = k - 2.0 < most ? 1.0 / (k - 2.0) : 0.0, fourth = 1.0 / (k - 3.0);
        for (int64_t i = 0; i < rows; i++) {
            const double rate = eta[i], sum = (below[i] * (rate * step) + 1.0) * (rate * second) + 1.0;
            below[i] = (sum * (rate * third) + 1.0) * (rate * fourth) + 1.0;
        }
    }
    for (int64_t i = 0; i < rows; i++)
        none[i] = c->events ? 1.0 / (1.0 + eta[i]) : -eta[i];
    if (!c->events) {
        for (int64_t i = 0; i < rows; i++) {
            const double log = (most - 1.0) * last[i] - eta[i] - c->factorial;
            last[i] = log < -700.0 ? -700.0 : log;
        }
        exponentiate(none, rows);
        exponentiate(last, rows);
    }
    for (int64_t i = 0; i < rows; i++) {
        const double chance = none[i] * below[i];
        const double mean = c->events ? none[i] : most - (most - eta[i]) * chance - eta[i] * last[i];
        below[i] = c->events ? none[i] * (1.0 - none[i]) : eta[i] * chance;
        line[i] = mean < 0.0 ? 0.0 : mean;
        line[i] = line[i] > most ? most : line[i];
    }
    for (int64_t i = 0; slope && i < rows; i++) {
        const double rise = below[i] < 0.0 ? 0.0 : below[i];
        slope[i] = rise > steepest ? steepest : rise;
    }
}

/* Turn squared lengths into size / max(length, least). */
INLINE void divide_by_lengths(double *restrict squares, double size, double least, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        const double length = sqrt(squares[i]) * ROOM;
        squares[i] = size / (length > least ? length : least);
    }
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

/* What types.py calls whitened instruments, u = matrix * h, and what each row counts. */
INLINE void whiten(const double *restrict h, const double *matrix, double reach, int64_t columns, int64_t rows, double *restrict u,
                   double *restrict counted)
{
    for (int64_t i = 0; i < rows; i++)
        counted[i] = 0.0;
    for (int64_t j = 0; j < columns; j++) {
        double *restrict uj = u + j * STRIDE;
        fit_line(h, matrix + j * columns, 0.0, columns, rows, uj);
        for (int64_t i = 0; i < rows; i++)
            counted[i] += uj[i] * uj[i];
    }
    for (int64_t i = 0; i < rows; i++) {
        const double square = counted[i] * ROOM * ROOM;
        counted[i] = reach * reach / (square > reach * reach ? square : reach * reach);
    }
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
    for (int64_t j = 0; j < t->width - t->counted; j++)
        t->run[j] += rows == 1 ? totalled[j * STRIDE] : add_up(totalled + j * STRIDE, rows);
    if (t->counted)
        t->run[t->width - 1] += rows;
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

/* SplitMix64's finaliser, one to one: numbers that look random, as partners.py has it. */
INLINE uint64_t scatter(uint64_t place)
{
    uint64_t mixed = (place + 1) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

/* Places of ranks in a permutation of 0 ... size - 1, another one for each key, as circle.py has it; written over the ranks. Ranks up to the
 * next multiple of LANES are sent along, so that no row is left for itself. */
INLINE void shuffle_all(uint32_t *restrict ranks, int64_t count, uint32_t size, uint64_t key)
{
    const int64_t all = (count + LANES - 1) / LANES * LANES;
    uint32_t flip[ROUNDS], factor[ROUNDS];
    int bits = 1;
    while ((size - 1) >> bits)
        bits++;
    const int down = (bits + 1) / 2;
    const uint32_t mask = ((uint32_t)1 << bits) - 1;
    for (int round = 0; round < ROUNDS; round++) {
        flip[round] = (uint32_t)key & mask;
        factor[round] = (uint32_t)(key >> 8) | 1;
        key = key >> 16 | key << 48;
    }
    for (int64_t i = count; i < all; i++)
        ranks[i] = 0;
    for (uint32_t again = 0, outside = 1; outside; again = 1) {
        outside = 0;
        for (int64_t i = 0; i < all; i++) {
            uint32_t place = ranks[i];
            for (int round = 0; round < ROUNDS; round++) {
                place = (place ^ flip[round]) * factor[round] & mask;
                place ^= place >> down;
            }
            place = again && ranks[i] < size ? ranks[i] : place;
            outside |= place >= size;
            ranks[i] = place;
        }
    }
}

/* Sum of clipped residuals around a line; a response that is missing adds nothing. */
INLINE double add_clipped(const double *restrict z, int64_t count, double line, double width)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        const double value = clip_residual(z[i] - line, width);
        sum += value == value ? value : 0.0;
    }
    return sum;
}

/* Sum of residuals around a curve's mean; a response that is missing adds nothing, or as much as the mean would, around another level. */
INLINE double add_outcomes(const double *restrict z, int64_t count, double mean, double around)
{
    const double level = isnan(around) ? mean : around, missing = mean - level;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++)
        sum += z[i] == z[i] ? z[i] - level : missing;
    return sum;
}

/* `count` responses of a block's circle from a place on; after the last comes the first. Missing ones are NaN. */
INLINE void unroll(const int32_t *circle, int64_t size, int64_t place, int64_t count, const Clip *c, double *restrict z)
{
    for (int64_t done = 0, some; done < count; done += some, place = 0) {
        some = size - place < count - done ? size - place : count - done;
        for (int64_t i = 0; i < some; i++)
            z[done + i] = circle[place + i] == GAP ? NAN : c->middle + c->unit * circle[place + i];
    }
}

/* Turn clipped residuals of rows of one block into (1 - o) * own - (1 - accuracy) * mean of those with the partners' responses. Returns 0 where
 * a place is not in the block, else 1. */
INLINE int meet_partners(const int32_t *circle, int64_t size, const int64_t *slots, int64_t start, int64_t rows, const double *line,
                         const double *width, double a, double o, const Clip *c, double *own)
{
    const int64_t partners = size - 1 < PARTNERS ? size - 1 : PARTNERS, all = size + partners;
    const int whole = all <= NEAR && all <= 8 * rows; /* the whole block is unrolled once */
    const double share = (1.0 - (a + o)) / (partners > 1 ? partners : 1);
    double z[NEAR];
    if (whole)
        unroll(circle, size, 0, all, c, z);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t place = slots[i] - start;
        if (place < 0 || place >= size)
            return 0;
        const double *met = z + place + 1;
        if (!whole) {
            unroll(circle, size, place + 1 < size ? place + 1 : 0, partners, c, z);
            met = z;
        }
        if (c->events || c->counts) {
            own[i] = (1.0 - o) * own[i] - share * add_outcomes(met, partners, line[i], c->around) * width[i];
            continue;
        }
        const double sum = partners == PARTNERS ? add_clipped(met, PARTNERS, line[i], width[i]) : add_clipped(met, partners, line[i], width[i]);
        own[i] = (1.0 - o) * own[i] - share * sum;
    }
    return 1;
}

INLINE double to_whole(double z, const Clip *c)
{
    const double value = rint((z - c->middle) / c->unit);
    return value < -INT32_MAX ? -INT32_MAX : value > INT32_MAX ? INT32_MAX : value;
}

/* Numbers of increasing edges below values. */
INLINE void find_bins(const double *restrict edges, int64_t count, const double *restrict values, int64_t rows, int64_t *restrict bins)
{
    for (int64_t i = 0; i < rows; i++)
        bins[i] = 0;
    for (int64_t rest = count, half; rest > 0; rest -= half) {
        half = (rest + 1) / 2;
        for (int64_t i = 0; i < rows; i++)
            bins[i] += edges[bins[i] + half - 1] < values[i] ? half : 0;
    }
}

/* Tells which source this was built from, so that what an older one left behind is never called. */
uint32_t dplinked_source(void) { return SOURCE; }

int64_t dplinked_partners(void) { return PARTNERS; }

double dplinked_nearby(void) { return NEARBY; }

/* Numbers that a pass over so many columns works with. */
int64_t dplinked_workspace(int64_t columns) { return (3 * columns + 3) * STRIDE + 2 * columns + 3; }

/* `a` has the weights of products, those of blocks in `weights` included; these weigh the other sums. If they are `dropped`, rows with a missing
 * regressor weigh 0. The weights' total, and that of rows with a response, come last. Returns 0 where a code is no block's number, else 1. */
FOR_ALL_MACHINES int dplinked_sum(int64_t rows, int64_t columns, const double *const *cells, const Scaling *scaling, int clipped,
                                  int dropped, int64_t blocks, const int32_t *codes, const double *a, const double *weights, double *totals,
                                  double *lost, double *sums, double *workspace)
{
    const int64_t d = columns;
    double *x = workspace, *h = clipped ? x + d * STRIDE : x, *weighted = x + 2 * d * STRIDE, *z = weighted + d * STRIDE;
    const int weighed = weights || dropped;
    const double *counts = dropped ? cells[d + 1] : 0;
    double weight[CHUNK], counted[CHUNK];
    double *b = sums + d * d, *sum_h = b + d, *sum_x = sum_h + d, *sum_z = sum_x + d, *sum_weight = sum_z + 1, *sum_complete = sum_z + 2;
    Totals t = {totals, lost, z + STRIDE, (clipped ? 2 * d : d) + 1, -1, 1};
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
        for (int64_t i = 0; i < n; i++)
            counted[i] = 1.0;
        for (int64_t j = 0; dropped && j < d; j++)
            keep_present(cells[j] + first, n, counted);
        keep_counted(counts, first, n, counted);
        for (int64_t j = 0; dropped && j < d; j++)
            for (int64_t i = 0; i < n; i++)
                weighted[j * STRIDE + i] *= counted[i];
        for (int64_t i = 0; weighed && i < n; i++) {
            weight[i] = weights ? weights[code[i]] * counted[i] : counted[i];
            z[i] *= weight[i];
        }
        for (int64_t j = 0; j < d; j++) {
            const double *hj = h + j * STRIDE;
            int64_t k = clipped ? 0 : j;
            for (; k + 4 <= d; k += 4)
                multiply_four(hj, weighted + k * STRIDE, n, sums + j * d + k);
            for (; k < d; k++)
                sums[j * d + k] += multiply(hj, weighted + k * STRIDE, n);
            b[j] += multiply(hj, z, n);
            sum_h[j] += weighed ? multiply(hj, weight, n) : add_up(hj, n);
            if (clipped)
                sum_x[j] += weighed ? multiply(x + j * STRIDE, weight, n) : add_up(x + j * STRIDE, n);
        }
        *sum_z += add_up(z, n);
        *sum_weight += weighed ? add_up(weight, n) : n;
        if (dropped) {
            keep_present(cells[d] + first, n, weight);
            *sum_complete += add_up(weight, n);
        }
        if (totals && same)
            add_run(&t, code ? code[0] : 0, x, n);
        else if (totals)
            add_blocks(&t, code, x, n);
    }
    if (totals)
        end_run(&t);
    return 1;
}

/* Where the response of each row stands in its block's circle. Returns 0 where a code is no block's number or a block has more rows than it
 * should, else 1. */
FOR_ALL_MACHINES int dplinked_slots(int64_t rows, const int32_t *codes, int64_t blocks, const int64_t *starts, uint32_t *seen, int64_t *slots)
{
    uint32_t ranks[CHUNK];
    for (int64_t first = 0, stop; first < rows; first = stop) {
        const int64_t block = codes[first];
        if (block < 0 || block >= blocks)
            return 0;
        for (stop = first + 1; stop < rows && stop < first + CHUNK && codes[stop] == block;)
            stop++;
        const int64_t start = starts[block], size = starts[block + 1] - start, count = stop - first;
        if (seen[block] + count > size)
            return 0;
        for (int64_t i = 0; i < count; i++)
            ranks[i] = seen[block] + (uint32_t)i;
        seen[block] += (uint32_t)count;
        if (size > PARTNERS + 1)
            shuffle_all(ranks, count, (uint32_t)size, scatter(block));
        for (int64_t i = 0; i < count; i++)
            slots[first + i] = start + ranks[i];
    }
    return 1;
}

/* Put the responses of rows into their slots; a GAP for those that are missing, if they are `dropped`. */
FOR_ALL_MACHINES void dplinked_store(int64_t rows, int dropped, const double *const *cells, const Scaling *scaling, const Clip *c,
                                     const int64_t *slots, int32_t *values)
{
    double z[CHUNK], kept[CHUNK];
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        scale_cells(cells[0] + first, scaling, n, z);
        for (int64_t i = 0; i < n; i++)
            kept[i] = 1.0;
        if (dropped)
            keep_present(cells[0] + first, n, kept);
        for (int64_t i = 0; i < n; i++)
            values[slots[first + i]] = kept[i] == 0.0 ? GAP : (int32_t)to_whole(z[i], c);
    }
}

/* Residuals around a line, clipped unless the limit is infinite, times instruments; `squared` are weights of the contributions if rows are
 * squared, `totals` are there if blocks are totalled. If the line is `mixed`, slopes count for the block's `a` only, and totals go on with those
 * of instruments and of slopes'x, by which what is missing of the line can be told. A `whitening` matrix puts whitened instruments, times what
 * a row counts, in the place of (1, h). If they are `dropped`, residuals with missing responses are 0, and so is all that rows with a missing
 * regressor add; what rows count is then a factor on their instruments. Returns 0 where a code is no block's number or a slot is
 * another block's, else 1. */
FOR_ALL_MACHINES int dplinked_residuals(int64_t rows, int64_t columns, int intercept, int mixed, int dropped, const double *const *cells, const Scaling *scaling,
                                        const double *slopes, const Clip *c, const double *whitening, int64_t blocks,
                                        const int32_t *codes, const double *a, const double *o, const double *weights, const int64_t *starts, const int64_t *slots,
                                        const int32_t *values, const double *squared, double *totals, double *lost, double *sums,
                                        double *workspace)
{
    const int64_t d = columns, p = d + intercept;
    double *x = workspace, *u = x + d * STRIDE, *h = u + p * STRIDE, *line = h + p * STRIDE, z[CHUNK], width[CHUNK], lengths[CHUNK];
    const int clipped = c->limit <= DBL_MAX, curved = c->events || c->counts;
    const double *counts = dropped ? cells[d + 1] : 0;
    Totals t = {totals, lost, line + STRIDE, mixed ? 2 * p + 1 : p, -1, 0};
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        const int32_t *code = codes ? codes + first : 0;
        int same = 1;
        if (code && !check_codes(code, n, blocks, &same))
            return 0;
        for (int64_t i = 0; i < n; i++) {
            h[i] = 1.0; /* the intercept's; without one, written over */
            width[i] = c->intercept_weight * c->intercept_weight;
        }
        for (int64_t j = 0; j < d; j++) {
            scale_cells(cells[j] + first, scaling + j, n, x + j * STRIDE);
            clip_instrument(x + j * STRIDE, scaling[j].half, n, h + (j + intercept) * STRIDE);
        }
        if (whitening) {
            whiten(h, whitening, c->reach, p, n, u, lengths);
            for (int64_t j = 0; j < p; j++)
                for (int64_t i = 0; i < n; i++)
                    h[j * STRIDE + i] = u[j * STRIDE + i] * lengths[i];
        }
        for (int64_t j = whitening ? 0 : intercept; j < p; j++) {
            const double *restrict hj = h + j * STRIDE;
            for (int64_t i = 0; i < n; i++)
                width[i] += hj[i] * hj[i];
        }
        keep_counted(curved ? 0 : counts, first, n, width);
        keep_counted(curved ? 0 : counts, first, n, width);
        fit_line(x, slopes, mixed ? 0.0 : c->level, d, n, line);
        if (curved)
            follow_curve(line, 0, c, n);
        scale_cells(cells[d] + first, scaling + d, n, z);
        for (int64_t i = 0; mixed && i < n; i++)
            z[i] -= c->level + a[code[i]] * line[i];
        for (int64_t i = 0; !mixed && i < n; i++)
            z[i] = (values ? c->middle + c->unit * to_whole(z[i], c) : z[i]) - line[i];
        if (clipped) {
            divide_by_lengths(width, c->limit, c->limit / c->widest, n);
            if (!curved)
                clip_all(z, width, n);
        }
        if (dropped)
            keep_present(cells[d] + first, n, z);
        for (int64_t i = 0; curved && i < n; i++)
            z[i] = (z[i] + (isnan(c->around) ? 0.0 : line[i] - c->around)) * width[i];
        for (int64_t start = 0, stop; values && start < n; start = stop) {
            const int64_t block = code[start], where = starts[block], size = starts[block + 1] - where;
            for (stop = start + 1; stop < n && code[stop] == block;)
                stop++;
            if (!meet_partners(values + where, size, slots + first + start, where, stop - start, line + start, width + start, a[block],
                               o[block], c, z + start))
                return 0;
        }
        for (int64_t i = 0; weights && i < n; i++)
            z[i] *= weights[code[i]];
        for (int64_t j = 0; dropped && j < d; j++)
            keep_present(cells[j] + first, n, z);
        keep_counted(counts, first, n, z);
        for (int64_t i = 0; i < n; i++)
            lengths[i] = 0.0;
        for (int64_t j = 0; j < p; j++) {
            const double *restrict hj = h + j * STRIDE;
            const double weight = squared ? squared[j] : 1.0;
            double *restrict uj = u + j * STRIDE;
            sums[j] += multiply(hj, z, n);
            for (int64_t i = 0; i < n; i++) {
                uj[i] = hj[i] * z[i] * weight;
                lengths[i] += uj[i] * uj[i];
            }
        }
        if (squared) {
            divide_by_lengths(lengths, c->norm, c->norm, n);
            for (int64_t j = 0; j < p; j++)
                for (int64_t i = 0; i < n; i++)
                    u[j * STRIDE + i] *= lengths[i];
            for (int64_t j = 0; j < p; j++) {
                double *row = sums + p + j * p;
                int64_t k = j;
                for (; k + 4 <= p; k += 4)
                    multiply_four(u + j * STRIDE, u + k * STRIDE, n, row + k);
                for (; k < p; k++)
                    row[k] += multiply(u + j * STRIDE, u + k * STRIDE, n);
            }
        }
        if (totals && same)
            add_run(&t, code ? code[0] : 0, u, n);
        else if (totals)
            add_blocks(&t, code, u, n);
    }
    if (totals)
        end_run(&t);
    return 1;
}

/* Sums along a curve, of rows by themselves: products s m' (1, h)(1, x)' and then s (1, h)(m - middle), with s = min(1, limit / |(ι, h)|) times the
 * weight of the row's block; 0 for rows with a missing regressor, if they are `dropped`. What a row counts is a factor on s. A last column of infinite half-width is an exposure: it has no instrument, and its products are left 0. Returns 0 where a code is no block's number, else 1. */
FOR_ALL_MACHINES int dplinked_curve(int64_t rows, int64_t columns, int intercept, int dropped, const double *const *cells, const Scaling *scaling,
                                    const double *slopes, const Clip *c, int64_t blocks, const int32_t *codes, const double *weights,
                                    double *sums, double *workspace)
{
    const int64_t d = columns, own = d - (d && isinf(scaling[d - 1].half)), p = own + intercept, width = d + intercept;
    const double *counts = dropped ? cells[d + 1] : 0;
    double *x = workspace, *h = x + width * STRIDE, *line = h + width * STRIDE, share[CHUNK], slope[CHUNK], steep[CHUNK];
    for (int64_t i = 0; i < CHUNK; i++)
        x[i] = h[i] = 1.0; /* the intercept's; without one, written over */
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        const int32_t *code = codes ? codes + first : 0;
        int same = 1;
        if (code && !check_codes(code, n, blocks, &same))
            return 0;
        for (int64_t i = 0; i < n; i++)
            share[i] = c->intercept_weight * c->intercept_weight;
        for (int64_t j = 0; j < d; j++) {
            double *restrict xj = x + (j + intercept) * STRIDE, *restrict hj = h + (j + intercept) * STRIDE;
            scale_cells(cells[j] + first, scaling + j, n, xj);
            if (j == own)
                break;
            clip_instrument(xj, scaling[j].half, n, hj);
            for (int64_t i = 0; i < n; i++)
                share[i] += hj[i] * hj[i];
        }
        fit_line(x + intercept * STRIDE, slopes, c->level, d, n, line);
        follow_curve(line, slope, c, n);
        divide_by_lengths(share, c->limit, c->limit / c->widest, n);
        keep_counted(counts, first, n, share);
        for (int64_t i = 0; weights && i < n; i++)
            share[i] *= weights[code[i]];
        for (int64_t j = 0; dropped && j < d; j++)
            keep_present(cells[j] + first, n, share);
        for (int64_t i = 0; i < n; i++)
            line[i] = share[i] * (line[i] - c->middle);
        for (int64_t j = 0; j < p; j++) {
            const double *restrict hj = h + j * STRIDE;
            int64_t k = 0;
            sums[width * width + j] += multiply(hj, line, n);
            for (int64_t i = 0; i < n; i++)
                steep[i] = hj[i] * (share[i] * slope[i]);
            for (; k + 4 <= p; k += 4)
                multiply_four(steep, x + k * STRIDE, n, sums + j * width + k);
            for (; k < p; k++)
                sums[j * width + k] += multiply(steep, x + k * STRIDE, n);
        }
    }
    return 1;
}

/* The upper triangle of the sum of u u' over whitened rows, each times what it counts and, if there are `weights`, the weight of its block; rows with a
 * missing regressor count 0 if they are `dropped`. Returns
 * 0 where a code is no block's number, else 1. */
FOR_ALL_MACHINES int dplinked_squares(int64_t rows, int64_t columns, int intercept, int dropped, const double *const *cells, const Scaling *scaling,
                                      const double *whitening, double reach, int64_t blocks, const int32_t *codes, const double *weights,
                                      double *sums, double *workspace)
{
    const int64_t d = columns, p = d + intercept;
    double *h = workspace, *u = h + p * STRIDE, *weighted = u + p * STRIDE, counted[CHUNK];
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        int same;
        if (codes && !check_codes(codes + first, n, blocks, &same))
            return 0;
        for (int64_t i = 0; i < n; i++)
            h[i] = 1.0;
        for (int64_t j = 0; j < d; j++)
            scale_cells(cells[j] + first, scaling + j, n, h + (j + intercept) * STRIDE);
        whiten(h, whitening, reach, p, n, u, counted);
        for (int64_t i = 0; weights && i < n; i++)
            counted[i] *= weights[codes[first + i]];
        for (int64_t j = 0; dropped && j < d; j++)
            keep_present(cells[j] + first, n, counted);
        keep_counted(dropped ? cells[d + 1] : 0, first, n, counted);
        for (int64_t j = 0; j < p; j++) {
            for (int64_t i = 0; i < n; i++)
                weighted[i] = u[j * STRIDE + i] * counted[i];
            for (int64_t k = j; k < p; k++)
                sums[j * p + k] += multiply(weighted, u + k * STRIDE, n);
        }
    }
    return 1;
}

/* Rows by the size of their residuals |z - level - share * slopes'x|, between increasing edges. If they are `dropped`, those with a
 * missing cell are counted apart, at the end. */
FOR_ALL_MACHINES void dplinked_counts(int64_t rows, int64_t columns, int dropped, const double *const *cells, const Scaling *scaling,
                                      const double *slopes, double level, double share, int64_t bins, const double *edges, int64_t *counts,
                                      double *workspace)
{
    double z[CHUNK], line[CHUNK], known[CHUNK];
    int64_t bin[CHUNK];
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        for (int64_t j = 0; j < columns; j++)
            scale_cells(cells[j] + first, scaling + j, n, workspace + j * STRIDE);
        fit_line(workspace, slopes, 0.0, columns, n, line);
        scale_cells(cells[columns] + first, scaling + columns, n, z);
        for (int64_t i = 0; i < n; i++)
            z[i] = fabs(z[i] - level - share * line[i]);
        find_bins(edges, bins - 1, z, n, bin);
        for (int64_t i = 0; i < n; i++)
            known[i] = 1.0;
        for (int64_t j = 0; dropped && j <= columns; j++)
            keep_present(cells[j] + first, n, known);
        keep_counted(dropped ? cells[columns + 1] : 0, first, n, known);
        for (int64_t i = 0; i < n; i++)
            counts[known[i] == 0.0 ? bins : bin[i]]++;
    }
}

/* Rows by the place of each column on an even grid over its bounds (columns x bins); a column whose factor is 0 is left out. */
FOR_ALL_MACHINES void dplinked_places(int64_t rows, int64_t columns, const double *const *cells, const Scaling *scaling, const double *lows,
                                      const double *factors, int64_t bins, int64_t *counts, double *workspace)
{
    const double last = bins - 1;
    int32_t bin[CHUNK];
    for (int64_t first = 0; first < rows; first += CHUNK) {
        const int64_t n = rows - first < CHUNK ? rows - first : CHUNK;
        for (int64_t j = 0; j < columns; j++) {
            int64_t *restrict mine = counts + j * bins;
            if (factors[j] == 0.0)
                continue;
            scale_cells(cells[j] + first, scaling + j, n, workspace);
            for (int64_t i = 0; i < n; i++) {
                double place = (workspace[i] - lows[j]) * factors[j];
                place = place < 0.0 ? 0.0 : place;
                bin[i] = (int32_t)(place > last ? last : place);
            }
            for (int64_t i = 0; i < n; i++)
                mine[bin[i]]++;
        }
    }
}
