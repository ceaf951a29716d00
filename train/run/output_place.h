#pragma once
/// Where a run may write outside its directory.
///
/// A run's settings come from files that another user may have prepared. Therefore such a file alone never
/// makes a run create or write anything outside the run's directory: a command-line flag names the place, or
/// the place already holds this run's files. A setting that names a place to write to is checked here; the
/// test PreparedDirectory.NoSettingOfAFileLeadsOutOfTheRun tries every setting.
#include <filesystem>
#include <string>

namespace gradtile {

/// Throws Error, which names the flag --SETTING, unless `place`, the value of a setting in `file`, is inside
/// the run directory `run`.
void require_inside_run(const char* setting, const std::string& place, const std::filesystem::path& run,
                        const std::string& file);

}  // namespace gradtile
