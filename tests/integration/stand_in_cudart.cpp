// Stands in for the CUDA runtime where there is no device: programs of the NVCC backend are linked with it, so that all they
// do on the host is put to the test. Kernels are known by name and carried out here; what is enqueued happens when the stream
// is waited for, in order, by a clock that every operation moves on by its own length.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <unistd.h>

namespace {

constexpr double kLaunchNs = 5'000, kColdLaunchNs = 8'000, kFlushNs = 20'000, kGapNs = 1'000;
constexpr double kClockGhz = 1.5;
constexpr std::size_t kMemoryBytes = 8 << 20, kCacheBytes = 2 << 20;
constexpr int kQueuePlaces = 1'024;  // a host that enqueues more behind a held stream waits for ever

struct Stream {
    std::vector<std::function<void()>> queued;
    bool is_capturing = false;
    std::vector<std::function<void()>> captured;
    bool is_held = false;
};

struct Kernel {
    std::string name;
    std::size_t shared_limit = 48 * 1024;
};

struct LaunchShape {
    dim3 grid, block;
    std::size_t shared_bytes;
    void* stream;
    bool is_cooperative = false;
};

Stream stream;
std::map<void*, std::size_t> allocations;
LaunchShape pushed;
double now_ns = 1e9;
bool is_flushed = false;
cudaError_t lost = cudaSuccess;  // the context's last error, which stays
cudaError_t last = cudaSuccess;

// Made when the first one registers, which may be before the constructors of this file have run.
std::map<const void*, Kernel>& kernels() {
    static std::map<const void*, Kernel> all;
    return all;
}

std::string setting(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

cudaError_t answer(cudaError_t error) {
    last = lost != cudaSuccess ? lost : error;
    return last;
}

void enqueue(std::function<void()> operation) {
    if (stream.is_capturing) {
        stream.captured.push_back(std::move(operation));
        return;
    }
    stream.queued.push_back(std::move(operation));
    if (stream.is_held && stream.queued.size() > kQueuePlaces) {
        pause();
    }
}

cudaError_t drain() {
    std::vector<std::function<void()>> operations;
    operations.swap(stream.queued);
    stream.is_held = false;
    for (const auto& operation : operations) {
        if (lost == cudaSuccess) {
            operation();
        }
    }
    return answer(cudaSuccess);
}

template <typename Value>
Value argument(void** arguments, int index) {
    Value value;
    std::memcpy(&value, arguments[index], sizeof(value));
    return value;
}

// saxpy(int N, float alpha, const float* x, float* y), of the catalogue
std::function<void()> saxpy(void** arguments) {
    const int n = argument<int>(arguments, 0);
    const float alpha = argument<float>(arguments, 1);
    const float* x = argument<const float*>(arguments, 2);
    float* y = argument<float*>(arguments, 3);
    return [=] {
        now_ns += is_flushed ? kColdLaunchNs : kLaunchNs;
        is_flushed = false;
        for (int i = 0; i < n; ++i) {
            y[i] = alpha * x[i] + y[i];
        }
    };
}

// act(int what, int n, float alpha, const float* x, float* y)
std::function<void()> act(void** arguments, const LaunchShape& shape) {
    const int what = argument<int>(arguments, 0), n = argument<int>(arguments, 1);
    const float alpha = argument<float>(arguments, 2);
    const float* x = argument<const float*>(arguments, 3);
    float* y = argument<float*>(arguments, 4);
    return [=] {
        now_ns += is_flushed ? kColdLaunchNs : kLaunchNs;
        is_flushed = false;
        switch (what) {
            case 1: lost = cudaErrorIllegalAddress; return;
            case 2: for (;;) pause();
            case 3: std::abort();
            case 4: write(STDOUT_FILENO, "a kernel prints\n", 16); break;
            case 6: {
                const std::string text(100'000, '.');
                for (std::size_t done = 0; done < text.size();) {
                    done += static_cast<std::size_t>(write(STDOUT_FILENO, text.data() + done, text.size() - done));
                }
                break;
            }
            case 5: y[0] = static_cast<float>(shape.shared_bytes); return;
            case 7: y[0] = shape.is_cooperative; return;
        }
        for (int i = 0; i < n; ++i) {
            y[i] = alpha * x[i] + y[i];
        }
    };
}

std::function<void()> operation_of(const std::string& name, void** arguments, const LaunchShape& shape) {
    if (name.find("hold_stream") != std::string::npos) {
        const volatile int* released = argument<const volatile int*>(arguments, 0);
        volatile int* timed_out = argument<volatile int*>(arguments, 1);
        stream.is_held = *released == 0;
        const bool fails = setting("STAND_IN_HOLD") == "fails" && stream.is_held;
        return [=] { *timed_out = fails || *released == 0; };
    }
    if (name.find("write_stamp") != std::string::npos) {
        ulonglong2* stamp = argument<ulonglong2*>(arguments, 0);
        return [=] {
            now_ns += kGapNs;
            stamp->x = static_cast<unsigned long long>(now_ns * kClockGhz);
            stamp->y = static_cast<unsigned long long>(now_ns);
        };
    }
    if (name.find("measure_timer_step") != std::string::npos) {
        unsigned long long* step_ns = argument<unsigned long long*>(arguments, 0);
        return [=] { *step_ns = setting("STAND_IN_TIMER") == "coarse" ? 1'000 : 32; };
    }
    return name == "saxpy" ? saxpy(arguments) : act(arguments, shape);
}

cudaError_t launch(const void* function, const LaunchShape& shape, void** arguments) {
    const Kernel& kernel = kernels().at(function);
    if (shape.block.x * shape.block.y * shape.block.z > 1'024) {
        return answer(cudaErrorInvalidConfiguration);
    }
    if (shape.shared_bytes > kernel.shared_limit) {
        return answer(cudaErrorInvalidValue);
    }
    enqueue(operation_of(kernel.name, arguments, shape));
    return answer(cudaSuccess);
}

}  // namespace

struct CUevent_st {
    double time_ns;
};
struct CUgraph_st {
    std::vector<std::function<void()>> operations;
};

extern "C" {

void** __cudaRegisterFatBinary(void*) { return new void*; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    kernels()[function].name = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, struct CUstream_st* on) {
    pushed = LaunchShape{grid, block, shared_bytes, on};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* on) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    std::memcpy(on, &pushed.stream, sizeof(void*));
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    std::memcpy(kernel, &function, sizeof(function));
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes, cudaStream_t on) {
    return launch(reinterpret_cast<const void*>(kernel), LaunchShape{grid, block, shared_bytes, on}, arguments);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes, cudaStream_t on) {
    return launch(function, LaunchShape{grid, block, shared_bytes, on}, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(
    const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes, cudaStream_t on) {
    if (grid.x * grid.y * grid.z > 8) {
        return answer(cudaErrorCooperativeLaunchTooLarge);
    }
    return launch(function, LaunchShape{grid, block, shared_bytes, on, true}, arguments);
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorCooperativeLaunchTooLarge: return "cudaErrorCooperativeLaunchTooLarge";
        default: return "cudaErrorInvalidValue";
    }
}
const char* cudaGetErrorString(cudaError_t) { return "the stand-in's words"; }

cudaError_t cudaSetDevice(int device) { return answer(device == 0 ? cudaSuccess : cudaErrorNoDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    properties->multiProcessorCount = 4;
    properties->l2CacheSize = static_cast<int>(kCacheBytes);
    properties->maxThreadsPerMultiProcessor = 2'048;
    return answer(cudaSuccess);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
    *attributes = {};
    attributes->numRegs = 24;
    attributes->sharedSizeBytes = 1'024;
    attributes->localSizeBytes = 16;
    attributes->constSizeBytes = 8;
    attributes->maxThreadsPerBlock = 512;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernels().at(function).shared_limit);
    return answer(cudaSuccess);
}
cudaError_t cudaFuncGetName(const char** name, const void* function) {
    *name = kernels().at(function).name.c_str();
    return answer(cudaSuccess);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
    kernels().at(function).shared_limit = static_cast<std::size_t>(value);
    return answer(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void* function, int threads, std::size_t shared_bytes) {
    *count = shared_bytes > kernels().at(function).shared_limit ? 0 : 1'024 / threads;
    return answer(cudaSuccess);
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = *total_bytes = kMemoryBytes;
    for (const auto& [start, size_bytes] : allocations) {
        *free_bytes -= size_bytes;
    }
    return answer(cudaSuccess);
}
cudaError_t cudaMalloc(void** start, std::size_t size_bytes) {
    std::size_t free_bytes, total_bytes;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    if (size_bytes > free_bytes) {
        return answer(cudaErrorMemoryAllocation);
    }
    *start = std::calloc(1, size_bytes);
    allocations[*start] = size_bytes;
    return answer(cudaSuccess);
}
cudaError_t cudaFree(void* start) {
    allocations.erase(start);
    std::free(start);
    return answer(cudaSuccess);
}
cudaError_t cudaHostAlloc(void** start, std::size_t size_bytes, unsigned) {
    *start = std::calloc(1, size_bytes);
    return answer(cudaSuccess);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    *device = host;
    return answer(cudaSuccess);
}
cudaError_t cudaMemcpy(void* target, const void* source, std::size_t size_bytes, cudaMemcpyKind) {
    if (drain() == cudaSuccess) {
        std::memcpy(target, source, size_bytes);
    }
    return answer(cudaSuccess);
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size_bytes, cudaMemcpyKind, cudaStream_t) {
    enqueue([=] { std::memcpy(target, source, size_bytes); });
    return answer(cudaSuccess);
}
cudaError_t cudaMemsetAsync(void* start, int value, std::size_t size_bytes, cudaStream_t) {
    enqueue([=] {
        std::memset(start, value, size_bytes);
        is_flushed = is_flushed || size_bytes >= kCacheBytes;
        now_ns += kFlushNs;
    });
    return answer(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* created, unsigned) {
    *created = reinterpret_cast<cudaStream_t>(&stream);
    return answer(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return drain(); }
cudaError_t cudaDeviceSynchronize() { return drain(); }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    stream.is_capturing = true;
    return answer(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
    stream.is_capturing = false;
    *graph = new CUgraph_st{std::move(stream.captured)};
    stream.captured.clear();
    return answer(cudaSuccess);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(graph);
    return answer(cudaSuccess);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return answer(cudaSuccess); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
    for (const auto& operation : reinterpret_cast<cudaGraph_t>(executable)->operations) {
        enqueue(operation);
    }
    return answer(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return answer(cudaSuccess); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return answer(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    *event = new CUevent_st{0};
    return answer(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    enqueue([=] { event->time_ns = now_ns; });
    return answer(cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float* elapsed_ms, cudaEvent_t begin, cudaEvent_t end) {
    *elapsed_ms = static_cast<float>((end->time_ns - begin->time_ns) / 1e6);
    return answer(cudaSuccess);
}

}  // extern "C"
