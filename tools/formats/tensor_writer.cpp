#include <algorithm>

#include <gradtile/tools/formats/internal/tensor_writer.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

constexpr std::int64_t elements_at_once = std::int64_t{1} << 20;

}  // namespace

TensorWriter::TensorWriter(const std::string& path, Existing existing) : path_(path) {
    // The path is made absolute, because DurableFile calls fsync on the directory and needs the directory's
    // name.
    with_file_name("file", path_, [&] {
        // A rename would replace a device such as /dev/null with a regular file.
        check(!std::filesystem::exists(path_) || std::filesystem::is_regular_file(path_),
              "is not a regular file");
        file_.emplace(std::filesystem::absolute(path_), FileSystem::posix(), existing);
    });
}

void TensorWriter::write(std::span<const std::byte> bytes) {
    with_file_name("file", path_, [&] { file_->file().write(bytes.data(), bytes.size(), offset_); });
    offset_ += bytes.size();
}

void TensorWriter::write(const Tensor& x) {
    for (std::int64_t begin = 0; begin < x.elements(); begin += elements_at_once) {
        const std::int64_t end = std::min(begin + elements_at_once, x.elements());
        buffer_.resize(static_cast<std::size_t>(end - begin) * size_of(x.dtype()));
        copy_row_major(x, begin, end, buffer_.data());
        write(buffer_);
    }
}

void TensorWriter::align(std::uint64_t alignment) {
    const std::vector<std::byte> zeros((alignment - offset_ % alignment) % alignment);
    write(zeros);
}

void TensorWriter::commit() {
    with_file_name("file", path_, [&] { file_->commit(offset_); });
}

}  // namespace gradtile
