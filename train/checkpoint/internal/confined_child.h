#pragma once
/// Work that may crash, hang or ask for too much memory: done in a child process, so that this one survives.
#include <cstdint>
#include <functional>
#include <string>

#include <sys/types.h>

namespace gradtile {

struct ProcessLimits {
    std::uint64_t memory_bytes = 0;  ///< address space beyond what this process has already
    std::uint64_t cpu_seconds = 0;
};

struct ChildOutcome {
    pid_t process = 0;
    std::string error;       ///< empty: the work was done; else the message of what it threw
    std::string ended_by{};  ///< "signal 11 (Segmentation fault)" when a signal ended the child
};

/// Runs `work` in a forked child under `limits` and waits for it. The child sees this process's memory as it
/// is now, and what it changes there is lost: its results must be files. Only the calling thread exists in
/// the child, so no other thread may hold a lock that `work` needs. Throws Error when no child can be made.
ChildOutcome run_confined(const ProcessLimits& limits, const std::function<void()>& work);

}  // namespace gradtile
