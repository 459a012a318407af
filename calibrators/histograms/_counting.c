/* The inner loop of calibration: counts magnitudes of float32 values into bins.

   Uses Python's stable interface only, so one build serves every version of Python; and takes addresses, so
   it needs no headers of NumPy. calibrators/histograms/compiled.py is the only caller. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Values whose bin numbers are computed at once (in vectors), before they are counted one by one. They share
   the first-level cache, mostly 32 KB, with the counters. */
#define BLOCK 512

/* Counters a bin. Neighbouring values often share a bin, and an increment must wait for the one before it to
   reach memory; with four counters it waits for the fourth before it. */
#define LANES 4

#define MAGNITUDE 0x7fffffff

/* A second version of the loop for processors with AVX2, chosen when the module is loaded. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif

typedef struct {
    int64_t taken;   /* values counted */
    int64_t zeros;   /* of them exactly zero */
    int32_t largest; /* bits of the largest magnitude */
} Counted;

/* Counts blocks until one has a value of `limit` (as bits) or more, or a NaN: the order of magnitudes is that
   of their bits as integers, and NaN comes above infinity. `lanes` has LANES rows of `bins` counters. */
FOR_EVERY_PROCESSOR
static Counted count_blocks(const float *values, int64_t size, int32_t limit, float factor, uint32_t bins,
                            uint32_t *lanes)
{
    Counted found = {0, 0, 0};
    uint16_t index[BLOCK];
    uint32_t *lane1 = lanes + bins, *lane2 = lane1 + bins, *lane3 = lane2 + bins;
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
            index[i] = (uint16_t)(int32_t)(magnitude * factor);
        }
        if (peak >= limit)
            break;
        for (i = 0; i + LANES <= n; i += LANES) {
            lanes[index[i]]++;
            lane1[index[i + 1]]++;
            lane2[index[i + 2]]++;
            lane3[index[i + 3]]++;
        }
        for (; i < n; i++)
            lanes[index[i]]++;
        found.taken += n;
        found.zeros += zeros;
        found.largest = peak > found.largest ? peak : found.largest;
    }
    return found;
}

static PyObject *count(PyObject *self, PyObject *args)
{
    unsigned long long values, lanes;
    long long size;
    int limit;
    float factor;
    unsigned int bins;
    Counted found;
    (void)self;
    if (!PyArg_ParseTuple(args, "KLifIK", &values, &size, &limit, &factor, &bins, &lanes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    found = count_blocks((const float *)(uintptr_t)values, size, limit, factor, bins,
                         (uint32_t *)(uintptr_t)lanes);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("LLi", (long long)found.taken, (long long)found.zeros, (int)found.largest);
}

static PyMethodDef methods[] = {
    {"count", count, METH_VARARGS,
     "count(values, size, limit, factor, bins, lanes) -> (taken, zeros, bits of the largest magnitude)"},
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
