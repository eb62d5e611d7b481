/* Preloaded, it has a program read another time of day, off by WRONG_BY seconds, or by as many as the file WRONG_BY_FILE
 * says at that moment (a `long`, for all processes at once); the monotonic clock stays right.
 * libfaketime is not used, as it breaks the sleeps of Python with the monotonic clock left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *in_file;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("WRONG_BY_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) in_file = mapped;
    close(file);
}

static long wrong_by(void) {
    if (in_file) return *in_file;
    const char *said = getenv("WRONG_BY");
    return said ? atol(said) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *moment) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, moment);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) moment->tv_sec += wrong_by();
    return code;
}

int gettimeofday(struct timeval *restrict moment, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(moment, zone);
    if (code == 0) moment->tv_sec += wrong_by();
    return code;
}

time_t time(time_t *moment) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (moment) *moment = now.tv_sec;
    return now.tv_sec;
}
