#pragma once
/// What a training step consists of, operator by operator.
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

/// One kind of operator in a step: how often it runs, and its work.
struct Part {
    std::string name;
    std::int64_t count;
    double flops;  ///< of one run; 0 where bandwidth counts
    std::function<void()> work;
};

/// Every operator of a step by itself, on tensors of the step's shapes: one micro-batch of `tokens` [B,T].
/// The parts refer to what is given here, ctx included.
std::vector<Part> parts_of_step(const Context& ctx, const Transformer& model,
                                const ParameterStore& parameters, Optimizer& optimizer, const Tensor& tokens);

}  // namespace gradtile::cli
