/* The inner loop of calibration: counts magnitudes of float32 values into bins, of two kinds at once.

   The bins of equal width and the octave bins (see calibrators/histograms/histogram.py) nest: above a split the
   former are the narrower ones, below it the latter. So every value is counted once, in the narrower of its two
   bins, and both counts follow exactly.

   Uses Python's stable interface only, so one build serves every version of Python; and takes addresses, so
   it needs no headers of NumPy. calibrators/histograms/compiled.py is the only caller. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Values whose bin numbers are computed at once (in vectors), before they are counted one by one. The
   processor begins with the next block while it counts the last values of this one. */
#define BLOCK 128

/* Values that are fetched ahead. By itself the processor fetches nothing while it counts. */
#define AHEAD 1024

/* Counters a bin. Neighbouring values often share a bin, and an increment must wait for the one before it to
   reach memory; with four counters it waits for the fourth before it. */
#define LANES 4

/* Counters behind those of the octave bins, for zeros: after a Relu there are many, which would wait for each
   other. They are left out of the sums, and added to bin 0 of equal width by their number. */
#define SPARE 64

/* An octave bin has all magnitudes that share their upper bits: those of the exponent, and so many of the
   fraction that an octave has 256 bins. There are so many of them below infinity. */
#define OCTAVE_SHIFT 15
#define OCTAVE_BINS 65280
#define BINS_PER_OCTAVE 256
#define EXPONENT_SHIFT 23

/* In a row of counters: octave bins, spare ones, and bins of equal width. */
#define WIDTH_BINS (OCTAVE_BINS + SPARE)

#define MAGNITUDE 0x7fffffff

/* A second version of the loop for processors with AVX2, chosen when the module is loaded. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

/* Bins of equal width, and where they split from the octave bins. */
typedef struct {
    int32_t limit;  /* bits of the first magnitude that is in none of them */
    int32_t split;  /* bits of the least magnitude that is counted into them */
    float factor;   /* 1 / width, a power of two */
    uint32_t bins;
} Bins;

static inline int32_t bits_of(float magnitude)
{
    int32_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    return bits;
}

static inline float magnitude_of(int32_t bits)
{
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

static Bins bins_of(int limit, float factor, unsigned int bins)
{
    /* From as many bins on as an octave has, bins of equal width are no wider than octave bins. */
    Bins found = {limit, limit, factor, bins};
    if (bins > BINS_PER_OCTAVE && factor > 0)
        found.split = bits_of(BINS_PER_OCTAVE / factor);
    return found;
}

/* The number of each value's counter for a zero: 16 in turn, of which four share a cache line. */
static inline void number_spare(int32_t *spare)
{
    int i;
    for (i = 0; i < BLOCK; i++)
        spare[i] = OCTAVE_BINS + (i / LANES % 4) * (SPARE / 4);
}

/* Counts values by the numbers of their counters, in turn in each of LANES rows of counters. */
static inline void add_to_lanes(const int32_t *index, int n, uint32_t *lanes, size_t row)
{
    uint32_t *lane1 = lanes + row, *lane2 = lane1 + row, *lane3 = lane2 + row;
    int i;
    for (i = 0; i + LANES <= n; i += LANES) {
        lanes[index[i]]++;
        lane1[index[i + 1]]++;
        lane2[index[i + 2]]++;
        lane3[index[i + 3]]++;
    }
    for (; i < n; i++)
        lanes[index[i]]++;
}

/* Fetches a block of values from memory. It may lie beyond the last value: nothing is read. */
static inline void fetch_block(const float *values)
{
#ifdef __GNUC__
    int i;
    for (i = 0; i < BLOCK; i += 16)
        __builtin_prefetch(values + i);
#else
    (void)values;
#endif
}

/* What all lanes have counted in a bin, which they forget. */
static inline uint32_t take(uint32_t *lanes, size_t row)
{
    uint32_t count = lanes[0] + lanes[row] + lanes[2 * row] + lanes[3 * row];
    lanes[0] = lanes[row] = lanes[2 * row] = lanes[3 * row] = 0;
    return count;
}

/* Writes what all lanes have counted, and leaves them empty. `counts` gets all bins of equal width, and `octaves`
   the bins of all octaves from that of the least magnitude but zero to that of the largest. */
FOR_EVERY_PROCESSOR
static void add_up_lanes(uint32_t *lanes, size_t row, Bins bins, int64_t zeros, int32_t least, int32_t largest,
                         int64_t *counts, uint32_t *octaves)
{
    int32_t octave, split = bins.split >> EXPONENT_SHIFT, last = largest >> EXPONENT_SHIFT;
    uint32_t *from, *to, i, bin;
    for (i = 0; i < SPARE; i++)
        take(lanes + OCTAVE_BINS + i, row);
    memset(counts, 0, bins.bins * sizeof *counts);
    counts[0] += zeros;
    if (!largest)
        return;
    for (octave = least >> EXPONENT_SHIFT; octave <= last; octave++) {
        from = lanes + octave * BINS_PER_OCTAVE;
        to = octaves + octave * BINS_PER_OCTAVE;
        for (i = 0; i < BINS_PER_OCTAVE; i++)
            to[i] = take(from + i, row);
    }
    if (largest >= bins.split) {
        float width = 1 / bins.factor;
        from = lanes + WIDTH_BINS;
        for (i = BINS_PER_OCTAVE; i < bins.bins; i++)
            counts[i] = take(from + i, row);
        for (i = BINS_PER_OCTAVE; i < bins.bins; i++)
            octaves[bits_of((float)i * width) >> OCTAVE_SHIFT] += (uint32_t)counts[i];
    }
    for (octave = least >> EXPONENT_SHIFT; octave <= last && octave < split; octave++) {
        /* Of its bins, so many as fall into one bin of equal width: a power of two. */
        uint32_t group = split - octave < 8 ? 1u << (split - octave) : BINS_PER_OCTAVE;
        for (bin = 0; bin < BINS_PER_OCTAVE; bin += group) {
            int32_t bits = (octave << EXPONENT_SHIFT) + ((int32_t)bin << OCTAVE_SHIFT);
            uint32_t sum = 0; /* a call counts fewer values than it holds */
            for (i = bin; i < bin + group; i++)
                sum += octaves[octave * BINS_PER_OCTAVE + i];
            counts[(int32_t)(magnitude_of(bits) * bins.factor)] += sum;
        }
    }
}

/* The number of the counter of a magnitude that is not zero. */
static inline int32_t counter_of(int32_t bits, int32_t split, float factor)
{
    int32_t octave = bits >> OCTAVE_SHIFT;
    /* Multiplying by a power of two is exact, so no value is misplaced. */
    int32_t width = WIDTH_BINS + (int32_t)(magnitude_of(bits) * factor);
    return octave ^ ((octave ^ width) & -(bits >= split));
}

typedef struct {
    int64_t taken;     /* values counted */
    int64_t zeros;     /* of them exactly zero */
    int32_t highest;   /* bits of the largest value of 0 and more */
    uint32_t lowest;   /* bits of the least value below 0; where there is none, their sign is clear */
    uint32_t below;    /* bits of the least magnitude but zero, less 1 */
} Counted;

/* The magnitude of the least value below 0, as bits; 0 where there is none. */
static inline int32_t lowest_magnitude(uint32_t lowest)
{
    return lowest > MAGNITUDE ? (int32_t)(lowest & MAGNITUDE) : 0;
}

/* Counts blocks until one has a value of `limit` (as bits) or more, or a NaN: the order of magnitudes is that
   of their bits as integers, and NaN comes above infinity. `lanes` has LANES rows of counters. */
FOR_EVERY_PROCESSOR
static Counted count_blocks(const float *values, int64_t size, Bins bins, uint32_t *lanes, size_t row)
{
    Counted found = {0, 0, 0, 0, UINT32_MAX};
    int32_t index[BLOCK], spare[BLOCK];
    number_spare(spare);
    for (; found.taken < size; values += BLOCK) {
        int n = size - found.taken < BLOCK ? (int)(size - found.taken) : BLOCK;
        int32_t highest = 0, zeros = 0;
        uint32_t lowest = 0, below = UINT32_MAX;
        int i;
        for (i = 0; i < n; i++) {
            int32_t bits, inside;
            memcpy(&bits, values + i, sizeof bits);
            /* With the sign, values below 0 are the least integers, and unsigned the largest ones. */
            highest = bits > highest ? bits : highest;
            lowest = (uint32_t)bits > lowest ? (uint32_t)bits : lowest;
            bits &= MAGNITUDE;
            below = (uint32_t)bits - 1 < below ? (uint32_t)bits - 1 : below; /* of zero, the most there is */
            zeros += bits == 0;
            /* What is in no bin gets a number all the same; the block is given up below. */
            inside = bits < bins.limit ? bits : bins.limit - 1;
            index[i] = counter_of(inside, bins.split, bins.factor) + (-(bits == 0) & spare[i]);
        }
        if (highest >= bins.limit || lowest_magnitude(lowest) >= bins.limit)
            break;
        fetch_block(values + AHEAD);
        add_to_lanes(index, n, lanes, row);
        found.taken += n;
        found.zeros += zeros;
        found.highest = highest > found.highest ? highest : found.highest;
        found.lowest = lowest > found.lowest ? lowest : found.lowest;
        found.below = below < found.below ? below : found.below;
    }
    return found;
}

typedef struct {
    int64_t taken;      /* values counted */
    int64_t zeros;      /* of them exactly zero, of either sign; they are on side 0 */
    int32_t largest[2]; /* bits of the largest magnitude of each side */
    uint32_t below[2];  /* bits of the least magnitude but zero of each side, less 1 */
} CountedSides;

/* The same for values told apart by their sign: those of 0 and more on side 0, those below on side 1, each
   with bins of its own width. In `lanes` the rows of side 0 come first. */
FOR_EVERY_PROCESSOR
static CountedSides count_sides_of_blocks(const float *values, int64_t size, const Bins *sides, uint32_t *lanes,
                                          size_t row)
{
    CountedSides found = {0, 0, {0, 0}, {UINT32_MAX, UINT32_MAX}};
    int32_t index[BLOCK], spare[BLOCK];
    int32_t rows_below = (int32_t)(LANES * row), other_limit = sides[0].limit ^ sides[1].limit;
    int32_t other_split = sides[0].split ^ sides[1].split;
    int32_t scale = bits_of(sides[0].factor), other_scale = scale ^ bits_of(sides[1].factor);
    number_spare(spare);
    for (; found.taken < size; values += BLOCK) {
        int n = size - found.taken < BLOCK ? (int)(size - found.taken) : BLOCK;
        int32_t peak0 = 0, peak1 = 0, zeros = 0, beyond = 0;
        uint32_t below0 = UINT32_MAX, below1 = UINT32_MAX;
        int i;
        for (i = 0; i < n; i++) {
            /* Chosen by masks: a branch would be guessed wrongly half of the time, and stop the vectors. */
            int32_t bits, below, limit, split, inside;
            uint32_t least;
            memcpy(&bits, values + i, sizeof bits);
            below = bits >> 31;
            bits &= MAGNITUDE;
            below &= -bits >> 31; /* minus zero is not below zero */
            peak0 = (bits & ~below) > peak0 ? (bits & ~below) : peak0;
            peak1 = (bits & below) > peak1 ? (bits & below) : peak1;
            least = ((uint32_t)bits - 1) | (uint32_t)below;
            below0 = least < below0 ? least : below0;
            least = ((uint32_t)bits - 1) | ~(uint32_t)below;
            below1 = least < below1 ? least : below1;
            zeros += bits == 0;
            limit = sides[0].limit ^ (other_limit & below);
            split = sides[0].split ^ (other_split & below);
            beyond |= bits >= limit;
            inside = bits < limit ? bits : limit - 1;
            index[i] = counter_of(inside, split, magnitude_of(scale ^ (other_scale & below))) +
                       (rows_below & below) + (-(bits == 0) & spare[i]);
        }
        if (beyond)
            break;
        fetch_block(values + AHEAD);
        add_to_lanes(index, n, lanes, row);
        found.taken += n;
        found.zeros += zeros;
        found.largest[0] = peak0 > found.largest[0] ? peak0 : found.largest[0];
        found.largest[1] = peak1 > found.largest[1] ? peak1 : found.largest[1];
        found.below[0] = below0 < found.below[0] ? below0 : found.below[0];
        found.below[1] = below1 < found.below[1] ? below1 : found.below[1];
    }
    return found;
}

static void *address(unsigned long long number)
{
    return (void *)(uintptr_t)number;
}

static PyObject *count_values(PyObject *self, PyObject *args)
{
    unsigned long long values, lanes, counts, octaves;
    long long size;
    int limit;
    float factor;
    unsigned int number;
    size_t row;
    int32_t lowest;
    Bins bins;
    Counted found;
    (void)self;
    if (!PyArg_ParseTuple(args, "KLifIKKK", &values, &size, &limit, &factor, &number, &lanes, &counts, &octaves))
        return NULL;
    bins = bins_of(limit, factor, number);
    row = WIDTH_BINS + (size_t)number;
    Py_BEGIN_ALLOW_THREADS
    found = count_blocks(address(values), size, bins, address(lanes), row);
    lowest = lowest_magnitude(found.lowest);
    add_up_lanes(address(lanes), row, bins, found.zeros, (int32_t)(found.below + 1),
                 lowest > found.highest ? lowest : found.highest, address(counts), address(octaves));
    Py_END_ALLOW_THREADS
    return Py_BuildValue("LLi(ii)", (long long)found.taken, (long long)found.zeros, (int)(found.below + 1),
                         (int)lowest, (int)found.highest);
}

static PyObject *count_values_of_sides(PyObject *self, PyObject *args)
{
    unsigned long long values, lanes, counts, octaves;
    long long size;
    int limits[2], side;
    float factors[2];
    unsigned int number;
    size_t row;
    Bins bins[2];
    CountedSides found;
    (void)self;
    if (!PyArg_ParseTuple(args, "KL(ii)(ff)IKKK", &values, &size, &limits[0], &limits[1], &factors[0],
                          &factors[1], &number, &lanes, &counts, &octaves))
        return NULL;
    row = WIDTH_BINS + (size_t)number;
    for (side = 0; side < 2; side++)
        bins[side] = bins_of(limits[side], factors[side], number);
    Py_BEGIN_ALLOW_THREADS
    found = count_sides_of_blocks(address(values), size, bins, address(lanes), row);
    for (side = 0; side < 2; side++)
        add_up_lanes((uint32_t *)address(lanes) + side * LANES * row, row, bins[side], side ? 0 : found.zeros,
                     (int32_t)(found.below[side] + 1), found.largest[side],
                     (int64_t *)address(counts) + side * (size_t)number,
                     (uint32_t *)address(octaves) + side * OCTAVE_BINS);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("LL(ii)(ii)", (long long)found.taken, (long long)found.zeros, (int)(found.below[0] + 1),
                         (int)(found.below[1] + 1), (int)found.largest[0], (int)found.largest[1]);
}

static PyMethodDef methods[] = {
    {"count_values", count_values, METH_VARARGS,
     "count_values(values, size, limit, factor, bins, lanes, counts, octaves)"
     " -> (taken, zeros, bits of the least magnitude but zero, bits of the largest below zero and above)"},
    {"count_values_of_sides", count_values_of_sides, METH_VARARGS,
     "count_values_of_sides(values, size, limits, factors, bins, lanes, counts, octaves)"
     " -> (taken, zeros, bits of the least magnitudes but zero, bits of the largest)"},
    {NULL, NULL, 0, NULL},
};

/* Which arguments the functions take and what they return. A module that was built from other sources must not
 * be called: it is given addresses. compiled.py knows the same number. */
#define INTERFACE 2

static int add_interface(PyObject *module)
{
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_interface}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_counting", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__counting(void)
{
    return PyModuleDef_Init(&definition);
}
