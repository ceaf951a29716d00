#pragma once

namespace gradtile {

/// The version of this library as "MAJOR.MINOR.PATCH" (semver.org). `gradtile --version`, the installed
/// package and checkpoints contain the same version.
const char* version();

}  // namespace gradtile
