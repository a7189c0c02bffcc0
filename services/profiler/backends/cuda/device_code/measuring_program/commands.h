// One command a line comes in on standard input, one line of answer goes out on what was standard output at the start.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include <unistd.h>

// Taken before the kernel's own file may print anything: what it prints goes to standard error.
inline int answer_file() {
    static const int file = [] {
        const int duplicate = dup(STDOUT_FILENO);
        dup2(STDERR_FILENO, STDOUT_FILENO);
        return duplicate;
    }();
    return file;
}

inline void write_answer(const std::string& line) {
    const std::string text = line + "\n";
    std::size_t written = 0;
    while (written < text.size()) {
        const ssize_t count = write(answer_file(), text.data() + written, text.size() - written);
        if (count <= 0) {
            _exit(1);  // nobody listens any more
        }
        written += static_cast<std::size_t>(count);
    }
}

constexpr std::chrono::seconds kLastAnswerLimit(1);  // commands that were piped in are still answered; a kernel that hangs is not waited for

// Reads on a thread of its own: when whoever drives this program has gone, it ends, whatever its kernel is still at.
class CommandReader {
public:
    CommandReader() { std::thread(&CommandReader::read_all, this).detach(); }

    std::string next() {
        std::unique_lock<std::mutex> lock(mutex_);
        is_waiting_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !lines_.empty(); });
        is_waiting_ = false;
        std::string line = std::move(lines_.front());
        lines_.pop_front();
        return line;
    }

private:
    void read_all() {
        std::string text;
        char data[4096];
        ssize_t count;
        while ((count = read(STDIN_FILENO, data, sizeof(data))) > 0) {
            text.append(data, static_cast<std::size_t>(count));
            for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
                const std::lock_guard<std::mutex> lock(mutex_);
                lines_.push_back(text.substr(0, end));
                text.erase(0, end + 1);
                changed_.notify_all();
            }
        }
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, kLastAnswerLimit, [this] { return lines_.empty() && is_waiting_; });
        std::fflush(nullptr);
        _exit(0);
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::string> lines_;
    bool is_waiting_ = false;  // for a command: none is being carried out
};
