#pragma once
/// StepInput: what an optimizer step is told from outside (its data, learning rate and dropout seed) in
/// memory that stays where it is, so that a step captured as a CUDA graph finds there what the host has put.
#include <array>
#include <cstdint>
#include <optional>

#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/schedule.h>

namespace gradtile {

struct StepInputOptions {
    std::int64_t micro_steps = 1;
    std::int64_t micro_batch = 1;  ///< sequences
    Schedule schedule = {};
    std::uint64_t seed = 0;  ///< of the run
};

/// On a GPU the next step's input is prepared in page-locked memory while the device works on this one's (two
/// host copies in turn), and one copy in stream order brings it over. On the CPU there is one copy.
class StepInput {
  public:
    StepInput(const Context& ctx, DataLoader loader, const StepInputOptions& options);

    /// Draws the data of step `step` on the host, unless that was done. Steps come in order. Throws Error
    /// when the data cannot be read; nothing is prepared then, and another try reads the same.
    void prepare(std::int64_t step);
    /// For a step whose data could not be read, where other processes wait for this one's part: a target
    /// count so small that the gradients are infinite, which refuses the step's update everywhere. It takes
    /// no data.
    void prepare_refusal(std::int64_t step);
    /// Makes the prepared step's input the current one, in stream order. `vote` is what vote() will hold.
    void upload(const Context& ctx, double vote = 0.0);

    // The current step's, on the device.
    const Tensor& rate() const { return rate_; }            ///< [1] float64
    const Tensor& live_seed() const { return live_seed_; }  ///< [2] int32, see DropoutKey::of_live_step
    const Tensor& target_count() const {
        return target_count_;
    }                                             ///< [1] float64: of the step, over all ranks
    const Tensor& vote() const { return vote_; }  ///< [1] float64: what this process asks the others
    const Batch& micro_batch(std::int64_t i) const { return batches_.at(static_cast<std::size_t>(i)); }

    /// Where the data goes on after the current step, whatever is prepared.
    JsonValue state() const { return state_; }
    void restore(const JsonValue& state);

  private:
    struct Prepared {
        std::int64_t step;
        JsonValue state_after;
    };
    void draw(std::int64_t step);
    void put_target_count(double count);

    DataLoader loader_;
    StepInputOptions options_;
    std::int64_t tokens_;  // of a step
    std::array<Tensor, 2> host_;
    std::size_t next_ = 0;  // the host block that is prepared next
    Tensor
        device_;  // int32: rate, seed, vote, target count, tokens, targets; on the CPU the first host block
    Tensor rate_, live_seed_, vote_, target_count_;
    std::vector<Batch> batches_;
    std::optional<Prepared> prepared_;
    JsonValue state_;
};

}  // namespace gradtile
