#pragma once
/// The files that --data and --val-data name.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gradtile {

/// Returns whether a path is a pattern: it contains *, ? or [, and no file or folder has this name.
bool is_pattern(std::string_view path);

/// Returns the longest folder that exists under its literal name at the beginning of a pattern, such as a[1]
/// in a[1]/b*.txt. So a pattern that was made absolute keeps its working directory, whatever its name is.
std::filesystem::path folder_of_pattern(const std::filesystem::path& pattern);

/// Returns the files that match a pattern, the files in a folder and its folders (names that begin with a dot
/// are left out), or the path itself; in increasing order. Throws Error when there is none.
std::vector<std::string> data_files(const std::string& path);

/// Returns the name without the ending of its compression, .gz or .zst.
std::string_view uncompressed_name(std::string_view path);

/// Returns whether a file holds JSON Lines by its name: .jsonl or .ndjson, also compressed.
bool is_json_lines_name(std::string_view path);

}  // namespace gradtile
