#pragma once
/// A generation step on a GPU as one CUDA graph: one token for each text.
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile {

/// Runs Transformer::next_logits() on a GPU. The host writes tokens, positions and slots into page-locked
/// memory, starts the step, and waits once for its result. The kernels depend on the text count only. For
/// each text count, the first step launches kernel by kernel, because libraries initialise at first use. The
/// second step is captured as a graph, with the copies from and to the host, and the graph is replayed for
/// all later steps. If a step cannot be captured, one line on the standard error says so, and generation
/// continues kernel by kernel.
///
/// The environment variable GRADTILE_GENERATION_GRAPH=off turns graphs off, and =passes turns TokenStep off:
/// NextToken then computes a token like a prompt's tokens. Both are for comparisons.
class TokenStep {
  public:
    /// Whether there is a TokenStep for the model: on a GPU, if Transformer::can_step().
    static bool exists_for(const LanguageModel& model);
    /// Allocates, in a dry run, what a step of `slots` texts allocates from ctx.
    static void plan(const Context& dry, const LanguageModel& model, const KeyValueCache& cache,
                     std::int64_t slots);

    /// For steps of up to `slots` texts. ctx must have an Arena that nothing else uses during a step. Keeps
    /// references to the model and to the cache, whose blocks and table must keep their addresses.
    TokenStep(const Context& ctx, const LanguageModel& model, const KeyValueCache& cache, std::int64_t slots);

    /// A token, the text's slot, and how many of the text's tokens are in the cache, which has a block for
    /// the token.
    struct Input {
        std::int64_t slot = 0, position = 0;
        std::int32_t token = 0;
    };
    /// Reads the tokens into the cache and returns the logits [V] after each token. The slots must differ.
    std::vector<std::vector<double>> logits(std::span<const Input> inputs);
    /// Like logits(), but returns each text's most likely next token. Throws Error when a logit is not
    /// finite.
    std::vector<std::int32_t> most_likely(std::span<const Input> inputs);

    /// The graph for steps with this text count, for tests.
    const StepGraph& graph(std::int64_t texts) { return steps_[texts].graph; }

  private:
    struct Step {
        StepGraph graph;
        bool has_run = false, may_be_captured = true;
    };
    void run(std::span<const Input> inputs);
    void enqueue(std::int64_t texts);

    Context ctx_;
    const LanguageModel& model_;
    const KeyValueCache& cache_;
    std::int64_t slots_;
    bool uses_graphs_;
    attention::DecodeScratch scratch_;
    Tensor input_;        // int32 [3, slots]: tokens, positions, slots; R texts use it as rows [3, R]
    Tensor logits_;       // float32 [slots, V]
    Tensor most_likely_;  // int32 [slots]
    Tensor host_input_, host_logits_, host_most_likely_;  // page-locked
    std::map<std::int64_t, Step> steps_;                  // keyed by text count
};

}  // namespace gradtile
