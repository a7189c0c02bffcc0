// What timing needs on the device beside the kernel that is timed: a stream that waits, clocks that are read, and how finely
// the global timer counts.

typedef unsigned long long counter;

static __device__ __forceinline__ counter global_time_ns() {
    counter time_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time_ns));
    return time_ns;
}

static __device__ __forceinline__ unsigned multiprocessor() {
    unsigned index;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(index));
    return index;
}

// One thread that ends when the host sets `released`, or when `time_limit_ns` are over: then it says so in `timed_out`. Both
// lie in host memory.
extern "C" __global__ void kernalyse_block(const volatile int *released, volatile int *timed_out, counter time_limit_ns) {
    counter start_ns = global_time_ns();
    while (*released == 0) {
        if (global_time_ns() - start_ns > time_limit_ns) {
            *timed_out = 1;
            __threadfence_system();
            return;
        }
    }
}

// One block per multiprocessor, one thread each. The one that finds itself on the first multiprocessor writes that
// multiprocessor's clock and the global time, as one 16-byte store; every multiprocessor counts its own clock, so readings of
// two of them say nothing together.
extern "C" __global__ void kernalyse_stamp(ulonglong2 *stamps, int index) {
    if (multiprocessor() == 0) {
        counter time_ns = global_time_ns();
        counter cycles = clock64();
        stamps[index] = make_ulonglong2(cycles, time_ns);
    }
}

// The smallest step of the global timer among a few, in nanoseconds; 0 if it did not move.
extern "C" __global__ void kernalyse_timer_step(counter *step_ns) {
    const int change_count = 16;
    const int max_look_count = 1 << 20;
    counter smallest_ns = 0, last_ns = global_time_ns();
    for (int change = 0, look = 0; change < change_count && look < max_look_count; ++look) {
        counter now_ns = global_time_ns();
        if (now_ns == last_ns) {
            continue;
        }
        counter passed_ns = now_ns - last_ns;
        if (change > 0 && (smallest_ns == 0 || passed_ns < smallest_ns)) {  // the first step was under way already
            smallest_ns = passed_ns;
        }
        last_ns = now_ns;
        ++change;
    }
    *step_ns = smallest_ns;
}
