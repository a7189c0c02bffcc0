// Takes samples of a launch: device time by events, in batches that are enqueued while the stream is held.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "clock_stamps.cuh"
#include "failure.h"
#include "launch.h"
#include "stream_hold.cuh"

// A held stream takes what is enqueued until its queue is full; then the host waits for the device, which waits for the
// host. The queue has about a thousand places.
constexpr int kMaxQueuedOperations = 512;

enum class Method { kSingle, kBatched, kGraph };

struct Timing {
    Method method;
    bool is_cold;
    int launches_per_sample;
};

struct Samples {
    std::vector<double> duration_ns;  // of one launch
    std::vector<ulonglong2> stamps;   // two for each
    bool is_held = true;              // all of them were
};

// Several launches as one graph.
class LaunchGraph {
public:
    LaunchGraph(Launch& launch, int launch_count, cudaStream_t stream) : launch_count(launch_count) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        try {
            for (int index = 0; index < launch_count; ++index) {
                launch.enqueue(stream);
            }
        } catch (const Failure&) {
            cudaStreamEndCapture(stream, &graph_);
            cudaGetLastError();
            throw;
        }
        check(cudaStreamEndCapture(stream, &graph_));
        check(cudaGraphInstantiateWithFlags(&executable_, graph_, 0));
        check(cudaGraphUpload(executable_, stream));
        check(cudaStreamSynchronize(stream));
    }

    ~LaunchGraph() {
        cudaGraphExecDestroy(executable_);
        cudaGraphDestroy(graph_);
    }

    LaunchGraph(const LaunchGraph&) = delete;
    LaunchGraph& operator=(const LaunchGraph&) = delete;

    void enqueue(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream)); }

    const int launch_count;
    bool has_run = false;  // see Launch

private:
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t executable_ = nullptr;
};

class Sampler {
public:
    Sampler(cudaStream_t stream, int multiprocessor_count, std::size_t cache_bytes)
        : stream_(stream), hold_(stream), stamps_(stream, multiprocessor_count, kMaxQueuedOperations), cache_bytes_(cache_bytes) {
        for (int index = 0; index < kMaxQueuedOperations; ++index) {
            Sample sample = {};
            check(cudaEventCreate(&sample.begin));
            check(cudaEventCreate(&sample.end));
            events_.push_back(sample);
        }
    }

    // may_hold: whether the stream may be held while samples are enqueued.
    Samples take(Launch& launch, const Timing& timing, int count, bool may_hold) {
        if (timing.is_cold && flush_start_ == nullptr) {
            check(cudaMalloc(&flush_start_, cache_bytes_));
            check(cudaMemsetAsync(flush_start_, 0, cache_bytes_, stream_));
            check(cudaStreamSynchronize(stream_));
        }
        LaunchGraph* graph = timing.method == Method::kGraph ? &graph_of(launch, timing.launches_per_sample) : nullptr;
        Samples samples;
        while (static_cast<int>(samples.duration_ns.size()) < count) {
            const int left_count = count - static_cast<int>(samples.duration_ns.size());
            const bool has_run = launch.has_run && (graph == nullptr || graph->has_run);
            const int batch_count = has_run ? std::min(left_count, batch_limit(timing)) : 1;
            const bool is_held = may_hold && !hold_fails_ && has_run && operation_count(timing) <= kMaxQueuedOperations;
            if (!take_batch(launch, graph, timing, batch_count, is_held)) {
                hold_fails_ = true;  // something here waits for the stream to run dry: these samples again, and all others, without
                continue;
            }
            launch.has_run = true;
            if (graph != nullptr) {
                graph->has_run = true;
            }
            samples.is_held = samples.is_held && is_held;
            append(samples, timing, batch_count);
        }
        return samples;
    }

    // Before another launch is taken: a graph has the arguments of the one that it was made of.
    void forget_graph() { graph_.reset(); }

    unsigned long long timer_step_ns() const { return stamps_.timer_step_ns(); }

private:
    // The one of the samples before, if it is the same: consecutive samples are asked for in several calls.
    LaunchGraph& graph_of(Launch& launch, int launch_count) {
        if (graph_ == nullptr || graph_->launch_count != launch_count) {
            graph_.reset();
            graph_ = std::make_unique<LaunchGraph>(launch, launch_count, stream_);
        }
        return *graph_;
    }

    struct Sample {
        cudaEvent_t begin;
        cudaEvent_t end;
    };

    // Whatever way out of the batch is taken, the stream goes on.
    class HeldBatch {
    public:
        HeldBatch(StreamHold& hold, bool is_held) : hold_(hold), is_held_(is_held) {
            if (is_held_) {
                hold_.begin();
            }
        }
        ~HeldBatch() { release(); }
        void release() {
            if (is_held_) {
                hold_.release();
            }
        }

    private:
        StreamHold& hold_;
        bool is_held_;
    };

    // In the queue, for one sample: two stamps, two events, the flush, and the launches; a graph counts as many as it holds.
    static int operation_count(const Timing& timing) { return 4 + (timing.is_cold ? 1 : 0) + timing.launches_per_sample; }

    static int batch_limit(const Timing& timing) { return std::max(1, kMaxQueuedOperations / operation_count(timing)); }

    // Whether the stream was held as it should; if not, the samples are of no use.
    bool take_batch(Launch& launch, const LaunchGraph* graph, const Timing& timing, int count, bool is_held) {
        stamps_.clear(count);
        HeldBatch batch(hold_, is_held);
        for (int index = 0; index < count; ++index) {
            if (timing.is_cold) {
                check(cudaMemsetAsync(flush_start_, 0, cache_bytes_, stream_));
            }
            stamps_.begin(index);
            check(cudaEventRecord(events_[index].begin, stream_));
            if (graph != nullptr) {
                graph->enqueue(stream_);
            } else {
                for (int launch_index = 0; launch_index < timing.launches_per_sample; ++launch_index) {
                    launch.enqueue(stream_);
                }
            }
            check(cudaEventRecord(events_[index].end, stream_));
            stamps_.end(index);
        }
        batch.release();
        check(cudaStreamSynchronize(stream_));
        return !is_held || !hold_.has_timed_out();
    }

    void append(Samples& samples, const Timing& timing, int count) {
        for (int index = 0; index < count; ++index) {
            float elapsed_ms = 0;
            check(cudaEventElapsedTime(&elapsed_ms, events_[index].begin, events_[index].end));
            samples.duration_ns.push_back(static_cast<double>(elapsed_ms) * 1e6 / timing.launches_per_sample);
        }
        const std::vector<ulonglong2> stamps = stamps_.read(count);
        samples.stamps.insert(samples.stamps.end(), stamps.begin(), stamps.end());
    }

    cudaStream_t stream_;
    StreamHold hold_;
    ClockStamps stamps_;
    std::vector<Sample> events_;
    std::size_t cache_bytes_;  // the last-level cache's, overwritten before each cold sample
    void* flush_start_ = nullptr;
    std::unique_ptr<LaunchGraph> graph_;  // of the launch that is bound
    bool hold_fails_ = false;
};
