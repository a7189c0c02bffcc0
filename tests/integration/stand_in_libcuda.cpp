// Stands in for NVIDIA's driver where there is none: one device, described, and nothing that computes.

#include <cstddef>
#include <cstdio>

#include <cuda.h>

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

}  // extern "C"
