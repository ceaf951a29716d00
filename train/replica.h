#pragma once
/// Replica: one process's copy of a model in training, its optimizer and its part in what processes exchange.
///
/// Sharded (TrainConfig::zero), it keeps masters and moments of its own part only; checkpoints hold the whole
/// in either case, so that a run goes on with any number of processes, sharded or not.
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <gradtile/train/language_model.h>
#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/train_config.h>

namespace gradtile {

class Replica {
  public:
    /// Allocates; nothing is initialised yet. The communicator must outlive it.
    Replica(const Context& ctx, const TrainConfig& config, std::optional<Tokenizer> tokenizer,
            const Communicator& communicator);

    LanguageModel model;
    DataParallel parallel;
    std::unique_ptr<Optimizer> optimizer;

    // Every process takes part in each of these.
    /// Draws the weights; the same in every process.
    void initialize(Seed seed);
    /// Weights from process 0's checkpoint. `source` names it in errors.
    void load_weights(const Checkpoint& checkpoint, const std::string& source);
    /// Weights and the optimizer's memory from process 0's checkpoint.
    void restore(const Checkpoint& checkpoint, const std::string& source);
    /// Puts weights and the optimizer's memory into process 0's checkpoint: as they live, or, when sharded,
    /// put together in host memory that the next call writes over.
    void save_into(Checkpoint& checkpoint);
    /// Locks the pages that save_into() will copy to, when sharded: a second for some GB, ahead of the steps.
    void reserve_host_memory();

    /// Name of the first parameter whose summed gradient holds an infinity or NaN, in whichever process;
    /// empty when there is none.
    std::string first_non_finite_gradient(const Context& ctx, ProcessGroup& group) const;

  private:
    /// Of the whole model in float32, while a sharded replica takes weights or moments apart or puts them
    /// together: the block of gradients, which means nothing between steps.
    const Tensor& workspace() const { return model.parameters.gradients(); }
    bool is_root() const { return communicator_.rank() == 0; }
    /// Memory of the host for a tensor like x, page-locked if possible, that is kept from call to call.
    const Tensor& host_memory(const std::string& name, const Tensor& x);
    /// Enqueues a copy into that.
    const Tensor& to_host_memory(const std::string& name, const Tensor& x);
    void restore_moments(const Checkpoint& checkpoint, const std::string& source);

    const Communicator& communicator_;
    Tensor masters_;  // packed; when sharded, of 16-bit values
    std::map<std::string, Tensor> on_host_;
};

}  // namespace gradtile
