#pragma once
/// Runs work that may crash, hang or use too much memory in a child process, so that the calling process
/// survives.
#include <cstdint>
#include <functional>
#include <string>

#include <sys/types.h>

namespace gradtile {

struct ProcessLimits {
    std::uint64_t memory_bytes = 0;  ///< address space in addition to what this process has mapped
    std::uint64_t cpu_seconds = 0;
};

struct ChildOutcome {
    pid_t process = 0;
    std::string error;       ///< empty: the work was done; otherwise the message of its exception
    std::string ended_by{};  ///< "signal 11 (Segmentation fault)" when a signal ended the child
};

/// Runs `work` in a forked child under `limits` and waits for it. The child has a copy of this process's
/// memory, so its results must go to files. Only the calling thread exists in the child, so no other thread
/// may hold a lock that `work` needs. Throws Error when no child can be made.
ChildOutcome run_confined(const ProcessLimits& limits, const std::function<void()>& work);

}  // namespace gradtile
