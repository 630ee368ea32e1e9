/* A stand-in for libnvidia-ml.so.1, driven by a text file ($NVML_STUB_STATE) that is read again on every call.
 * The file has lines "key=value"; keys of a card begin with its position and a dot. A value "!N" is NVML's error N.
 *   init=0 driver=580.1 cuda=13000 count=2 hang=1 xid=POSITION,NUMBER,SERIAL 0.uuid=GPU-... 0.power=!3 0.lost=1
 * A missing key is NOT_SUPPORTED (3). What NVIDIA's own mock does is kept: an Xid is delivered once, a wait without one
 * lasts its whole time-out, and a lost card fails in every getter while the count stays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result;
typedef unsigned long long Wide;
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10, LOST = 15, UNKNOWN = 999 };

static char text[65536];

static int find(const char *key, char *out, size_t size) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0, width = strlen(key);
    if (file) fclose(file);
    text[length] = 0;
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');
        if (!end) end = line + strlen(line);
        if (!strncmp(line, key, width) && line[width] == '=') {
            size_t found = (size_t)(end - line) - width - 1;
            if (found >= size) found = size - 1;
            memcpy(out, line + width + 1, found);
            out[found] = 0;
            return 1;
        }
        line = *end ? end + 1 : end;
    }
    return 0;
}

static Result number_of(const char *key, Wide *out) {
    char value[128];
    if (!find(key, value, sizeof value)) return UNSUPPORTED;
    if (value[0] == '!') return atoi(value + 1);
    *out = strtoull(value, NULL, 0);
    return OK;
}

static int position(void *card) { return (int)(long)card - 1; }

static Result card_number(void *card, const char *key, Wide *out) {
    char whole[96];
    Wide lost = 0;
    snprintf(whole, sizeof whole, "%d.lost", position(card));
    if (number_of(whole, &lost) == OK && lost) return LOST;
    snprintf(whole, sizeof whole, "%d.%s", position(card), key);
    return number_of(whole, out);
}

static Result card_text(void *card, const char *key, char *out, unsigned size) {
    char whole[96], value[256];
    Wide unused = 0;
    if (card_number(card, "lost", &unused) == LOST) return LOST;
    snprintf(whole, sizeof whole, "%d.%s", position(card), key);
    if (!find(whole, value, sizeof value)) return UNSUPPORTED;
    if (value[0] == '!') return atoi(value + 1);
    if (strlen(value) + 1 > size) return TOO_SMALL;
    strcpy(out, value);
    return OK;
}

Result nvmlInitWithFlags(unsigned flags) {
    Wide code = 0;
    (void)flags;
    return number_of("init", &code) == OK ? (Result)code : OK;
}
Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Result nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(Result code) { return code == 18 ? "Driver/library version mismatch" : code == LOST ? "GPU is lost" : "error"; }

Result nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char value[80];
    if (!find("driver", value, sizeof value)) return UNKNOWN;
    snprintf(out, size, "%s", value);
    return OK;
}
Result nvmlSystemGetCudaDriverVersion_v2(int *out) {
    Wide value;
    Result code = number_of("cuda", &value);
    if (!code) *out = (int)value;
    return code;
}
Result nvmlDeviceGetCount_v2(unsigned *out) {
    Wide hang = 0, count = 0;
    if (number_of("hang", &hang) == OK && hang) sleep(3600);
    Result code = number_of("count", &count);
    *out = (unsigned)count;
    return code;
}
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
    unsigned count;
    Wide unused;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count) return INVALID;
    *card = (void *)(long)(index + 1);
    return card_number(*card, "lost", &unused) == LOST ? LOST : OK;
}
Result nvmlDeviceGetName(void *card, char *out, unsigned size) { return card_text(card, "name", out, size); }
Result nvmlDeviceGetUUID(void *card, char *out, unsigned size) { return card_text(card, "uuid", out, size); }

typedef struct { Wide total, free, used; } MemoryV1;
typedef struct { unsigned version; Wide total, reserved, free, used; } MemoryV2;
static Result memory(void *card, Wide *total, Wide *used, Wide *reserved) {
    Result code = card_number(card, "total", total);
    *used = *reserved = 0;
    if (code) return code;
    card_number(card, "used", used);
    card_number(card, "reserved", reserved);
    return OK;
}
Result nvmlDeviceGetMemoryInfo(void *card, MemoryV1 *out) { /* counts the driver's reserve as used, as driver 510 and later do */
    Wide reserved;
    Result code = memory(card, &out->total, &out->used, &reserved);
    out->used += reserved;
    out->free = out->total - out->used;
    return code;
}
Result nvmlDeviceGetMemoryInfo_v2(void *card, MemoryV2 *out) {
    Wide old = 0;
    if (number_of("no_memory_v2", &old) == OK && old) return 13;
    if (out->version != (sizeof(MemoryV2) | 2u << 24)) return 25;
    Result code = memory(card, &out->total, &out->used, &out->reserved);
    out->free = out->total - out->used - out->reserved;
    return code;
}

#define UNSIGNED(function, key) \
    Result function(void *card, unsigned *out) { Wide value; Result code = card_number(card, key, &value); if (!code) *out = (unsigned)value; return code; }
UNSIGNED(nvmlDeviceGetPowerUsage, "power")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UNSIGNED(nvmlDeviceGetFanSpeed, "fan")
UNSIGNED(nvmlDeviceGetNumGpuCores, "cores")
UNSIGNED(nvmlDeviceGetMemoryBusWidth, "bus")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")

#define BY_KIND(function, first, second) \
    Result function(void *card, unsigned kind, unsigned *out) { Wide value; Result code = card_number(card, kind == 2 ? second : first, &value); if (!code) *out = (unsigned)value; return code; }
BY_KIND(nvmlDeviceGetTemperature, "temperature", "temperature")
BY_KIND(nvmlDeviceGetClockInfo, "sm_clock", "memory_clock")
BY_KIND(nvmlDeviceGetMaxClockInfo, "max_sm_clock", "max_memory_clock")

#define PAIR(function, type, key) \
    Result function(void *card, type *first, type *second) { Wide value; Result code = card_number(card, key, &value); if (!code) { *first = (type)value; *second = (type)value; } return code; }
PAIR(nvmlDeviceGetEccMode, unsigned, "ecc")
PAIR(nvmlDeviceGetMigMode, unsigned, "mig")

Result nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) {
    Wide value;
    Result code = card_number(card, "capability", &value);
    if (!code) { *major = (int)value / 10; *minor = (int)value % 10; }
    return code;
}
typedef struct { unsigned gpu, memory; } Utilization;
Result nvmlDeviceGetUtilizationRates(void *card, Utilization *out) {
    Wide value;
    Result code = card_number(card, "utilization", &value);
    if (!code) { out->gpu = (unsigned)value; out->memory = 0; }
    return code;
}
Result nvmlDeviceGetCurrentClocksEventReasons(void *card, Wide *out) { return card_number(card, "reasons", out); }
Result nvmlDeviceGetTotalEccErrors(void *card, unsigned kind, unsigned counter, Wide *out) {
    (void)kind; (void)counter;
    return card_number(card, "ecc_errors", out);
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
Result nvmlDeviceGetPciInfo_v3(void *card, Pci *out) { memset(out, 0, sizeof *out); return card_text(card, "pci", out->bus_id, sizeof out->bus_id); }

typedef struct { void *card; Wide type, data; unsigned gpu_instance, compute_instance; } Event;
static Wide delivered;
Result nvmlEventSetCreate(void **set) { *set = (void *)1; return OK; }
Result nvmlEventSetFree(void *set) { (void)set; return OK; }
Result nvmlDeviceRegisterEvents(void *card, Wide types, void *set) { (void)card; (void)types; (void)set; return OK; }
Result nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 20) {
        char value[64];
        int card;
        Wide xid, serial;
        if (find("xid", value, sizeof value) && sscanf(value, "%d,%llu,%llu", &card, &xid, &serial) == 3 && serial > delivered) {
            delivered = serial;
            event->card = (void *)(long)(card + 1);
            event->type = 8;
            event->data = xid;
            return OK;
        }
        usleep(20000);
    }
    return TIMED_OUT;
}
