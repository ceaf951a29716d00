#pragma once
/// The `sample` and `chat` flags that say how tokens are drawn.
#include <gradtile/tools/command_line/command_line.h>
#include <gradtile/tools/generation/sampler.h>

namespace gradtile::cli {

/// Adds the flags. `options` must live until the command line is parsed.
void add_sampling_flags(Command& command, SampleOptions& options);
/// Throws UsageError that names a flag whose value is outside its range.
void check_sampling_flags(const SampleOptions& options);

}  // namespace gradtile::cli
