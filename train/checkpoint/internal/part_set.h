#pragma once
/// The parts of a checkpoint: files beside its main file that hold its tensors in pieces.
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint_reader.h>

namespace gradtile {

/// Returns what a main file lists about this part.
PartFile describe_part(const OpenFile& file);

class PartSet {
  public:
    /// Opens the parts that a main file in `directory` lists, and reads their lists of pieces. Throws Error,
    /// which names the part, when one is missing, is not the one that is listed, or is not sound.
    PartSet(FileSystem& fs, std::filesystem::path directory, std::int64_t step, const PartTable& table);

    /// Returns the checksum of a tensor, from those of its pieces. Throws Error unless the pieces are the
    /// whole tensor.
    std::uint32_t checksum_of(const StoredObject& tensor) const;
    /// Throws Error unless the parts hold exactly the tensors that a main file lists. So all tensors together
    /// are no larger than the files.
    void check_tensors(const CheckpointManifest& main) const;
    /// Reads every byte of the parts, and verifies it as read_body() does. Writes the tensor of the main
    /// file's object i to destinations[i], unless it is null. Call check_tensors() first.
    void read(const CheckpointManifest& main, std::span<std::byte* const> destinations) const;
    /// Bytes in all files.
    std::uint64_t bytes() const;

  private:
    struct Piece {
        std::int64_t begin = 0, elements = 0;
        DType dtype = DType::f32;
        std::uint32_t crc32c = 0;
    };
    struct Part {
        std::string name;
        CheckpointContents contents;
    };
    OpenFile open(const std::string& name) const;
    void add_pieces(const CheckpointManifest& part);

    FileSystem& fs_;
    std::filesystem::path directory_;
    std::vector<Part> parts_;
    std::map<std::string, std::vector<Piece>> pieces_;  // by tensor, in the order of their elements
};

}  // namespace gradtile
