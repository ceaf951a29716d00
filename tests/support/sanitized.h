#pragma once
/// Whether a sanitizer is active. A sanitizer makes programs about ten times slower, so tests use fewer large
/// problems.
namespace gradtile::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace gradtile::test
