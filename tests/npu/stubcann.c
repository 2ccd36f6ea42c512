/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime of CANN without a device: what torch_npu calls, as memory of this process that the host may not touch.
 *
 * Device memory is one range of addresses, closed (PROT_NONE) but for copies and for what stub_open() and stub_close()
 * enclose: host code that reads a device pointer dies. Work is done when it is asked for, so streams and events are
 * complete at once; operations do nothing but be counted. What was asked for is in stub_counters and stub_log.
 * Environment: STUB_SOC, STUB_DEVICES, STUB_MEMORY_BYTES (of each device), STUB_FAIL_CAPTURE (the first capture, of
 * those counted, that cannot be ended; nor can those after it).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK = 0, INVALID = 107000, NO_DEVICE = 107002, NOT_IN_CAPTURE = 107027, NO_MEMORY = 207001 };
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, NUM_KINDS };
#define PAGE 4096UL
#define LOG_LENGTH 65536

struct copies {
    uint64_t count, bytes, largest;
};

/* tests/npu/stub.py reads it field by field. Copies are by kind; those in `waiting` hold the host up: they are
 * synchronous, or of host memory that is not pinned. */
struct counters {
    uint64_t mallocs, malloc_bytes, largest_malloc, frees;
    struct copies queued[NUM_KINDS], waiting[NUM_KINDS];
    uint64_t stream_syncs, event_syncs, device_syncs;
    uint64_t launches, captures, updates, replays;
} stub_counters;

const char *stub_log[LOG_LENGTH]; /* names of launches, copies, syncs and graph calls, in order */
uint64_t stub_log_length;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *last_error = "";
static __thread int current_device = -1; /* none yet */

static void note(const char *name) {
    if (stub_log_length < LOG_LENGTH)
        stub_log[stub_log_length++] = name;
}

static int fail(int code, const char *message) {
    last_error = message;
    return code;
}

void stub_reset(void) {
    memset(&stub_counters, 0, sizeof stub_counters);
    stub_log_length = 0;
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

static uint64_t num_devices(void) { return setting("STUB_DEVICES", 1); }
static uint64_t device_bytes(void) { return setting("STUB_MEMORY_BYTES", 16UL << 30); }

/* ---- memory: a range of addresses, and the blocks in it by address */

struct block {
    struct block *next;
    char *start;
    size_t size;
    int device;
};
struct range {
    char *start, *used_end; /* no block was ever beyond used_end */
    size_t size;
    struct block *blocks;
};
static struct range device_range, pinned_range;
static size_t bytes_used[64];
static int num_openers;

__attribute__((constructor)) static void reserve(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    device_range.size = num_devices() * device_bytes();
    pinned_range.size = 4UL << 30;
    device_range.start = mmap(NULL, device_range.size, PROT_NONE, flags, -1, 0);
    pinned_range.start = mmap(NULL, pinned_range.size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (device_range.start == MAP_FAILED || pinned_range.start == MAP_FAILED)
        abort();
    device_range.used_end = device_range.start;
    pinned_range.used_end = pinned_range.start;
}

static int is_in(const struct range *range, const void *address) {
    return (char *)address >= range->start && (char *)address < range->start + range->size;
}

static void protect(char *start, size_t size, int access) {
    const size_t before = (uintptr_t)start & (PAGE - 1);
    if (size && mprotect(start - before, size + before, access))
        abort();
}

/* The part of device memory that was ever given out. */
static void protect_all(int access) { protect(device_range.start, device_range.used_end - device_range.start, access); }

void stub_open(void) {
    pthread_mutex_lock(&lock);
    if (num_openers++ == 0)
        protect_all(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&lock);
}

void stub_close(void) {
    pthread_mutex_lock(&lock);
    if (--num_openers == 0)
        protect_all(PROT_NONE);
    pthread_mutex_unlock(&lock);
}

/* The first gap that is large enough. */
static void *take(struct range *range, size_t size) {
    size = (size + PAGE) & ~(PAGE - 1);
    struct block **at = &range->blocks;
    char *start = range->start;
    while (*at && start + size > (*at)->start) {
        start = (*at)->start + (*at)->size;
        at = &(*at)->next;
    }
    if (start + size > range->start + range->size)
        return NULL;
    struct block *block = malloc(sizeof *block);
    *block = (struct block){*at, start, size, current_device};
    *at = block;
    if (range == &device_range && num_openers)
        protect(start, size, PROT_READ | PROT_WRITE);
    if (start + size > range->used_end)
        range->used_end = start + size;
    return start;
}

static int give(struct range *range, void *start) {
    struct block **at = &range->blocks;
    while (*at && (*at)->start != start)
        at = &(*at)->next;
    if (!*at)
        return fail(INVALID, "stub: no such memory");
    struct block *block = *at;
    madvise(block->start, block->size, MADV_DONTNEED);
    if (range == &device_range)
        bytes_used[block->device] -= block->size;
    *at = block->next;
    free(block);
    return OK;
}

int aclrtMalloc(void **address, size_t size, int policy) {
    if (current_device < 0)
        return fail(NO_DEVICE, "stub: the thread has no device yet");
    pthread_mutex_lock(&lock);
    const size_t taken = (size + PAGE) & ~(PAGE - 1);
    *address = bytes_used[current_device] + taken <= device_bytes() ? take(&device_range, size) : NULL;
    if (*address) {
        bytes_used[current_device] += taken;
        stub_counters.mallocs++;
        stub_counters.malloc_bytes += size;
        if (size > stub_counters.largest_malloc)
            stub_counters.largest_malloc = size;
    }
    pthread_mutex_unlock(&lock);
    return *address ? OK : fail(NO_MEMORY, "stub: out of device memory");
}

int aclrtMallocAlign32(void **address, size_t size, int policy) { return aclrtMalloc(address, size, policy); }

int aclrtFree(void *address) {
    pthread_mutex_lock(&lock);
    stub_counters.frees++;
    const int status = give(&device_range, address);
    pthread_mutex_unlock(&lock);
    return status;
}

int aclrtMallocHost(void **address, size_t size) {
    pthread_mutex_lock(&lock);
    *address = take(&pinned_range, size);
    pthread_mutex_unlock(&lock);
    return *address ? OK : fail(NO_MEMORY, "stub: out of pinned memory");
}

int aclrtMallocHostWithCfg(void **address, uint64_t size, void *config) { return aclrtMallocHost(address, size); }

int aclrtFreeHost(void *address) {
    pthread_mutex_lock(&lock);
    const int status = give(&pinned_range, address);
    pthread_mutex_unlock(&lock);
    return status;
}

int aclrtGetMemInfo(int kind, size_t *num_free, size_t *total) {
    if (current_device < 0)
        return fail(NO_DEVICE, "stub: the thread has no device yet");
    *total = device_bytes();
    *num_free = *total - bytes_used[current_device];
    return OK;
}

/* ---- graphs: what was captured is the simulation's to know; here is what the runtime would refuse */

struct model {
    struct group *groups;
    uint64_t last_replay;
};
struct group { /* operations whose arguments may be replaced before each replay */
    struct group *next;
    struct model *model;
    int is_updated;
};
struct event {
    uint64_t replay;
};
/* tests/npu/simulation.py reads them: the graph being captured, the group being recorded, the group being updated; and
 * sets what runs a graph. */
struct model *stub_capturing;
struct group *stub_recording, *stub_updating;
int (*stub_replay)(struct model *);
static void *capture_stream;
/* Replays by number: all are on one stream, the host has waited for the first num_done, and an event stands for those
 * that its stream had when it was recorded. */
static uint64_t num_replays, num_done;
static void *replay_stream;

static uint64_t replays_of(void *stream) { return stream == replay_stream ? num_replays : 0; }

static void done(uint64_t replay) {
    if (replay > num_done)
        num_done = replay;
}

int aclrtRecordEvent(struct event *event, void *stream) {
    event->replay = replays_of(stream);
    return OK;
}

int aclmdlRICaptureBegin(void *stream, int mode) {
    if (stub_capturing || !stream)
        return fail(INVALID, "stub: already capturing, or the default stream");
    stub_capturing = calloc(1, sizeof *stub_capturing);
    capture_stream = stream;
    note("capture");
    stub_counters.captures++;
    return OK;
}

int aclmdlRICaptureEnd(void *stream, void **model) {
    const int fails = stub_counters.captures >= setting("STUB_FAIL_CAPTURE", UINT64_MAX);
    *model = fails ? NULL : stub_capturing;
    stub_capturing = NULL;
    return fails ? fail(NO_MEMORY, "stub: a capture that cannot be ended") : OK;
}

int aclmdlRICaptureGetInfo(void *stream, int *status, void **model) {
    *status = stub_capturing && stream == capture_stream;
    *model = *status ? stub_capturing : NULL;
    return OK;
}

int aclmdlRICaptureTaskGrpBegin(void *stream) {
    stub_recording = calloc(1, sizeof *stub_recording);
    *stub_recording = (struct group){stub_capturing->groups, stub_capturing};
    stub_capturing->groups = stub_recording;
    return OK;
}

int aclmdlRICaptureTaskGrpEnd(void *stream, void **group) {
    *group = stub_recording;
    stub_recording = NULL;
    return OK;
}

/* On a device a replay that still runs may read the arguments of either. */
int aclmdlRICaptureTaskUpdateBegin(void *stream, struct group *group) {
    if (group->model->last_replay > num_done) {
        note("update of a running graph");
        return fail(INVALID, "stub: a graph is updated that was not waited for");
    }
    stub_updating = group;
    note("update");
    stub_counters.updates++;
    return OK;
}

int aclmdlRICaptureTaskUpdateEnd(void *stream) {
    stub_updating->is_updated = 1;
    stub_updating = NULL;
    return OK;
}

/* On a device each group waits for the event of its update, so a replay without one would not end. */
int aclmdlRIExecuteAsync(struct model *model, void *stream) {
    for (struct group *group = model->groups; group; group = group->next) {
        if (!group->is_updated)
            return fail(INVALID, "stub: a graph is replayed before its update");
        group->is_updated = 0;
    }
    note("replay");
    stub_counters.replays++;
    model->last_replay = ++num_replays;
    replay_stream = stream;
    return stub_replay ? stub_replay(model) : OK;
}

int aclmdlRIGetId(void *model, uint32_t *id) {
    *id = (uint32_t)((uintptr_t)model >> 4);
    return OK;
}

/* ---- copies and waiting */

static int wait_for(const char *name, uint64_t *count) {
    note(name);
    ++*count;
    return stub_capturing ? fail(NOT_IN_CAPTURE, "stub: the host waits while a graph is captured") : OK;
}

int aclrtSynchronizeStream(void *stream) {
    done(replays_of(stream));
    return wait_for("sync stream", &stub_counters.stream_syncs);
}
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t timeout_ms) { return aclrtSynchronizeStream(stream); }
int aclrtSynchronizeEvent(struct event *event) {
    done(event->replay);
    return wait_for("sync event", &stub_counters.event_syncs);
}
int aclrtSynchronizeDevice(void) {
    done(num_replays);
    return wait_for("sync device", &stub_counters.device_syncs);
}
int aclrtSynchronizeDeviceWithTimeout(int32_t timeout_ms) { return aclrtSynchronizeDevice(); }

static void move(void *to, const void *from, size_t size) {
    const int to_closed = !num_openers && is_in(&device_range, to);
    const int from_closed = !num_openers && is_in(&device_range, from);
    if (to_closed)
        protect(to, size, PROT_READ | PROT_WRITE);
    if (from_closed)
        protect((char *)from, size, PROT_READ | PROT_WRITE);
    memmove(to, from, size);
    if (to_closed)
        protect(to, size, PROT_NONE);
    if (from_closed)
        protect((char *)from, size, PROT_NONE);
}

static void count_copy(struct copies *copies, size_t size) {
    copies->count++;
    copies->bytes += size;
    if (size > copies->largest)
        copies->largest = size;
}

static int copy(void *to, size_t room, const void *from, size_t size, unsigned kind, int is_queued) {
    static const char *const names[2][NUM_KINDS] = {
        {"waiting copy H2H", "waiting copy H2D", "waiting copy D2H", "waiting copy D2D"},
        {"copy H2H", "copy H2D", "copy D2H", "copy D2D"},
    };
    const int is_to_device = is_in(&device_range, to), is_from_device = is_in(&device_range, from);
    if (size > room || kind != (unsigned)(2 * is_from_device + is_to_device))
        return fail(INVALID, "stub: a copy that does not fit its addresses");
    is_queued = is_queued && (is_to_device || is_in(&pinned_range, to));
    is_queued = is_queued && (is_from_device || is_in(&pinned_range, from));
    if (stub_capturing && !is_queued)
        return fail(NOT_IN_CAPTURE, "stub: a copy that waits while a graph is captured");
    pthread_mutex_lock(&lock);
    note(names[is_queued][kind]);
    count_copy((is_queued ? stub_counters.queued : stub_counters.waiting) + kind, size);
    if (!stub_capturing)
        move(to, from, size);
    pthread_mutex_unlock(&lock);
    return OK;
}

int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, unsigned kind) {
    return copy(to, room, from, size, kind, 0);
}

int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, unsigned kind, void *stream) {
    return copy(to, room, from, size, kind, 1);
}

/* ---- operations */

int stub_launch(const char *name) {
    note(name);
    stub_counters.launches++;
    return OK;
}

/* Operations and contexts of ATB are C++ objects. An operation's 7th and 8th virtual functions are Setup and Execute. */
struct object {
    void *const *functions;
    const char *name;
};
static int do_nothing(void) { return OK; }
static int set_up(void *operation, void *tensors, uint64_t *workspace_bytes) {
    *workspace_bytes = 0;
    return OK;
}
static int execute(struct object *operation) { return stub_launch(operation->name); }
#define FOUR_NOTHINGS do_nothing, do_nothing, do_nothing, do_nothing
static void *const OPERATION[] = {FOUR_NOTHINGS, do_nothing, do_nothing, set_up, execute, FOUR_NOTHINGS};
static void *const CONTEXT[] = {FOUR_NOTHINGS, FOUR_NOTHINGS, FOUR_NOTHINGS, FOUR_NOTHINGS};

static int new_object(void *const *functions, const char *name, void **made) {
    struct object *object = malloc(sizeof *object);
    *object = (struct object){functions, name};
    *made = object;
    return OK;
}
int stub_new_operation(const char *name, void **made) { return new_object(OPERATION, name, made); }
int stub_new_context(void **made) { return new_object(CONTEXT, "context", made); }

/* ---- what is asked about the machine */

const char *aclrtGetSocName(void) {
    const char *name = getenv("STUB_SOC");
    return name ? name : "Ascend910B2";
}
const char *aclGetRecentErrMsg(void) { return last_error; }

#define ANSWER(type, value) { *(type *)answer = (value); return OK; }
int aclrtGetDeviceCount(void *answer) ANSWER(uint32_t, num_devices())
int aclrtGetDevice(void *answer) {
    if (current_device < 0)
        return fail(NO_DEVICE, "stub: the thread has no device yet");
    ANSWER(int32_t, current_device)
}
int aclrtSetDevice(int32_t device) {
    if (device < 0 || (uint64_t)device >= num_devices())
        return fail(INVALID, "stub: no such device");
    current_device = device;
    return OK;
}
int aclrtGetCurrentContext(void *answer) ANSWER(void *, &device_range)
int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, void *answer) ANSWER(int32_t, 1)
int aclrtGetDeviceInfo(uint32_t device, int what, void *answer) { ANSWER(int64_t, 20) /* cores of either kind */ }
int aclGetDeviceCapability(uint32_t device, int what, void *answer) ANSWER(int32_t, 20)
int aclrtGetSysParamOpt(int what, void *answer) ANSWER(int64_t, 0)
int aclrtDeviceCanAccessPeer(void *answer) ANSWER(int32_t, 0)
uint64_t aclGetCompileoptSize(void) { return sizeof "disable"; }
int aclGetCompileopt(int what, char *answer) {
    strcpy(answer, "disable");
    return OK;
}

static int new_handle(void **handle) {
    *handle = calloc(1, 16);
    return OK;
}
int aclrtCreateStream(void **stream) { return new_handle(stream); }
int aclrtCreateStreamWithConfig(void **stream) { return new_handle(stream); }
int aclrtCreateEventWithFlag(void **event) { return new_handle(event); }
int aclrtCreateEventExWithFlag(void **event) { return new_handle(event); }
int aclrtStreamGetId(void *stream, int32_t *id) {
    *id = (int32_t)((uintptr_t)stream >> 4);
    return OK;
}
int aclrtStreamQuery(void *stream, void *answer) { ANSWER(int32_t, 0) /* complete */ }
int aclrtQueryEventStatus(void *event, void *answer) { ANSWER(int32_t, 1) /* complete */ }
int aclQueryEventRecordedStatus(void *event, void *answer) { return aclrtQueryEventStatus(event, answer); }
int aclQueryEventWaitStatus(void *event, void *answer) { return aclrtQueryEventStatus(event, answer); }
int aclrtEventElapsedTime(void *answer) ANSWER(float, 0)
