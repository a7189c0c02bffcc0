// What goes wrong, with CUDA's own code and name where it was CUDA that refused.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include <cuda_runtime.h>

struct Failure {
    int code;  // 0: of the program itself
    std::string name;
    std::string text;
};

inline void check(cudaError_t error) {
    if (error != cudaSuccess) {
        cudaGetLastError();  // takes it back, so that the next call does not answer with it
        throw Failure{static_cast<int>(error), cudaGetErrorName(error), cudaGetErrorString(error)};
    }
}

inline Failure own_failure(const std::string& text) { return Failure{0, "program", text}; }

inline Failure file_failure(const std::string& what, const std::string& path) {
    return own_failure(what + " " + path + ": " + std::strerror(errno));
}
