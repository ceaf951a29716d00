#include <gradtile/core/enum_names.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/formats/internal/weight_rounding.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {
namespace {

bool is_finite(const Tensor& x) {
    return all_finite(x.dtype(), x.raw_data(), static_cast<std::size_t>(x.elements()));
}

/// Returns "; expected --dtype f32 or bf16" for a value that both hold; empty if none does.
std::string advice_for(const Context& ctx, const Tensor& value) {
    std::string advice;
    for (const TrainDType dtype : {TrainDType::f32, TrainDType::bf16})
        if (is_finite(cast(ctx, value, storage_dtype(dtype))))
            advice += concat(advice.empty() ? "; expected --dtype " : " or ", name_of(dtype));
    return advice;
}

}  // namespace

void check_rounded(const Tensor& x, const Tensor& rounded, const std::string& tensor) {
    if (is_finite(rounded)) return;
    const std::size_t size = size_of(rounded.dtype());
    std::int64_t i = 0;
    while (all_finite(rounded.dtype(), rounded.raw_data() + static_cast<std::size_t>(i) * size, 1)) ++i;
    const Context ctx(Device::cpu(), 1);
    const Tensor value = empty_on_host({1}, x.dtype());
    copy_row_major(x, i, i + 1, value.raw_data());
    throw Error(concat(tensor, " holds ", item(ctx, value), ", which is beyond ", rounded.dtype(),
                       advice_for(ctx, value)));
}

}  // namespace gradtile
