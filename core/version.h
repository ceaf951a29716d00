#pragma once

namespace gradtile {

/// The version of this library as "MAJOR.MINOR.PATCH" (semver.org): `gradtile --version`, the installed
/// package and `gradtile` in a checkpoint's /meta/json say the same.
const char* version();

}  // namespace gradtile
