// Cycles and time before and after each sample, from which whoever reads them works out the SM clock.
#pragma once

#include <vector>

#include "failure.h"
#include "timing_kernels.cuh"

class ClockStamps {
public:
    // max_sample_count: of one batch.
    ClockStamps(cudaStream_t stream, int multiprocessor_count, int max_sample_count)
        : stream_(stream), multiprocessor_count_(multiprocessor_count) {
        check(cudaMalloc(reinterpret_cast<void**>(&stamps_), static_cast<std::size_t>(max_sample_count) * 2 * sizeof(ulonglong2)));
        unsigned long long* step_ns = reinterpret_cast<unsigned long long*>(stamps_);
        kernalyse_measure_timer_step<<<1, 1, 0, stream_>>>(step_ns);
        check(cudaGetLastError());
        check(cudaMemcpyAsync(&timer_step_ns_, step_ns, sizeof(timer_step_ns_), cudaMemcpyDeviceToHost, stream_));
        clear(1);
        begin(0);  // once beforehand: see StreamHold
        check(cudaStreamSynchronize(stream_));
    }

    // Before a batch: a stamp that is not written is 0.
    void clear(int sample_count) {
        check(cudaMemsetAsync(stamps_, 0, static_cast<std::size_t>(sample_count) * 2 * sizeof(ulonglong2), stream_));
    }

    void begin(int sample) { write(2 * sample); }
    void end(int sample) { write(2 * sample + 1); }

    // After a batch: two stamps for each of its samples.
    std::vector<ulonglong2> read(int sample_count) const {
        std::vector<ulonglong2> stamps(static_cast<std::size_t>(sample_count) * 2);
        check(cudaMemcpyAsync(stamps.data(), stamps_, stamps.size() * sizeof(ulonglong2), cudaMemcpyDeviceToHost, stream_));
        check(cudaStreamSynchronize(stream_));
        return stamps;
    }

    unsigned long long timer_step_ns() const { return timer_step_ns_; }

private:
    void write(int index) {
        kernalyse_write_stamp<<<multiprocessor_count_, 1, 0, stream_>>>(stamps_ + index);
        check(cudaGetLastError());
    }

    cudaStream_t stream_;
    int multiprocessor_count_;
    ulonglong2* stamps_ = nullptr;
    unsigned long long timer_step_ns_ = 0;
};
