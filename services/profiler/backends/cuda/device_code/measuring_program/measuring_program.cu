// The part that all programs of the NVCC backend share: it serves the commands of the session that drives it.
//
//   open DEVICE                                       ok and what the kernel takes, what the device has (see `open_device`)
//   memory                                            ok FREE_BYTES TOTAL_BYTES
//   allocate BUFFER BYTES                             ok
//   release BUFFER                                    ok
//   load BUFFER BYTES FILE                            ok: the buffer holds the file's first bytes
//   store BUFFER BYTES FILE                           ok: the file holds the buffer's first bytes
//   bind GRID_XYZ BLOCK_XYZ SHARED_BYTES COOPERATIVE ARGUMENT…
//                                                     ok; an argument is bBUFFER, or v and the bytes of a value in hex
//   run                                               ok: one launch of what was bound, to its end
//   time METHOD CACHE LAUNCHES COUNT HOLD FILE        ok IS_HELD TIMER_STEP_NS, and samples in the file
//   occupancy THREADS SHARED_BYTES                    ok BLOCKS_PER_MULTIPROCESSOR
//   entry                                             ok NAME: of the kernel in machine code; no name before CUDA 12.3
//
// COOPERATIVE is 1 for a kernel whose blocks wait for each other. METHOD is single, batched or graph; CACHE is cold or hot;
// HOLD is 1 where the stream may be held. The file of samples has COUNT doubles, the ns of each; then for each four 64-bit
// integers: cycles and ns before it, cycles and ns after it, 0 where the device has not told. Whatever goes wrong is answered with `error CODE NAME TEXT`: CUDA's code, its name and its words;
// code 0 is a fault of the dialogue itself. The end of the commands ends the program.

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "clock_stamps.cuh"
#include "commands.h"
#include "device_memory.h"
#include "failure.h"
#include "kernel_entry.h"
#include "launch.h"
#include "sampler.cuh"

namespace {

__attribute__((constructor(101))) void take_standard_output() { answer_file(); }

class MeasuringProgram {
public:
    // The numbers of an answer, and what they are of.
    std::string answer(const std::string& line) {
        std::istringstream words(line);
        const std::string command = word(words);
        if (command == "open") {
            return open_device(number<int>(words));
        }
        if (stream_ == nullptr) {
            throw own_failure("no device is open");
        }
        if (command == "memory") {
            std::size_t free_bytes = 0, total_bytes = 0;
            check(cudaMemGetInfo(&free_bytes, &total_bytes));
            return join({free_bytes, total_bytes});
        }
        if (command == "allocate") {
            const int buffer = number<int>(words);
            memory_.allocate(buffer, number<std::size_t>(words));
            return "";
        }
        if (command == "release") {
            memory_.release(number<int>(words));
            return "";
        }
        if (command == "load") {
            const int buffer = number<int>(words);
            const std::size_t size_bytes = number<std::size_t>(words);
            memory_.load(buffer, size_bytes, path(words));
            return "";
        }
        if (command == "store") {
            const int buffer = number<int>(words);
            const std::size_t size_bytes = number<std::size_t>(words);
            memory_.store(buffer, size_bytes, path(words));
            return "";
        }
        if (command == "bind") {
            bind(words);
            return "";
        }
        if (command == "run") {
            bound().enqueue(stream_);
            check(cudaStreamSynchronize(stream_));
            bound().has_run = true;
            return "";
        }
        if (command == "time") {
            return time(words);
        }
        if (command == "occupancy") {
            const int thread_count = number<int>(words);
            const std::size_t shared_bytes = number<std::size_t>(words);
            allow_shared_memory(kernel().kernalyse_function, shared_bytes);  // else above 48 KB the answer is 0
            int block_count = 0;
            check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&block_count, kernel().kernalyse_function, thread_count, shared_bytes));
            return join({static_cast<std::size_t>(block_count)});
        }
        if (command == "entry") {
            const char* name = "";
#if CUDART_VERSION >= 12030
            check(cudaFuncGetName(&name, kernel().kernalyse_function));
#endif
            return *name == '\0' ? "" : " " + std::string(name);
        }
        throw own_failure("no command " + command);
    }

private:
    // Registers, static shared, local and constant bytes, threads at most of the kernel; threads that a multiprocessor holds.
    std::string open_device(int device) {
        check(cudaSetDevice(device));
        cudaFuncAttributes attributes = {};
        check(cudaFuncGetAttributes(&attributes, kernel().kernalyse_function));
        cudaDeviceProp properties = {};
        check(cudaGetDeviceProperties(&properties, device));
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        multiprocessor_count_ = properties.multiProcessorCount;
        cache_bytes_ = std::max<std::size_t>(static_cast<std::size_t>(properties.l2CacheSize), std::size_t{1} << 20);
        return join({static_cast<std::size_t>(attributes.numRegs), attributes.sharedSizeBytes, attributes.localSizeBytes,
                     attributes.constSizeBytes, static_cast<std::size_t>(attributes.maxThreadsPerBlock),
                     static_cast<std::size_t>(properties.maxThreadsPerMultiProcessor)});
    }

    void bind(std::istringstream& words) {
        const dim3 grid = extents(words), block = extents(words);
        const std::size_t shared_bytes = number<std::size_t>(words);
        const bool is_cooperative = number<int>(words) != 0;  // its blocks wait for each other
        std::vector<std::vector<char>> arguments;
        for (std::string text; words >> text;) {
            arguments.push_back(argument(text));
        }
        if (sampler_ != nullptr) {
            sampler_->forget_graph();
        }
        launch_.reset();
        launch_ = std::make_unique<Launch>(kernel(), grid, block, shared_bytes, is_cooperative, std::move(arguments));
    }

    std::vector<char> argument(const std::string& text) const {
        if (text[0] == 'b') {
            void* address = memory_.address(std::stoi(text.substr(1)));
            const char* bytes = reinterpret_cast<const char*>(&address);
            return {bytes, bytes + sizeof(address)};
        }
        std::vector<char> bytes;
        for (std::size_t index = 1; index + 1 < text.size(); index += 2) {
            bytes.push_back(static_cast<char>(std::stoi(text.substr(index, 2), nullptr, 16)));
        }
        return bytes;
    }

    std::string time(std::istringstream& words) {
        const std::string method = word(words);
        const bool is_cold = word(words) == "cold";
        const Timing timing = {method == "graph"     ? Method::kGraph
                               : method == "batched" ? Method::kBatched
                                                     : Method::kSingle,
                               is_cold, number<int>(words)};
        const int count = number<int>(words);
        const bool may_hold = number<int>(words) != 0;
        const std::string file = path(words);
        if (sampler_ == nullptr) {
            sampler_ = std::make_unique<Sampler>(stream_, multiprocessor_count_, cache_bytes_);
        }
        const Samples samples = sampler_->take(bound(), timing, count, may_hold);
        std::ofstream results(file, std::ios::binary | std::ios::trunc);
        write(results, samples.duration_ns);
        write(results, samples.stamps);
        results.close();
        if (!results) {
            throw file_failure("cannot write", file);
        }
        return join({samples.is_held ? std::size_t{1} : std::size_t{0}, static_cast<std::size_t>(sampler_->timer_step_ns())});
    }

    template <typename Value>
    static void write(std::ofstream& file, const std::vector<Value>& values) {
        file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
    }

    Launch& bound() {
        if (launch_ == nullptr) {
            throw own_failure("nothing is bound");
        }
        return *launch_;
    }

    static const kernalyse_kernel_entry& kernel() { return *kernalyse_find_kernel(); }

    static std::string word(std::istringstream& words) {
        std::string text;
        if (!(words >> text)) {
            throw own_failure("too few words: " + words.str());
        }
        return text;
    }

    template <typename Number>
    static Number number(std::istringstream& words) {
        Number value{};
        if (!(words >> value)) {
            throw own_failure("no number where one belongs: " + words.str());
        }
        return value;
    }

    static dim3 extents(std::istringstream& words) {
        const unsigned x = number<unsigned>(words), y = number<unsigned>(words), z = number<unsigned>(words);
        return dim3(x, y, z);
    }

    // The rest of the line, for a path may have spaces.
    static std::string path(std::istringstream& words) {
        std::string text;
        std::getline(words >> std::ws, text);
        return text;
    }

    static std::string join(const std::vector<std::size_t>& numbers) {
        std::string text;
        for (const std::size_t value : numbers) {
            text += " " + std::to_string(value);
        }
        return text;
    }

    cudaStream_t stream_ = nullptr;
    int multiprocessor_count_ = 0;
    std::size_t cache_bytes_ = 0;
    DeviceMemory memory_;
    std::unique_ptr<Launch> launch_;
    std::unique_ptr<Sampler> sampler_;
};

}  // namespace

int main() {
    // A kernel that is loaded at its first launch may wait for the device, which a held stream keeps from ending.
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    CommandReader commands;
    MeasuringProgram program;
    for (;;) {
        const std::string line = commands.next();
        try {
            write_answer("ok" + program.answer(line));
        } catch (const Failure& failure) {
            write_answer("error " + std::to_string(failure.code) + " " + failure.name + " " + failure.text);
        } catch (const std::exception& error) {
            write_answer(std::string("error 0 program ") + error.what());
        }
    }
}
