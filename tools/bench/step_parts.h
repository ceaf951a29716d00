#pragma once
/// The operators of a training step.
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

/// One operator of a step.
struct Part {
    std::string name;
    std::int64_t count;  ///< runs per step
    double flops;        ///< floating-point operations of one run; 0 for memory-bound operators
    std::function<void()> work;
};

/// Every operator of a step, on tensors of the step's shapes: one micro-batch of `tokens` [B,T]. The parts
/// hold references to all arguments, ctx included.
std::vector<Part> parts_of_step(const Context& ctx, const Transformer& model,
                                const ParameterStore& parameters, Optimizer& optimizer, const Tensor& tokens);

}  // namespace gradtile::cli
