#pragma once
/// The checkpoint that a run's processes start from. Rank 0 reads it and broadcasts everything except the
/// tensors.
#include <functional>
#include <optional>
#include <string>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/parallel/process_group.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile {

struct Start {
    std::string source;                         ///< the checkpoint's file name, for messages
    std::optional<Checkpoint> checkpoint = {};  ///< empty: start from step 0; only the root has the tensors
};

/// Returns rank `root`'s `read` result in every process. The other ranks do not call `read`.
Start shared_start(ProcessGroup& group, const std::function<Start()>& read, int root = 0);

/// Returns the settings in rank 0's `directory`; the other ranks need no directory.
TrainConfig shared_config(ProcessGroup& group, const std::optional<RunDirectory>& directory);

}  // namespace gradtile
