#pragma once
/// Replica: one process's copy of a model in training, its optimizer, and its part in the exchange between
/// processes.
///
/// A sharded replica (TrainConfig::zero) keeps masters and moments, with zero 2 summed gradients, and with
/// zero 3 values, only for its own part; of a model with adapters with zero 3 the frozen values instead of
/// the adapters'. Checkpoints always hold the whole state, in one file or in parts, so
/// that a run can continue with any process count, sharded or not.
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/config/train_config.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/shard_copies.h>

namespace gradtile {

class Replica {
  public:
    /// Allocates without initialising. The communicator must outlive the replica.
    Replica(const Context& ctx, const TrainConfig& config, std::optional<Tokenizer> tokenizer,
            const Communicator& communicator);

    LanguageModel model;
    DataParallel parallel;
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<ShardCopies> shard_copies;  ///< null unless config.shard_copies is set

    // Collective: every process calls the following functions.
    /// Draws the weights, the same in every process.
    void initialize(Seed seed);
    /// Loads the weights from process 0's checkpoint, which must have no adapters; draws this replica's
    /// adapters, if it has any, at random. `source` names the checkpoint in errors.
    void start_from(const Checkpoint& checkpoint, const std::string& source, Seed seed);
    /// Loads the weights and the optimizer's state from process 0's checkpoint.
    void restore(const Checkpoint& checkpoint, const std::string& source);
    /// Makes the weights and the optimizer's state those of process `root`, in memory. Throws Error if the
    /// replica is sharded, because no process then has the whole state.
    void share(int root);
    /// Puts the weights and the optimizer's state into process 0's checkpoint: the tensors themselves, or,
    /// when sharded, copies gathered in host memory, which the next call overwrites.
    void save_into(Checkpoint& checkpoint);

    // For a sharded replica whose processes write parts of a checkpoint; not collective.
    /// Puts the pieces of this process's part into `checkpoint`: views of its own tensors.
    void save_part_into(Checkpoint& checkpoint);
    /// Returns the whole tensors that all parts together hold, without checksums.
    std::vector<TensorInfo> saved_tensors() const;
    /// Makes the optimizer's state that of a run's start.
    void clear_optimizer() const;
    /// Forgets the gradients of a step or of a save that another process's loss has ended.
    void clear_gradients() const;

    /// Called by process 0 if the replica is sharded: locks the pages that save_into() copies to, and puts
    /// tensors in them, without values, into `checkpoint`. Locking takes a second for some GB, so call this
    /// function before the first step.
    void reserve_host_memory(Checkpoint& checkpoint);

    /// Returns the name of the first parameter whose summed gradient holds an infinity or NaN in any process;
    /// an empty text when there is none.
    std::string first_non_finite_gradient(const Context& ctx, ProcessGroup& group) const;

  private:
    std::vector<std::span<std::byte>> shard_memory() const;
    bool is_root() const { return communicator_.rank() == 0; }
    /// Returns flat host memory for this many numbers. The memory is page-locked if possible, and is kept
    /// from call to call.
    const Tensor& host_memory(const std::string& name, std::int64_t numbers, DType dtype);
    /// Numbers of a flat block of frozen parameters in host memory, packed. All checkpoints share them.
    struct FrozenBlock {
        std::vector<FlatRange> ranges = {};
        Tensor numbers = {};
    };
    enum class FrozenCopy { none, whole, part };
    /// Add the frozen parameters: all to process 0's checkpoint, or this process's pieces. The first is
    /// collective if processes have parts of them, unless `reserves`: then it adds tensors without values.
    void add_frozen(Checkpoint& checkpoint, bool reserves = false);
    void add_frozen_pieces(Checkpoint& checkpoint);
    void add_frozen_blocks(std::vector<Tensor>& blocks) const;
    void draw_frozen(Seed seed);
    void copy_frozen(FrozenCopy kind, bool reserves);
    FrozenBlock whole_frozen(bool codes, bool reserves);
    FrozenBlock frozen_part(bool codes);
    Tensor frozen_on_host(const std::string& name, const Tensor& x);
    /// Enqueues a copy of a flat x into host_memory().
    const Tensor& to_host_memory(const std::string& name, const Tensor& x);
    /// Numbers of a sharded optimizer's whole state, flat.
    std::int64_t whole_numbers(const StateTensor& part) const;
    // Return the values, the masters or a state of the whole model in host memory; undefined except in
    // process 0.
    Tensor gather_to_host(const std::string& name, std::int64_t numbers, DType dtype,
                          std::int64_t numbers_per_64, const DataParallel::BucketAccess& write);
    Tensor gather_values();
    Tensor gather_masters();
    Tensor gather_state(const StateTensor& part);
    void draw_weights(Seed seed);
    void load_weights(const Checkpoint& checkpoint, const std::string& source);
    void load_frozen(const Checkpoint& checkpoint, const std::string& source);
    /// Collective: hands what process 0's checkpoint has of each parameter to keep(), in every process.
    void share_parameters(const ParameterStore& store, const Checkpoint& checkpoint,
                          const std::string& source, const KeepMasters& keep) const;
    void restore_moments(const Checkpoint& checkpoint, const std::string& source);

    /// Keeps this process's part of a parameter's float32 masters, and with zero 3 of the rounded values:
    /// flat, padded to a multiple of 64.
    void keep_masters(const Parameter& parameter, const Tensor& flat);
    /// Return the whole model's values or float32 masters, flat, unless the replica is sharded. The next step
    /// may overwrite the masters.
    const Tensor& whole_values() const;
    const Tensor& whole_masters();
    /// Returns the float32 masters of this process's part, packed, of masters that are split.
    const Tensor& joined_masters();
    /// Writes the float32 masters of elements to `masters`. `packed`: where they are in this process's part.
    void copy_masters(const FlatRange& elements, std::int64_t packed, const Tensor& masters) const;

    const Communicator& communicator_;
    Tensor masters_;         // packed, see OptimizerShard; undefined if the store has the masters
    Tensor joined_masters_;  // of a save, if no other memory has room for them
    std::map<std::string, Tensor> on_host_;
    std::array<FrozenBlock, 2> frozen_;  // values and codes, see frozen_copy_
    FrozenCopy frozen_copy_ = FrozenCopy::none;
};

}  // namespace gradtile
