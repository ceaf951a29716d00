// The commands around runs with adapters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;

/// A base run with a BPE tokenizer, and the flags that tune it, apart from those of the adapters: the model's
/// sizes come from the base.
class LoraCommands : public testing::Test {
  protected:
    void SetUp() override {
        expect_success(
            run({"tokenizer", "train", "--data", stories_, "--vocabulary", "300", "--out", tokenizer_}));
        expect_success(run(tiny_training(stories_, base_) + Arguments{"--tokenizer", tokenizer_}));
    }

    TemporaryDirectory place_;
    const std::string stories_ = write_stories(place_), tokenizer_ = place_ / "tokenizer.json",
                      base_ = place_ / "base", tuned_ = place_ / "tuned", folder_ = place_ / "exported",
                      again_ = place_ / "again";
    const Arguments tuning_ = Arguments{"train", "--init-from", base_, "--data", stories_, "--out", tuned_} +
                              Arguments{"--tokenizer", tokenizer_, "--steps", "20"} +
                              Arguments{"--batch", "4", "--lr", "3e-2", "--device", "cpu"};
};

TEST_F(LoraCommands, ARunIsSampledEvaluatedAndExportedWithMergedAdapters) {
    const Arguments tuning = tuning_ + Arguments{"--lora-rank", "2", "--lora-on", "attn.qkv,mlp"};
    const Outcome plan = run(tuning + Arguments{"--memory"});
    expect_success(plan);
    EXPECT_THAT(plan.out, HasSubstr(" trained)"));
    expect_success(run(tuning));
    EXPECT_NE(run({"sample", tuned_, "--prompt", "The "}).out,
              run({"sample", base_, "--prompt", "The "}).out);
    expect_refused(run(tuning + Arguments{"--lora-on", "attn.qvk", "--out", again_}),
                   {"lora-on: 'attn.qvk'", "expected all, attn, mlp, attn.qkv"});
    std::filesystem::remove_all(base_);  // the LoRA run's checkpoints contain the base
    expect_success(run({"train", "--resume", tuned_, "--steps", "22"}));
    expect_success(run({"export", tuned_, "--out", folder_}));
    expect_success(run({"import", folder_, "--out", again_}));
    EXPECT_EQ(run({"eval", tuned_, "--data", stories_, "--json"}).out,
              run({"eval", again_, "--data", stories_, "--json"}).out);
    EXPECT_EQ(run({"sample", tuned_, "--prompt", "The "}).out,
              run({"sample", again_, "--prompt", "The "}).out);
    EXPECT_THAT(run({"inspect", tuned_}).out, HasSubstr("h.0.attn.qkv.lora_a"));
    expect_refused(run(tiny_training(stories_, again_ + "2") + Arguments{"--lora-rank", "2"}),
                   {"lora-rank: 2 without init-from"});
}

TEST_F(LoraCommands, AQuantizedRunIsResumedEvaluatedAndExportedInFullPrecision) {
    const Arguments nf4{"--lora-rank", "2", "--lora-on", "attn.qkv,mlp", "--frozen-dtype", "nf4"};
    const Outcome plan = run(tuning_ + nf4 + Arguments{"--memory"});
    expect_success(plan);
    EXPECT_THAT(plan.out, HasSubstr(" trained), the blocks' frozen matrices in nf4"));
    expect_refused(run(tuning_ + Arguments{"--frozen-dtype", "nf4"}),
                   {"frozen-dtype: \"nf4\" without lora-rank, so that no matrix is frozen; expected same"});
    expect_refused(run(tuning_ + Arguments{"--lora-rank", "2", "--frozen-dtype", "fp4"}),
                   {"frozen-dtype", "fp4", "same, nf4 or int8"});
    expect_success(run(tuning_ + nf4));
    expect_refused(run({"train", "--resume", tuned_, "--frozen-dtype", "int8"}),
                   {"--frozen-dtype: cannot change when a run is resumed"});
    std::filesystem::remove_all(base_);  // the run's checkpoints contain the base
    expect_success(run({"train", "--resume", tuned_, "--steps", "22"}));
    EXPECT_THAT(run({"inspect", tuned_}).out, HasSubstr("h.0.attn.proj.weight"));
    const std::string evaluated = run({"eval", tuned_, "--data", stories_, "--json"}).out;
    EXPECT_THAT(evaluated, HasSubstr("loss"));
    expect_success(run({"export", tuned_, "--out", folder_}));
    expect_success(run({"import", folder_, "--out", again_}));
    EXPECT_EQ(run({"eval", again_, "--data", stories_, "--json"}).out, evaluated);
    EXPECT_EQ(run({"sample", again_, "--prompt", "The "}).out,
              run({"sample", tuned_, "--prompt", "The "}).out);
}

}  // namespace
}  // namespace gradtile::test
