#pragma once
/// Progress for commands that read texts: a line on standard error.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

namespace gradtile::cli {

/// On a terminal the line is rewritten in place; elsewhere a line is printed every few seconds, so a short
/// command prints none.
class LineProgress {
  public:
    LineProgress() = default;
    ~LineProgress() { end(); }
    LineProgress(const LineProgress&) = delete;
    LineProgress& operator=(const LineProgress&) = delete;

    double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

    void show(const std::string& line) {
        if (is_terminal_) {
            std::fprintf(stderr, "\r%-*s", static_cast<int>(printed_), line.c_str());
            printed_ = std::max(printed_, line.size());
        } else if (Clock::now() - last_ > std::chrono::seconds(5)) {
            std::fprintf(stderr, "%s\n", line.c_str());
            last_ = Clock::now();
        }
    }
    void show_bytes(std::int64_t bytes, std::int64_t of) {
        const auto megabytes = [](std::int64_t count) { return static_cast<double>(count) / 1e6; };
        char line[96];
        std::snprintf(line, sizeof(line), "%.1f of %.1f MB, %.1f MB/s", megabytes(bytes), megabytes(of),
                      megabytes(bytes) / std::max(seconds(), 1e-9));
        show(line);
    }
    /// Ends the line that a terminal shows.
    void end() {
        if (printed_ > 0) std::fputc('\n', stderr);
        printed_ = 0;
    }

  private:
    using Clock = std::chrono::steady_clock;
    bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
    std::size_t printed_ = 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_ = start_;
};

}  // namespace gradtile::cli
