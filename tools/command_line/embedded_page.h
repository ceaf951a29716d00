#pragma once
/// HTML pages that are one file: their parts are embedded by the build (cmake/GradtileEmbed.cmake).
#include <span>
#include <string>
#include <string_view>

namespace gradtile {

struct EmbeddedFile {
    std::string_view path;  ///< path in the repository
    std::string_view text;
};

namespace cli {

/// Throws Error when the file is not embedded.
std::string_view text_of(std::span<const EmbeddedFile> files, std::string_view path);
/// Replaces the first `@name@` in a page. Throws Error when there is none.
void insert_text(std::string& page, const std::string& name, std::string_view text);
/// Returns JSON in which every "<" is escaped, because in HTML a "<" could end the script element that
/// contains the JSON. In JSON a "<" occurs only in strings, where an escape has the same meaning.
std::string json_in_script(const std::string& json);

}  // namespace cli
}  // namespace gradtile
