// The kernel with its arguments and launch configuration.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "failure.h"
#include "kernel_entry.h"

constexpr std::size_t kDefaultSharedBytes = 48 * 1024;  // static and dynamic together; above, a kernel has to opt in

// A launch made earlier may need more than this one: never less.
inline void allow_shared_memory(const void* function, std::size_t dynamic_bytes) {
    cudaFuncAttributes attributes = {};
    check(cudaFuncGetAttributes(&attributes, function));
    if (attributes.sharedSizeBytes + dynamic_bytes > kDefaultSharedBytes &&
        dynamic_bytes > static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes)) {
        check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(dynamic_bytes)));
    }
}

class Launch {
public:
    // is_cooperative: all blocks have to be there at once. arguments: the bytes of each, as the kernel takes them.
    Launch(const kernalyse_kernel_entry& kernel, dim3 grid, dim3 block, std::size_t shared_bytes, bool is_cooperative,
           std::vector<std::vector<char>> arguments)
        : function_(kernel.kernalyse_function),
          grid_(grid),
          block_(block),
          shared_bytes_(shared_bytes),
          is_cooperative_(is_cooperative),
          arguments_(std::move(arguments)) {
        if (arguments_.size() != kernel.kernalyse_parameter_count) {
            throw own_failure(std::to_string(arguments_.size()) + " arguments for " + std::to_string(kernel.kernalyse_parameter_count) +
                              " parameters");
        }
        for (std::size_t index = 0; index < arguments_.size(); ++index) {
            if (arguments_[index].size() != kernel.kernalyse_parameter_sizes[index]) {
                throw own_failure("argument " + std::to_string(index) + " has " + std::to_string(arguments_[index].size()) +
                                  " bytes, its parameter " + std::to_string(kernel.kernalyse_parameter_sizes[index]));
            }
            addresses_.push_back(arguments_[index].data());
        }
        allow_shared_memory(function_, shared_bytes);
    }

    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    void enqueue(cudaStream_t stream) {
        check(is_cooperative_ ? cudaLaunchCooperativeKernel(function_, grid_, block_, addresses_.data(), shared_bytes_, stream)
                              : cudaLaunchKernel(function_, grid_, block_, addresses_.data(), shared_bytes_, stream));
    }

    bool has_run = false;  // once to its end: its code is on the device, and so is the local memory that it needs

private:
    const void* function_;
    dim3 grid_, block_;
    std::size_t shared_bytes_;
    bool is_cooperative_;
    std::vector<std::vector<char>> arguments_;
    std::vector<void*> addresses_;
};
