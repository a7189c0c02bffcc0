// Holds a stream while samples are enqueued behind it, so that what the host takes to enqueue lies outside them.
#pragma once

#include "failure.h"
#include "timing_kernels.cuh"

// Of a held stream. Enqueuing takes milliseconds, and a host that was busy elsewhere perhaps a tenth of a second; where
// something waits for the stream to run dry before it lets the host go on, this is lost once.
constexpr unsigned long long kHoldLimitNs = 2'000'000'000;

class StreamHold {
public:
    explicit StreamHold(cudaStream_t stream) : stream_(stream) {
        int* flags = nullptr;
        check(cudaHostAlloc(reinterpret_cast<void**>(&flags), 2 * sizeof(int), cudaHostAllocMapped));
        flags_ = flags;
        check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_flags_), flags, 0));
        // Once beforehand: the first launch of a kernel may wait for the device, and behind a held stream it would wait for long.
        flags_[kReleased] = 1;
        enqueue();
        check(cudaStreamSynchronize(stream_));
    }

    void begin() {
        flags_[kTimedOut] = 0;
        flags_[kReleased] = 0;
        enqueue();
    }

    void release() { flags_[kReleased] = 1; }

    // Once the stream has run dry.
    bool has_timed_out() const { return flags_[kTimedOut] != 0; }

private:
    static constexpr int kReleased = 0, kTimedOut = 1;

    void enqueue() {
        kernalyse_hold_stream<<<1, 1, 0, stream_>>>(device_flags_ + kReleased, device_flags_ + kTimedOut, kHoldLimitNs);
        check(cudaGetLastError());
    }

    cudaStream_t stream_;
    volatile int* flags_ = nullptr;  // page-locked memory that the device sees
    int* device_flags_ = nullptr;
};
