#pragma once
/// Saves a checkpoint as the ranks of a sharded run do.
#include <gradtile/train/checkpoint/checkpoint_directory.h>

namespace gradtile::test {

/// Returns one part of a checkpoint that `count` processes write. Each tensor is cut into pieces of about
/// equal size, so that small tensors have no piece in some parts.
inline Checkpoint part_of(Checkpoint whole, std::uint64_t save, std::int64_t number, std::int64_t count) {
    Checkpoint part{.step = whole.step};
    part.part = CheckpointPart{.save = save, .number = number, .count = count};
    for (const char* group : {"params", "master", "optimizer"})
        for (const auto& [name, x] : tensors_of(whole, group)) {
            const std::int64_t begin = x.elements() * number / count,
                               end = x.elements() * (number + 1) / count;
            if (begin < end)
                tensors_of(part, group)[piece_name(name, begin)] =
                    x.reshape({x.elements()}).slice(0, begin, end - begin);
        }
    return part;
}

/// Returns a checkpoint's tensors, without checksums.
inline std::vector<TensorInfo> infos_of(Checkpoint whole) {
    std::vector<TensorInfo> infos;
    for (const char* group : {"params", "master", "optimizer"})
        for (const auto& [name, x] : tensors_of(whole, group))
            infos.push_back({concat(group, '/', name), x.dtype(), x.shape()});
    return infos;
}

inline Checkpoint without_tensors(Checkpoint checkpoint) {
    for (const char* group : {"params", "master", "optimizer"}) tensors_of(checkpoint, group).clear();
    return checkpoint;
}

/// Returns the checkpoint of the main file, whose parts `directory` holds.
inline Checkpoint main_of(const Checkpoint& whole, const CheckpointDirectory& directory, std::uint64_t save,
                          std::int64_t count) {
    Checkpoint main = without_tensors(whole);
    main.parts = CheckpointParts{{save, {}}, infos_of(whole)};
    for (std::int64_t i = 0; i < count; ++i)
        main.parts->table.files.push_back(directory.describe(
            {.step = whole.step, .part = CheckpointPart{.save = save, .number = i, .count = count}}));
    return main;
}

/// Saves a checkpoint as `count` ranks do.
inline CheckpointDirectory::Saved save_in_parts(const CheckpointDirectory& directory, const Checkpoint& whole,
                                                std::uint64_t save, std::int64_t count, bool best = false) {
    for (std::int64_t i = 0; i < count; ++i) directory.save(part_of(whole, save, i, count));
    return directory.save(main_of(whole, directory, save, count), best);
}

}  // namespace gradtile::test
