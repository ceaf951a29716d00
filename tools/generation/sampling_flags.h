#pragma once
/// The flags of `sample` and `chat` that say how tokens are drawn.
#include <gradtile/tools/command_line/command_line.h>
#include <gradtile/tools/generation/sampler.h>

namespace gradtile::cli {

/// Adds the flags. `options` must live until the command line is parsed.
void add_sampling_flags(Command& command, SampleOptions& options);
/// Throws UsageError naming a flag whose value is out of range.
void check_sampling_flags(const SampleOptions& options);

}  // namespace gradtile::cli
