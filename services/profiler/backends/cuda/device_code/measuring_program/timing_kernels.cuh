// What timing needs on the device beside the kernel that is timed. Part of the measuring program, and compiled alone for
// sessions that launch its kernels by name.
#ifndef KERNALYSE_TIMING_KERNELS  // a pragma once would be warned of where this is compiled alone
#define KERNALYSE_TIMING_KERNELS

__device__ inline unsigned long long global_timer_ns() {
    unsigned long long time_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time_ns)::"memory");
    return time_ns;
}

// One thread that ends when the host sets `released`, or after `limit_ns`: then it says so in `timed_out`. Both are in memory
// of the host.
extern "C" __global__ void kernalyse_hold_stream(const volatile int* released, volatile int* timed_out, unsigned long long limit_ns) {
    const unsigned long long start_ns = global_timer_ns();
    while (*released == 0) {
        if (global_timer_ns() - start_ns > limit_ns) {
            *timed_out = 1;
            __threadfence_system();
            return;
        }
    }
}

// Every multiprocessor counts cycles for itself, so two stamps have to come from the same one. Launched with a block for
// each, the block on the first of them stamps, in one store of 16 bytes: x has cycles, y nanoseconds.
extern "C" __global__ void kernalyse_write_stamp(ulonglong2* stamp) {
    unsigned multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    if (multiprocessor == 0) {
        const unsigned long long cycles = static_cast<unsigned long long>(clock64());
        *stamp = make_ulonglong2(cycles, global_timer_ns());
    }
}

// The smallest step of the global timer among a few, in ns; 0: it did not move.
extern "C" __global__ void kernalyse_measure_timer_step(unsigned long long* step_ns) {
    constexpr int kMaxReadCount = 1'000'000;  // some 10 ms; the coarsest timers step every us
    constexpr int kChangeCount = 32;
    unsigned long long last_ns = global_timer_ns(), least_ns = 0;
    int change_count = 0;
    for (int read = 0; read < kMaxReadCount && change_count < kChangeCount; ++read) {
        const unsigned long long now_ns = global_timer_ns();
        if (now_ns != last_ns) {
            least_ns = least_ns == 0 || now_ns - last_ns < least_ns ? now_ns - last_ns : least_ns;
            last_ns = now_ns;
            ++change_count;
        }
    }
    *step_ns = least_ns;
}

#endif
