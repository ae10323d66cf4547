/*
fault: breaks the CUDA context of a server from within, as a kernel with a mistake would.

Preloaded (LD_PRELOAD), it waits for the file that GPU_CHECKS_FAULT_FILE names. When it is there, it launches the kernel that
GPU_CHECKS_FAULT_KERNEL holds as PTX, in the primary context of this process, and removes the file once that has failed. A process
that has no context does nothing: of a server and the process of its GPU, the one that has it is broken. The product has no such
hook, and needs none.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*Call)();

/* The driver, once the process has loaded it. */
static void *driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return library ? library : dlopen("libcuda.so", RTLD_NOW | RTLD_NOLOAD);
}

static char *kernel(void) {
    static char text[1 << 16];
    FILE *file = fopen(getenv("GPU_CHECKS_FAULT_KERNEL"), "r");
    if (!file) return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static int broken(void) {
    void *library = driver();
    char *text = kernel();
    if (!library || !text) return 0;
    Call get_state = (Call)dlsym(library, "cuDevicePrimaryCtxGetState");
    Call retain = (Call)dlsym(library, "cuDevicePrimaryCtxRetain");
    Call release = (Call)dlsym(library, "cuDevicePrimaryCtxRelease_v2");
    Call set_current = (Call)dlsym(library, "cuCtxSetCurrent");
    Call load = (Call)dlsym(library, "cuModuleLoadData");
    Call find = (Call)dlsym(library, "cuModuleGetFunction");
    Call launch = (Call)dlsym(library, "cuLaunchKernel");
    Call wait = (Call)dlsym(library, "cuCtxSynchronize");
    unsigned flags = 0;
    int active = 0;
    void *context = NULL, *module = NULL, *function = NULL;
    if (get_state(0, &flags, &active) || !active) return 0;
    if (retain(&context, 0)) return 0;
    int failed = set_current(context) || load(&module, text) || find(&function, module, "illegal_address");
    if (!failed) {
        unsigned long long nowhere = 8;
        void *arguments[] = {&nowhere};
        failed = launch(function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, NULL, arguments, NULL) || wait();
    }
    fprintf(stderr, "fault: the context of process %d is %s\n", (int)getpid(), failed ? "broken" : "whole");
    set_current(NULL);
    release(0);
    return failed;
}

static void *watch(void *file) {
    for (;;) {
        usleep(2000);
        if (access(file, F_OK) == 0 && broken()) unlink(file);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    char *file = getenv("GPU_CHECKS_FAULT_FILE");
    pthread_t thread;
    if (file && getenv("GPU_CHECKS_FAULT_KERNEL")) pthread_create(&thread, NULL, watch, file);
}
