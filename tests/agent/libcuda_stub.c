/* A stand-in for libcuda.so.1 that knows the benchmark's kernels by name: it computes what they leave behind, and its
 * events tell the time that a card of the given rates would have taken. Steered by $CUDA_STUB, "key=value" words:
 *   fp32=30e12 fp16=30e12 tensor=120e12 memory=300e9 major=8 minor=9 wrong=KERNEL fail=FUNCTION:CODE sag=0.9 (rate from 150 ms after a kernel's first launch) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Result;
typedef struct { char name[32]; int deep; long launches; double first_s; } Kernel;
enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, SMS = 4, FREE = 64 << 20 };

static double now_s;
static const char *setting(const char *key) {
    static char found[64];
    const char *text = getenv("CUDA_STUB");
    size_t width = strlen(key);
    for (const char *word = text ? text : ""; *word; word = strchr(word, ' ') ? strchr(word, ' ') + 1 : word + strlen(word))
        if (!strncmp(word, key, width) && word[width] == '=') {
            snprintf(found, sizeof found, "%.*s", (int)strcspn(word + width + 1, " "), word + width + 1);
            return found;
        }
    return NULL;
}
static double number(const char *key, double otherwise) { const char *text = setting(key); return text ? atof(text) : otherwise; }
static Result failing(const char *function) {
    const char *text = setting("fail");
    size_t width = strlen(function);
    return text && !strncmp(text, function, width) && text[width] == ':' ? atoi(text + width + 1) : 0;
}
#define FAILING do { Result code = failing(__func__); if (code) return code; } while (0)

Result cuInit(unsigned flags) { (void)flags; FAILING; return 0; }
Result cuGetErrorName(Result code, const char **text) { *text = code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE" : code == 702 ? "CUDA_ERROR_LAUNCH_TIMEOUT" : "CUDA_ERROR_UNKNOWN"; return 0; }
Result cuDeviceGetCount(int *count) { FAILING; *count = 2; return 0; }
Result cuDeviceGet(int *device, int position) { *device = position; return 0; }
Result cuDeviceGetUuid_v2(unsigned char *raw, int device) { memset(raw, 0, 16); raw[0] = (unsigned char)device; return 0; }
Result cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    *value = which == 16 ? SMS : which == 38 ? 1 << 20 : which == 75 ? (int)number("major", 8) : (int)number("minor", 9);
    return 0;
}
Result cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; FAILING; *context = (void *)1; return 0; }
Result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
Result cuCtxSetCurrent(void *context) { (void)context; return 0; }
Result cuMemGetInfo_v2(size_t *free_, size_t *total) { *free_ = FREE; *total = 2 * (size_t)FREE; return 0; }
Result cuMemAlloc_v2(unsigned long long *pointer, size_t size) { FAILING; *pointer = (unsigned long long)calloc(1, size); return *pointer ? 0 : OUT_OF_MEMORY; }
Result cuMemFree_v2(unsigned long long pointer) { free((void *)pointer); return 0; }
Result cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) { FAILING; memcpy(to, (void *)from, size); return 0; }

Result cuModuleLoadDataEx(void **module, const char *text, unsigned options, void *keys, void *values) {
    (void)options; (void)keys; (void)values;
    FAILING;
    if (!strstr(text, ".version 7.0")) return 218;
    *module = strstr(text, "m16n8k16") ? (void *)2 : (void *)1;
    return 0;
}
Result cuModuleGetFunction(void **function, void *module, const char *name) {
    Kernel *kernel = calloc(1, sizeof *kernel);
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    kernel->deep = module == (void *)2;
    *function = kernel;
    return 0;
}

static double wall_s(void) { struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now); return now.tv_sec + now.tv_nsec / 1e9; }
static unsigned half_bits(double value) { _Float16 half = (_Float16)value; unsigned short bits; memcpy(&bits, &half, 2); return bits; }

Result cuLaunchKernel(Kernel *kernel, unsigned blocks, unsigned y, unsigned z, unsigned threads_x, unsigned ty, unsigned tz, unsigned shared,
                      void *stream, void **arguments, void **extra) {
    (void)y; (void)z; (void)ty; (void)tz; (void)shared; (void)stream; (void)extra;
    FAILING;
    if (!kernel->launches++) kernel->first_s = wall_s();
    double threads = (double)blocks * threads_x, sag = wall_s() - kernel->first_s > 0.15 ? number("sag", 1) : 1;
    int compute = kernel->launches < 6, wrong = setting("wrong") && !strcmp(setting("wrong"), kernel->name);
    if (kernel->name[0] == 'v') { /* vread(source, out, rounds), vwrite(target, value, rounds), vcopy(source, target, rounds) */
        unsigned *first = (unsigned *)*(unsigned long long *)arguments[0];
        unsigned rounds = *(unsigned *)arguments[2];
        size_t words = (size_t)(16 * threads * rounds);
        now_s += words * 4.0 * (kernel->name[1] == 'c' ? 2 : 1) / (number("memory", 300e9) * sag);
        if (!compute) return 0;
        if (kernel->name[1] == 'w') for (size_t index = 0; index < words; index++) first[index] = *(unsigned *)arguments[1];
        else {
            unsigned *second = (unsigned *)*(unsigned long long *)arguments[1];
            if (kernel->name[1] == 'c') memcpy(second, first, words * 4);
            else for (size_t thread = 0; thread < (size_t)threads; thread++) second[thread] = 16 * rounds * first[4 * thread] + (unsigned)wrong;
        }
        return 0;
    }
    float *out = (float *)*(unsigned long long *)arguments[0];
    unsigned rounds = *(unsigned *)arguments[1];
    int fp32 = !strcmp(kernel->name, "fma32"), fp16 = !strcmp(kernel->name, "fma16");
    double work = fp32 ? 128 * threads : fp16 ? 256 * threads : 32 * (kernel->deep ? 4096.0 : 2048.0) * threads / 32;
    now_s += work * rounds / (number(fp32 ? "fp32" : fp16 ? "fp16" : "tensor", 30e12) * sag);
    for (size_t thread = 0; compute && thread < (size_t)threads; thread++) {
        if (fp32) out[thread] = (float)(8 * (thread % 256) + 28 + 64.0 * rounds) + wrong;
        else if (fp16) { unsigned bits = half_bits(64.0 * rounds) * 0x10001u + (unsigned)wrong; memcpy(&out[thread], &bits, 4); }
        else out[thread] = (float)(32.0 * (kernel->deep ? 16 : 8) * 4 * rounds) + wrong;
    }
    return 0;
}

Result cuEventCreate(double **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return 0; }
Result cuEventRecord(double *event, void *stream) { (void)stream; *event = now_s; return 0; }
Result cuEventSynchronize(double *event) { (void)event; FAILING; return 0; }
Result cuEventElapsedTime(float *ms, double *start, double *end) { *ms = (float)((*end - *start) * 1000); return 0; }
Result cuEventDestroy_v2(double *event) { free(event); return 0; }
