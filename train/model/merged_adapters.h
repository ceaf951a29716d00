#pragma once
/// The model that a LoRA run has trained, as a model without adapters.
#include <string>

#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

/// Returns the checkpoint with every adapted matrix W replaced by W + alpha/r B A, without the adapters, and
/// with settings that name none. Quantized matrices are dequantized. Uses the adapters' float32 masters if
/// the checkpoint has them. The sum is float32; in a run with 16-bit weights it is rounded to their dtype,
/// and if the checkpoint has masters, the result's masters hold the sum itself. Drops the optimizer's state.
/// Returns a checkpoint without adapters unchanged. Throws Error "SOURCE: ..." if settings and weights do not
/// belong to the same model.
Checkpoint merged_adapters(Checkpoint checkpoint, const std::string& source);

}  // namespace gradtile
