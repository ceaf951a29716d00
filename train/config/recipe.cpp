#include <gradtile/train/config/recipe.h>

#include <algorithm>
#include <cmath>

namespace gradtile {
namespace {

using namespace recipe;

/// The model's options. Heads are 128 wide, or 64 where the width is no multiple of 128. The MLP is four
/// times as wide as the model.
ModelConfig recipe_model(std::int64_t depth) {
    const std::int64_t width = layer_width * depth, head_width = width % 128 == 0 ? 128 : 64;
    ModelConfig m{.layers = depth, .heads = width / head_width, .width = width, .context = context};
    m.norm = Norm::rms;
    m.activation = Activation::gelu_tanh;
    m.positions = Positions::rope;
    m.rope_base = 1024;
    m.rope_scaling.kind = RopeKind::half_truncated;
    m.qk_norm = true;
    m.qk_norm_kind = QkNorm::head_without_gain;
    m.query_scalar = 69.44 * static_cast<double>(head_width) / 128;  // scores times 0.12 with heads of 128
    m.key_offset = true;
    m.embedding_norm = true;
    m.logit_softcap = {.limit = 15, .form = SoftcapForm::root};
    return m;
}

/// The optimizer's options. AdamW's rate of the tied embedding is proportional to 1 / width; that of vectors
/// and Muon's do not depend on the width.
void set_rates(TrainConfig& c) {
    const double wider = static_cast<double>(c.model.width) / (layer_width * reference_depth);
    c.optimizer = kind_of<MuonSettings>;
    auto& muon = std::get<MuonSettings>(c.optimizer_settings);
    muon.lr = 0.025;
    muon.split = true;
    muon.coefficients = MuonCoefficients::polar_express;
    muon.beta2 = 0.95;
    c.lr = 1e-3 / wider;
    c.min_lr = 0;
    c.embedding_lr_factor = 8;
    c.vector_lr_factor = 15 * wider;
    auto& adamw = std::get<AdamWSettings>(c.optimizer_settings);
    adamw.beta1 = 0.8;
    adamw.beta2 = 0.95;
    adamw.epsilon = 1e-10;
    c.weight_decay = 0.05;
    c.clip = 0;
    c.schedule = ScheduleKind::wsd;
    c.wsd_decay = 0.7;
    c.warmup = 0;
}

std::int64_t nearest_power_of_two(double x) {
    return std::int64_t{1} << std::max<std::int64_t>(0, std::llround(std::log2(x)));
}

}  // namespace

TrainConfig recipe_config(std::int64_t depth, double tokens) {
    check(depth >= min_depth && depth <= max_depth, "depth: ", depth, "; expected ", min_depth, " to ",
          max_depth);
    TrainConfig c;
    c.model = recipe_model(depth);
    set_rates(c);
    const double step_tokens =
        reference_step_tokens *
        std::pow(tokens / static_cast<double>(reference_steps * reference_step_tokens), batch_exponent);
    c.batch = nearest_power_of_two(step_tokens / static_cast<double>(context));
    c.steps = std::max<std::int64_t>(1, std::llround(tokens / static_cast<double>(c.batch * context)));
    c.micro_batch = std::min(c.batch, max_micro_batch);
    c.dtype = TrainDType::bf16;
    c.out = concat("runs/depth-", depth);
    return c;
}

double recipe_tokens(std::int64_t depth) {
    const ModelConfig model = recipe_model(depth);
    return tokens_per_weight * static_cast<double>(model.layers * block_matrices(model).elements());
}

}  // namespace gradtile
