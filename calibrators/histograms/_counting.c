/* The inner loop of calibration: counts magnitudes of float32 values into bins.

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

/* Counters behind those of the bins, for zeros: after a Relu there are many, which would wait for each other.
   They are left out of the sum of the lanes, and added to bin 0 by their number. */
#define SPARE 64

#define MAGNITUDE 0x7fffffff

/* A second version of the loop for processors with AVX2, chosen when the module is loaded. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

/* The number of each value's counter for a zero: 16 in turn, of which four share a cache line. */
static inline void number_spare(int32_t *spare, uint32_t bins)
{
    int i;
    for (i = 0; i < BLOCK; i++)
        spare[i] = (int32_t)bins + (i / LANES % 4) * (SPARE / 4);
}

/* Counts values by the numbers of their counters, in turn in each of LANES rows of counters. */
static inline void add_to_lanes(const uint16_t *index, int n, uint32_t *lanes, uint32_t bins)
{
    uint32_t row = bins + SPARE, *lane1 = lanes + row, *lane2 = lane1 + row, *lane3 = lane2 + row;
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

/* Writes what all lanes have counted, zeros included. */
static void add_up_lanes(const uint32_t *lanes, size_t bins, int64_t zeros, int64_t *counts)
{
    size_t bin, row = bins + SPARE;
    for (bin = 0; bin < bins; bin++)
        counts[bin] = (int64_t)lanes[bin] + lanes[row + bin] + lanes[2 * row + bin] + lanes[3 * row + bin];
    counts[0] += zeros;
}

static uint32_t *new_lanes(size_t bins)
{
    return PyMem_Calloc(LANES * (bins + SPARE), sizeof(uint32_t));
}

typedef struct {
    int64_t taken;   /* values counted */
    int64_t zeros;   /* of them exactly zero */
    int32_t largest; /* bits of the largest magnitude */
} Counted;

/* Counts blocks until one has a value of `limit` (as bits) or more, or a NaN: the order of magnitudes is that
   of their bits as integers, and NaN comes above infinity. `lanes` has LANES rows of counters. */
FOR_EVERY_PROCESSOR
static Counted count_blocks(const float *values, int64_t size, int32_t limit, float factor, uint32_t bins,
                            uint32_t *lanes)
{
    Counted found = {0, 0, 0};
    uint16_t index[BLOCK];
    int32_t spare[BLOCK];
    number_spare(spare, bins);
    for (; found.taken < size; values += BLOCK) {
        int n = size - found.taken < BLOCK ? (int)(size - found.taken) : BLOCK;
        int32_t peak = 0, zeros = 0;
        int i;
        for (i = 0; i < n; i++) {
            int32_t bits, inside;
            float magnitude;
            memcpy(&bits, values + i, sizeof bits);
            bits &= MAGNITUDE;
            peak = bits > peak ? bits : peak;
            zeros += bits == 0;
            /* What is in no bin gets a number all the same; the block is given up below. */
            inside = bits < limit ? bits : limit - 1;
            memcpy(&magnitude, &inside, sizeof magnitude);
            /* Multiplying by a power of two is exact, so no value is misplaced. */
            index[i] = (uint16_t)((int32_t)(magnitude * factor) + (-(bits == 0) & spare[i]));
        }
        if (peak >= limit)
            break;
        fetch_block(values + AHEAD);
        add_to_lanes(index, n, lanes, bins);
        found.taken += n;
        found.zeros += zeros;
        found.largest = peak > found.largest ? peak : found.largest;
    }
    return found;
}

typedef struct {
    int64_t taken;      /* values counted */
    int64_t zeros;      /* of them exactly zero, of either sign; they are on side 0 */
    int32_t largest[2]; /* bits of the largest magnitude of each side */
} CountedSides;

/* The same for values told apart by their sign: those of 0 and more on side 0, those below on side 1, each
   with bins of its own width. In `lanes` the counters of side 0 come first. */
FOR_EVERY_PROCESSOR
static CountedSides count_sides_of_blocks(const float *values, int64_t size, const int32_t *limits,
                                          const float *factors, uint32_t bins, uint32_t *lanes)
{
    CountedSides found = {0, 0, {0, 0}};
    uint16_t index[BLOCK];
    int32_t spare[BLOCK];
    int32_t scales[2], bins_below = (int32_t)bins, other_limit = limits[0] ^ limits[1], other_scale;
    memcpy(scales, factors, sizeof scales);
    other_scale = scales[0] ^ scales[1];
    number_spare(spare, 2 * bins);
    for (; found.taken < size; values += BLOCK) {
        int n = size - found.taken < BLOCK ? (int)(size - found.taken) : BLOCK;
        int32_t peak0 = 0, peak1 = 0, zeros = 0, beyond = 0;
        int i;
        for (i = 0; i < n; i++) {
            /* Chosen by masks: a branch would be guessed wrongly half of the time, and stop the vectors. */
            int32_t bits, below, limit, inside, scale;
            float magnitude, factor;
            memcpy(&bits, values + i, sizeof bits);
            below = bits >> 31;
            bits &= MAGNITUDE;
            below &= -bits >> 31; /* minus zero is not below zero */
            peak0 = (bits & ~below) > peak0 ? (bits & ~below) : peak0;
            peak1 = (bits & below) > peak1 ? (bits & below) : peak1;
            zeros += bits == 0;
            limit = limits[0] ^ (other_limit & below);
            beyond |= bits >= limit;
            inside = bits < limit ? bits : limit - 1;
            memcpy(&magnitude, &inside, sizeof magnitude);
            scale = scales[0] ^ (other_scale & below);
            memcpy(&factor, &scale, sizeof factor);
            index[i] = (uint16_t)((int32_t)(magnitude * factor) + (bins_below & below) +
                                  (-(bits == 0) & spare[i]));
        }
        if (beyond)
            break;
        fetch_block(values + AHEAD);
        add_to_lanes(index, n, lanes, 2 * bins);
        found.taken += n;
        found.zeros += zeros;
        found.largest[0] = peak0 > found.largest[0] ? peak0 : found.largest[0];
        found.largest[1] = peak1 > found.largest[1] ? peak1 : found.largest[1];
    }
    return found;
}

static PyObject *count_values(PyObject *self, PyObject *args)
{
    unsigned long long values, counts;
    uint32_t *lanes;
    long long size;
    int limit;
    float factor;
    unsigned int bins;
    Counted found;
    (void)self;
    if (!PyArg_ParseTuple(args, "KLifIK", &values, &size, &limit, &factor, &bins, &counts))
        return NULL;
    if (!(lanes = new_lanes(bins)))
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    found = count_blocks((const float *)(uintptr_t)values, size, limit, factor, bins, lanes);
    add_up_lanes(lanes, bins, found.zeros, (int64_t *)(uintptr_t)counts);
    Py_END_ALLOW_THREADS
    PyMem_Free(lanes);
    return Py_BuildValue("LLi", (long long)found.taken, (long long)found.zeros, (int)found.largest);
}

static PyObject *count_values_of_sides(PyObject *self, PyObject *args)
{
    unsigned long long values, counts;
    uint32_t *lanes;
    long long size;
    int limits[2];
    float factors[2];
    unsigned int bins;
    CountedSides found;
    (void)self;
    if (!PyArg_ParseTuple(args, "KL(ii)(ff)IK", &values, &size, &limits[0], &limits[1], &factors[0],
                          &factors[1], &bins, &counts))
        return NULL;
    if (!(lanes = new_lanes(2 * (size_t)bins)))
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    found = count_sides_of_blocks((const float *)(uintptr_t)values, size, limits, factors, bins, lanes);
    add_up_lanes(lanes, 2 * (size_t)bins, found.zeros, (int64_t *)(uintptr_t)counts);
    Py_END_ALLOW_THREADS
    PyMem_Free(lanes);
    return Py_BuildValue("LL(ii)", (long long)found.taken, (long long)found.zeros, (int)found.largest[0],
                         (int)found.largest[1]);
}

static PyMethodDef methods[] = {
    {"count_values", count_values, METH_VARARGS,
     "count_values(values, size, limit, factor, bins, counts) -> (taken, zeros, bits of the largest magnitude)"},
    {"count_values_of_sides", count_values_of_sides, METH_VARARGS,
     "count_values_of_sides(values, size, limits, factors, bins, counts) -> (taken, zeros, bits of the largest magnitudes)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_counting", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__counting(void)
{
    return PyModuleDef_Init(&definition);
}
