#pragma once
/// A checkpoint of format version 1 as HDF5 objects. The caller holds an Hdf5Lock. Error messages do not
/// contain the file's name.
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/internal/hdf5_storage.h>

namespace gradtile {

/// Reads the HDF5 part. The constructor walks the whole tree and throws on everything that a checkpoint
/// cannot contain: links other than hard links, unknown groups, layouts other than chunked, filters other
/// than fletcher32, external or virtual storage, unknown types, and sizes that the file is too short to hold.
/// So every size is checked before memory is allocated or data is read. libhdf5 itself crashes on some
/// damaged files: use this class only in a process that may crash (see run_confined()).
class Hdf5CheckpointReader {
  public:
    /// Offset of the HDF5 part: the size of the header.
    static constexpr std::uint64_t user_block = 4096;

    Hdf5CheckpointReader(Hdf5Storage& storage, std::uint64_t file_bytes);

    /// Returns the tensors in name order.
    const std::vector<TensorInfo>& tensors() const { return tensors_; }
    /// Fills tensor.bytes() bytes and compares them with the tensor's checksum.
    void read(const TensorInfo& tensor, std::byte* data) const;
    /// Returns the JSON of one of checkpoint_schema::json_names.
    std::string read_text(const std::string& name) const;

  private:
    void walk(const std::string& group, int depth);
    void accept_tensor(const Hdf5Dataset& dataset, const std::string& name);
    /// Checks layout, filters and storage; returns the shape.
    Shape accept_dataset(const Hdf5Dataset& dataset, const std::string& name,
                         std::uint64_t element_bytes) const;

    std::uint64_t file_bytes_;
    std::uint64_t objects_ = 0;
    std::uint64_t tensor_bytes_ = 0;
    Hdf5PropertyList access_;
    Hdf5File file_;
    std::vector<TensorInfo> tensors_;
};

}  // namespace gradtile
