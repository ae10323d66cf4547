/*
shared: processes that share one machine of the fake.

Where FAKE_CUDA_SHARED names a file, all processes that were started with it have the same devices: what one holds is missing to the
others, and the fake NVML lists them. A process that dies holds nothing any more. Devices are matched by their place in the script,
which should be the same for all.
*/
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

namespace {

constexpr int TENANTS_MAX = 64, DEVICES_MAX = 16;

struct Slot {
    std::atomic<int> pid;  // 0: nobody's
    std::atomic<u64> held[DEVICES_MAX];
};

int file = -1;
Slot* slots = nullptr;
Slot* ours = nullptr;

bool alive(int pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace

SharedTurn::SharedTurn() {
    if (slots) flock(file, LOCK_EX);
}
SharedTurn::~SharedTurn() {
    if (slots) flock(file, LOCK_UN);
}

void join_shared() {
    const char* path = getenv("FAKE_CUDA_SHARED");
    if (!path) return;
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Slot) * TENANTS_MAX)) violation("FAKE_CUDA_SHARED: cannot use %s", path);
    void* mapped = mmap(nullptr, sizeof(Slot) * TENANTS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) violation("FAKE_CUDA_SHARED: cannot map %s", path);
    slots = (Slot*)mapped;
    const SharedTurn turn;
    for (int i = 0; i < TENANTS_MAX && !ours; ++i)
        if (!slots[i].pid || !alive(slots[i].pid)) ours = &slots[i];
    if (!ours) violation("FAKE_CUDA_SHARED: more than %d processes", TENANTS_MAX);
    for (auto& held : ours->held) held = 0;
    ours->pid = getpid();
}

void publish(const Device& device) {
    if (ours && device.index < DEVICES_MAX) ours->held[device.index] = device.own();
}

std::vector<Tenant> tenants(const Device& device) {
    std::vector<Tenant> found;
    for (int i = 0; slots && i < TENANTS_MAX && device.index < DEVICES_MAX; ++i) {
        const int pid = slots[i].pid;
        const u64 held = slots[i].held[device.index];
        if (pid && held && &slots[i] != ours && alive(pid)) found.push_back({(unsigned)pid, held});
    }
    return found;
}
