#include <gradtile/cli/text_file.h>
#include <gradtile/core/io/durable_file.h>

namespace gradtile::cli {

void write_text_file(const char* what, const std::filesystem::path& path, const std::string& text) {
    with_file_name(what, path, [&] {
        DurableFile file(path);
        file.file().write(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
        file.commit(text.size(), DurableFile::Sync::none);
    });
}

}  // namespace gradtile::cli
