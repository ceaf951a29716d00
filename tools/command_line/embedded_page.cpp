#include <gradtile/tools/command_line/embedded_page.h>

#include <gradtile/core/check.h>

namespace gradtile::cli {

std::string_view text_of(std::span<const EmbeddedFile> files, std::string_view path) {
    for (const EmbeddedFile& file : files)
        if (file.path == path) return file.text;
    throw Error(concat("page: ", path, " is not embedded"));
}

void insert_text(std::string& page, const std::string& name, std::string_view text) {
    const std::string mark = '@' + name + '@';
    const std::size_t position = page.find(mark);
    check(position != std::string::npos, "page: there is no ", mark);
    page.replace(position, mark.size(), text);
}

std::string json_in_script(const std::string& json) {
    std::string escaped;
    for (const char c : json) c == '<' ? escaped += "\\u003c" : escaped += c;
    return escaped;
}

}  // namespace gradtile::cli
