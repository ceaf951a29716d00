#pragma once
/// Whether a sanitizer is active. A sanitizer makes programs about ten times slower, so tests use fewer large
/// problems.
namespace gradtile::test {

// GCC defines macros, Clang has features.
#if defined(__has_feature)
#define GRADTILE_HAS_SANITIZER(name) __has_feature(name)
#else
#define GRADTILE_HAS_SANITIZER(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    GRADTILE_HAS_SANITIZER(address_sanitizer) || GRADTILE_HAS_SANITIZER(thread_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace gradtile::test
