#pragma once
/// Files that commands write: pictures and pages for people, and paths that must not be overwritten.
#include <filesystem>
#include <string>
#include <vector>

namespace gradtile::cli {

/// Writes an SVG picture or an HTML page. An existing file is replaced in one step, by a rename. Throws Error
/// with `what` ("picture") and the path if the file cannot be written, or if `path` is a directory, a device,
/// a pipe, or a file that is neither empty nor markup: a mistyped path must not destroy a run's metrics or
/// checkpoint.
void write_text_file(const char* what, const std::filesystem::path& path, const std::string& text);

/// Throws UsageError if `out`, the value of `flag`, is one of the files that the command reads.
void check_not_an_input(const char* flag, const std::string& out, const std::vector<std::string>& inputs);

}  // namespace gradtile::cli
