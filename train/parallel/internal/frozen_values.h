#pragma once
/// FrozenValues: the values that training does not change, where the device of a process has not all of them
/// at rest. Under ZeRO-3 each process has a part, and offloaded values are in the host's memory. Every pass
/// brings those that it reads, one stage ahead (ValueSlots). Nothing is written back, and slots keep their
/// values from step to step.
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/parallel/data_parallel.h>
#include <gradtile/train/parallel/internal/value_slots.h>
#include <gradtile/train/parallel/shard_layout.h>

namespace gradtile {

class SideStream;

class FrozenValues {
  public:
    /// A flat block: the values in the store's dtype, or the int32 codes of quantized parameters.
    enum class Block { values, codes };
    static constexpr std::array blocks{Block::values, Block::codes};

    /// `store` is allocated without a value block. `offloaded` allocates values at rest if
    /// options.offloads_frozen. All arguments but the contexts must outlive this object.
    FrozenValues(const Context& ctx, const Context& offloaded, const ParameterStore& store,
                 const Communicator& communicator, const DataParallelOptions& options,
                 const SideStream& exchange);
    ~FrozenValues();

    /// The bytes of a process that has the largest part. `dry` is for a dry run, and the store may have a
    /// value block.
    static FrozenBytes plan(const Context& dry, const ParameterStore& store, int processes,
                            const DataParallelOptions& options);

    /// Keeps this process's part of what KeepMasters receives of a parameter.
    void keep(const Context& ctx, const Parameter& parameter, const Tensor& numbers);

    /// The StageHook of forward and backward passes.
    void before_stage(const Context& ctx, std::size_t stage, std::optional<std::size_t> next);
    /// What slots hold. See DataParallel::hold_frozen().
    using Held = DataParallel::HeldSlots;
    Held held() const;
    void hold(const Context& ctx, const Held& held);
    void forget();

    /// Collective: gathers all values in memory that ctx allocates, before further work on ctx's stream. They
    /// last until release().
    void gather(const Context& ctx);
    void release();
    /// Bytes that gather() allocates.
    std::size_t bytes_to_gather() const;

    /// Whether a process has a part only.
    bool is_sharded() const { return shards_; }
    /// This process's ranges of the flat block, and their numbers, packed.
    const std::vector<FlatRange>& own_ranges(Block block) const;
    const Tensor& own(Block block) const;
    /// Collective: calls read() with one bucket's numbers after the other, which are in a slot until it
    /// returns. read() enqueues its work on ctx's stream.
    using Read = std::function<void(const FlatRange& bucket, const Tensor& numbers)>;
    void read_all(const Context& ctx, Block block, const Read& read);

    /// Bytes of values at rest, and of slots.
    std::size_t bytes_at_rest() const;
    std::size_t slot_bytes() const;

  private:
    struct Layout;
    struct State;
    static Layout layout_of(const ParameterStore& store, Block block, int processes);
    void gather_bucket(const Context& exchange, const State& state, std::size_t bucket,
                       const Tensor& full) const;
    const State* find(Block block) const;

    Device device_;
    const Communicator& communicator_;
    const SideStream& exchange_;
    bool shards_, offloads_;
    std::vector<std::unique_ptr<State>> states_;  // of the blocks that the store has
};

}  // namespace gradtile
