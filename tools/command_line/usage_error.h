#pragma once
/// The program's exit codes: 0; 1 when a command failed; 2 for a usage error (an unknown flag, a value out of
/// range, contradicting flags or settings); 3 when another process of the run was lost.
#include <exception>

#include <gradtile/core/check.h>
#include <gradtile/core/range.h>

namespace gradtile::cli {

inline constexpr int exit_failed = 1, exit_usage = 2, exit_lost_peer = 3;

class UsageError : public Error {
  public:
    using Error::Error;
};

inline int exit_code_of(const std::exception& error) {
    return dynamic_cast<const UsageError*>(&error) != nullptr ? exit_usage : exit_failed;
}

/// Runs `work`, which only checks flags and settings, and turns its Errors into UsageErrors.
template <class Work>
auto rethrow_as_usage_error(Work&& work) {
    try {
        return work();
    } catch (const Error& error) {
        throw UsageError(error.what(), error.where());
    }
}

/// Like check(), but throws UsageError.
template <class... Parts>
void check_usage(detail::Condition condition, const Parts&... parts) {
    if (!condition.holds) [[unlikely]]
        throw UsageError(concat(parts...), condition.where);
}

/// Throws UsageError "FLAG: VALUE; expected RANGE".
template <class Number>
void check_flag(const char* flag, Number value, const Range& range,
                std::source_location where = std::source_location::current()) {
    rethrow_as_usage_error([&] { check_range(flag, value, range, where); });
}
inline constexpr Range threads_range{0, 4096}, runs_range{1, 100'000};

}  // namespace gradtile::cli
