#pragma once
/// Observes a running training: its progress and its processes.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "program.h"

#include <gradtile/core/check.h>

namespace gradtile::test {

inline std::int64_t steps_done(const std::filesystem::path& run) {
    std::int64_t lines = 0;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line) && !file.eof();) ++lines;
    return lines;
}

/// Waits until `condition` holds or the program has ended.
template <class Condition>
void wait_until(Program& program, Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    while (program.running() && !condition()) {
        check(std::chrono::steady_clock::now() < deadline, "waited too long");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

/// The process that trains into `run` and has `variable` ("RANK=0") in its environment; -1: none.
inline pid_t find_process(const std::filesystem::path& run, const std::string& variable) {
    const auto contains = [](const std::string& text, const std::string& part) {
        return text.find('\0' + part + '\0') != std::string::npos;
    };
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
        const std::string name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        if (contains('\0' + contents_of(entry.path() / "cmdline"), run.string()) &&
            contains('\0' + contents_of(entry.path() / "environ"), variable))
            return std::stoi(name);
    }
    return -1;
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace gradtile::test
