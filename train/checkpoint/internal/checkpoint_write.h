#pragma once
/// Writes a checkpoint file's HDF5 part.
#include <string>
#include <vector>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/checkpoint_manifest.h>
#include <gradtile/train/checkpoint/internal/checkpoint_image.h>

namespace gradtile {

class PartSet;

/// Lists a checkpoint file's objects. The list is made before the file is written, because the user block's
/// size depends on it.
class CheckpointPlan {
  public:
    /// For a checkpoint with `parts`: lists the tensors without their checksums. Throws Error naming a tensor
    /// that cannot be stored (undefined, no axis, bad name).
    explicit CheckpointPlan(const Checkpoint& checkpoint);
    /// Throws Error naming a tensor that is not on the CPU, where write_hdf5() reads it.
    void require_host_memory() const;

    /// Sets the checksums of the tensors in parts.
    void set_checksums(const PartSet& parts);

    /// The manifest. Its addresses and checksums are zero until write_hdf5() has run.
    const CheckpointManifest& manifest() const { return manifest_; }
    std::uint64_t user_block() const { return user_block_; }
    /// Returns an upper bound on the file's size.
    std::uint64_t file_bytes() const;

  private:
    friend void write_hdf5(CheckpointImage& image, CheckpointPlan& plan);
    void add_text(std::string_view name, std::string value);
    void add_tensors(std::string_view group, const NamedTensors& tensors);
    void add_parts(const CheckpointParts& parts);

    CheckpointManifest manifest_;
    std::vector<std::string> texts_;  // in the manifest's text order
    std::vector<Tensor> tensors_;     // in the manifest's tensor order
    std::uint64_t user_block_ = 0;
};

/// Writes the file's HDF5 part to `image`, after the plan's user block, and completes the plan's manifest.
/// The caller holds an Hdf5Lock. Throws Error naming a tensor that holds an infinity or a NaN.
void write_hdf5(CheckpointImage& image, CheckpointPlan& plan);

}  // namespace gradtile
