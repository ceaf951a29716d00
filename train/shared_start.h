#pragma once
/// Where the processes of a run start from: rank 0 reads it and tells the others all but the tensors.
#include <functional>
#include <optional>
#include <string>

#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/parallel/process_group.h>
#include <gradtile/train/run_directory.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

struct Start {
    std::string source;                         ///< the file, for messages
    std::optional<Checkpoint> checkpoint = {};  ///< none: from the beginning; tensors in rank 0's alone
};

/// What rank 0's `read` returns, in every process. The others do not call it.
Start shared_start(ProcessGroup& group, const std::function<Start()>& read);

/// The settings in rank 0's `directory`, which the others need not have.
TrainConfig shared_config(ProcessGroup& group, const std::optional<RunDirectory>& directory);

}  // namespace gradtile
