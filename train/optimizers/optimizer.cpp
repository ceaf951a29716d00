#include <gradtile/train/optimizers/optimizer.h>

#include <algorithm>

namespace gradtile {

OptimizerShard whole_of(const ParameterStore& store) {
    check(store.allocated(), "optimizer: the parameter store is not allocated");
    return {.ranges = {{0, store.flat_elements()}},
            .gradients = store.gradients(),
            .masters = store.has_master() ? store.master() : Tensor(),
            .is_whole = true};
}

DType moment_dtype(const MomentStorage& storage, DType arithmetic) {
    if (storage.format == MomentFormat::f32) return arithmetic;
    const bool in_blocks = storage.in_blocks();
    check(arithmetic == DType::f32, "optimizer: ", in_blocks ? "int8" : "bfloat16", " moments for ",
          arithmetic, " gradients; expected float32 gradients");
    return in_blocks ? DType::i32 : DType::bf16;
}

Tensor moments_of(const MomentStorage& storage, const Tensor& moments, const Parameter& parameter,
                  std::int64_t begin) {
    const Shape shape = StateTensor{.name = {}, .tensor = {}, .layout = storage.layout()}.shape_of(parameter);
    return moments.slice(0, storage.numbers(begin), shape.elements()).reshape(shape);
}

std::vector<ShardPiece> pieces_of(const ParameterStore& store, const Parameter& parameter,
                                  const OptimizerShard& shard) {
    check(shard.masters.defined() == is_16_bit(store.dtype()), "optimizer: a shard of ", store.dtype(),
          " values ", shard.masters.defined() ? "has" : "lacks",
          " masters; expected them of 16-bit values only");
    const std::int64_t parameter_end =
        parameter.offset() + rounded_up(parameter.shape().elements(), parameter_alignment);
    std::vector<ShardPiece> pieces;
    std::int64_t packed = 0;
    for (const FlatRange& range : shard.ranges) {
        const std::int64_t begin = std::max(parameter.offset(), range.begin);
        const std::int64_t end = std::min(parameter_end, range.end());
        if (begin < end) pieces.push_back({{begin, end - begin}, packed + begin - range.begin});
        packed += range.length;
    }
    return pieces;
}

}  // namespace gradtile
