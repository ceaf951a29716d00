// From an import of each family to its export: trained at every recompute level, in bf16, packed and with
// adapters; generated from with the cache; exported to both formats.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/generation/next_token.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/model/merged_adapters.h>
#include <gradtile/train/trainer.h>

#include <support/error_message.h>
#include <tools/formats/weights_fixture.h>

namespace gradtile {
namespace {

using test::TemporaryDirectory;
using testing::HasSubstr;

/// A way of training, in the table's row.
struct Way {
    const char* name;
    void (*change)(TrainConfig& config);
};

const Way ways[] = {
    {"nothing recomputed", [](TrainConfig&) {}},
    {"activations recomputed", [](TrainConfig& c) { c.training.recompute = Recompute::activations; }},
    {"blocks recomputed", [](TrainConfig& c) { c.training.recompute = Recompute::block; }},
    {"bf16", [](TrainConfig& c) { c.dtype = TrainDType::bf16; }},
    {"packed",
     [](TrainConfig& c) {
         c.packed = true;
         c.document_token = 3;
     }},
    {"packed, bf16, blocks recomputed",
     [](TrainConfig& c) {
         c.packed = true;
         c.document_token = 3;
         c.dtype = TrainDType::bf16;
         c.training.recompute = Recompute::block;
     }},
    {"adapters", [](TrainConfig& c) { c.adapters.rank = 2; }},
    {"adapters, bf16, packed, activations recomputed",
     [](TrainConfig& c) {
         c.adapters.rank = 2;
         c.packed = true;
         c.document_token = 3;
         c.dtype = TrainDType::bf16;
         c.training.recompute = Recompute::activations;
     }},
};

class FamilyRuns : public testing::TestWithParam<test::FamilyModel> {
  protected:
    void SetUp() override {
        if (config_.head_width == 12) config_.head_width = 16;  // bf16 needs multiples of 8
        ImportedModel model = test::random_model(config_);
        export_model(checkpoint_of(model, "x"), "run", {.out = place_ / "published"});
        write_imported_run(import_model(place_ / "published"), imported_);
        data_ = place_.write("tokens.bin", test::some_letter_ids(600));
    }

    /// Trains two steps from the import, and returns the run's directory.
    std::string trained(const Way& way, DeviceChoice device) {
        TrainConfig config;
        adopt_model(config, imported_);
        config.init_from = imported_;
        config.data = data_;
        config.out = place_ / std::to_string(number_++);
        config.steps = 2;
        config.batch = 2;
        config.lr = 1e-2;
        config.warmup = 0;
        config.threads = 1;
        config.device = device;
        config.eval_every = 0;
        way.change(config);
        Trainer trainer(config, [](const std::string&) {});
        EXPECT_EQ(trainer.run().step, 2) << way.name;
        return config.out;
    }

    /// Expects that both formats hold the run's model, and that safetensors gives it back.
    void expect_exports(const std::string& run, const char* way) {
        const Checkpoint checkpoint = load_checkpoint(run);
        const std::string folder = place_ / concat("folder", number_),
                          file = place_ / concat(number_, ".gguf");
        export_model(checkpoint, run, {.out = folder});
        EXPECT_EQ(test::json_of(std::filesystem::path(folder) / "config.json")["model_type"], GetParam().name)
            << way;
        const ImportedModel again = import_model(folder);
        EXPECT_EQ(again.config, load_model(imported_)->transformer.config) << way;
        test::expect_equal_bits(again.parameters, merged_adapters(checkpoint, run).params);
        // llama.cpp does not compute three settings of these small models: Mistral's windows, Gemma's query
        // scale and SmolLM3's RoPE pattern.
        const std::set<std::string_view> refused{"mistral", "gemma2", "gemma3_text", "smollm3"};
        const std::string message = test::message_of(
            [&] { export_model(checkpoint, run, {.format = ExportFormat::gguf, .out = file}); });
        EXPECT_THAT(message, refused.contains(GetParam().name) ? HasSubstr("cannot be stored in GGUF")
                                                               : HasSubstr("no error"))
            << way;
    }

    ModelConfig config_ = GetParam().config;
    TemporaryDirectory place_;
    std::string imported_ = place_ / "imported", data_;
    int number_ = 0;
};

/// Logits with the cache and without, token by token, over the end of the context.
void expect_cache_changes_nothing(const std::string& run, const char* way) {
    const auto model = load_model(run);
    NextToken cached(*model), whole(*model, 1, false);
    std::vector<std::int32_t> text{1};
    // Errors are those of the logits' terms, which may cancel in all logits of a token: they are compared
    // with the largest logit of the whole text.
    double largest = 0.0, difference = 0.0;
    for (int step = 0; step < 12; ++step) {
        const std::array<NextToken::Text, 1> texts{NextToken::Text{0, text}};
        const std::vector<double> a = cached.logits(texts).front(), b = whole.logits(texts).front();
        for (std::size_t i = 0; i < a.size(); ++i) {
            largest = std::max(largest, std::abs(b[i]));
            difference = std::max(difference, std::abs(a[i] - b[i]));
        }
        text.push_back(static_cast<std::int32_t>(std::ranges::max_element(b) - b.begin()));
    }
    // As in import_test.cpp: sums of some 50 products in a chain of 20. bf16 rounds 2^16 times as coarsely.
    const double bound = model->parameters.dtype() == DType::bf16 ? 0.05 : 1e-5;
    ASSERT_LE(difference, bound * largest) << way;
}

TEST_P(FamilyRuns, AreTrainedGeneratedFromAndExported) {
    std::map<std::string, NamedTensors> weights;
    const NamedTensors before = load_checkpoint(imported_).params;
    for (const Way& way : ways) {
        const std::string run = trained(way, DeviceChoice::cpu);
        expect_cache_changes_nothing(run, way.name);
        expect_exports(run, way.name);
        weights[way.name] = load_checkpoint(run).params;
        // Training changed something.
        bool changed = false;
        for (const auto& [name, x] : weights[way.name])
            changed |= !before.contains(name) || test::bytes_of(before.at(name)) != test::bytes_of(x);
        EXPECT_TRUE(changed) << way.name;
    }
    for (const char* const level : {"activations recomputed", "blocks recomputed"})
        test::expect_equal_bits(weights[level], weights["nothing recomputed"]);
}

TEST_P(FamilyRuns, AreTrainedOnAGpuAsOnTheCpu) {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    for (const Way& way : ways) {
        const std::string run = trained(way, DeviceChoice::cuda);
        expect_cache_changes_nothing(run, way.name);
        expect_exports(run, way.name);
    }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyRuns, testing::ValuesIn(test::models_of_families()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace gradtile
