#pragma once
/// Files that commands write for people: pictures and pages.
#include <filesystem>
#include <string>

namespace gradtile::cli {

/// Replaces the file at once. Throws Error with `what` ("picture") and the path if it cannot be written, or
/// is a directory, a device or a pipe.
void write_text_file(const char* what, const std::filesystem::path& path, const std::string& text);

}  // namespace gradtile::cli
