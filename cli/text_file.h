#pragma once
/// Files that commands write: pictures and pages for people, and paths that must not be overwritten.
#include <filesystem>
#include <string>
#include <vector>

namespace gradtile::cli {

/// Writes a picture or a page. Replaces an old one at once. Throws Error with `what` ("picture") and the path
/// if it cannot be written, is a directory, a device or a pipe, or holds something other than markup, because
/// a mistyped path must not destroy a run's metrics or checkpoint.
void write_text_file(const char* what, const std::filesystem::path& path, const std::string& text);

/// Throws UsageError if `out`, the value of `flag`, is one of the files that the command reads.
void check_not_an_input(const char* flag, const std::string& out, const std::vector<std::string>& inputs);

}  // namespace gradtile::cli
