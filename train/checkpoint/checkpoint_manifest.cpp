#include <algorithm>
#include <array>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/checkpoint/checkpoint_manifest.h>
#include <gradtile/train/checkpoint/checkpoint_schema.h>

namespace gradtile {

namespace {

namespace schema = checkpoint_schema;

// Each type's code in the file; 0 is a text.
constexpr std::array<std::pair<std::uint8_t, DType>, 5> kTypeCodes = {
    {{1, DType::f64}, {2, DType::f32}, {3, DType::bf16}, {4, DType::f16}, {5, DType::i32}}};

// An object's bytes besides its name, axes and extents: name length, type, rank, checksum, extent count.
constexpr std::uint64_t kFixedBytes = 2 + 1 + 1 + 4 + 8;
constexpr std::uint64_t kAxisBytes = 8;
constexpr std::uint64_t kExtentBytes = 16;
// The table begins with the save's number and the part count. Each part then has a length and a checksum.
constexpr std::uint64_t kTableBytes = 8 + 4, kPartBytes = 8 + 4;

// The smallest average extent size. For smaller extents, a reader would spend more time per extent than on
// the extent's bytes.
constexpr std::uint64_t kMinAverageExtent = 4096;

std::uint8_t code_of(const std::optional<DType>& dtype) {
    if (!dtype) return 0;
    return std::find_if(kTypeCodes.begin(), kTypeCodes.end(),
                        [&](const auto& entry) { return entry.second == *dtype; })
        ->first;
}

class ManifestWriter {
  public:
    explicit ManifestWriter(std::uint64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {}
    template <class T>
    void number(T value) {
        put_little_endian(bytes_.data() + position_, value);
        position_ += sizeof value;
    }
    void text(const std::string& text) {
        const auto from = std::as_bytes(std::span(text));
        std::copy(from.begin(), from.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(position_));
        position_ += from.size();
    }
    std::vector<std::byte> finish() {
        check(position_ == bytes_.size(), "the list of tensors takes ", position_, " bytes, expected ",
              bytes_.size());
        return std::move(bytes_);
    }

  private:
    std::vector<std::byte> bytes_;
    std::size_t position_ = 0;
};

class ManifestReader {
  public:
    explicit ManifestReader(std::span<const std::byte> bytes) : left_(bytes) {}
    std::uint64_t left() const { return left_.size(); }
    template <class T>
    T number() {
        return get_little_endian<T>(take(sizeof(T)).data());
    }
    std::string text(std::size_t length) {
        const auto bytes = take(length);
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

  private:
    std::span<const std::byte> take(std::size_t count) {
        check(count <= left_.size(), "damaged: the list of tensors ends inside an entry");
        const auto taken = left_.first(count);
        left_ = left_.subspan(count);
        return taken;
    }
    std::span<const std::byte> left_;
};

std::optional<DType> read_type(std::uint8_t code, const std::string& name) {
    if (code == 0) return std::nullopt;
    const auto found = std::find_if(kTypeCodes.begin(), kTypeCodes.end(),
                                    [&](const auto& entry) { return entry.first == code; });
    check(found != kTypeCodes.end(), name, ": elements of unknown type ", int{code});
    return found->second;
}

// Refuses axes whose product, not counting empty axes, does not fit in 63 bits when counted in bytes. So
// later axis products cannot overflow.
Shape read_shape(ManifestReader& in, int rank, std::size_t element_bytes, const std::string& name) {
    check(rank >= 1 && rank <= Shape::max_rank, name, ": ", rank, " axes, expected 1 to ", Shape::max_rank);
    std::array<std::int64_t, Shape::max_rank> axes{};
    auto bytes = static_cast<std::int64_t>(element_bytes);
    for (std::int64_t& axis : std::span(axes).first(static_cast<std::size_t>(rank))) {
        axis = in.number<std::int64_t>();
        check(axis >= 0 && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(axis, 1), &bytes), name,
              ": too large, or an axis of negative length");
    }
    return Shape(std::span(axes).first(static_cast<std::size_t>(rank)));
}

std::vector<FileExtent> read_extents(ManifestReader& in, std::uint64_t bytes, const FileExtent& body,
                                     const std::string& name) {
    const auto count = in.number<std::uint64_t>();
    check(count <= in.left() / kExtentBytes, "damaged: the list of tensors ends inside an entry");
    check(count <= 1 + bytes / kMinAverageExtent, name, ": ", bytes, " bytes in ", count, " pieces");
    std::vector<FileExtent> extents(static_cast<std::size_t>(count));
    // The sum cannot overflow, because each extent is inside the file, and the check below stops at `bytes`.
    std::uint64_t sum = 0;
    for (FileExtent& extent : extents) {
        extent.begin = in.number<std::uint64_t>();
        extent.bytes = in.number<std::uint64_t>();
        check(extent.bytes > 0 && extent.begin >= body.begin && extent.begin < body.end() &&
                  extent.bytes <= body.end() - extent.begin,
              name, ": bytes ", extent.begin, " and ", extent.bytes, " more lie outside the file's body");
        sum += extent.bytes;
        check(sum <= bytes, name, ": stored in more bytes than its shape has");
    }
    check(sum == bytes, name, ": stored in ", sum, " bytes, its shape has ", bytes);
    return extents;
}

StoredObject read_object(ManifestReader& in, const CheckpointHeader& header) {
    StoredObject object;
    object.name = in.text(in.number<std::uint16_t>());
    const bool is_text = std::find(schema::json_names.begin(), schema::json_names.end(), object.name) !=
                         schema::json_names.end();
    check(is_text || schema::is_stored_tensor_name(object.name),
          "the list of tensors has an invalid tensor name");
    object.dtype = read_type(in.number<std::uint8_t>(), object.name);
    const int rank = in.number<std::uint8_t>();
    check(is_text == !object.dtype, object.name, is_text ? ": not a text" : ": not a tensor");
    object.shape = read_shape(in, rank, object.dtype ? size_of(*object.dtype) : 1, object.name);
    check(!is_text || rank == 1, object.name, ": a text of ", rank, " axes");
    check(!is_text || object.bytes() <= schema::max_text_bytes, object.name, ": a text of ", object.bytes(),
          " bytes, at most ", schema::max_text_bytes, " are supported");
    object.crc32c = in.number<std::uint32_t>();
    const bool is_here = is_text || header.version == CheckpointHeader::kWhole;
    object.extents = read_extents(in, is_here ? object.bytes() : 0, header.body(), object.name);
    return object;
}

PartTable read_table(ManifestReader& in) {
    PartTable table;
    table.save = in.number<std::uint64_t>();
    const auto count = in.number<std::uint32_t>();
    check(count >= 1 && count <= in.left() / kPartBytes, "damaged: a list of ", count, " parts in ",
          in.left(), " bytes");
    for (std::uint32_t i = 0; i < count; ++i) {
        PartFile& file = table.files.emplace_back();
        file.bytes = in.number<std::uint64_t>();
        file.header_crc32c = in.number<std::uint32_t>();
    }
    return table;
}

void check_names(const std::vector<StoredObject>& objects) {
    std::size_t texts = 0;
    for (std::size_t i = 0; i < objects.size(); ++i) {
        check(i == 0 || objects[i - 1].name < objects[i].name, objects[i].name,
              ": listed twice, or not in the order of names");
        texts += objects[i].dtype ? 0 : 1;
    }
    check(texts == schema::json_names.size(),
          "the list of tensors lacks one of config/json, data/json, "
          "meta/json and rng/json");
}

void check_disjoint(const std::vector<StoredObject>& objects) {
    std::vector<std::pair<FileExtent, const StoredObject*>> all;
    for (const StoredObject& object : objects)
        for (const FileExtent& extent : object.extents) all.emplace_back(extent, &object);
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    for (std::size_t i = 1; i < all.size(); ++i) {
        check(all[i - 1].first.end() <= all[i].first.begin, all[i].second->name, ": shares bytes with ",
              all[i - 1].second->name);
    }
}

}  // namespace

std::uint64_t CheckpointManifest::encoded_bytes() const {
    std::uint64_t bytes = sizeof(std::uint32_t);
    for (const StoredObject& object : objects) {
        bytes += kFixedBytes + object.name.size() +
                 kAxisBytes * static_cast<std::uint64_t>(object.shape.rank()) +
                 kExtentBytes * object.extents.size();
    }
    if (parts) bytes += kTableBytes + kPartBytes * parts->files.size();
    return bytes;
}

std::vector<std::byte> CheckpointManifest::encode() const {
    ManifestWriter out(encoded_bytes());
    out.number(static_cast<std::uint32_t>(objects.size()));
    for (const StoredObject& object : objects) {
        out.number(static_cast<std::uint16_t>(object.name.size()));
        out.text(object.name);
        out.number(code_of(object.dtype));
        out.number(static_cast<std::uint8_t>(object.shape.rank()));
        for (const std::int64_t axis : object.shape) out.number(axis);
        out.number(object.crc32c);
        out.number(std::uint64_t{object.extents.size()});
        for (const FileExtent& extent : object.extents) {
            out.number(extent.begin);
            out.number(extent.bytes);
        }
    }
    if (parts) {
        out.number(parts->save);
        out.number(static_cast<std::uint32_t>(parts->files.size()));
        for (const PartFile& file : parts->files) {
            out.number(file.bytes);
            out.number(file.header_crc32c);
        }
    }
    return out.finish();
}

CheckpointManifest CheckpointManifest::decode(std::span<const std::byte> bytes,
                                              const CheckpointHeader& header) {
    ManifestReader in(bytes);
    const auto count = in.number<std::uint32_t>();
    check(count <= schema::max_objects && count <= in.left() / kFixedBytes, "damaged: a list of ", count,
          " tensors in ", bytes.size(), " bytes");
    CheckpointManifest manifest;
    manifest.objects.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) manifest.objects.push_back(read_object(in, header));
    if (header.version == CheckpointHeader::kInParts) manifest.parts = read_table(in);
    check(in.left() == 0, "damaged: ", in.left(), " bytes after the list of tensors");
    check_names(manifest.objects);
    check_disjoint(manifest.objects);
    return manifest;
}

}  // namespace gradtile
