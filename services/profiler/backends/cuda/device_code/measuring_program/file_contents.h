// A file as memory: how buffers come in and go out.
#pragma once

#include <cstddef>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"

class FileContents {
public:
    // For reading: the file has at least `size_bytes`. For writing: it is given that size.
    FileContents(const std::string& path, std::size_t size_bytes, bool is_written) : size_bytes_(size_bytes) {
        const int file = open(path.c_str(), is_written ? O_RDWR | O_CREAT : O_RDONLY, 0600);
        if (file < 0) {
            throw file_failure("cannot open", path);
        }
        struct stat status = {};
        const bool fits = is_written ? ftruncate(file, static_cast<off_t>(size_bytes)) == 0
                                     : fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(size_bytes);
        void* start = fits ? mmap(nullptr, size_bytes, is_written ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
        const int problem = errno;
        close(file);
        if (!fits && !is_written) {
            throw own_failure("too short: " + path);
        }
        if (start == MAP_FAILED) {
            errno = problem;
            throw file_failure("cannot map", path);
        }
        start_ = start;
    }

    ~FileContents() { munmap(start_, size_bytes_); }

    FileContents(const FileContents&) = delete;
    FileContents& operator=(const FileContents&) = delete;

    void* start() const { return start_; }

private:
    void* start_ = nullptr;
    std::size_t size_bytes_;
};
