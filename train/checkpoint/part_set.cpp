#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/io/checksum.h>
#include <gradtile/train/checkpoint/checkpoint_names.h>
#include <gradtile/train/checkpoint/internal/part_set.h>

namespace gradtile {

PartFile describe_part(const OpenFile& file) {
    PartFile part{.bytes = file.size()};
    CheckpointHeader::Bytes header;
    check(part.bytes > header.size(), "truncated: ", part.bytes, " bytes");
    file.read(header.data(), header.size(), 0);
    part.header_crc32c = crc32c(header);
    return part;
}

PartSet::PartSet(FileSystem& fs, std::filesystem::path directory, std::int64_t step, const PartTable& table)
    : fs_(fs), directory_(std::move(directory)) {
    const auto count = std::ssize(table.files);
    for (std::int64_t i = 0; i < count; ++i) {
        Part part;
        part.name = part_file_name(step, {.save = table.save, .number = i, .count = count});
        with_file_name("part", part.name, [&] {
            const OpenFile file = open(part.name);
            const PartFile found = describe_part(file), listed = table.files[static_cast<std::size_t>(i)];
            check(found == listed, found.bytes, " bytes with header checksum ", found.header_crc32c,
                  ", the checkpoint lists ", listed.bytes, " bytes with ", listed.header_crc32c);
            part.contents = read_contents(file);
            check(part.contents.header.version == CheckpointHeader::kWhole, "has parts itself");
            check(part.contents.header.step == step, "holds step ", part.contents.header.step);
            add_pieces(part.contents.manifest);
        });
        parts_.push_back(std::move(part));
    }
    for (auto& [tensor, pieces] : pieces_) std::ranges::sort(pieces, {}, &Piece::begin);
}

OpenFile PartSet::open(const std::string& name) const {
    return open_regular_file(fs_, directory_ / name, SymbolicLinks::refuse);
}

void PartSet::add_pieces(const CheckpointManifest& part) {
    for (const StoredObject& object : part.objects) {
        if (!object.dtype) continue;
        const auto piece = parse_piece_name(object.name);
        check(piece && object.shape.rank() == 1, object.name, ": is not a piece of a tensor");
        pieces_[piece->tensor].push_back({piece->begin, object.shape[0], *object.dtype, object.crc32c});
    }
}

std::uint32_t PartSet::checksum_of(const StoredObject& tensor) const {
    const std::int64_t elements = tensor.shape.elements();
    std::int64_t end = 0;
    std::uint32_t crc = 0;
    const auto found = pieces_.find(tensor.name);
    if (found != pieces_.end())
        for (const Piece& piece : found->second) {
            check(piece.dtype == tensor.dtype, tensor.name, ": elements from ", piece.begin, " on are ",
                  piece.dtype, ", expected ", *tensor.dtype);
            check(piece.begin == end && piece.elements <= elements - end, tensor.name, ": the piece of ",
                  piece.elements, " elements at ", piece.begin, " does not follow the first ", end, " of ",
                  elements);
            end += piece.elements;
            crc = crc32c_combine(crc, piece.crc32c,
                                 static_cast<std::uint64_t>(piece.elements) * size_of(piece.dtype));
        }
    check(end == elements, tensor.name, ": the parts hold ", end, " of ", elements, " elements");
    return crc;
}

void PartSet::check_tensors(const CheckpointManifest& main) const {
    std::size_t found = 0;
    for (const StoredObject& object : main.objects) {
        if (!object.dtype) continue;
        check(checksum_of(object) == object.crc32c, object.name,
              ": damaged: the checksum of its pieces does not match");
        found += pieces_.count(object.name);
    }
    check(found == pieces_.size(), "the parts hold ", pieces_.size(), " tensors, ", found,
          " of them are listed");
}

void PartSet::read(const CheckpointManifest& main, std::span<std::byte* const> destinations) const {
    for (const Part& part : parts_) {
        std::vector<std::byte*> pieces;
        for (const StoredObject& object : part.contents.manifest.objects) {
            std::byte* to = nullptr;
            if (const auto piece = object.dtype ? parse_piece_name(object.name) : std::nullopt) {
                const auto tensor =
                    std::ranges::lower_bound(main.objects, piece->tensor, {}, &StoredObject::name);
                to = destinations[static_cast<std::size_t>(tensor - main.objects.begin())];
                if (to != nullptr) to += static_cast<std::size_t>(piece->begin) * size_of(*object.dtype);
            }
            pieces.push_back(to);
        }
        with_file_name("part", part.name, [&] { read_body(open(part.name), part.contents, pieces); });
    }
}

std::uint64_t PartSet::bytes() const {
    std::uint64_t bytes = 0;
    for (const Part& part : parts_) bytes += part.contents.header.length;
    return bytes;
}

}  // namespace gradtile
