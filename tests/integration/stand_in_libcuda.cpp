// Stands in for NVIDIA's driver where there is none: one device, described, and nothing that computes. Its streams have done what
// they are given when it is given, and its events are the host's clock.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda.h>

#undef cuEventElapsedTime  // cuda.h gives some names a version; callers of the library name it themselves

namespace {
using Moment = std::chrono::steady_clock::time_point;
}

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
    *version = 99'010;  // newer than any toolkit
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int index) {
    *device = index;
    return index == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int size_bytes, CUdevice) {
    std::snprintf(name, static_cast<std::size_t>(size_bytes), "a stand-in");
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int size_bytes, CUdevice) {
    std::snprintf(id, static_cast<std::size_t>(size_bytes), "0000:00:00.0");
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* size_bytes, CUdevice) {
    *size_bytes = 64 << 20;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    switch (static_cast<int>(attribute)) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 2 << 20; break;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 2'000'000; break;  // kHz
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *value = 65535; break;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
        default: *value = 1024; break;
    }
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** words) {
    *words = "the stand-in's words";
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(1);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(new Moment);
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
    delete reinterpret_cast<Moment*>(event);
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream) {
    *reinterpret_cast<Moment*>(event) = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* elapsed_ms, CUevent start, CUevent end) {
    *elapsed_ms = std::chrono::duration<float, std::milli>(*reinterpret_cast<Moment*>(end) - *reinterpret_cast<Moment*>(start)).count();
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t size_bytes) {
    *memory = reinterpret_cast<CUdeviceptr>(std::malloc(size_bytes));
    return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr memory) {
    std::free(reinterpret_cast<void*>(memory));
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, std::size_t size_bytes, CUstream) {
    std::memset(reinterpret_cast<void*>(memory), value, size_bytes);
    return CUDA_SUCCESS;
}

}  // extern "C"
