#pragma once
/// Progress of commands that read texts: a line on standard error, rewritten in place on a terminal.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

namespace gradtile::cli {

inline bool progress_is_rewritten() {
    return ::isatty(STDERR_FILENO) == 1;
}

inline void show_progress(const std::string& line, bool is_last) {
    const bool rewritten = progress_is_rewritten();
    std::fprintf(stderr, "%s%s%s", rewritten ? "\r" : "", line.c_str(), rewritten && !is_last ? "" : "\n");
}

/// Ends a line that show_progress left open.
inline void end_progress() {
    if (progress_is_rewritten()) std::fputc('\n', stderr);
}

class BytesProgress {
  public:
    void show(std::int64_t bytes, std::int64_t of) const {
        using namespace std::chrono;
        const double seconds = std::max(duration<double>(steady_clock::now() - start_).count(), 1e-9);
        char line[96];
        std::snprintf(line, sizeof(line), "%.1f of %.1f MB, %.1f MB/s", megabytes(bytes), megabytes(of),
                      megabytes(bytes) / seconds);
        show_progress(line, bytes == of);
    }

  private:
    static double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace gradtile::cli
