#pragma once
/// The operators in a training step.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/tensor.h>

namespace gradtile {
struct Transformer;
class ParameterStore;
class Optimizer;
}  // namespace gradtile

namespace gradtile::cli {

/// One operator in a step.
struct Part {
    std::string name;
    std::int64_t count;  ///< runs per step
    double flops;        ///< floating-point operations per run; 0 for memory-bound operators
    std::function<void()> work;
};

/// Every operator in a step, on tensors with the step's shapes: one micro-batch `tokens` [B,T]. The parts
/// hold references to all arguments, ctx included.
std::vector<Part> parts_of_step(const Context& ctx, const Transformer& model,
                                const ParameterStore& parameters, Optimizer& optimizer, const Tensor& tokens);

}  // namespace gradtile::cli
