#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/checkpoint/checkpoint_header.h>
#include <gradtile/train/checkpoint/checkpoint_reader.h>
#include <gradtile/train/checkpoint/checkpoint_schema.h>
#include <gradtile/train/checkpoint/checkpoint_version_1.h>
#include <gradtile/train/checkpoint/internal/checkpoint_data.h>
#include <gradtile/train/checkpoint/internal/hdf5_checkpoint_reader.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {

namespace {

// Offsets of the header's fields.
constexpr std::size_t kBodyCrcAt = 36;
constexpr std::size_t kStepAt = 40;
constexpr std::size_t kLengthAt = 48;
constexpr std::size_t kHeaderCrcAt = 56;

struct Version1Header {
    std::int64_t step = 0;
    std::uint64_t length = 0;
};

// A finished file that libhdf5 reads. The header's checksum covers the whole file.
class FileStorage final : public Hdf5Storage {
  public:
    FileStorage(const OpenFile& file, std::uint64_t size) : file_(file), size_(size) {}
    std::uint64_t size() const override { return size_; }
    void read(std::byte* data, std::size_t bytes, std::uint64_t address) override {
        file_.read(data, bytes, address);
    }
    void write(const std::byte*, std::size_t, std::uint64_t, bool) override {
        throw Error("opened for reading");
    }
    void truncate(std::uint64_t) override { throw Error("opened for reading"); }

  private:
    const OpenFile& file_;
    std::uint64_t size_;
};

std::uint32_t body_crc(const OpenFile& file, std::uint64_t size) {
    constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;
    const auto piece = std::make_unique_for_overwrite<std::byte[]>(kPiece);
    std::uint32_t crc = 0;
    for (std::uint64_t at = Hdf5CheckpointReader::user_block; at < size;) {
        const auto bytes = static_cast<std::size_t>(std::min(kPiece, size - at));
        file.read(piece.get(), bytes, at);
        crc = crc32c({piece.get(), bytes}, crc);
        at += bytes;
    }
    return crc;
}

// Reads the header, and compares every byte of the file with its checksum.
Version1Header check_file_bytes(const OpenFile& file) {
    const std::uint64_t size = file.size();
    check(size > Hdf5CheckpointReader::user_block, "truncated: ", size,
          " bytes are less than a header and a body");
    std::array<std::byte, Hdf5CheckpointReader::user_block> bytes;
    file.read(bytes.data(), bytes.size(), 0);
    CheckpointHeader::Bytes start;
    std::copy_n(bytes.begin(), start.size(), start.begin());
    check(is_version_1(start), "not a checkpoint of format version 1");
    const auto crc = get_little_endian<std::uint32_t>(bytes.data() + kHeaderCrcAt);
    put_little_endian(bytes.data() + kHeaderCrcAt, std::uint32_t{0});
    check(crc == crc32c(bytes), "damaged: the header's checksum does not match");
    Version1Header header;
    header.step = get_little_endian<std::int64_t>(bytes.data() + kStepAt);
    header.length = get_little_endian<std::uint64_t>(bytes.data() + kLengthAt);
    check(header.step >= 0, "damaged: step ", header.step);
    check(header.length == size, "truncated or extended: ", size, " bytes, the header says ", header.length);
    check(body_crc(file, size) == get_little_endian<std::uint32_t>(bytes.data() + kBodyCrcAt),
          "damaged: the checksum of the file's content does not match the header's");
    return header;
}

}  // namespace

Checkpoint read_version_1(const std::filesystem::path& path, SymbolicLinks links, FileSystem& fs) {
    return with_file_name("checkpoint", path, [&] {
        const OpenFile file = open_regular_file(fs, path, links);
        const Version1Header header = check_file_bytes(file);
        const Hdf5Lock lock;
        FileStorage storage(file, header.length);
        const Hdf5CheckpointReader reader(storage, header.length);
        Checkpoint checkpoint;
        checkpoint.step = header.step;
        const auto parsed = [&](const char* name) { return parse_json(reader.read_text(name), name); };
        checkpoint.config = parsed("config/json");
        checkpoint.rng = parsed("rng/json");
        checkpoint.meta = parsed("meta/json");
        CheckpointData data = parse_checkpoint_data(reader.read_text("data/json"));
        checkpoint.data = std::move(data.data);
        checkpoint.tokenizer = std::move(data.tokenizer);
        for (const TensorInfo& info : reader.tensors()) {
            const std::string_view group = checkpoint_schema::group_of(info.name);
            const Tensor x = empty_on_host(info.shape, info.dtype);
            reader.read(info, x.raw_data());
            tensors_of(checkpoint, group).emplace(info.name.substr(group.size() + 1), x);
        }
        return checkpoint;
    });
}

}  // namespace gradtile
