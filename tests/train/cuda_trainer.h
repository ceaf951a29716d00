#pragma once
/// Runs on the GPU, deterministic ones.
#include <vector>

#include <support/cuda_test.h>
#include "tiny_run.h"

namespace gradtile::test {

class CudaTrainer : public CudaTest {
  protected:
    void SetUp() override {
        CudaTest::SetUp();
        run.config.device = DeviceChoice::cuda;
        run.config.training.deterministic = true;
    }
    std::vector<StepReport> reports_of(const TrainConfig& config) {
        Trainer trainer(config, run.on_message);
        std::vector<StepReport> reports;
        trainer.on_step([&](const StepReport& report) { reports.push_back(report); });
        trainer.run();
        return reports;
    }
    TinyRun run;
};

class CudaTrainerSettings : public CudaTrainer, public testing::WithParamInterface<RunSetting> {};

}  // namespace gradtile::test
