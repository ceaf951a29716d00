// A step of a process whose exchanges end early because another process is lost, as they do between GPUs.
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/step_runner.h>

#include <support/silent_pair.h>

namespace gradtile::test {
namespace {

/// A loss that the test reports.
struct ReportedLoss {
    Tensor interruption = zeros(Context(), {1}, DType::f64);
    bool is_lost = false;
};

class InterruptedPair final : public SilentPair {
  public:
    explicit InterruptedPair(const ReportedLoss& loss) : loss_(loss) {}
    void synchronize(const Context&) const override {
        if (loss_.is_lost) throw RankLost("rank 0 was lost", 0);
    }
    Tensor interruption() const override { return loss_.interruption; }

  private:
    const ReportedLoss& loss_;
};

class InterruptedStep : public testing::TestWithParam<int> {
  protected:
    InterruptedStep() {
        config_.model = {.layers = 1, .heads = 2, .width = 64, .context = 16, .vocabulary = 101};
        config_.batch = config_.micro_batch = 2;
        config_.steps = 10;
        config_.zero = GetParam();
    }

    std::unique_ptr<StepRunner> runner() {
        std::vector<std::int32_t> ids(1000);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 101);
        auto runner = std::make_unique<StepRunner>(
            Context(), config_, Dataset{.train = TokenSequence(std::move(ids), "ids")},
            std::make_unique<InterruptedPair>(loss_), group_, callbacks_, [](const std::string&) {});
        runner->replica().initialize(Seed{1});
        return runner;
    }
    /// Values, and what the optimizer keeps.
    static std::vector<std::vector<double>> state_of(StepRunner& runner) {
        const Context ctx;
        std::vector<std::vector<double>> state = {to_host(ctx, runner.replica().model.parameters.values())};
        for (const StateTensor& part : runner.replica().optimizer->state())
            state.push_back(to_host(ctx, part.tensor));
        return state;
    }

    TrainConfig config_;
    RunCallbacks callbacks_;
    ProcessGroup group_;
    ReportedLoss loss_;
};

TEST_P(InterruptedStep, ChangesNothingAndIsDoneAgain) {
    const auto undisturbed = runner(), disturbed = runner();
    undisturbed->run_step(1, /*prepares_next=*/true);
    const auto before = state_of(*disturbed);
    loss_.is_lost = true;
    fill(Context(), loss_.interruption, 1.0);
    EXPECT_THROW(disturbed->run_step(1, true), RankLost);
    EXPECT_EQ(state_of(*disturbed), before);
    disturbed->drop_input();
    disturbed->disconnect();
    loss_.is_lost = false;
    fill(Context(), loss_.interruption, 0.0);
    disturbed->run_step(1, true);
    EXPECT_NE(state_of(*disturbed), before);
    EXPECT_EQ(state_of(*disturbed), state_of(*undisturbed));
}

/// The loss is reported after the step's last sum.
TEST_P(InterruptedStep, CountsIfAllItsSumsWereComplete) {
    const auto undisturbed = runner(), disturbed = runner();
    const auto expected = undisturbed->run_step(1, true);
    loss_.is_lost = true;
    const auto report = disturbed->run_step(1, true);
    ASSERT_TRUE(report && expected);
    EXPECT_EQ(report->loss, expected->loss);
    EXPECT_EQ(report->grad_norm, expected->grad_norm);
    EXPECT_EQ(state_of(*disturbed), state_of(*undisturbed));
}

INSTANTIATE_TEST_SUITE_P(ZeroLevels, InterruptedStep, testing::Values(0, 1));

}  // namespace
}  // namespace gradtile::test
