#pragma once
/// The files that --data and --val-data name.
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// Returns whether a path is a pattern with *, ? or [].
bool is_pattern(std::string_view path);

/// Returns the files that match a pattern, the files in a folder and its folders (names that begin with a dot
/// are left out), or the path itself; in increasing order. Throws Error when there is none.
std::vector<std::string> data_files(const std::string& path);

}  // namespace gradtile
