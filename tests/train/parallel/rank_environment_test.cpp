#include <gradtile/train/parallel/process_group.h>

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
    return read_rank_environment([&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    });
}

Variables operator+(Variables first, const Variables& second) {
    for (const auto& [name, value] : second) first[name] = value;
    return first;
}

/// The error message for an invalid environment; it must be one line.
std::string refusal(const Variables& variables) {
    try {
        read(variables);
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        return error.what();
    }
    return "accepted";
}

void expect_ranks(const RankEnvironment& environment, const RankEnvironment& expected) {
    EXPECT_EQ(environment.rank, expected.rank);
    EXPECT_EQ(environment.size, expected.size);
    EXPECT_EQ(environment.local_rank, expected.local_rank);
    EXPECT_EQ(environment.local_size, expected.local_size);
    EXPECT_EQ(environment.launcher, expected.launcher);
}

const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node0"},
                            {"MASTER_PORT", "29500"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables hydra = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables srun = {{"SLURM_PROCID", "5"},
                        {"SLURM_NTASKS", "7"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_NODEID", "2"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_JOB_ID", "4711"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                        {"SLURM_NODELIST", "node[03-07,12],login"}};

TEST(RankEnvironment, EmptyEnvironmentIsASingleProcess) {
    const RankEnvironment single = read({});
    expect_ranks(single, {.rank = 0, .size = 1, .local_rank = 0, .local_size = 1, .launcher = ""});
    EXPECT_EQ(single.address, "");
    EXPECT_EQ(single.port, 0);
}

TEST(RankEnvironment, ReadsTorchrunsVariables) {
    const RankEnvironment e = read(torchrun);
    expect_ranks(e, {.rank = 5, .size = 8, .local_rank = 1, .local_size = 4, .launcher = "torchrun"});
    EXPECT_EQ(e.address, "node0");
    EXPECT_EQ(e.port, 29500);
}

TEST(RankEnvironment, AvoidsTorchrunsOwnPort) {
    EXPECT_EQ(read(torchrun + Variables{{"TORCHELASTIC_RUN_ID", "none"}}).port, 29501);
    EXPECT_THAT(refusal(torchrun + Variables{{"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_PORT", "65535"}}),
                testing::StartsWith("MASTER_PORT: 65535"));
}

TEST(RankEnvironment, ReadsOpenMpisVariables) {
    const RankEnvironment e = read(open_mpi);
    expect_ranks(e, {.rank = 2, .size = 4, .local_rank = 0, .local_size = 2, .launcher = "mpirun"});
    EXPECT_EQ(e.address, "");  // rank 0 broadcasts the address through MPI
    EXPECT_EQ(e.port, 0);
}

TEST(RankEnvironment, ReadsHydrasVariables) {
    const RankEnvironment e = read(hydra);
    expect_ranks(e, {.rank = 3, .size = 4, .local_rank = 1, .local_size = 2, .launcher = "mpirun"});
}

TEST(RankEnvironment, ReadsSrunsVariables) {
    const RankEnvironment e = read(srun);
    expect_ranks(e, {.rank = 5, .size = 7, .local_rank = 1, .local_size = 2, .launcher = "srun"});
    EXPECT_EQ(e.address, "node03");
    EXPECT_GE(e.port, 1024);
    EXPECT_LT(e.port, 32768);  // Linux's ephemeral ports begin here
}

TEST(RankEnvironment, PortIsTheSameWithinAStepAndDiffersBetweenSteps) {
    const int port = read(srun).port;
    EXPECT_EQ(read(srun + Variables{{"SLURM_PROCID", "0"}}).port, port);
    EXPECT_NE(read(srun + Variables{{"SLURM_STEP_ID", "1"}}).port, port);
    EXPECT_NE(read(srun + Variables{{"SLURM_JOB_ID", "4712"}}).port, port);
}

TEST(RankEnvironment, FindsTheFirstHostOfASlurmList) {
    const auto host = [](const char* list) {
        return read(srun + Variables{{"SLURM_NODELIST", list}}).address;
    };
    EXPECT_EQ(host("a"), "a");
    EXPECT_EQ(host("a,b"), "a");
    EXPECT_EQ(host("node[03-07,12]"), "node03");
    EXPECT_EQ(host("node[12,03-07]-ib"), "node12-ib");
    EXPECT_EQ(host("rack[1-2]n[3,5],x"), "rack1n3");
    EXPECT_EQ(host("10.0.0.1,10.0.0.2"), "10.0.0.1");
    for (const char* bad : {"node[03-07", "node]3", ",a", "n[[1]]"})
        EXPECT_EQ(refusal(srun + Variables{{"SLURM_NODELIST", bad}}),
                  concat("SLURM_NODELIST: '", bad, "'; expected hosts like node[03-07,12]"));
}

TEST(RankEnvironment, StepVariablesOverrideJobVariables) {
    const RankEnvironment e =
        read(srun + Variables{{"SLURM_STEP_NODELIST", "node07"}, {"SLURM_STEP_NUM_TASKS", "6"}});
    EXPECT_EQ(e.address, "node07");
    EXPECT_EQ(e.size, 6);
}

TEST(RankEnvironment, CountsTheTasksOfASlurmNode) {
    const auto local_size = [](const char* list, const char* node) {
        return read(srun + Variables{{"SLURM_STEP_TASKS_PER_NODE", list},
                                     {"SLURM_NODEID", node},
                                     {"SLURM_LOCALID", "0"}})
            .local_size;
    };
    EXPECT_EQ(local_size("4", "0"), 4);
    EXPECT_EQ(local_size("2(x3),1", "2"), 2);
    EXPECT_EQ(local_size("2(x3),1", "3"), 1);
    EXPECT_EQ(local_size("1,2,3(x2)", "1"), 2);
    for (const char* bad : {"two", "2(x", "2(x3", "2;1", "0", "2(xy)"})
        EXPECT_EQ(refusal(srun + Variables{{"SLURM_STEP_TASKS_PER_NODE", bad}}),
                  concat("SLURM_STEP_TASKS_PER_NODE: '", bad, "'; expected tasks per node, like 2(x3),1"));
}

TEST(RankEnvironment, ShellInAnAllocationIsASingleProcess) {
    Variables shell = srun;
    shell.erase("SLURM_STEP_ID");  // as in a batch script, and in salloc's shell on the login node
    EXPECT_EQ(read(shell).size, 1);
    for (const char* step :
         {"4294967290", "4294967291"})  // the steps of salloc's shell and of a batch script
        EXPECT_EQ(read(srun + Variables{{"SLURM_STEP_ID", step}}).size, 1) << step;
    shell = srun;
    shell.erase("SLURM_PROCID");
    EXPECT_EQ(read(shell).size, 1);
}

TEST(RankEnvironment, TorchrunAndMpirunOverrideSrun) {
    EXPECT_EQ(read(srun + torchrun).rank, 5);
    EXPECT_EQ(read(srun + torchrun).size, 8);
    EXPECT_EQ(read(srun + open_mpi).rank, 2);
    EXPECT_EQ(read(srun + open_mpi).address, "");
    EXPECT_EQ(read(srun + hydra).size, 4);
}

TEST(RankEnvironment, MasterVariablesOverrideTheLauncher) {
    const Variables master = {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "4000"}};
    for (const Variables& launcher : {open_mpi, hydra, srun}) {
        EXPECT_EQ(read(launcher + master).address, "10.1.2.3");
        EXPECT_EQ(read(launcher + master).port, 4000);
    }
    // MASTER_PORT without MASTER_ADDR, as a firewall may require.
    EXPECT_EQ(read(open_mpi + Variables{{"MASTER_PORT", "4000"}}).address, "");
    EXPECT_EQ(read(open_mpi + Variables{{"MASTER_PORT", "4000"}}).port, 4000);
    EXPECT_EQ(read(srun + Variables{{"MASTER_PORT", "4000"}}).address, "node03");
    EXPECT_EQ(read(srun + Variables{{"MASTER_PORT", "4000"}}).port, 4000);
    EXPECT_EQ(read(srun + Variables{{"MASTER_ADDR", "other"}}).address, "other");
}

TEST(RankEnvironment, SingleProcessNeedsNoAddress) {
    const RankEnvironment e = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
    EXPECT_EQ(e.size, 1);
    EXPECT_EQ(e.address, "");
    EXPECT_EQ(read({{"MASTER_ADDR", "left over"}, {"MASTER_PORT", "nonsense"}}).address, "");
}

TEST(RankEnvironment, WithoutALocalRankEachHostHasOneProcess) {
    const Variables plain = {
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "4000"}};
    EXPECT_EQ(read(plain).local_rank, 0);
    EXPECT_EQ(read(plain).local_size, 1);
    const RankEnvironment e = read(torchrun + Variables{{"LOCAL_RANK", ""}});
    EXPECT_EQ(e.local_rank, 1);
    EXPECT_EQ(e.local_size, 4);
}

TEST(RankEnvironment, RefusesNonNumbersAndValuesOutOfRange) {
    EXPECT_EQ(refusal(torchrun + Variables{{"RANK", "8"}}), "RANK: '8'; expected a whole number from 0 to 7");
    EXPECT_EQ(refusal(torchrun + Variables{{"WORLD_SIZE", "0"}}),
              "WORLD_SIZE: '0'; expected a whole number from 1 to 1000000");
    EXPECT_EQ(refusal(torchrun + Variables{{"LOCAL_RANK", "4"}}),
              "LOCAL_RANK: '4'; expected a whole number from 0 to 3");
    EXPECT_EQ(refusal(torchrun + Variables{{"LOCAL_WORLD_SIZE", "9"}}),
              "LOCAL_WORLD_SIZE: '9'; expected a whole number from 1 to 8");
    EXPECT_EQ(refusal(torchrun + Variables{{"MASTER_PORT", "65536"}}),
              "MASTER_PORT: '65536'; expected a whole number from 1 to 65535");
    const std::pair<Variables, std::vector<const char*>> numbers[] = {
        {torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}},
        {open_mpi,
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE"}},
        {hydra, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
        {srun,
         {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_JOB_ID"}}};
    for (const auto& [launcher, names] : numbers) {
        for (const char* name : names) {
            for (const char* bad : {"x", "1x", "-1", "1.0", " 1", "99999999999999999999"})
                EXPECT_THAT(
                    refusal(launcher + Variables{{name, bad}}),
                    testing::StartsWith(concat(name, ": '", bad, "'; expected a whole number from ")));
        }
    }
    EXPECT_EQ(refusal(srun + Variables{{"SLURM_LOCALID", "2"}}),
              "SLURM_LOCALID: 2; expected less than this node's 2 tasks");
}

TEST(RankEnvironment, RefusesRankOrWorldSizeAlone) {
    EXPECT_EQ(refusal({{"RANK", "1"}}),
              "WORLD_SIZE: not set, while RANK is '1'; expected the number of processes");
    EXPECT_EQ(refusal({{"WORLD_SIZE", "2"}}),
              "RANK: not set, while WORLD_SIZE is '2'; expected this process's rank");
    EXPECT_EQ(refusal({{"OMPI_COMM_WORLD_RANK", "1"}}),
              "OMPI_COMM_WORLD_SIZE: not set, while OMPI_COMM_WORLD_RANK is '1'; expected the number of "
              "processes");
    EXPECT_EQ(refusal({{"PMI_SIZE", "2"}}),
              "PMI_RANK: not set, while PMI_SIZE is '2'; expected this process's rank");
    EXPECT_EQ(refusal({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}),
              "SLURM_NTASKS: not set, while SLURM_PROCID is '1'; expected the number of tasks");
}

TEST(RankEnvironment, RefusesAnUnknownAddressOfRankZero) {
    const Variables two = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
    EXPECT_EQ(refusal(two),
              "MASTER_ADDR: not set, while torchrun started 2 processes; expected the host of rank 0");
    EXPECT_EQ(refusal(two + Variables{{"MASTER_ADDR", "a"}}),
              "MASTER_PORT: not set, while MASTER_ADDR is 'a'; expected a port that is free on that host");
    EXPECT_THAT(refusal(open_mpi + Variables{{"MASTER_ADDR", "a"}}),
                testing::StartsWith("MASTER_PORT: not set"));
    Variables unknown_host = srun;
    unknown_host.erase("SLURM_NODELIST");
    EXPECT_THAT(refusal(unknown_host), testing::StartsWith("MASTER_ADDR: not set, while srun"));
}

TEST(RankEnvironment, RefusesLaunchersThatContradictEachOther) {
    const Variables agreeing = {{"RANK", "2"}, {"WORLD_SIZE", "4"}};
    EXPECT_EQ(read(open_mpi + agreeing).rank, 2);
    EXPECT_EQ(read(open_mpi + agreeing).local_size, 2);  // a variable that only one launcher sets
    EXPECT_EQ(refusal(open_mpi + Variables{{"RANK", "1"}, {"WORLD_SIZE", "4"}}),
              "RANK is 1, but OMPI_COMM_WORLD_RANK is 2; expected them to be equal, or only one to be set");
    EXPECT_EQ(refusal(open_mpi + Variables{{"RANK", "2"}, {"WORLD_SIZE", "8"}}),
              "WORLD_SIZE is 8, but OMPI_COMM_WORLD_SIZE is 4; expected them to be equal, or only one to be "
              "set");
    EXPECT_THAT(refusal(open_mpi + agreeing + Variables{{"LOCAL_RANK", "1"}}),
                testing::StartsWith("LOCAL_RANK is 1, but OMPI_COMM_WORLD_LOCAL_RANK is 0"));
    EXPECT_THAT(refusal(open_mpi + hydra),
                testing::StartsWith("OMPI_COMM_WORLD_RANK is 2, but PMI_RANK is 3"));
}

}  // namespace
}  // namespace gradtile
