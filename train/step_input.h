#pragma once
/// StepInput: an optimizer step's input (data, learning rate, dropout seed) at fixed addresses, so that a
/// step captured as a CUDA graph reads the current input when it is replayed.
#include <array>
#include <cstdint>
#include <optional>

#include <gradtile/train/config/step_shape.h>
#include <gradtile/train/data/data_loader.h>

namespace gradtile {

class SharedSequences;

struct StepInputOptions {
    StepShapes shapes = {};
    std::uint64_t seed = 0;  ///< the run's seed
    /// The processes that share sequences; null: each process has whole ones. Must outlive the input.
    const SharedSequences* shared = nullptr;
};

/// On a GPU the host prepares the next step's input in page-locked memory while the device works on the
/// current step (two host copies that alternate), and one transfer in stream order copies it to the device.
/// On the CPU there is one host copy.
class StepInput {
  public:
    StepInput(const Context& ctx, DataLoader loader, const StepInputOptions& options);

    /// Draws the data for step `step` on the host, unless this was done before. Steps are prepared in order.
    /// Every step has a target: if the windows that are next hold none in any process, they are passed over.
    /// Throws Error when the data cannot be read, or when a whole epoch has no target; then nothing is
    /// prepared, and the next call reads the same data.
    void prepare(std::int64_t step);
    /// Prepares a step whose data could not be read, so that this process can take part in the gradient
    /// exchange that the other processes wait for. The target count is so small that the gradients are
    /// infinite, so every process refuses the update. Takes no data from the loader.
    void prepare_refusal(std::int64_t step);
    /// Makes the prepared step's input the current one, in stream order, with a learning rate and a vote.
    void upload(const Context& ctx, double rate, double vote = 0.0);

    // The current step's input, on the device.
    const Tensor& rate() const { return rate_; }                  ///< [1] float64
    const Tensor& seed_tensor() const { return seed_tensor_; }    ///< [2] int32, DropoutKey::from_seed_tensor
    const Tensor& target_count() const { return target_count_; }  ///< [1] float64: targets on all ranks
    const Tensor& vote() const { return vote_; }  ///< [1] float64: this process's vote (see Trainer)
    /// Micro-batch i of a step of this shape. Packed windows that are shared have row ranges of all ranks'
    /// keys instead of offsets.
    Batch micro_batch(const StepShape& shape, std::int64_t i) const;

    /// Returns the data position after the current step, even if the next step is prepared.
    JsonValue state() const { return state_; }
    void restore(const JsonValue& state);

  private:
    struct Prepared {
        std::int64_t step;
        JsonValue state_after;
    };
    bool shares_documents() const;
    void draw(std::int64_t step);
    std::int64_t draw_windows(const StepShape& shape);
    void put_target_count(double count);
    std::int64_t tokens_at() const;
    std::int64_t offsets_at(std::int64_t micro_step) const;

    DataLoader loader_;
    StepInputOptions options_;
    std::int64_t tokens_;   // tokens in a step, at most
    std::int64_t ranges_;   // numbers of row ranges in a step, at most; 0: none
    std::int64_t offsets_;  // document offsets in a micro-step, at most; 0: none
    std::array<Tensor, 2> host_;
    std::size_t next_ = 0;  // index of the host block that is prepared next
    // int32: rate, seed, vote, target count, row ranges (aligned to 16 bytes), tokens, targets, then
    // positions and document offsets. On the CPU it is the first host block.
    Tensor device_;
    Tensor rate_, seed_tensor_, vote_, target_count_;
    std::optional<Prepared> prepared_;
    JsonValue state_;
};

}  // namespace gradtile
