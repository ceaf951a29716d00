#pragma once
/// What a sanitizer slows down ten times, tests do on fewer of their large problems.
namespace gradtile::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace gradtile::test
