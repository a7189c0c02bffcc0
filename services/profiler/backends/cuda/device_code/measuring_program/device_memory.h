// The buffers of this program, by the numbers that whoever drives it gave them.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "failure.h"
#include "file_contents.h"

class DeviceMemory {
public:
    void allocate(int number, std::size_t size_bytes) {
        void* start = nullptr;
        check(cudaMalloc(&start, size_bytes));
        buffers_[number] = Buffer{start, size_bytes};
    }

    void release(int number) {
        void* start = at(number).start;
        buffers_.erase(number);
        check(cudaFree(start));
    }

    void load(int number, std::size_t size_bytes, const std::string& path) {
        const Buffer& buffer = at(number, size_bytes);
        const FileContents contents(path, size_bytes, false);
        check(cudaMemcpy(buffer.start, contents.start(), size_bytes, cudaMemcpyHostToDevice));
        check(cudaDeviceSynchronize());  // the last bytes may still be under way, and kernels run on a stream that does not wait for them
    }

    void store(int number, std::size_t size_bytes, const std::string& path) const {
        const Buffer& buffer = at(number, size_bytes);
        const FileContents contents(path, size_bytes, true);
        check(cudaMemcpy(contents.start(), buffer.start, size_bytes, cudaMemcpyDeviceToHost));
    }

    void* address(int number) const { return at(number).start; }

private:
    struct Buffer {
        void* start;
        std::size_t size_bytes;
    };

    // Which has at least so many bytes.
    const Buffer& at(int number, std::size_t size_bytes = 0) const {
        const auto found = buffers_.find(number);
        if (found == buffers_.end()) {
            throw own_failure("no buffer " + std::to_string(number));
        }
        if (size_bytes > found->second.size_bytes) {
            throw own_failure("more than buffer " + std::to_string(number) + " holds");
        }
        return found->second;
    }

    std::map<int, Buffer> buffers_;
};
