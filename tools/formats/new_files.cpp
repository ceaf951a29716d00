#include <gradtile/core/check.h>
#include <gradtile/tools/formats/internal/new_files.h>

namespace gradtile {

NewFiles::NewFiles(std::filesystem::path folder) : folder_(std::move(folder)) {
    made_ = !exists(folder_);
    with_file_name("folder", folder_,
                   [&] { make_directories(FileSystem::posix(), std::filesystem::absolute(folder_)); });
    if (made_) made_folder_ = RemovedOnSignal(folder_);
}

NewFiles::~NewFiles() {
    if (committed_) return;
    files_.clear();  // removes the temporaries
    std::error_code ignored;
    for (const std::string& file : named_) std::filesystem::remove(file, ignored);
    if (made_) std::filesystem::remove(folder_, ignored);
}

void NewFiles::require_absent(const std::string& name) const {
    const std::filesystem::path path = folder_ / name;
    check(!exists(symlink_status(path)), path.string(), ": exists; choose another --out");
}

TensorWriter& NewFiles::add(const std::string& name) {
    require_absent(name);
    return files_.emplace_back((folder_ / name).string(), Existing::refuse);
}

void NewFiles::add_text(const std::string& name, std::string_view text) {
    add(name).write(std::as_bytes(std::span(text)));
}

std::vector<std::string> NewFiles::commit() {
    for (TensorWriter& file : files_) {
        file.commit();
        named_.push_back(file.path());
        named_on_signal_.emplace_back(file.path());
    }
    committed_ = true;
    return named_;
}

}  // namespace gradtile
